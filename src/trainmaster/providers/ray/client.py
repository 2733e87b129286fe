"""A client for machines of a Ray that is called as OpenSSH's ``ssh`` is: for shells, commands and ports.

``python -m trainmaster.providers.ray.client WAY [-t] [-L FILE:HOST:PORT] MACHINE COMMAND``
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import shlex
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trainmaster.providers.ray.proxy import proxy_of
from trainmaster.providers.ray.settings import read_settings
from trainmaster.providers.ray.transport import RayConnection
from trainmaster.spec.errors import TrainmasterError, one_line
from trainmaster.transport.base import Target
from trainmaster.transport.conversation import raw_terminal

_READ_BYTES: Final = 1 << 16
#: As ``ssh`` ends when there is no connection.
_LOST: Final = 255
_TERMINAL: Final = (
    "import os, pty, sys\n"
    "sys.exit(os.waitstatus_to_exitcode(pty.spawn(['/bin/sh', '-c', sys.argv[1]])) % 256)"
)


def main(words: list[str] | None = None) -> int:
    """Do what was asked; its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way")
    parser.add_argument("-t", action="store_true", dest="is_terminal")
    parser.add_argument("-T", action="store_true")
    parser.add_argument("-o", action="append")
    parser.add_argument("-L", dest="forward", default="")
    parser.add_argument("machine")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    file, root = shlex.split(asked.way)
    try:
        proxy = proxy_of(read_settings(Path(root), {"TRAINMASTER_RAY": file}), Path(root))
        connection = RayConnection(Target(asked.machine, asked.machine), proxy)
        with (
            contextlib.closing(proxy),
            contextlib.closing(connection),
            _forwarded(connection, asked.forward),
        ):
            return _run(connection, " ".join(asked.command), asked.is_terminal and os.isatty(0))
    except TrainmasterError as error:
        sys.stderr.write(f"{one_line(error)}\n")
        return _LOST


@contextlib.contextmanager
def _forwarded(connection: RayConnection, wanted: str) -> Iterator[None]:
    """A socket file here leads to a port there."""
    if not wanted:
        yield
        return
    place, host, port = wanted.rsplit(":", 2)
    with socket.socket(socket.AF_UNIX) as server:
        os.umask(0o077)
        server.bind(place)
        server.listen(64)
        with connection.serving(server, host, int(port)):
            yield


def _run(connection: RayConnection, command: str, is_terminal: bool) -> int:
    line = command or 'exec "${SHELL:-/bin/sh}" -l'
    if is_terminal:
        size, term = shutil.get_terminal_size(), shlex.quote(os.environ.get("TERM", "dumb"))
        inside = f"stty rows {size.lines} cols {size.columns}; export TERM={term}; {line}"
        line = f"exec python3 -c {shlex.quote(_TERMINAL)} {shlex.quote(inside)}"
    key = connection.key()
    connection.ask("call", "start", key, line)

    def end(number: int, _: object) -> None:
        connection.ask("call", "close", key)
        os._exit(128 + number)

    for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(each, end)
    threading.Thread(target=_send_up, args=(connection, key), daemon=True).start()
    code: int | None = None
    with raw_terminal(is_terminal):
        while code is None:
            out, err, code = connection.ask("call", "hear", key)
            for number, said in ((1, out), (2, err)):
                data = base64.b64decode(said)
                while data:
                    data = data[os.write(number, data) :]
    return code if code >= 0 else 128 - code


def _send_up(connection: RayConnection, key: str) -> None:
    """What is typed, or comes from a file."""
    with contextlib.suppress(OSError, TrainmasterError):
        while data := os.read(0, _READ_BYTES):
            if not connection.ask("call", "send", key, base64.b64encode(data).decode(), False):
                return
        connection.ask("call", "send", key, "", True)


if __name__ == "__main__":
    sys.exit(main())
