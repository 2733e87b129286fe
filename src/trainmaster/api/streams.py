"""`WorkStream`: what work of this process tells, as an iterator; and Ctrl-C for its reader and for a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from trainmaster.api.protocol import Stream
    from trainmaster.control.loop.controller import Controller

T = TypeVar("T")


class _Left(BaseException):
    """The listener is gone: the work unwinds as for any other error."""


class WorkStream(Iterator[T], Generic[T]):
    """What work in a thread of its own tells, as it comes; ends as the work does.

    Args:
        work: gets a function that takes what it tells.
        interrupt: Ctrl-C; see `Stream.interrupt`.
    """

    def __init__(
        self, work: Callable[[Callable[[T], None]], None], interrupt: Callable[[], int] = lambda: 0
    ) -> None:
        self.interrupt = interrupt
        self._told: SimpleQueue[tuple[T] | BaseException] = SimpleQueue()
        self._is_left = False
        # Signals are for the thread that iterates: in here nothing is cut off in the middle.
        threading.Thread(target=self._work, args=(work,), name="work", daemon=True).start()

    def __next__(self) -> T:
        told = self._told.get()
        if isinstance(told, tuple):
            return told[0]
        self._told.put(told)
        raise told

    def close(self) -> None:
        """The listener is gone: the work ends when it next tells something."""
        self._is_left = True

    def _tell(self, told: T) -> None:
        if self._is_left:
            raise _Left
        self._told.put((told,))

    def _work(self, work: Callable[[Callable[[T], None]], None]) -> None:
        try:
            work(self._tell)
        except BaseException as error:  # noqa: BLE001 - raised where it is iterated
            self._told.put(error)
        else:
            self._told.put(StopIteration())


class RunInterrupts:
    """Ctrl-C for a run, also before its controller exists: machines of a resumed run are there already."""

    def __init__(self) -> None:
        self._controllers: list[Controller] = []
        self._waiting: list[None] = []

    def started(self, controller: Controller) -> None:
        """From now on it is asked; at once, if that was asked before."""
        self._controllers.append(controller)
        self._pass_on()

    def ask(self) -> int:
        """See `Stream.interrupt`; without a controller the second time ends nothing in order."""
        if self._waiting:
            return 0
        self._waiting.append(None)
        self._pass_on()
        # The thread of a controller that has just begun may have taken it, and not have asked yet.
        return max((1, *(controller.interrupts for controller in self._controllers)))

    def _pass_on(self) -> None:
        # Both threads may be here, that of signals in the middle of anything: each takes what the other left.
        while self._waiting and self._controllers:
            with suppress(IndexError):
                self._waiting.pop()
                for controller in self._controllers:
                    controller.interrupt()


@contextmanager
def interruptible(stream: Stream[T]) -> Iterator[Stream[T]]:
    """Let Ctrl-C and SIGTERM end what a stream tells of in order; where nothing is to be ended, at once.

    Afterwards all is as before. Python gives signals to the main thread only: in others nothing is changed.
    """

    def stop(*_: Any) -> None:  # noqa: ANN401 - of a signal handler
        if not stream.interrupt():
            raise KeyboardInterrupt

    before = []
    if threading.current_thread() is threading.main_thread():
        before = [(number, signal.signal(number, stop)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield stream
    finally:
        for number, handler in before:
            signal.signal(number, handler)
        stream.close()
