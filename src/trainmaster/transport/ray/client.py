"""A client for machines of a Ray that is called as OpenSSH's ``ssh`` is: for shells, commands and ports.

Who knows where that Ray is starts it: `providers/ray/reaching.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
from collections.abc import Callable
from typing import Final

from trainmaster.transport.base import Target
from trainmaster.transport.client import ClientOrder, relay, run_client
from trainmaster.transport.ray.bundles import RayConnection
from trainmaster.transport.ray.proxy import RayProxy

_TERMINAL: Final = (
    "import os, pty, sys\n"
    "sys.exit(os.waitstatus_to_exitcode(pty.spawn(['/bin/sh', '-c', sys.argv[1]])) % 256)"
)


def main(proxy_at: Callable[[str], RayProxy]) -> int:
    """Do what was asked; its exit code.

    Args:
        proxy_at: what speaks with the Ray that a way leads to.
    """
    return run_client(lambda order: _do(proxy_at(order.way), order))


def _do(proxy: RayProxy, order: ClientOrder) -> int:
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
