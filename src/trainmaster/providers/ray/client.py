"""A client for machines of a Ray that is called as OpenSSH's ``ssh`` is: for shells, commands and ports.

``python -m trainmaster.providers.ray.client WAY [-t] [-L FILE:HOST:PORT] MACHINE COMMAND``
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

from trainmaster.providers.ray.proxy import proxy_of
from trainmaster.providers.ray.settings import RAY
from trainmaster.providers.ray.transport import RayConnection
from trainmaster.transport.base import Target
from trainmaster.transport.client import ClientOrder, relay, run_client

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
    with contextlib.closing(proxy), contextlib.closing(connection), order.forwarded(connection):
        return asyncio.run(_run(connection, order.command, order.is_terminal))


async def _run(connection: RayConnection, command: str, is_terminal: bool) -> int:
    line = command or 'exec "${SHELL:-/bin/sh}" -l'
    if is_terminal:
        size, term = shutil.get_terminal_size(), shlex.quote(os.environ.get("TERM", "dumb"))
        inside = f"stty rows {size.lines} cols {size.columns}; export TERM={term}; {line}"
        line = f"exec python3 -c {shlex.quote(_TERMINAL)} {shlex.quote(inside)}"
    process = await connection.start(line)

    async def end_there() -> None:
        await process.call("close", process.key)

    async def resize() -> None:
        """It has the size that it began with."""

    return await relay(process, end_there, resize if is_terminal else None)


if __name__ == "__main__":
    sys.exit(main())
