"""What all unit tests share."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

#: What a module imports that makes processes, sockets and loops: what it leaves open is found by a collector.
_LEAVES_OPEN = frozenset({"asyncio", "socket", "sqlite3", "subprocess"})


@pytest.fixture(scope="module", autouse=True)
def garbage_is_its_own(request: pytest.FixtureRequest) -> Iterator[None]:
    """A process or a socket that was left open fails a test of its own module, not one of a later module."""
    yield
    if _LEAVES_OPEN & vars(request.module).keys():
        gc.collect(1)  # of what is young: all of it would take a process minutes in all


@pytest.fixture
def home(tmp_path: Path) -> Any:
    """A home with nothing in it."""
    from trainmaster.control.task.layout import Home

    return Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path}/t.db")


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], bytes]:
    """A new SQLite database as a file, made once: thousands of tests begin with one."""
    found: list[bytes] = []

    def template() -> bytes:
        from trainmaster.db import Database

        if not found:
            file = tmp_path_factory.mktemp("template") / "trainmaster.db"
            Database(f"sqlite:///{file}").close()
            found.append(file.read_bytes())
        return found[0]

    return template


def _place(file: Path, content: bytes) -> None:
    """Whole or not at all; one that another thread has made meanwhile stays."""
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=file.parent) as draft:
        draft.write(content)
        draft.flush()
        os.link(draft.name, file)


class Statements:
    """Compiled SQL of all engines: each has its own otherwise, and thousands of tests make one or more."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def get(self, key: tuple[Any, ...]) -> Any:
        return self._compiled.get((key[0].name, *key[1:]))  # a dialect is one engine's

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        self._compiled[key[0].name, *key[1:]] = compiled


_STATEMENTS = Statements()


@pytest.fixture(scope="module", autouse=True)
def statements() -> Iterator[None]:
    """SQL is compiled once in a process: a seventh of what tests of the service take."""
    engine: Any = sys.modules.get("trainmaster.db.engine")
    if engine is None:  # no module of tests has imported it
        yield
        return
    created = engine._created

    def create(url: Any, **options: Any) -> Any:
        made = created(url, **options)
        made._compiled_cache = _STATEMENTS
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_created", create)
        yield


@pytest.fixture(scope="module", autouse=True)
def new_databases(sqlite_template: Callable[[], bytes]) -> Iterator[None]:
    """A new SQLite file is a copy of one: that takes 2 ms instead of 12. Tests of `db` make their own."""
    engine = sys.modules.get("trainmaster.db.engine")
    if engine is None:  # no module of tests has imported it
        yield
        return
    make_private: Any = engine._make_private
    made = sqlite_template()

    def make(of: Any) -> None:
        file = Path(of.url.database or ":memory:")
        if of.dialect.name == "sqlite" and file.suffix == ".db" and not file.exists():
            _place(file, made)
        make_private(of)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_make_private", make)
        yield
