"""Every test that asks for a store runs on SQLite and on PostgreSQL.

What only one of them can do is marked ``@pytest.mark.parametrize("engine_name", ["sqlite"])``.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from database_nouns import NOW, ToldStore, new_run

from trainmaster.db import Database, Lease


@pytest.fixture(params=["sqlite", "postgresql"])
def engine_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(engine_name: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A new, empty database."""
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
