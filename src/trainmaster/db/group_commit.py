"""`GroupCommit`: the writes of many threads to SQLite, in few transactions.

SQLite has one writer at a time. Hundreds of threads that each begin, write and commit hand its lock on as
often, each time waiting for the interpreter's; so the one that writes does so for all that wait by then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from trainmaster.db.patience import is_transient

T = TypeVar("T")
#: So many writes are in one transaction at most: until its end there are no other writers.
MOST: Final = 32
_LONGEST_REST_S: Final = 0.1


@dataclass(eq=False, slots=True)
class _Write:
    """A thread that waits for its write.

    Attributes:
        work: what to do; may be called twice, if the first time was undone.
        turn: held until it was done, or until this thread is to do it.
        is_done: whatever came of it.
        result: of the work.
        error: instead of that.
    """

    work: Callable[[Connection], object]
    turn: threading.Lock = field(default_factory=threading.Lock)
    is_done: bool = False
    result: object = None
    error: BaseException | None = None


class GroupCommit:
    """Writes to a database, together with threads that want the same at that time.

    Args:
        engine: an opened SQLite database.
        writing: held while writing; of those in this process that write alone.
    """

    def __init__(self, engine: Engine, writing: AbstractContextManager[Any]) -> None:
        self._engine = engine
        self._writing = writing
        self._lock = threading.Lock()
        self._waiting: list[_Write] = []
        self._is_led = False
        self._rests_until = 0.0

    def write(self, work: Callable[[Connection], T]) -> T:
        """Do some work in a transaction; whole or not at all, whatever becomes of the others in it.

        Args:
            work: what to do; called once more if another one in its transaction has failed, which undid both.

        Raises:
            sqlalchemy.exc.DBAPIError: the database refused it.
        """
        mine = _Write(work)
        mine.turn.acquire()
        with self._lock:
            self._waiting.append(mine)
            leads, self._is_led = not self._is_led, True
        if not leads:
            mine.turn.acquire()
        if not mine.is_done:
            self._lead()
        if mine.error is not None:
            raise mine.error
        return cast(T, mine.result)

    def _lead(self) -> None:
        """Write what waits, this thread's first, and have the next one that came meanwhile go on."""
        if (rest_s := self._rests_until - time.monotonic()) > 0:
            time.sleep(rest_s)
        with self._lock:
            group, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
        begun_at = time.monotonic()
        try:
            self._write(group)
        finally:
            # Other processes only ask now and then whether they may write: they get as long as we took.
            now = time.monotonic()
            self._rests_until = now + min(now - begun_at, _LONGEST_REST_S) if len(group) > 1 else 0.0
            with self._lock:
                next_one = self._waiting[0] if self._waiting else None
                self._is_led = next_one is not None
            if next_one is not None:
                next_one.turn.release()
            for each in group:
                each.is_done = True
                each.turn.release()

    def _write(self, group: list[_Write]) -> None:
        works = False
        try:
            with self._writing, self._engine.begin() as connection:
                works = True
                for each in group:
                    each.result = each.work(connection)
                works = False
        except BaseException as error:  # noqa: BLE001 - raised by the threads that wait
            away = isinstance(error, sa.exc.DBAPIError) and is_transient(error)
            if works and not away and len(group) > 1:  # one of them is at fault, and all were undone
                for each in group:
                    self._write([each])
                return
            for each in group:
                each.error = error
