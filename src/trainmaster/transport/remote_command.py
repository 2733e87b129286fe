"""One command over an open connection: what is said and heard, on the loop of asyncssh or one of its own."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import socket
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final

from trainmaster.transport.base import ConnectionLostError, Exchange, RemoteTimeoutError, Result

_READ_BYTES: Final = 1 << 16
_STREAM_BYTES: Final = 1 << 18
#: What start-up files of a login may say before a stream begins.
_NOISE_BYTES_MAX: Final = 1 << 16
#: What has all its input may answer for so long.
PARTING_S: Final = 2.0
_SLOW_SHELL: Final = (
    "Its shell has not begun it: what that reads first (.bashrc, .profile) may be slow, or wait for a lock. "
    "Log in by hand and look."
)
_KILL_S: Final = 2.0
#: A busy host may take longer to end a command, or even to begin it; only a task waits for that.
_GIVEN_UP_S: Final = 120.0
_given_up: set[asyncio.Task[None]] = set()
_PID: Final = "@@pid "
_FIRST: Final = f'echo {_PID}$$ >&2; exec /bin/sh -c "$0"'


class _Output:
    """Keeps the end of what is said, and finds the line that is waited for."""

    def __init__(self, limit_bytes: int, expects: str = "") -> None:
        self._limit = limit_bytes
        self._expects = expects.encode()
        self._line: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._kept = bytearray()
        self._searched = bytearray()
        self.truncated = False

    async def listen(self, stream: Any) -> None:  # noqa: ANN401 - asyncssh's reader
        try:
            while data := await stream.read(_READ_BYTES):
                self._hear(data)
        finally:  # also when the connection is lost: somebody may wait for the line
            if not self._line.done():
                self._line.set_result("")

    def _hear(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > self._limit:
            del self._kept[: -self._limit]
            self.truncated = True
        if self._expects and not self._line.done():
            self._search(data)

    async def line(self) -> str:
        """The line, or an empty one when everything was said without it."""
        return await asyncio.shield(self._line)

    def _search(self, data: bytes) -> None:
        self._searched += data
        *lines, rest = self._searched.split(b"\n")
        self._searched = bytearray(rest[: self._limit])  # the line may have no end
        for line in lines:
            if line.startswith(self._expects):
                self._line.set_result(line.decode(errors="replace").strip())
                return

    @property
    def heard(self) -> str | None:
        """The line, if it has come."""
        return self._line.result() if self._line.done() else None

    @property
    def text(self) -> str:
        return self._kept.decode(errors="replace")

    def after(self, beginning: str) -> str:
        """What was said after the line that begins so; before it, the login's start-up files have spoken."""
        before, found, rest = self.text.partition(beginning)
        return rest.partition("\n")[2] if found else before


async def run_command(
    connection: Any,  # noqa: ANN401
    talk: Exchange,
    timeout_s: float,
    limit_bytes: int,
    shown: str,
    *,
    lost: tuple[type[Exception], ...],
) -> Result:
    """Run a command; see `Connection.run`.

    Args:
        connection: starts processes as asyncssh's connections do.
        talk: the command.
        timeout_s: after which it is killed.
        limit_bytes: of an answer that are kept.
        shown: the machine, in messages.
        lost: errors that mean that the connection was lost.
    """
    process: Any = None
    out, err = _Output(limit_bytes, talk.expects), _Output(limit_bytes, _PID)

    async def begin() -> Any:  # noqa: ANN401 - what is cancelled before it has begun has no call under way
        return await connection.create_process(_wrapped(talk.command), encoding=None)

    making: asyncio.Future[Any] = asyncio.ensure_future(begin())
    try:
        async with asyncio.timeout(timeout_s):
            process = await asyncio.shield(making)  # else what the other end has begun would be unknown
            hearing = asyncio.gather(out.listen(process.stdout), err.listen(process.stderr))
            try:
                await _tell(process, talk, out)
                await hearing
                await process.wait_closed()
            finally:
                hearing.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await hearing
    except TimeoutError:
        task = asyncio.create_task(_end_given_up(connection, making, err.heard or ""))
        _given_up.add(task)
        task.add_done_callback(_given_up.discard)
        if err.heard:  # else it has not begun, and is not waited for
            await asyncio.wait({task}, timeout=_KILL_S)
        hint = "It was killed." if err.heard or not making.done() else _SLOW_SHELL
        raise RemoteTimeoutError(
            f"{shown}: not done after {timeout_s:g} s: {_short(talk.command)}", hint
        ) from None
    except asyncio.CancelledError:
        making.cancel()
        await _kill(connection, process, err.heard or "", _KILL_S)
        raise
    except lost as error:
        raise ConnectionLostError(
            f"{shown}: the connection was lost ({error or type(error).__name__})"
        ) from error
    code = process.returncode
    if code is None:
        raise ConnectionLostError(f"{shown}: the connection was lost while it ran: {_short(talk.command)}")
    return Result(
        code if code >= 0 else 128 - code, out.text, err.after(_PID), out.truncated or err.truncated
    )


