"""Ansible's commands as processes of ours: their output goes to a log, and nothing of them is left."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from trainmaster.spec.errors import MissingPartError
from trainmaster.spec.processes import end_marked, said_by

#: Marks all processes of a run's Ansible; its value is the run's directory.
RUN_VARIABLE: Final = "TRAINMASTER_ROLES"
#: Marks those of one call, here and on the machines; its value is the directory of the call.
CALL_VARIABLE: Final = "TRAINMASTER_ROLES_CALL"
#: Of the caller's own variables for Ansible, these say where things are; others would change what roles do.
_TAKEN_OVER: Final = ("ANSIBLE_COLLECTIONS_PATH", "ANSIBLE_VAULT_PASSWORD_FILE", "ANSIBLE_GALAXY_SERVER")
_LOOK_S: Final = 0.5
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
        deadline = time.monotonic() + timeout_s
        with process, contextlib.closing(process.stdout) as pipe:
            try:
                for _, piece in said_by(process, pipe, look_s=_LOOK_S):
                    output(piece)
                    if time.monotonic() >= deadline or is_over.is_set():
                        return None
                return process.wait()
            finally:
                end_marked(CALL_VARIABLE, mark)
    finally:
        end_marked(CALL_VARIABLE, mark)  # connections that it keeps open for a while
        with _guard:
            _calls.discard(mark)


def _end_calls() -> None:
    # The run is over or interrupted while a thread still waits for one.
    for mark in list(_calls):
        end_marked(CALL_VARIABLE, mark)
