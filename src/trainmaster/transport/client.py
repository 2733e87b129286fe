"""What clients share that stand in the place of OpenSSH's ``ssh``, for machines that have no SSH server.

``python -m MODULE WAY [-t] [-L FILE:HOST:PORT] MACHINE COMMAND``
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import TrainmasterError, one_line
from trainmaster.transport.process_connection import ProcessConnection, RemoteProcess

#: As ``ssh`` ends when there is no connection.
LOST: Final = 255
_READ_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ClientOrder:
    """What a client is to do.

    Attributes:
        way: to the machine, see `Node.way`. machine: its name.
        command: for its shell; empty for a shell itself.
        is_terminal: it speaks with a terminal here.
        forward: ``FILE:HOST:PORT``: a socket file here that leads to a port there; empty for none.
    """

    way: str
    machine: str
    command: str
    is_terminal: bool
    forward: str

    @contextlib.contextmanager
    def forwarded(self, connection: ProcessConnection) -> Iterator[None]:
        """While it lasts, the socket file leads to its port, if there is to be any."""
        if not self.forward:
            yield
            return
        place, host, port = self.forward.rsplit(":", 2)
        with socket.socket(socket.AF_UNIX) as server:
            os.umask(0o077)
            server.bind(place)
            server.listen(64)
            with connection.serving(server, host, int(port)):
                yield


def run_client(do: Callable[[ClientOrder], int], words: list[str] | None = None) -> int:
    """Do what was asked, on a command line as ``ssh`` has it; its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way")
    parser.add_argument("-t", action="store_true", dest="is_terminal")
    parser.add_argument("-T", action="store_true")
    parser.add_argument("-o", action="append")
    parser.add_argument("-L", dest="forward", default="")
    parser.add_argument("machine")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    command, is_terminal = " ".join(asked.command), asked.is_terminal and os.isatty(0)
    try:
        return do(ClientOrder(asked.way, asked.machine, command, is_terminal, asked.forward))
    except TrainmasterError as error:
        sys.stderr.write(f"{one_line(error)}\n")
        return LOST


@contextlib.contextmanager
def raw_terminal(is_terminal: bool) -> Iterator[None]:
    """While it lasts, keys go on as they are; without a terminal nothing changes."""
    if not is_terminal:
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


async def relay(
    process: RemoteProcess,
    end_there: Callable[[], Awaitable[None]],
    resize: Callable[[], Awaitable[None]] | None,
) -> int:
    """Join a process there to the input and output of this one; the exit code.

    Args:
        process: that was started.
        end_there: ends it, when this process is asked to end: nothing there hears that we go.
        resize: tells it the size of the terminal here; None without a terminal.
    """
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    threading.Thread(target=_send_up, args=(loop, process), daemon=True).start()
    with raw_terminal(resize is not None):
        if resize is not None:
            loop.add_signal_handler(signal.SIGWINCH, lambda: asyncio.ensure_future(resize()))
            await resize()
        bringing = asyncio.gather(_bring_down(process.stdout, 1), _bring_down(process.stderr, 2))
        ending = asyncio.create_task(over.wait())
        either: set[asyncio.Future[Any]] = {bringing, ending}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if over.is_set():
            bringing.cancel()
            await end_there()
        else:
            with contextlib.suppress(BrokenPipeError):
                await bringing
                await process.wait_closed()
    code = process.returncode
    await process.hang_up()
    if over.is_set():
        return 128 + signal.SIGTERM
    return LOST if code is None else code if code >= 0 else 128 - code


def _send_up(loop: asyncio.AbstractEventLoop, process: RemoteProcess) -> None:
    """What is typed, or comes from a file; a thread, as files are waited for."""

    async def send(data: bytes) -> None:
        process.stdin.write(data)
        await process.stdin.drain()

    with contextlib.suppress(OSError, RuntimeError, TrainmasterError):
        while data := os.read(0, _READ_BYTES):
            asyncio.run_coroutine_threadsafe(send(data), loop).result()
        loop.call_soon_threadsafe(process.stdin.write_eof)


async def _bring_down(stream: Any, file: int) -> None:  # noqa: ANN401 - as asyncssh has them
    while data := await stream.read(_READ_BYTES):
        while data:
            data = data[os.write(file, data) :]
