"""Ansible's commands as processes of ours: their output goes to a log, and nothing of them is left."""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from trainmaster.spec.errors import MissingPartError
from trainmaster.spec.processes import end_marked

#: Marks all processes of a run's Ansible; its value is the run's directory.
RUN_VARIABLE: Final = "TRAINMASTER_ROLES"
#: Marks those of one call, here and on the machines; its value is the directory of the call.
CALL_VARIABLE: Final = "TRAINMASTER_ROLES_CALL"
#: Of the caller's own variables for Ansible, these say where things are; others would change what roles do.
_TAKEN_OVER: Final = ("ANSIBLE_COLLECTIONS_PATH", "ANSIBLE_VAULT_PASSWORD_FILE", "ANSIBLE_GALAXY_SERVER")
_LOOK_S: Final = 0.5
_PIECE_BYTES: Final = 1 << 16
_calls: set[str] = set()
_guard = threading.Lock()


def find_program(name: str) -> str:
    """The path of one of Ansible's programs.

    Raises:
        MissingPartError: it is not installed.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise MissingPartError(
            "roles need ansible-core, which is not installed", "pip install 'trainmaster[roles]'"
        )
    if shutil.which("ssh") is None:
        raise MissingPartError(
            "roles need OpenSSH's `ssh`, which is not installed", "apt install openssh-client"
        )
    return found


def call(
    command: Sequence[str],
    cwd: Path,
    variables: Mapping[str, str],
    directory: Path,
    output: Callable[[bytes], None],
    timeout_s: float,
    is_over: threading.Event,
) -> int | None:
    """Run a program to its end.

    Args:
        command: with its arguments.
        cwd: where.
        variables: on top of the caller's, without those that change how Ansible works.
        directory: of this call; no other one has the same.
        output: takes what it says.
        timeout_s: after which it is ended.
        is_over: set when it is not waited for any more.

    Returns:
        Its exit code; None if it was ended.
    """
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ANSIBLE_") or name in _TAKEN_OVER
    }
    mark = str(directory)
    with _guard:
        if not _calls:
            atexit.register(_end_calls)
        _calls.add(mark)
    try:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**own, **variables, CALL_VARIABLE: mark, "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us: we end it
        )
        assert process.stdout is not None
        with process, contextlib.closing(process.stdout) as pipe:
            try:
                is_done = _read(pipe, process, output, timeout_s, is_over)
            finally:
                end_marked(CALL_VARIABLE, mark)
            code = process.wait()
        return code if is_done else None
    finally:
        end_marked(CALL_VARIABLE, mark)  # connections that it keeps open for a while
        with _guard:
            _calls.discard(mark)


def _read(
    pipe: IO[bytes],
    process: subprocess.Popen[bytes],
    output: Callable[[bytes], None],
    timeout_s: float,
    is_over: threading.Event,
) -> bool:
    """Take what is said until the program ends; False if that took too long.

    What it leaves behind (connections that stay open) may keep the pipe open, which is not waited for.
    """
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while time.monotonic() < deadline and not is_over.is_set():
            has_ended = process.poll() is not None
            if selector.select(0 if has_ended else _LOOK_S):
                piece = os.read(pipe.fileno(), _PIECE_BYTES)
                if not piece:
                    process.wait()
                    return True
                output(piece)
            elif has_ended:
                return True
    return False


def _end_calls() -> None:
    # The run is over or interrupted while a thread still waits for one.
    for mark in list(_calls):
        end_marked(CALL_VARIABLE, mark)
