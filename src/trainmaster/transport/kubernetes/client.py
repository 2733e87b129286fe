"""A client for pods that is called as OpenSSH's ``ssh`` is: for shells, commands and forwarded ports.

``python -m trainmaster.transport.kubernetes.client WAY [-t] [-L FILE:HOST:PORT] POD COMMAND``
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
from uuid import uuid4

from trainmaster.spec.errors import TrainmasterError
from trainmaster.transport.base import Target
from trainmaster.transport.client import ClientOrder, relay, run_client
from trainmaster.transport.kubernetes.api import KubeApi
from trainmaster.transport.kubernetes.exec_process import ExecProcess, run_line
from trainmaster.transport.kubernetes.pods import PodConnection, api_of

_MARK = "TM_CLIENT"


def main(words: list[str] | None = None) -> int:
    """Do what was asked; its exit code."""
    return run_client(_do, words)


def _do(order: ClientOrder) -> int:
    api = api_of(order.way, os.environ)
    connection = PodConnection(Target(order.machine, order.machine), api)
    with contextlib.closing(connection), order.forwarded(connection):
        return asyncio.run(_run(api, order.machine, order.command, is_terminal=order.is_terminal))


async def _run(api: KubeApi, pod: str, command: str, *, is_terminal: bool) -> int:
    mark = f"{_MARK}={uuid4().hex}"
    words = f"TERM={shlex.quote(os.environ.get('TERM', ''))} " if is_terminal else ""
    line = f"{words}{mark} {run_line(command).removeprefix('exec ')}"
    process = await ExecProcess.start(api, pod, f"exec env {line}", pod, is_terminal=is_terminal)

    async def resize() -> None:
        size = shutil.get_terminal_size()
        with contextlib.suppress(Exception):
            await process.resize(size.columns, size.lines)

    return await relay(process, lambda: _end_there(api, pod, mark), resize if is_terminal else None)


async def _end_there(api: KubeApi, pod: str, mark: str) -> None:
    """All that has our mark."""
    found = f"$(grep -lzx {mark} /proc/[0-9]*/environ 2>/dev/null)"
    find = f"for f in {found}; do f=${{f#/proc/}}; echo ${{f%%/*}}; done"
    with contextlib.suppress(TrainmasterError, TimeoutError):
        async with asyncio.timeout(5.0):
            process = await ExecProcess.start(api, pod, f"kill -HUP $({find}) 2>/dev/null", pod)
            process.stdin.write_eof()
            await process.wait_closed()


if __name__ == "__main__":
    sys.exit(main())
