"""Opening the database: SQLite in the home by default, PostgreSQL by URL.

Writers on SQLite take the write lock when they begin (``BEGIN IMMEDIATE``): a deferred
transaction that turns into a writer fails with "database is locked" whatever the timeout.

Database URLs: what users write, and what SQLAlchemy is told.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event as sa_event
from sqlalchemy.engine import URL, Connection, Engine

from trainmaster.db.migrations import lock_schema, upgrade
from trainmaster.db.retry_policy import is_damaged
from trainmaster.db.tables import metadata
from trainmaster.spec.errors import StoreError, UsageError, imports_of

_EXAMPLES = "Write sqlite:////srv/trainmaster.db or postgresql://user:password@host/database."

# libpq's parameters. A peer that vanished without a word is noticed after half a minute, not two hours.
_POSTGRESQL = {
    "application_name": "trainmaster",
    "client_encoding": "utf8",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}


def make_engine(text: str) -> Engine:
    """An engine that is not connected yet.

    Args:
        text: ``sqlite:///FILE``, ``postgresql://...`` or ``postgres://...``.

    Raises:
        UsageError: it is no such URL.
        MissingPartError: the driver is not installed.
    """
    url = _parsed(text)
    backend = url.get_backend_name()
    if backend == "sqlite":
        return _created(url)
    if backend not in ("postgresql", "postgres"):
        raise UsageError(f"TRAINMASTER_DATABASE: {backend} is not supported", _EXAMPLES)
    url = _without_query_secrets(url).set(drivername="postgresql+psycopg")
    arguments = {key: value for key, value in _POSTGRESQL.items() if key not in url.query}
    with imports_of("postgres", "TRAINMASTER_DATABASE: PostgreSQL"):
        return _created(url, connect_args=arguments, pool_use_lifo=True)


def shown(text: str) -> str:
    """The URL without its password."""
    return _without_query_secrets(_parsed(text)).render_as_string(hide_password=True)


def _parsed(text: str) -> URL:
    with _understood():
        return sa.make_url(text)


def _created(url: URL, **options: Any) -> Engine:  # noqa: ANN401 - they go straight through
    with _understood():
        return sa.create_engine(url, **options)


@contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except (sa.exc.ArgumentError, ValueError) as error:
        # The text is not repeated: it may hold a password.
        raise UsageError("TRAINMASTER_DATABASE: this is no database URL", _EXAMPLES) from error


def _without_query_secrets(url: URL) -> URL:
    # libpq takes `?password=`, but whatever shows a URL hides only the one before the @.
    password = url.query.get("password")
    if isinstance(password, str):
        url = url.difference_update_query(["password"]).set(password=password)
    return url


#: Alembic revision that `metadata` describes; a migration that changes tables changes this too.
SCHEMA_REVISION = "0011"
BUSY_TIMEOUT_MS = 30_000
#: What to do about a database whose files are damaged.
DAMAGED_ADVICE = (
    "It is damaged. Keep what is there: move the home to another place. Then `trainmaster server restore "
    "FILE` makes it again from what `trainmaster server backup` has written (docs/server/backup.md)."
)
#: A controller that is stopped (SIGSTOP, a vanished laptop) in mid-transaction blocks others no longer.
IDLE_TRANSACTION_TIMEOUT_MS = 30_000

_DEFINITIONS: dict[str, list[str]] = {}
_VERSION = sa.table("alembic_version", sa.column("version_num", sa.Text))


def open_database(url: str) -> Engine:
    """Connect, create the tables in a new database, migrate an older one.

    Args:
        url: ``sqlite:////home/me/.trainmaster/trainmaster.db`` or ``postgresql://...``.

    Raises:
        StoreError: it cannot be opened, or was written by a newer Trainmaster.
        UsageError: no such URL, or its driver is not installed.
    """
    shown_url = shown(url)
    engine = make_engine(url)
    try:
        _make_private(engine)
        _tune(engine)
        _ensure_schema(engine, shown_url)
    except (sa.exc.SQLAlchemyError, OSError) as error:
        engine.dispose()
        advice = (
            "Is its directory writable? If its disk is full, delete a few MB by hand: then "
            "`trainmaster prune` frees more. TRAINMASTER_HOME names another place."
            if engine.dialect.name == "sqlite"
            else "Is the server running, and are user, password and database right? See TRAINMASTER_DATABASE."
        )
        advice = DAMAGED_ADVICE if is_damaged(error) else advice
        if engine.dialect.name == "sqlite" and not _has_locks(engine):  # SQLite calls that "locked"
            advice = (
                f"The file system of {Path(engine.url.database or '').parent} has no locks for files, as "
                "some network file systems. Set TRAINMASTER_HOME to a directory of another one, or "
                "TRAINMASTER_DATABASE to PostgreSQL."
            )
        raise StoreError(f"cannot use the database {shown_url}: {first_line(error)}", advice) from error
    except StoreError:
        engine.dispose()
        raise
    return engine


def reader_of(engine: Engine) -> Engine:
    """The same database for single reads: they wait for no writer, and make no transaction."""
    if engine.dialect.name == "sqlite":
        return engine.execution_options(reading=True)
    return engine.execution_options(isolation_level="AUTOCOMMIT")  # one message instead of three


def first_line(error: BaseException) -> str:
    """What a database says, in one line."""
    if isinstance(error, sa.exc.TimeoutError):  # SQLAlchemy's own words, with sizes and a link to its manual
        return "all connections of this process are in use"
    origin = getattr(error, "orig", None) or error
    return str(origin).strip().splitlines()[0] if str(origin).strip() else type(origin).__name__


def _make_private(engine: Engine) -> None:
    """A new file is its owner's only, as are those that SQLite makes beside it; one that is there stays."""
    file = engine.url.database or ""
    if engine.dialect.name == "sqlite" and file and not file.startswith((":", "file:")):
        with contextlib.suppress(FileExistsError):
            os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _tune(engine: Engine) -> None:
    (_tune_sqlite if engine.dialect.name == "sqlite" else _tune_postgresql)(engine)


