from collections.abc import Iterator
from pathlib import Path

import pytest

from trainmaster.store import Lease, NewRun, Store

NOW = 1_000_000.0


def new_run(run: str = "r-1", experiments=(("a", 3), ("b", 1))) -> NewRun:
    return NewRun(run, "r", "{}", "/recipe.yaml", "local", "/code", "file:///store", experiments)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'trainmaster.db'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    found = Store(url)
    yield found
    found.close()


@pytest.fixture
def lease(store: Store) -> Lease:
    return store.create_run(new_run(), NOW)
