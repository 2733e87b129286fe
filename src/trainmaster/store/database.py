"""Opening the database: SQLite in the home by default, any SQLAlchemy URL otherwise.

Writers on SQLite take the write lock when they begin (``BEGIN IMMEDIATE``): a deferred
transaction that turns into a writer fails with "database is locked" whatever the timeout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event as sa_event
from sqlalchemy.engine import Connection, Engine

from trainmaster.spec.errors import StoreError
from trainmaster.store.tables import metadata

#: Alembic revision that `metadata` describes; a migration that changes tables changes this too.
SCHEMA_REVISION = "0001"
BUSY_TIMEOUT_MS = 30_000

_VERSION = sa.table("alembic_version", sa.column("version_num", sa.Text))


def open_database(url: str) -> Engine:
    """Connect, create the tables in a new database, migrate an older one.

    Args:
        url: SQLAlchemy URL, such as ``sqlite:////home/me/.trainmaster/trainmaster.db``.

    Raises:
        StoreError: it cannot be opened, or was written by a newer Trainmaster.
    """
    try:
        engine = sa.create_engine(url)
        if engine.dialect.name == "sqlite":
            _tune_sqlite(engine)
        _ensure_schema(engine, url)
    except (sa.exc.SQLAlchemyError, OSError) as error:
        raise StoreError(
            f"cannot use the database {_without_password(url)}: {_first_line(error)}",
            "Is its directory writable and its disk not full? TRAINMASTER_HOME names another place.",
        ) from error
    return engine


def sqlite_url(path: Path) -> str:
    """URL of a SQLite file."""
    return f"sqlite:///{path}"


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection whose transactions only read (they wait for no writer).

    Raises:
        StoreError: the database cannot be read.
    """
    try:
        with _reader(engine) as connection:
            yield connection
    except sa.exc.DBAPIError as error:
        raise StoreError(
            f"the database cannot be read: {_first_line(error)}",
            f"Is {_without_password(str(engine.url))} whole, and its disk not full?",
        ) from error


def _reader(engine: Engine) -> Connection:
    return engine.connect().execution_options(reading=True)


def _tune_sqlite(engine: Engine) -> None:
    @sa_event.listens_for(engine, "connect")
    def on_connect(raw: Any, _record: object) -> None:  # noqa: ANN401 - a DBAPI connection has no type
        raw.isolation_level = None  # we say BEGIN ourselves
        raw.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        raw.execute("PRAGMA journal_mode=WAL")
        raw.execute("PRAGMA synchronous=NORMAL")
        raw.execute("PRAGMA foreign_keys=ON")

    @sa_event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        reading_only = connection.get_execution_options().get("reading", False)
        connection.exec_driver_sql("BEGIN" if reading_only else "BEGIN IMMEDIATE")


def _ensure_schema(engine: Engine, url: str) -> None:
    found = _quick_revision(engine)
    if found == SCHEMA_REVISION:
        return
    if found is None:
        with engine.begin() as connection:
            if _revision(connection) is None:  # two processes may open a new home at once
                metadata.create_all(connection)
                connection.exec_driver_sql(
                    "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"
                )
                connection.execute(_VERSION.insert().values(version_num=SCHEMA_REVISION))
        return
    from trainmaster.store.migrations import upgrade  # Alembic is slow to import, and rarely needed

    upgrade(engine, found, SCHEMA_REVISION, _without_password(url))


def _quick_revision(engine: Engine) -> str | None:
    # One plain query: inspecting the schema at every start would cost more than the rest of opening it.
    try:
        with _reader(engine) as connection:
            return connection.execute(sa.select(_VERSION.c.version_num)).scalar()
    except (sa.exc.OperationalError, sa.exc.ProgrammingError) as error:
        if "alembic_version" in str(error.orig):
            return None
        raise


def _revision(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(sa.select(_VERSION.c.version_num)).scalar()


def _without_password(url: str) -> str:
    return sa.make_url(url).render_as_string(hide_password=True)


def _first_line(error: BaseException) -> str:
    origin = getattr(error, "orig", None) or error
    return str(origin).strip().splitlines()[0] if str(origin).strip() else type(origin).__name__