async def wait_given_up(patience_s: float) -> None:
    """Wait until what was given up on this loop has been ended, which would end with the loop."""
    here = asyncio.get_running_loop()
    if mine := [task for task in list(_given_up) if task.get_loop() is here]:
        await asyncio.wait(mine, timeout=patience_s)


async def _tell(process: Any, talk: Exchange, out: _Output) -> None:  # noqa: ANN401
    try:
        if talk.lead:
            process.stdin.write(talk.lead)
            await process.stdin.drain()
        pieces = talk.answer(await out.line() if talk.reads_first else "")
        for piece in pieces or ():
            if process.stdin.is_closing():
                return  # the listener is gone
            process.stdin.write(piece)
            await process.stdin.drain()
        process.stdin.write_eof()
    except (BrokenPipeError, ConnectionResetError):
        return  # it has heard enough; its exit code says whether that is well
    except OSError as error:
        if process.stdin.is_closing():
            return
        raise error


async def _kill(
    connection: Any,  # noqa: ANN401
    process: Any,  # noqa: ANN401
    first: str,
    patience_s: float,
) -> None:
    """End a command with all that it has started; to root's, sshd passes no signals on."""
    if process is None:
        return
    with contextlib.suppress(Exception):
        async with asyncio.timeout(patience_s):
            if (pid := first.removeprefix(_PID)).isdigit():
                await connection.run(f"kill -s KILL -- -{pid}")
            process.close()
            await process.wait_closed()


async def _end_given_up(
    connection: Any,  # noqa: ANN401
    making: asyncio.Future[Any],
    first: str,
) -> None:
    """End a command that was given up, as soon as it has said its process id."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_GIVEN_UP_S):
            process = await making
            if not first:
                output = _Output(_READ_BYTES, _PID)
                listening = asyncio.create_task(output.listen(process.stderr))
                try:
                    first = await output.line()
                finally:
                    listening.cancel()
        await _kill(connection, process, first, _GIVEN_UP_S)


def _wrapped(command: str) -> str:
    """A command for whatever login shell; it says first which process group it is.

    >>> print(_wrapped("date"))
    exec /bin/sh -c 'echo @@pid $$ >&2; exec /bin/sh -c "$0"' date
    """
    return f"exec /bin/sh -c {shlex.quote(_FIRST)} {shlex.quote(command)}"


def _short(command: str) -> str:
    return command if len(command) <= 80 else command[:77] + "..."


async def join(
    process: Any,  # noqa: ANN401 - asyncssh's, or what looks as it does
    theirs: socket.socket,
    lost: tuple[type[Exception], ...],
    *,
    parting_s: float | None = PARTING_S,
    after: bytes = b"",
) -> None:
    """Move bytes both ways between a command and a socket until either end hangs up.

    Args:
        process: the command; the caller's to end.
        theirs: a socket that does not block.
        lost: what a lost connection raises.
        parting_s: so long may it answer when it has all its input; None: for ever.
        after: what it says until then is not passed on.
    """
    loop = asyncio.get_running_loop()

    async def send_up() -> None:
        with contextlib.suppress(*lost):
            while data := await loop.sock_recv(theirs, _STREAM_BYTES):
                process.stdin.write(data)
                await process.stdin.drain()
            process.stdin.write_eof()

    async def bring_down() -> None:
        with contextlib.suppress(*lost):
            said = b""
            while after not in said:
                data = await process.stdout.read(_STREAM_BYTES)
                said += data
                if not data or len(said) > _NOISE_BYTES_MAX:
                    return
            await loop.sock_sendall(theirs, said[said.index(after) + len(after) :])
            while data := await process.stdout.read(_STREAM_BYTES):
                await loop.sock_sendall(theirs, data)

    async with until_first(send_up(), bring_down()) as (up, down):
        if up.done():  # what was sent last is still to arrive
            await asyncio.wait({down}, timeout=parting_s)


@contextlib.asynccontextmanager
async def until_first(*works: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Do several things at once: the body begins when the first is over, and the others end with it."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
