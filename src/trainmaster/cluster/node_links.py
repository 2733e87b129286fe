"""`NodeLinks`: connections to nodes: kept ones, for quick questions, and those of transfers.

`NodeFailureDetector`: whether machines that are taken for lost still answer us.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, TypeVar

from trainmaster.cluster.node_access import NodeAccess
from trainmaster.transport.base import Connection, Target, UnreachableError

#: A machine's kernel answers within that, and an SSH server that is well greets at once.
_ANSWER_S: Final = 2.0
_AGAIN_S: Final = 0.5
#: One whose kernel answers may be busy, and greet late.
BUSY_GREETING_S: Final = 8.0
_GREETING: Final = b"SSH-"


class NodeFailureDetector:
    """Threads share it.

    Args:
        links: connections to nodes that are hung up on when those do not answer.
        again_s: a machine that answers must do so once more after as long: one that is being switched off
            answers for a moment.
        greeting_s: so long may a machine whose kernel answers be too busy to greet.
    """

    def __init__(
        self, links: NodeLinks | None = None, again_s: float = 0.0, greeting_s: float = _ANSWER_S
    ) -> None:
        self._links = links
        self._again_s = again_s
        self._greeting_s = greeting_s
        self._guard = threading.Lock()
        self._verdicts: dict[tuple[str, str], Future[bool]] = {}
        self._asked: dict[str, Future[bool]] = {}

    def suspect(self, attempt: str, nodes: Iterable[NodeAccess]) -> None:
        """Members of an attempt were lost with their nodes: see in the background whether those answer us."""
        for node in nodes:
            with self._guard:
                if (attempt, node.id) in self._verdicts:
                    continue
                asked = self._asked.get(node.id)
                if asked is not None and not asked.done():  # for another attempt: one probe will do
                    self._verdicts[attempt, node.id] = asked
                    continue
                verdict = self._verdicts[attempt, node.id] = self._asked[node.id] = Future()
            threading.Thread(target=self._probe, args=(verdict, node), name="probe", daemon=True).start()

    def is_there(self, attempt: str, node: NodeAccess) -> bool:
        """False if it is suspected and does not answer; waits until that is known."""
        with self._guard:
            verdict = self._verdicts.get((attempt, node.id))
        return verdict is None or verdict.result()

    def answers(self, attempt: str, node: str) -> bool | None:
        """Whether a machine, by id, that is suspected for an attempt answers; None until that is known."""
        with self._guard:
            verdict = self._verdicts.get((attempt, node))
        return verdict.result() if verdict is not None and verdict.done() else None

    def forget(self, attempt: str) -> None:
        """It is over."""
        with self._guard:
            for key in [key for key in self._verdicts if key[0] == attempt]:
                del self._verdicts[key]

    def _probe(self, verdict: Future[bool], node: NodeAccess) -> None:
        began = time.monotonic()
        answers = greets(node.target, self._greeting_s)
        if not answers and time.monotonic() - began < _ANSWER_S / 2:
            time.sleep(_AGAIN_S)  # a server that many call at once turns some away without a word
            answers = greets(node.target, self._greeting_s)
        elif answers and self._again_s:
            time.sleep(self._again_s)
            answers = greets(node.target, self._greeting_s)
        verdict.set_result(answers)
        if not answers and self._links is not None:  # keepalives would find out much later
            self._links.hang_up(node.id)


def greets(target: Target, greeting_s: float = _ANSWER_S) -> bool:
    """Whether an SSH server greets what connects; True if that cannot be seen from here.

    Args:
        target: the machine.
        greeting_s: how long it may be silent once the connection is there.
    """
    if target.jump is not None or target.way:
        return True
    try:
        with socket.create_connection((target.address, target.port), _ANSWER_S) as connection:
            connection.settimeout(greeting_s)
            return connection.recv(len(_GREETING)) == _GREETING
    except OSError:
        return False


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
