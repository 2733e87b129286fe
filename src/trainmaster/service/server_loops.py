"""`ServerLoop`: what a thread of a server does again and again goes on, whatever goes wrong once."""

from __future__ import annotations

import errno
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from trainmaster.spec.errors import TrainmasterError, one_line

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

#: What is over as soon as there is room, memory, a free descriptor or a disk that answers.
_PASSING: Final = (
    errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN
)  # fmt: skip

log = logging.getLogger(__name__)


def is_passing(error: BaseException) -> bool:
    """Whether this machine lacked something for a moment, so that the same may work later."""
    return isinstance(error, OSError) and error.errno in _PASSING


class LoopErrorLog:
    """Logs what goes wrong in turns of a loop, once as long as it is the same; the next turn comes.

    Args:
        name: of what the loop does, for the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._said = ""

    @contextmanager
    def caught(self) -> Iterator[None]:
        """One turn: nothing that it raises gets out. The loop waits by itself before the next one."""
        try:
            yield
        except (TrainmasterError, OSError) as error:  # a database or store that is away, a full disk, ...
            self._say(f"{type(error).__name__}: {one_line(error)}")
        except Exception as error:
            if self._say(f"{type(error).__name__}: {error}"):
                log.exception("%s: internal error", self._name)
        else:
            if self._said:
                log.info("%s: goes on", self._name)
            self._said = ""

    def _say(self, what: str) -> bool:
        is_new, self._said = what != self._said, what
        if is_new:
            log.warning("%s: %s; tried again", self._name, what)
        return is_new


class ServerLoop(ABC):
    """Something that a server does again and again in a thread of its own, until it is stopped.

    Args:
        name: of what it does, for the log.
        every_s: seconds from the end of a turn to the next one, unless it is woken.
        threads: so many do what is handed to `submit`.
        is_awaited: `stop` waits for the end of a turn that is under way.
    """

    def __init__(self, name: str, every_s: float, *, threads: int = 0, is_awaited: bool = True) -> None:
        self._name, self._pause_s, self._is_awaited = name, every_s, is_awaited
        self._over, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    @abstractmethod
    def turn(self) -> None:
        """Do it once. What it raises is logged."""

    def start(self) -> None:
        """Do it from now on, in the background."""
        if self._threads:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self._threads, self._name)
        self._thread = threading.Thread(target=self._watch, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Begin no more turns; what was begun elsewhere goes on."""
        self._over.set()
        self._wake.set()
        if self._thread is not None and self._is_awaited:
            self._thread.join()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def submit(self, work: Callable[..., object], *arguments: object) -> None:
        """Have a thread of the pool do something; without one, as before `start`, it is done at once."""
        if self._pool is None:
            work(*arguments)
        else:
            self._pool.submit(work, *arguments)

    def wake(self) -> None:
        """There may be something to do: take the next turn now."""
        self._wake.set()

    def _watch(self) -> None:
        errors = LoopErrorLog(self._name)
        while not self._over.is_set():
            self._wake.clear()
            with errors.caught():
                self.turn()
            self._wake.wait(self._pause_s)