def _tune_sqlite(engine: Engine) -> None:
    @sa_event.listens_for(engine, "connect")
    def on_connect(raw: Any, _record: object) -> None:  # noqa: ANN401 - a DBAPI connection has no type
        raw.isolation_level = None  # we say BEGIN ourselves
        raw.execute("PRAGMA busy_timeout=100")  # it is asked again by us, who look whether there are locks
        _use_wal(raw, engine)
        raw.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        raw.execute("PRAGMA synchronous=NORMAL")
        raw.execute("PRAGMA foreign_keys=ON")

    @sa_event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        reading_only = connection.get_execution_options().get("reading", False)
        connection.exec_driver_sql("BEGIN" if reading_only else "BEGIN IMMEDIATE")


def _use_wal(raw: Any, engine: Engine) -> None:  # noqa: ANN401 - a DBAPI connection has no type
    """Have a file written by a log of changes; SQLite does not wait by itself for others that do so now."""
    import sqlite3

    until = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            raw.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            is_locked = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not is_locked or time.monotonic() > until or not _has_locks(engine):
                raise
            time.sleep(0.02)
        else:
            return


def _has_locks(engine: Engine) -> bool:
    """Whether files beside the database can be locked; closing one of SQLite's own would unlock that."""
    with (
        contextlib.suppress(OSError),
        tempfile.TemporaryFile(dir=Path(engine.url.database or "").parent) as file,
    ):
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
    return True


def _tune_postgresql(engine: Engine) -> None:
    # It logs a traceback when it cannot say goodbye to a connection that was cut; we know that already.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)

    # By statements, not by libpq's `options`: connection poolers refuse those.
    @sa_event.listens_for(engine, "connect")
    def on_connect(raw: Any, _record: object) -> None:  # noqa: ANN401 - a DBAPI connection has no type
        raw.autocommit = True
        raw.execute(f"SET lock_timeout = {BUSY_TIMEOUT_MS}")
        raw.execute(f"SET idle_in_transaction_session_timeout = {IDLE_TRANSACTION_TIMEOUT_MS}")
        raw.autocommit = False


def _ensure_schema(engine: Engine, shown_url: str) -> None:
    found = _quick_revision(engine)
    if found == SCHEMA_REVISION:
        return
    if found is None:
        with engine.begin() as connection:
            lock_schema(connection)
            if _revision(connection) is None:  # two processes may open a new home at once
                _require_utf8(connection, shown_url)
                _create_tables(connection)
                connection.exec_driver_sql(
                    "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"
                )
                connection.execute(_VERSION.insert().values(version_num=SCHEMA_REVISION))
        return
    upgrade(engine, found, SCHEMA_REVISION, shown_url)


def check_schema(connection: Connection) -> None:
    """Refuse tables that a newer Trainmaster has changed since this process has opened them.

    Raises:
        StoreError: it has.
    """
    found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    if found != SCHEMA_REVISION:
        url = connection.engine.url.render_as_string()
        raise StoreError(
            f"a newer Trainmaster has changed the database {url}: it has schema {found}, and this process, "
            f"which began before that, knows {SCHEMA_REVISION}",
            "Nothing is written by this process any more. End it, update Trainmaster here (pip install -U "
            "trainmaster), and start it again: runs go on.",
        )


def _create_tables(connection: Connection) -> None:
    definitions = _definitions(connection.dialect)
    if connection.dialect.name == "sqlite":
        cursor = connection.connection.cursor()  # SQLAlchemy's way takes three times as long
        for statement in definitions:
            cursor.execute(statement)
    else:  # all in one message
        connection.execution_options(no_parameters=True).exec_driver_sql(";\n".join(definitions))


def _definitions(dialect: sa.Dialect) -> list[str]:
    """What makes all tables; put together once per process, as that takes longer than making them."""
    if dialect.name not in _DEFINITIONS:
        found: list[str] = []
        mock = sa.create_mock_engine(
            f"{dialect.name}://", lambda sql, *_, **__: found.append(str(sql.compile(dialect=dialect)))
        )
        metadata.create_all(mock, checkfirst=False)
        _DEFINITIONS[dialect.name] = found
    return _DEFINITIONS[dialect.name]


def _require_utf8(connection: Connection, shown_url: str) -> None:
    if connection.dialect.name == "sqlite":
        return
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
    if encoding != "UTF8":
        raise StoreError(
            f"the database {shown_url} has the encoding {encoding}, which cannot hold every text",
            "Make one with `createdb --encoding=UTF8 --template=template0 NAME`.",
        )


def _quick_revision(engine: Engine) -> str | None:
    # One plain query: inspecting the schema at every start would cost more than the rest of opening it.
    try:
        with reader_of(engine).connect() as connection:
            return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    except (sa.exc.OperationalError, sa.exc.ProgrammingError):
        with reader_of(engine).connect() as connection:
            if not sa.inspect(connection).has_table(_VERSION.name):
                return None
            # Another process has made it just now; what else was wrong is so still.
            return connection.execute(sa.select(_VERSION.c.version_num)).scalar()


def _revision(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(sa.select(_VERSION.c.version_num)).scalar()
