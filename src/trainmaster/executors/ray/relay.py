"""Joins standard input and output to the socket of this node's gateway, which it starts if there is none.

``python -m trainmaster.executors.ray.relay gateway DIRECTORY``: so a driver reaches it over SSH.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

from trainmaster.executors._processes import kept_environment
from trainmaster.executors.process_limits import forbid_core_dumps
from trainmaster.executors.wire import encode

_START_TIMEOUT_S = 60.0
_CHUNK_BYTES = 1 << 18


def main(arguments: list[str]) -> None:
    """Relay until either end hangs up."""
    forbid_core_dumps()
    _, directory = arguments
    try:
        stream = _gateway(Path(directory))
    except _CannotStart as error:
        os.write(1, encode({"reply": "error", "error": str(error)}))
        sys.exit(1)
    pump(stream)


class _CannotStart(Exception):  # noqa: N818 - told to the driver
    pass


def _gateway(directory: Path) -> socket.socket:
    deadline = time.monotonic() + _START_TIMEOUT_S
    starter: subprocess.Popen[bytes] | None = None
    while time.monotonic() < deadline:
        try:
            return _connect(directory)
        except OSError:
            pass
        if starter is None:
            starter = _start(directory)
        elif starter.poll() is not None:
            if starter.returncode:
                raise _CannotStart(_last_words(directory / "log"))
            starter = None  # another one holds the lock and is about to listen, or to end
        time.sleep(0.02)
    raise _CannotStart(f"what places tasks does not start there; its log is {directory / 'log'}")


def _start(directory: Path) -> subprocess.Popen[bytes]:
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        with (directory / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "trainmaster.executors.ray.gateway", str(directory)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env=kept_environment(),
            )
    except OSError as error:
        raise _CannotStart(f"cannot use {directory}: {error.strerror}; does the cluster run?") from error


def _connect(directory: Path) -> socket.socket:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.connect(f"/proc/self/fd/{descriptor}/socket")  # the path may be too long otherwise
    except OSError:
        stream.close()
        raise
    finally:
        os.close(descriptor)
    return stream


def pump(stream: socket.socket) -> None:
    """Carry what comes from either end to the other, until one hangs up."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(stream, select.POLLIN)
    try:
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == 0:
                    data = os.read(0, _CHUNK_BYTES)
                    stream.sendall(data)
                else:
                    data = stream.recv(_CHUNK_BYTES)
                    _write_all(data)
                if not data:
                    return
    except OSError:
        return  # either end is gone


def _write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _last_words(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError as error:
        return str(error)
    return lines[-1] if lines else "the gateway ended and said nothing"


if __name__ == "__main__":
    main(sys.argv[1:])
