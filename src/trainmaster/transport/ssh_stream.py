"""The bytes of a command over an open connection, as a plain socket: asyncssh's loop moves them."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import socket
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncssh

_PARTING_S: Final = 2.0
_READ_BYTES: Final = 1 << 18
#: Said before anything else: what comes earlier is from the login's start-up files.
_MARK: Final = b"@@stream\n"
_NOISE_BYTES_MAX: Final = 1 << 16
_streams: set[asyncio.Task[None]] = set()


async def begin_stream(connection: asyncssh.SSHClientConnection, command: str, theirs: socket.socket) -> None:
    """Start a command whose standard input and output are the other end of a socket; on the loop.

    Args:
        connection: open.
        command: for the POSIX shell.
        theirs: our end of the pair; closed when the command has ended.
    """
    import asyncssh

    theirs.setblocking(False)
    line = f"exec /bin/sh -c {shlex.quote(f'echo {_MARK.decode().strip()}; {command}')}"
    process = await connection.create_process(line, encoding=None, stderr=asyncssh.DEVNULL)
    task = asyncio.create_task(_join(process, theirs))
    _streams.add(task)
    task.add_done_callback(_streams.discard)
    task.add_done_callback(lambda _: theirs.close())  # also if it never began, as the loop was ended


async def _join(process: Any, theirs: socket.socket) -> None:  # noqa: ANN401 - asyncssh's
    """Move bytes both ways until either end hangs up."""
    up, down = (
        asyncio.create_task(_send_up(process, theirs)),
        asyncio.create_task(_bring_down(process, theirs)),
    )
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        if up.done():  # what was sent last is still to arrive
            await asyncio.wait({down}, timeout=_PARTING_S)
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
        process.close()


async def _send_up(process: Any, theirs: socket.socket) -> None:  # noqa: ANN401
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while data := await loop.sock_recv(theirs, _READ_BYTES):
            process.stdin.write(data)
            await process.stdin.drain()
        process.stdin.write_eof()


async def _bring_down(process: Any, theirs: socket.socket) -> None:  # noqa: ANN401
    import asyncssh

    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError, asyncssh.Error):
        noise = b""
        while _MARK not in noise:
            data = await process.stdout.read(_READ_BYTES)
            noise += data
            if not data or len(noise) > _NOISE_BYTES_MAX:
                return
        await loop.sock_sendall(theirs, noise.partition(_MARK)[2])
        while data := await process.stdout.read(_READ_BYTES):
            await loop.sock_sendall(theirs, data)
