"""`RetryPolicy`: how long, and with which waits, a transaction is tried again while a database is away.

A server that restarts, a cut connection, a full disk or a lock held by another process are over
after a while. What drives a run waits for that, backing off, instead of ending: the members of
the run are at work all the time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import sqlalchemy as sa

from trainmaster.dataclass import dataclass, field

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 2.0

# https://www.postgresql.org/docs/current/errcodes-appendix.html
_SQLSTATE_CLASSES = frozenset(
    {
        "08",  # the connection
        "40",  # deadlock, serialization failure
        "53",  # disk full, out of memory, too many connections
    }
)
_SQLSTATES = frozenset(
    {
        "25006",  # a standby that is not promoted yet
        "25P03",  # it ended our session: a transaction was idle for too long
        "55P03",  # lock timeout
        "57014",  # somebody cancelled the statement
        "57P01", "57P02", "57P03", "57P05",  # shutting down, crashed, starting up, idle for too long
        "58030",  # I/O error
    }
)  # fmt: skip

# https://www.sqlite.org/rescode.html; extended codes keep the primary one in their low byte.
_SQLITE_CODES = frozenset({5, 6, 7, 10, 13, 14, 15})  # BUSY LOCKED NOMEM IOERR FULL CANTOPEN PROTOCOL


_DISK_FULL, _SQLITE_FULL = "53100", 13
#: Of files that are damaged, or none of a database: data and index corrupted; CORRUPT and NOTADB.
_DAMAGED, _SQLITE_DAMAGED = ("XX001", "XX002"), (11, 26)


@dataclass(frozen=True, slots=True)
class Try:
    """One of several tries at the same transaction.

    Attributes:
        again: an earlier try failed, and may have been committed.
        waited_s: since the first try began.
    """

    again: bool = False
    waited_s: float = 0.0


@dataclass
class RetryPolicy:
    """How long each transaction is tried; the waits between the tries grow (exponential backoff with jitter).

    Args:
        seconds: how long one transaction is tried; 0 for once.
        clock: monotonic seconds.
        sleep: waits.
        chance: between 0 and 1: the less, the shorter a wait is, down to its half. Many that meet one lock
            try again at different moments.

    Attributes:
        tell: called once per trouble with one line for the user.
        hurried: asked before every wait; True ends the waiting.
        waits_for_room: False where somebody waits for an answer: a full disk is not over by itself.
    """

    seconds: float = 0.0
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    sleep: Callable[[float], None] = field(default=time.sleep, kw_only=True)
    chance: Callable[[], float] = field(default=random.random, kw_only=True)
    tell: Callable[[str], None] | None = field(default=None, init=False)
    hurried: Callable[[], bool] | None = field(default=None, init=False)
    waits_for_room: bool = field(default=True, init=False)

    def begin(self) -> Backoff:
        """Begin a transaction."""
        return Backoff(self)


class Backoff:
    """The waits between the tries of one transaction; see `RetryPolicy.begin`."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._began_at = policy.clock()
        self._next_s = FIRST_WAIT_S
        self._told = False

    @property
    def spent_s(self) -> float:
        """Seconds since it began."""
        return self._policy.clock() - self._began_at

    def once_more(self, trouble: str) -> Try | None:
        """Wait a while; None if no time is left."""
        policy = self._policy
        left_s = policy.seconds - self.spent_s
        if left_s <= 0 or (policy.hurried is not None and policy.hurried()):
            return None
        if policy.tell is not None and not self._told and self._next_s > FIRST_WAIT_S:
            self._told = True  # a reconnect that works at once is not worth a line
            policy.tell(f"the database is away ({trouble}); trying again for {left_s:.0f} s")
        policy.sleep(min(self._next_s * (1 + policy.chance()) / 2, left_s))
        self._next_s = min(2 * self._next_s, LONGEST_WAIT_S)
        return Try(again=True, waited_s=self.spent_s)


def is_transient(error: sa.exc.DBAPIError | sa.exc.TimeoutError) -> bool:
    """True if the same transaction may well succeed a little later."""
    if isinstance(error, sa.exc.TimeoutError):  # other threads have all connections that there may be
        return True
    if error.connection_invalidated:
        return True
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return state[:2] in _SQLSTATE_CLASSES or state in _SQLSTATES
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in _SQLITE_CODES
    return isinstance(error, sa.exc.OperationalError)  # a refused connection has no code of its own


def is_full(error: sa.exc.DBAPIError | sa.exc.TimeoutError) -> bool:
    """True if the disk of the database is full."""
    cause = getattr(error, "orig", None)
    code = getattr(cause, "sqlite_errorcode", None)
    return getattr(cause, "sqlstate", None) == _DISK_FULL or (
        code is not None and code & 0xFF == _SQLITE_FULL
    )


def is_damaged(error: BaseException) -> bool:
    """True if the files of the database are damaged: no other try reads them."""
    cause = getattr(error, "orig", None)
    code = getattr(cause, "sqlite_errorcode", None)
    return getattr(cause, "sqlstate", None) in _DAMAGED or (
        code is not None and code & 0xFF in _SQLITE_DAMAGED
    )
