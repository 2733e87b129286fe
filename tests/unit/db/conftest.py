"""Every test that asks for a store runs on SQLite and on PostgreSQL.

What only one of them can do is marked ``@pytest.mark.parametrize("engine_name", ["sqlite"])``.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from database_nouns import NOW, ToldStore, new_run

from trainmaster.db import Database, Lease
from trainmaster.testing.private_postgres import PrivatePostgres

#: Modules whose tests cut connections, kill processes or migrate: each test has tables of its own.
_OWN_TABLES = (
    "away",
    "engine",
    "leases",
    "migrations",
    "retry_policy",
    "races",
    "simulated_store",
    "transactions",
    "urls",
)


class KeptTables:
    """Tables on a server that tests use one after the other: to make them costs 100 ms of processor time."""

    def __init__(self, server: PrivatePostgres) -> None:
        self.url = server.new_url()
        Database(self.url).close()
        # One connection: a new one would read what tables there are. Tests may have cut it.
        url = server.url.replace("postgresql:", "postgresql+psycopg:")
        self.engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", pool_pre_ping=True)
        schema = self.url.rsplit("%3D", 1)[1]
        of_schema = f"FROM pg_class WHERE relnamespace = '{schema}'::regnamespace AND relkind ="
        tables, sequences = (
            [f"{schema}.{name}" for (name,) in server.execute(f"SELECT relname {of_schema} '{kind}'")]
            for kind in "rS"
        )
        self._empty = "; ".join(
            [
                "SET lock_timeout = '5s'; SET session_replication_role = replica",
                *(f"DELETE FROM {name}" for name in tables if not name.endswith(".alembic_version")),
                *(f"SELECT setval('{name}', 1, false)" for name in sequences),
            ]
        )

    def empty(self) -> str:
        """The URL, when nothing is left in them."""
        with self.engine.connect() as connection:
            connection.exec_driver_sql(self._empty)
        return self.url


@pytest.fixture(scope="session")
def kept_tables(postgres: PrivatePostgres) -> Iterator[KeptTables]:
    kept = KeptTables(postgres)
    yield kept
    kept.engine.dispose()


@pytest.fixture(scope="module", autouse=True)
def new_databases() -> None:
    """Here they are made, not copied."""


@pytest.fixture(params=["sqlite", "postgresql"])
def engine_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(engine_name: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A new, empty database."""
    own_tables = "database" not in request.fixturenames or request.path.stem.endswith(_OWN_TABLES)
    if engine_name == "postgresql" and not own_tables:
        return request.getfixturevalue("kept_tables").empty()
    if engine_name == "postgresql":
        return request.getfixturevalue("postgres").new_url()
    return f"sqlite:///{tmp_path / 'trainmaster.db'}"


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    found = ToldStore(url)
    yield found
    found.close()


@pytest.fixture
def lease(database: Database) -> Lease:
    return database.create_run(new_run(), NOW)
