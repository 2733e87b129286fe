"""`Transactions`: every read and write of the store, repeated while the database is away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, RowMapping

from trainmaster.db.engine import first_line, reader_of
from trainmaster.db.group_commit import GroupCommit
from trainmaster.db.patience import Patience, Try, is_full, is_transient
from trainmaster.spec.errors import FullDiskError, StoreError

T = TypeVar("T")


class Transactions:
    """Runs reads and writes on a database.

    Args:
        engine: an opened database.
        patience: how long each is tried.
    """

    def __init__(self, engine: Engine, patience: Patience) -> None:
        self.engine = engine
        self.patience = patience
        self._reader = reader_of(engine)
        # SQLite has one writer at a time, and wakes those that wait by letting them ask again and again:
        # of hundreds of threads some would wait for seconds. A lock has them come one after the other.
        self._writing = threading.Lock() if engine.dialect.name == "sqlite" else nullcontext()
        self._group = GroupCommit(engine, self._writing) if engine.dialect.name == "sqlite" else None
        self._is_one_of_many = False

    def sharing(self, patience: Patience) -> Transactions:
        """Of the same database and its connections, with a patience of its own, for one of many writers."""
        shared = Transactions(self.engine, patience)
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

    def write(self, work: Callable[[Connection, Try], T], *, patient: bool = True) -> T:
        """One transaction: whole or not at all.

        Args:
            work: what to do; called once more after trouble, maybe although it was committed
                (the answer may be what got lost), so with ``again`` it must look first.
            patient: False to try only once.

        Raises:
            StoreError: the database refused it.
        """

        def once(this: Try) -> T:
            if self._is_one_of_many and self._group is not None:
                return self._group.write(lambda connection: work(connection, this))
            with self._writing, self.engine.begin() as connection:
                return work(connection, this)

        return self._repeat(
            once,
            "the database refused a write",
            "Nothing of this step was recorded. Is its disk full? Then `trainmaster resume RUN`.",
            patient=patient,
        )

    def _repeat(self, once: Callable[[Try], T], what: str, advice: str, *, patient: bool = True) -> T:
        wait = self.patience.begin()
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
                    raise StoreError(f"{what}: {trouble}", advice) from error
                no_room = is_full(error)
                waits = patient and (self.patience.waits_for_room or not no_room)
                this = wait.once_more(trouble) if waits else None
                if this is None and no_room:
                    raise FullDiskError(f"{what}: {trouble}", self._room()) from error
                if this is None:
                    after = f" for {wait.spent_s:.0f} s" if self.patience.seconds and patient else ""
                    raise StoreError(f"{what}{after}: {trouble}", self._advice()) from error

    def _room(self) -> str:
        url = self.engine.url
        place = (
            f"of {url.database}"
            if self.engine.dialect.name == "sqlite"
            else f"of the server of {url.render_as_string()}"
        )
        return (
            f"Free some space on the file system {place}. Nothing recorded is lost, and what was started "
            "keeps running: a server goes on by itself; else `trainmaster resume RUN` does."
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
