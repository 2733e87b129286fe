"""`Hubs`: one look a second at each run that somebody listens to, encoded once for all of them."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

from starlette.concurrency import run_in_threadpool

from trainmaster.dataclass import dataclass
from trainmaster.service import Service
from trainmaster.service.driving.driver import SERVERS
from trainmaster.service.driving.wake_pipes import SUFFIX, WakePipe
from trainmaster.service.runs.run_stream import RunStream, StreamCursor, StreamMessage
from trainmaster.spec.errors import TrainmasterError

#: A comment after so long without news: proxies cut connections that are silent.
COMMENT_AFTER_S: Final = 15.0
STILL_HERE: Final = ": still here\n\n"
#: What a stream begins with: when a browser comes back after its connection was lost, in milliseconds.
RETRY: Final = "retry: 2000\n\n"
HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}


def event(kind: str, data: object, name: object) -> str:
    r"""One event.

    >>> event("told", "hello", 1)
    'id: 1\nevent: told\ndata: "hello"\n\n'
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str)
    return f"id: {name}\nevent: {kind}\ndata: {text}\n\n"


LOOK_EVERY_S: Final = 1.0
#: The end of a run that was just sent may come at once: the first looks are closer together.
_FIRST_LOOK_S: Final = 0.1
_LATER: Final = 1.2
#: While there is more than one piece has room for.
_GO_ON_S: Final = 0.1
#: So many messages are in memory at once, for a hub and for one that missed something; a log's have 64 KiB.
_PIECE: Final = 16
#: A listener that is so many pieces late comes back with the id of the last message that it got.
_QUEUE: Final = 8


def frame(message: StreamMessage) -> str:
    """A message as server-sent events have it."""
    return event(message.kind, message.data, message.cursor.encode())


def _piece(messages: Iterator[StreamMessage]) -> tuple[list[str], Iterator[StreamMessage] | None]:
    """The first frames, and the rest of the messages if there may be one."""
    frames = [frame(message) for message in islice(messages, _PIECE)]
    return frames, messages if len(frames) == _PIECE else None


@dataclass(frozen=True, slots=True)
class _LookResult:
    """What a look has found, and between which places it lies."""

    before: StreamCursor
    after: StreamCursor
    frames: list[str]


@dataclass(frozen=True, slots=True)
class _Missed:
    """What somebody has missed: its first piece, the rest if there is more, and the place after the piece."""

    frames: list[str]
    rest: Iterator[StreamMessage] | None
    after: StreamCursor


