"""`Conductor`: the thread of a driver that conducts a cluster's gangs, with the loop around the `Scheduler`.

What an earlier driver has left is found on the nodes: their supervisors never noticed that it ended, and
their agents have records of the gangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trainmaster.executors.gangs.scheduler import Scheduler
from trainmaster.spec.errors import ExecutorError, LeaseLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from trainmaster.executors.gangs.engine import Engine
    from trainmaster.executors.gangs.inbox import Inbox

log = logging.getLogger(__name__)

#: A driver that hangs up comes back at once, or not at all.
_IDLE_S: Final = 5.0
_TELL_WAITS_S: Final = 2.0
_LOOK_S: Final = 5.0

T = TypeVar("T")


class Conductor:
    """It ends when no driver has been connected for a while, or the engine's head is out of reach.

    Args:
        engine: knows the nodes.
        lease: the run of the driver, and the token of its lease.
        settle_s: nodes that do not answer within this time after a start are taken to be unreachable.

    Attributes:
        run: of the driver.
        lease: token of its lease.
        error: why the cluster is out of reach.
        is_over: it has ended, or is about to.
    """

    def __init__(self, engine: Engine, lease: tuple[str, int], settle_s: float) -> None:
        self.run, self.lease = lease
        self.error: ExecutorError | None = None
        self.is_over = False
        self._guard = threading.Lock()
        self._settle_s = settle_s
        self._loop = asyncio.new_event_loop()  # the thread closes it
        self._scheduler = Scheduler(engine, self._loop, log.info, lease)
        self._idle_since = 0.0
        self._wanted = asyncio.Event()
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        threading.Thread(target=self._work, name="conductor", daemon=True).start()

    # -- called from other threads

    @property
    def silent_s(self) -> float:
        """For how long the engine has said nothing."""
        return time.monotonic() - self._scheduler.nodes.looked_at

    def open(self, inbox: Inbox) -> Future[None]:
        """Serve this driver in place of another, once it is known what an earlier conductor has left.

        Cancelled when this one ends.
        """
        return self._ask(self._open(inbox))

    def tell(self, inbox: Inbox, work: Callable[[Scheduler], None]) -> None:
        """Have something done for a driver, unless another one is served now."""
        with contextlib.suppress(RuntimeError):  # it has ended: so has the inbox
            self._loop.call_soon_threadsafe(self._do, inbox, work)

    def ask(self, work: Callable[[Scheduler], T]) -> Future[T]:
        """Have something found out; cancelled when this one ends."""

        async def asked() -> T:
            return work(self._scheduler)

        return self._ask(asked())

    def deliver(self, timeout_s: float) -> None:
        """Wait until all that was said has reached the nodes, as far as they can be reached."""
        with contextlib.suppress(TimeoutError, CancelledError):
            self._ask(self._scheduler.nodes.delivered()).result(timeout_s)

    def hang_up(self, inbox: Inbox) -> None:
        """A driver goes."""
        inbox.close()
        self.tell(inbox, lambda scheduler: scheduler.serve(None))

    def look(self) -> None:
        """Have it see at once which nodes there are."""
        if self._settled.is_set():
            with contextlib.suppress(TimeoutError, CancelledError):
                self._ask(self._scheduler.nodes.look()).result(_LOOK_S)

    def end(self) -> None:
        """Serve no more; what runs goes on."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended.set)

    def _ask(self, question: Coroutine[Any, Any, Any]) -> Future[Any]:
        with self._guard:
            if not self.is_over:
                return asyncio.run_coroutine_threadsafe(question, self._loop)
        question.close()
        answer: Future[Any] = Future()
        answer.cancel()
        return answer

    # -- its own thread

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # ends its tasks, too
            try:
                runner.run(self._serve())
            except ExecutorError as error:
                log.info("what conducts tasks has ended: %s", error)
                self.error = error
            except Exception:  # a thread has no caller; the driver is hung up on, and connects again
                log.exception("what conducts tasks has ended")
            with self._guard:
                self.is_over = True
            runner.run(asyncio.sleep(0))  # what was asked until now becomes a task, so that it is cancelled
            if self._scheduler.inbox is not None:  # also one that came in this instant
                self._scheduler.inbox.close()

    async def _serve(self) -> None:
        nodes = self._scheduler.nodes
        self._scheduler.wake = self._wanted.set
        await nodes.look()
        waits = [asyncio.ensure_future(link.attached.wait()) for link in nodes.links.values()]
        if waits:
            _, late = await asyncio.wait(waits, timeout=self._settle_s)
            for wait in late:
                wait.cancel()
        self._scheduler.settle()
        self._idle_since = time.monotonic()
        self._settled.set()
        works = (nodes.watch(), self._place(), self._tell_waits(), self._ended.wait())
        tasks = [asyncio.ensure_future(each) for each in works]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await nodes.close()
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()

    async def _tell_waits(self) -> None:
        while True:
            await asyncio.sleep(_TELL_WAITS_S)
            if (inbox := self._scheduler.inbox) is not None:
                inbox.waits = self._scheduler.waits(self.run)

    async def _place(self) -> None:
        """Give gangs their places, and end when there is nothing to do."""
        while True:
            self._wanted.clear()
            wait_s = self._scheduler.tick()
            if self._scheduler.inbox is not None:
                self._idle_since = time.monotonic()
            elif time.monotonic() - self._idle_since > _IDLE_S:
                self._ended.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), min(wait_s or 1.0, 1.0))

    async def _open(self, inbox: Inbox) -> None:
        await self._settled.wait()
        if self._scheduler.refusal is not None:
            raise self._scheduler.refusal
        if 0 < inbox.token < self.lease:
            raise LeaseLostError.of(self.run)
        self._scheduler.serve(inbox)

    def _do(self, inbox: Inbox, work: Callable[[Scheduler], None]) -> None:
        if inbox is self._scheduler.inbox:
            work(self._scheduler)
