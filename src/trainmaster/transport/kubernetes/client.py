"""A client for pods that is called as OpenSSH's ``ssh`` is: for shells, commands and forwarded ports.

``python -m trainmaster.transport.kubernetes.client WAY [-t] [-L FILE:HOST:PORT] POD COMMAND``
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import sys
import threading
from uuid import uuid4

from trainmaster.spec.errors import TrainmasterError
from trainmaster.transport.base import Target
from trainmaster.transport.client import LOST, ClientOrder, raw_terminal, run_client
from trainmaster.transport.kubernetes.api import KubeApi
from trainmaster.transport.kubernetes.exec_process import ExecProcess, run_line
from trainmaster.transport.kubernetes.pods import PodConnection, api_of

_READ_BYTES = 1 << 16
_MARK = "TM_CLIENT"


def main(words: list[str] | None = None) -> int:
    """Do what was asked; its exit code."""
    return run_client(_do, words)


def _do(order: ClientOrder) -> int:
    api = api_of(order.way, os.environ)
    connection = PodConnection(Target(order.machine, order.machine), api)
    with (
        contextlib.closing(connection),
        order.listening() as wanted,
        connection.serving(*wanted) if wanted else contextlib.nullcontext(),
    ):
        return asyncio.run(_run(api, order.machine, order.command, is_terminal=order.is_terminal))


async def _run(api: KubeApi, pod: str, command: str, *, is_terminal: bool) -> int:
    mark = f"{_MARK}={uuid4().hex}"
    words = f"TERM={shlex.quote(os.environ.get('TERM', ''))} " if is_terminal else ""
    line = f"{words}{mark} {run_line(command).removeprefix('exec ')}"
    process = await ExecProcess.start(api, pod, f"exec env {line}", pod, is_terminal=is_terminal)
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    threading.Thread(target=_send_up, args=(loop, process), daemon=True).start()
    with raw_terminal(is_terminal):
        if is_terminal:
            loop.add_signal_handler(signal.SIGWINCH, lambda: asyncio.ensure_future(_resize(process)))
            await _resize(process)
        bringing = asyncio.create_task(_hear(process))
        ending = asyncio.create_task(over.wait())
        await asyncio.wait({bringing, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if over.is_set():
            bringing.cancel()
            await _end_there(api, pod, mark)
        else:
            with contextlib.suppress(BrokenPipeError):
                await bringing
    await process.hang_up()
    return (
        128 + signal.SIGTERM if over.is_set() else LOST if process.returncode is None else process.returncode
    )


def _send_up(loop: asyncio.AbstractEventLoop, process: ExecProcess) -> None:
    """What is typed; a thread, as files are waited for."""

    async def send(data: bytes) -> None:
        process.stdin.write(data)
        await process.stdin.drain()

    with contextlib.suppress(OSError, RuntimeError):
        while data := os.read(0, _READ_BYTES):
            asyncio.run_coroutine_threadsafe(send(data), loop).result()
        loop.call_soon_threadsafe(process.stdin.write_eof)


async def _hear(process: ExecProcess) -> None:
    await asyncio.gather(_bring_down(process, 1), _bring_down(process, 2))


async def _bring_down(process: ExecProcess, file: int) -> None:
    stream = process.stdout if file == 1 else process.stderr
    while data := await stream.read(_READ_BYTES):
        while data:
            data = data[os.write(file, data) :]


async def _resize(process: ExecProcess) -> None:
    size = shutil.get_terminal_size()
    with contextlib.suppress(Exception):
        await process.resize(size.columns, size.lines)


async def _end_there(api: KubeApi, pod: str, mark: str) -> None:
    """Nothing there hears that we go."""
    found = f"$(grep -lzx {mark} /proc/[0-9]*/environ 2>/dev/null)"
    find = f"for f in {found}; do f=${{f#/proc/}}; echo ${{f%%/*}}; done"
    with contextlib.suppress(TrainmasterError, TimeoutError):
        async with asyncio.timeout(5.0):
            process = await ExecProcess.start(api, pod, f"kill -HUP $({find}) 2>/dev/null", pod)
            process.stdin.write_eof()
            await process.wait_closed()


if __name__ == "__main__":
    sys.exit(main())
