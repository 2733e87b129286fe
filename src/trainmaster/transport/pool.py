"""`ConnectionPool`: one open connection to each machine, for all that have something to do there.

`IdleLogins`: logins that were given back a moment ago, for what wants one next.

A login costs two machines a tenth of a second, most of it for keys; on a small one more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from trainmaster.transport.base import Connection, Target, Transport, UnreachableError

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


T = TypeVar("T")


class ConnectionPool:
    """Connects when somebody first needs it, and anew when a connection was lost. Threads share it; close it.

    Args:
        transport: connects; it is the caller's to close, after this.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._connections: dict[Target, Connection] = {}
        self._lock = threading.Lock()

    def use(self, target: Target, work: Callable[[Connection], T]) -> T:
        """Do something over a machine's connection; once more over a new one, if a kept one was lost.

        Args:
            target: the machine.
            work: may be repeated; does not close the connection.

        Raises:
            TrainmasterError: the machine cannot be reached, or what `work` raises.
        """
        connection, is_old = self._connection(target)
        try:
            return work(connection)
        except UnreachableError:
            self._give_up(target, connection)
            if not is_old:
                raise
        return work(self._connection(target)[0])

    def hang_up(self, target: Target) -> None:
        """Keep none to that machine."""
        with self._lock:
            connection = self._connections.pop(target, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Hang up everywhere; it may be used again."""
        with self._lock:
            connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()

    def _connection(self, target: Target) -> tuple[Connection, bool]:
        with self._lock:
            known = self._connections.get(target)
        if known is not None and not known.is_closed:
            return known, True
        if known is not None:
            self._give_up(target, known)  # also what it went through
        made = self._transport.connect(target)  # not under the lock: others do not wait for one that is slow
        with self._lock:
            other = self._connections.get(target)
            if other is None or other.is_closed:
                self._connections[target] = made
                return made, False
        made.close()  # another thread was faster
        return other, True

    def _give_up(self, target: Target, connection: Connection) -> None:
        with self._lock:
            if self._connections.get(target) is connection:
                del self._connections[target]
        connection.close()
