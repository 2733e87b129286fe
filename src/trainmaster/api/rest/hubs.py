"""`Hubs`: one look a second at each run that somebody listens to, encoded once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.concurrency import run_in_threadpool

from trainmaster.api.rest.server_sent import RETRY, SILENT_S, STILL_HERE, event
from trainmaster.service.runs.run_stream import Cursor, Message, RunStream
from trainmaster.spec.errors import TrainmasterError

if TYPE_CHECKING:
    from trainmaster.service import Service

LOOK_EVERY_S: Final = 1.0
#: Who is so many messages late comes back with the id of the last one that it got.
_QUEUE: Final = 8


def frame(message: Message) -> str:
    """A message as server-sent events have it."""
    return event(message.kind, message.data, message.cursor.encode())


@dataclass(frozen=True, slots=True)
class _News:
    """What a look has found, and between which places it lies."""

    before: Cursor
    after: Cursor
    frames: list[str]


class Hub:
    """Looks at one run while anybody listens.

    Args:
        service: of the home.
        run: its id.
    """

    def __init__(self, service: Service, run: str) -> None:
        self._service = service
        self._run = run
        self._listeners: set[asyncio.Queue[_News | None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._place = Cursor()

    @property
    def is_idle(self) -> bool:
        """Whether nobody listens."""
        return self._task is None

    async def listen(self, own: RunStream) -> AsyncGenerator[str]:
        """Frames for one listener: what it has missed, then what happens; each once, in order.

        Who is where the common reader is gets what that has encoded; others read up to there themselves.

        Args:
            own: at the place where the listener wants to go on.
        """
        yield RETRY
        queue: asyncio.Queue[_News | None] = asyncio.Queue(_QUEUE)
        if self._task is None:
            self._task = asyncio.create_task(self._look(own))
            self._place = own.cursor
        self._listeners.add(queue)
        missed = _News(Cursor(), self._place, [])
        try:
            while True:
                if own.cursor == missed.before and missed.frames:
                    for text in missed.frames:
                        yield text
                    own.jump(missed.after)
                elif missed.frames == [STILL_HERE]:
                    yield STILL_HERE
                else:
                    for message in await run_in_threadpool(lambda until: list(own.read(until)), missed.after):
                        yield frame(message)
                    if own.is_at(missed.after):
                        own.jump(missed.after)
                news = await queue.get()
                if news is None:
                    return
                missed = news
        finally:
            self._listeners.discard(queue)

    async def _look(self, own: RunStream) -> None:
        try:
            with suppress(TrainmasterError):  # a database that is away comes back, and so does who listens
                place = (own.cursor, own.tail_bytes, own.since)
                stream = await run_in_threadpool(RunStream, self._service, self._run, *place)
                await self._look_on(stream)
        finally:  # whatever went wrong: who listens comes back, and the next look begins anew
            self._task = None
            self._tell(None)

    async def _look_on(self, stream: RunStream) -> None:
        silent_s = 0.0
        while self._listeners:
            try:
                messages = await run_in_threadpool(lambda: list(stream.read()))
            except TrainmasterError:  # a database that is away comes back
                messages = []
            silent_s = 0.0 if messages else silent_s + LOOK_EVERY_S
            before, self._place = self._place, stream.cursor
            if messages:
                self._tell(_News(before, self._place, [frame(message) for message in messages]))
            elif silent_s >= SILENT_S:
                silent_s = 0.0
                self._tell(_News(before, self._place, [STILL_HERE]))
            await asyncio.sleep(LOOK_EVERY_S)

    def _tell(self, news: _News | None) -> None:
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
        self._hubs: dict[tuple[str, int | None, str | None], Hub] = {}

    def of(self, run: str, tail_bytes: int | None, since: str | None = None) -> Hub:
        """That of a run, for those who begin at the same distance from the end."""
        key = (run, tail_bytes, since)
        for idle in [other for other, hub in self._hubs.items() if hub.is_idle and other != key]:
            del self._hubs[idle]
        return self._hubs.setdefault(key, Hub(self._service, run))

    def end(self) -> None:
        """Send everybody away: the server stops."""
        for hub in self._hubs.values():
            hub.end()