class Hub:
    """Looks at one run while anybody listens, from the present on.

    Args:
        service: of the home.
        run: its id.
    """

    def __init__(self, service: Service, run: str) -> None:
        self._service = service
        self._run = run
        self._listeners: set[asyncio.Queue[_LookResult | None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._place: StreamCursor | None = None
        self._woken = asyncio.Event()
        #: Many come at once, after a server has ended, and have missed the same.
        self._missed: dict[tuple[object, ...], asyncio.Task[_Missed]] = {}

    @property
    def is_idle(self) -> bool:
        """Whether it has no listeners."""
        return self._task is None

    async def listen(self, own: RunStream) -> AsyncGenerator[str]:
        """Frames for one listener: what it has missed, then what happens; each once, in order.

        A listener where the common reader is gets what that encoded; others read up to there themselves.

        Args:
            own: at the place where the listener wants to go on.
        """
        yield RETRY
        queue: asyncio.Queue[_LookResult | None] = asyncio.Queue(_QUEUE)
        self._listeners.add(queue)
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        elif self._place is not None:
            queue.put_nowait(_LookResult(StreamCursor(), self._place, []))
        try:
            while (news := await queue.get()) is not None:
                if news.frames and own.cursor == news.before:
                    for text in news.frames:
                        yield text
                    own.jump(news.after)
                elif news.frames == [STILL_HERE]:
                    yield STILL_HERE
                else:
                    async for text in self._missed_by(own, news.after):
                        yield text
                        if queue not in self._listeners:
                            return  # it was told to come back
                    if own.is_at(news.after):
                        own.jump(news.after)
        except TrainmasterError:  # a database that is away comes back, and so do listeners
            return
        finally:
            self._listeners.discard(queue)

    async def _missed_by(self, own: RunStream, until: StreamCursor) -> AsyncGenerator[str]:
        def read() -> _Missed:
            frames, rest = _piece(own.read(until))
            return _Missed(frames, rest, own.cursor)

        key = (own.cursor.encode(), own.tail_bytes, own.since, until.encode())
        task, is_own = self._missed.get(key), False
        if task is None:
            task, is_own = asyncio.create_task(run_in_threadpool(read)), True
            self._missed[key] = task
        missed = await asyncio.shield(task)  # it is for all that have missed this, whichever of them goes
        frames, rest = missed.frames, missed.rest
        if not is_own and rest is None:
            own.jump(missed.after)
        elif not is_own:  # only one can go on with the rest
            frames, rest = [], own.read(until)
        while True:
            for text in frames:
                yield text
            if rest is None:
                return
            frames, rest = await run_in_threadpool(_piece, rest)

    async def _look(self) -> None:
        try:
            with suppress(TrainmasterError):  # as above
                stream = await run_in_threadpool(self._from_now)
                self._place = stream.cursor
                self._tell(_LookResult(StreamCursor(), self._place, []))
                await self._look_on(stream)
        finally:  # whatever went wrong: listeners come back, and the next look begins again
            self._task, self._place = None, None
            self._tell(None)

    def _from_now(self) -> RunStream:
        stream = RunStream(self._service, self._run, None, 0)
        for _ in stream.read():
            pass
        return stream

    async def _look_on(self, stream: RunStream) -> None:
        silent_s, pause_s = 0.0, _FIRST_LOOK_S
        rest: Iterator[StreamMessage] | None = None
        while self._listeners:
            await self._pause(pause_s if rest is None else _GO_ON_S)
            self._missed.clear()
            try:
                frames, rest = await run_in_threadpool(_piece, rest or stream.read())
            except TrainmasterError:  # a database that is away comes back
                frames, rest = [], None
            silent_s = 0.0 if frames else silent_s + pause_s
            pause_s = min(LOOK_EVERY_S, pause_s * _LATER)
            before, self._place = self._place or stream.cursor, stream.cursor
            if frames:
                self._tell(_LookResult(before, self._place, frames))
            elif silent_s >= COMMENT_AFTER_S:
                silent_s = 0.0
                self._tell(_LookResult(before, self._place, [STILL_HERE]))

    def wake(self) -> None:
        """There is something new: look now."""
        self._woken.set()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
        self._woken.clear()

    def _tell(self, news: _LookResult | None) -> None:
        for queue in list(self._listeners):
            if queue.full() or news is None:  # too late: it comes back with the id of the last message it got
                self._listeners.discard(queue)
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(None)
            else:
                queue.put_nowait(news)

    def end(self) -> None:
        """Send all listeners away."""
        self._tell(None)


class Hubs:
    """The hubs of a server, by run.

    Args:
        service: of the home.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._hubs: dict[str, Hub] = {}
        self._pipe: WakePipe | None = None

    def start(self) -> None:
        """Let drivers of this home tell what has changed; those of others are looked at from time to time."""
        path = self._service.home.root / SERVERS / f"{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
        with suppress(OSError):  # a file system without pipes
            self._pipe = WakePipe(path)
            asyncio.get_running_loop().add_reader(self._pipe, self._wake)

    def stop(self) -> None:
        """Send everybody away, and hear no more."""
        self.end()
        if self._pipe is not None:
            asyncio.get_running_loop().remove_reader(self._pipe)
            self._pipe.close()
            self._pipe = None

    def _wake(self) -> None:
        assert self._pipe is not None
        for run in self._pipe.read():
            if run in self._hubs:
                self._hubs[run].wake()

    def of(self, run: str) -> Hub:
        """That of a run."""
        for idle in [other for other, hub in self._hubs.items() if hub.is_idle and other != run]:
            del self._hubs[idle]
        return self._hubs.setdefault(run, Hub(self._service, run))

    def end(self) -> None:
        """Send everybody away: the server stops."""
        for hub in self._hubs.values():
            hub.end()
