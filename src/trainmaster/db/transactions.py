"""`Transactions`: every read and write of the database, repeated while it is away.

`GroupCommit`: the writes of many threads to SQLite, in few transactions.

SQLite has one writer at a time. Hundreds of threads that each begin, write and commit hand its lock on as
often, each time waiting for the interpreter's; so the one that writes does so for all that wait by then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, RowMapping

from trainmaster.dataclass import dataclass, field
from trainmaster.db.engine import DAMAGED_ADVICE, check_schema, first_line, reader_of
from trainmaster.db.retry_policy import RetryPolicy, Try, is_damaged, is_full, is_transient
from trainmaster.spec.errors import FullDiskError, StoreError

#: So many writes are in one transaction at most: until its end there are no other writers.
MOST: Final = 32
_LONGEST_REST_S: Final = 0.1
#: A process that writes looks so often whether a newer Trainmaster has changed the tables.
_SCHEMA_LOOK_S: Final = 1.0


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


T = TypeVar("T")


def put_row(
    connection: Connection, table: sa.Table, key: Mapping[str, object], values: Mapping[str, object]
) -> None:
    """Write columns of the row with a key, which is made if there is none."""
    same = [table.c[name] == value for name, value in key.items()]
    row = {**key, **values}
    if not connection.execute(table.update().where(*same).values(row)).rowcount:
        connection.execute(table.insert().values(row))


class Transactions:
    """Runs reads and writes on a database.

    Args:
        engine: an opened database.
        retry_policy: how long each is tried.
    """

    def __init__(self, engine: Engine, retry_policy: RetryPolicy) -> None:
        self.engine = engine
        self.retry_policy = retry_policy
        self._reader = reader_of(engine)
        # SQLite has one writer at a time, and wakes those that wait by letting them ask again and again:
        # of hundreds of threads some would wait for seconds. A lock has them come one after the other.
        self._writing = threading.Lock() if engine.dialect.name == "sqlite" else nullcontext()
        self._group = GroupCommit(engine, self._writing) if engine.dialect.name == "sqlite" else None
        self._is_one_of_many = False
        self._schema_seen_at = time.monotonic()

    def sharing(self, retry_policy: RetryPolicy) -> Transactions:
        """Of the same database and its connections, with its own retry policy, for one of many writers."""
        shared = Transactions(self.engine, retry_policy)
        shared._writing, shared._group = self._writing, self._group
        shared._is_one_of_many = True
        return shared

    def read(
        self, query: sa.Select[Any], parameters: Mapping[str, object] | None = None
    ) -> Sequence[RowMapping]:
        """All rows of a query.

        Raises:
            StoreError: the database cannot be read.
        """

        def once(_: Try) -> Sequence[RowMapping]:
            with self._reader.connect() as connection:
                return connection.execute(query, parameters or {}).mappings().all()

        return self._repeat(
            once,
            "the database cannot be read",
            f"Is {self.engine.url.render_as_string()} whole, and its disk not full?",
        )

    def check_schema(self) -> None:
        """Refuse to go on with tables that a newer Trainmaster has changed.

        Raises:
            StoreError: it has, or the database is away.
        """

        def once(_: Try) -> None:
            with self._reader.connect() as connection:
                check_schema(connection)

        self._repeat(once, "the database cannot be read", "Is it whole?", patient=False)

    def write(self, work: Callable[[Connection, Try], T], *, patient: bool = True) -> T:
        """One transaction: whole or not at all.

        Args:
            work: what to do; called once more after trouble, maybe although it was committed
                (the answer may be what got lost), so with ``again`` it must look first.
            patient: False to try only once.

        Raises:
            StoreError: the database refused it, or a newer Trainmaster has changed its tables.
        """

        def checked(connection: Connection, this: Try) -> T:
            if (now := time.monotonic()) - self._schema_seen_at > _SCHEMA_LOOK_S:
                check_schema(connection)
                self._schema_seen_at = now
            return work(connection, this)

        def once(this: Try) -> T:
            if self._is_one_of_many and self._group is not None:
                return self._group.write(lambda connection: checked(connection, this))
            with self._writing, self.engine.begin() as connection:
                return checked(connection, this)

        return self._repeat(
            once,
            "the database refused a write",
            "Nothing of this step was recorded. Is its disk full? Then `trainmaster resume RUN`.",
            patient=patient,
        )

    def _repeat(self, once: Callable[[Try], T], what: str, advice: str, *, patient: bool = True) -> T:
        wait = self.retry_policy.begin()
        this: Try | None = Try()
        has_clashed = False
        while True:
            assert this is not None
            try:
                return once(this)
            except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
                trouble = first_line(error)
                # A server may still have been committing an earlier try when this one looked for its rows.
                clashes = isinstance(error, sa.exc.IntegrityError) and this.again and not has_clashed
                has_clashed = has_clashed or clashes
                if not clashes and not is_transient(error):
                    self._blame_schema()
                    hint = DAMAGED_ADVICE if is_damaged(error) else advice
                    raise StoreError(f"{what}: {trouble}", hint) from error
                no_room = is_full(error)
                waits = patient and (self.retry_policy.waits_for_room or not no_room)
                this = wait.once_more(trouble) if waits else None
                if this is None and no_room:
                    raise FullDiskError(f"{what}: {trouble}", self._room()) from error
                if this is None:
                    after = f" for {wait.spent_s:.0f} s" if self.retry_policy.seconds and patient else ""
                    raise StoreError(f"{what}{after}: {trouble}", self._advice()) from error

    def _blame_schema(self) -> None:
        """Say so if a statement was refused for tables that are not ours any more."""
        with suppress(sa.exc.SQLAlchemyError), self._reader.connect() as connection:
            check_schema(connection)

    def _room(self) -> str:
        url = self.engine.url
        place = (
            f"of {url.database}"
            if self.engine.dialect.name == "sqlite"
            else f"of the server of {url.render_as_string()}"
        )
        return (
            f"Free some space on the file system {place}. With a few MB, `trainmaster prune` and `rm` free "
            "more. Nothing recorded is lost, and what was started keeps running: a server goes on by "
            "itself; else `trainmaster resume RUN` does."
        )

    def _advice(self) -> str:
        if self.engine.dialect.name == "sqlite":
            cause = f"Free its disk, or end what holds {self.engine.url.database} locked"
        else:
            cause = f"Start the server of {self.engine.url.render_as_string()} again, or free its disk"
        return (
            f"{cause}; then `trainmaster resume RUN` goes on. "
            "What the run had started keeps running meanwhile, and nothing recorded is lost."
        )
