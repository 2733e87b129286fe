"""`IdleLogins`: logins that were given back a moment ago, for what wants one next.

A login costs two machines a tenth of a second, most of it for keys; on a small one more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from trainmaster.transport.target import Target

#: A login that is given must work: an older one may be dead.
KEPT_S: Final = 5.0


class Login(Protocol):
    """A connection to a machine."""

    target: Target

    @property
    def is_closed(self) -> bool:
        """Whether it is known to be lost."""
        ...


L = TypeVar("L", bound=Login)


class IdleLogins(Generic[L]):
    """Threads share it.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logins: list[tuple[float, L]] = []
        self._is_closed = False

    def put(self, connection: L) -> bool:
        """Take an idle one; False if it is not taken."""
        with self._lock:
            if not self._is_closed:
                self._logins.append((self._clock(), connection))
            return not self._is_closed

    def take(self, target: Target) -> L | None:
        """The last one to a machine, if there is any; now the caller's."""
        now = self._clock()
        with self._lock:
            for number in reversed(range(len(self._logins))):
                at, connection = self._logins[number]
                if connection.target == target and now - at <= KEPT_S and not connection.is_closed:
                    del self._logins[number]
                    return connection
        return None

    def too_old(self) -> list[L]:
        """Those that were silent for too long, taken out."""
        now = self._clock()
        with self._lock:
            old = [connection for at, connection in self._logins if now - at > KEPT_S]
            self._logins = [(at, connection) for at, connection in self._logins if now - at <= KEPT_S]
        return old

    def close(self) -> None:
        """Take no more."""
        with self._lock:
            self._is_closed = True
