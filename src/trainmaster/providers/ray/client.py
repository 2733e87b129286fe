"""A client for machines of a Ray that is called as OpenSSH's ``ssh`` is: for shells, commands and ports.

``python -m trainmaster.providers.ray.client WAY [-t] [-L FILE:HOST:PORT] MACHINE COMMAND``
"""

from __future__ import annotations

import base64
import contextlib
import os
import shlex
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from trainmaster.providers.ray.proxy import proxy_of
from trainmaster.providers.ray.settings import RAY
from trainmaster.providers.ray.transport import RayConnection
from trainmaster.spec.errors import TrainmasterError
from trainmaster.transport.base import Target
from trainmaster.transport.client import ClientOrder, raw_terminal, run_client

_READ_BYTES: Final = 1 << 16
_TERMINAL: Final = (
    "import os, pty, sys\n"
    "sys.exit(os.waitstatus_to_exitcode(pty.spawn(['/bin/sh', '-c', sys.argv[1]])) % 256)"
)


def main(words: list[str] | None = None) -> int:
    """Do what was asked; its exit code."""
    return run_client(_do, words)


def _do(order: ClientOrder) -> int:
    file, root = shlex.split(order.way)
    proxy = proxy_of(RAY.read(Path(root), {"TRAINMASTER_RAY": file}), Path(root))
    connection = RayConnection(Target(order.machine, order.machine), proxy)
    with (
        contextlib.closing(proxy),
        contextlib.closing(connection),
        order.listening() as wanted,
        connection.serving(*wanted) if wanted else contextlib.nullcontext(),
    ):
        return _run(connection, order.command, order.is_terminal)


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
