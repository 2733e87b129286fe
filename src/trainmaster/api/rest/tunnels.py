"""Websockets to members of a run: a byte stream to a port, and a command with its input and output.

Messages of a port are its bytes; an empty one says that no more come from that side. Those of a command begin
with a byte that names the channel, as Kubernetes has them: 0 input, 1 output, 2 errors, 3 what became of it
(JSON), 4 the size of the terminal (JSON); an empty input is its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, WebSocket, WebSocketDisconnect
from starlette.concurrency import run_in_threadpool

from trainmaster.api.rest.limits import OpenStream
from trainmaster.api.rest.state import credential_of, known_by_token, state_of, told
from trainmaster.service.runs.member_commands import MemberCommand, Terminal
from trainmaster.service.runs.member_connections import PATIENCE_S
from trainmaster.spec.errors import TrainmasterError
from trainmaster.transport.remote_command import until_first

router = APIRouter()
PIECE_BYTES: Final = 1 << 18
STDIN, STDOUT, STDERR, STATUS, SIZE = (bytes([number]) for number in range(5))
#: Close codes of RFC 6455.
_REFUSED: Final = 1008
#: A client that does not read may not hear why it was cut off.
_TELL_S: Final = 5.0
#: An OpenSSH client says why it could not connect just before or after it hangs up.
_SAID_S: Final = 0.2
Member = Annotated[str | None, Query(description="such as worker-1, or a machine; the first without")]


@router.websocket("/runs/{run}/ports/{port}")
async def port_of_member(websocket: WebSocket, run: str, port: int, member: Member = None) -> None:
    """A stream to a port of a member."""
    async with _entered(websocket, run) as entered:
        if entered is None:
            return
        server = state_of(websocket)
        try:
            opens = partial(server.members.open, run, member, port)
            stream = await server.openings.run(entered.user, opens)
        except TrainmasterError as error:
            await websocket.send_denial_response(told(error))
            return
        with stream:
            await websocket.accept()
            if not await _joined(websocket, stream):
                await asyncio.sleep(_SAID_S)
                await _close(websocket, 1011, server.members.said_of(stream))
                return
        await _close(websocket)


@router.websocket("/runs/{run}/exec")
async def exec_on_member(
    websocket: WebSocket,
    run: str,
    command: Annotated[list[str] | None, Query()] = None,
    member: Member = None,
    term: str | None = None,
    columns: int = 80,
    rows: int = 24,
) -> None:
    """A command where a member works; a shell without one. With `term` it has a terminal."""
    async with _entered(websocket, run) as entered:
        if entered is None:
            return
        terminal = None if term is None else Terminal(term, columns, rows)
        await websocket.accept()
        server, loop = state_of(websocket), asyncio.get_running_loop()

        def tell(line: str) -> None:
            asyncio.run_coroutine_threadsafe(_send_status(websocket, {"told": line}), loop).result(_TELL_S)

        try:
            finds = partial(
                server.members.command, run, member, command or (), terminal, tell=tell, patience_s=PATIENCE_S
            )
            async with contextlib.aclosing(await server.openings.run(entered.user, finds)) as running:
                code = await _carried(websocket, running)
            await _send_status(websocket, {"exit": code})
        except TrainmasterError as error:
            await _send_status(websocket, {"problem": json.loads(bytes(told(error).body))})
        except (WebSocketDisconnect, RuntimeError):  # the peer is gone
            return
        await _close(websocket)


@contextlib.asynccontextmanager
async def _entered(websocket: WebSocket, run: str) -> AsyncIterator[OpenStream | None]:
    """If the caller may use the machines of a run; it is cut off when it may not any more."""
    server = state_of(websocket)
    try:
        caller = await run_in_threadpool(known_by_token, websocket)
        await run_in_threadpool(server.submissions.need_entry, caller, run)
        stream = OpenStream(server.tunnels, caller, credential_of(websocket))
        server.tunnels.count(stream)
    except TrainmasterError as error:
        await websocket.send_denial_response(told(error))
        yield None
        return
    try:
        async with asyncio.timeout(None) as use:
            watch = asyncio.create_task(_watch(stream, use))
            try:
                yield stream
            finally:
                watch.cancel()
    except TimeoutError:
        if not use.expired():
            raise
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_close(websocket, _REFUSED, "you may not use this run any more"), _TELL_S)
    finally:
        server.tunnels.forget(stream)


async def _watch(stream: OpenStream, use: asyncio.Timeout) -> None:
    """Cut off what uses a stream, whatever it waits for, as soon as that is not allowed any more."""
    await stream.ended()
    use.reschedule(0)


async def _joined(websocket: WebSocket, stream: socket.socket) -> bool:
    """Move bytes both ways until both sides have ended, or one is gone; whether any came from the member."""
    stream.setblocking(False)
    loop = asyncio.get_running_loop()
    has_come = False

    async def up() -> None:
        while (data := await websocket.receive_bytes()) != b"":
            await loop.sock_sendall(stream, data)
        stream.shutdown(socket.SHUT_WR)

    async def down() -> None:
        nonlocal has_come
        while data := await loop.sock_recv(stream, PIECE_BYTES):
            has_come = True
            await websocket.send_bytes(data)
        if has_come:
            await websocket.send_bytes(b"")

    async with until_first(_quiet(up()), _quiet(down())) as ways:
        done = [way for way in ways if way.done()]
        if all(way.result() for way in done) and (has_come or ways[0].done()):
            await asyncio.wait(ways)  # that side has only said all it had to say
    return has_come


async def _quiet(work: Coroutine[Any, Any, None]) -> bool:
    """Whether it went to its end; not if a side is gone."""
    try:
        await work
    except (OSError, WebSocketDisconnect, RuntimeError, KeyError):
        return False
    return True


#: What comes of JSON that is no size of a terminal.
_NO_SIZE: Final = (ValueError, KeyError, TypeError, OverflowError, RecursionError)


async def _carried(websocket: WebSocket, running: MemberCommand) -> int:
    """Move input and output of a command until it ends; its exit code.

    Raises:
        WebSocketDisconnect: the peer is gone.
    """

    async def listen() -> None:
        while True:
            message = await websocket.receive_bytes()
            channel, data = message[:1], message[1:]
            if channel == STDIN:
                await running.write(data)
            elif channel == SIZE:
                size = json.loads(data)
                running.resize(int(size["columns"]), int(size["rows"]))

    async def tell() -> int:
        async for is_error, data in running.read(PIECE_BYTES):
            await websocket.send_bytes((STDERR if is_error else STDOUT) + data)
        return await running.wait()

    await running.start()
    async with until_first(listen(), tell()) as (listening, telling):
        if not telling.done() and isinstance(listening.exception(), _NO_SIZE):
            raise WebSocketDisconnect(_REFUSED)
        if not telling.done():
            listening.result()
        return int(await telling)


async def _send_status(websocket: WebSocket, status: dict[str, Any]) -> None:
    await websocket.send_bytes(STATUS + json.dumps(status).encode())


async def _close(websocket: WebSocket, code: int = 1000, reason: str = "") -> None:
    with contextlib.suppress(RuntimeError, WebSocketDisconnect, OSError):
        await websocket.close(code, reason.encode()[:120].decode(errors="ignore"))
