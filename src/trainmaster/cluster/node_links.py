"""`NodeLinks`: connections to nodes: kept ones, for quick questions, and those of transfers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from trainmaster.transport.errors import UnreachableError

if TYPE_CHECKING:
    from trainmaster.cluster.node_access import NodeAccess
    from trainmaster.transport import Connection

T = TypeVar("T")


class NodeLinks:
    """One connection per node, shared by threads, and more while something is moved. Close it."""

    def __init__(self) -> None:
        self._own: dict[str, set[Connection]] = {}
        self._links: dict[tuple[str, str], Connection] = {}
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self._guard = threading.Lock()

    def use(self, access: NodeAccess, work: Callable[[Connection], T]) -> T:
        """Do something that may be repeated over a node's connection; once more if that had been lost.

        Raises:
            UnreachableError: it cannot be reached.
        """
        for again in (True, False):
            connection, is_new = self._link(access)
            try:
                return work(connection)
            except UnreachableError:
                self._drop(access, connection)
                if is_new or not again:
                    raise
        raise AssertionError("the second time either returns or raises")

    @contextmanager
    def own(self, access: NodeAccess) -> Iterator[Connection]:
        """A connection of one's own: it goes with a transfer that failed.

        Raises:
            UnreachableError: the node cannot be reached.
        """
        with access.connection() as connection:
            with self._guard:
                self._own.setdefault(access.id, set()).add(connection)
            try:
                yield connection
            finally:
                with self._guard:
                    self._own[access.id].discard(connection)

    def hang_up(self, node: str) -> None:
        """End all that is under way with a machine that is gone, by its id, without waiting for it."""
        with self._guard:
            keys = [key for key in self._links if key[1] == node]
            doomed = [*(self._links.pop(key) for key in keys), *self._own.get(node, ())]
        for connection in doomed:  # each waits a moment for an answer
            threading.Thread(target=connection.close, name="hang up", daemon=True).start()

    def close(self) -> None:
        """Hang up everywhere."""
        with self._guard:
            links, self._links = list(self._links.values()), {}
        for connection in links:
            connection.close()

    def _link(self, access: NodeAccess) -> tuple[Connection, bool]:
        key = (access.seat, access.id)
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # others may talk to other nodes meanwhile
            known = self._links.get(key)
            if known is not None and not known.is_closed:
                return known, False
            made = access.connect()
            with self._guard:
                self._links[key] = made
            return made, True

    def _drop(self, access: NodeAccess, connection: Connection) -> None:
        key = (access.seat, access.id)
        with self._guard:
            if self._links.get(key) is connection:
                del self._links[key]
        connection.close()
