"""The object store of docs/extend/object-store.md is one: it passes its own test."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from trainmaster.objects import plugins

PAGE = Path(__file__).parents[3] / "docs/extend/object-store.md"
CODE, TEST = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
store = ModuleType("tm_sqlite")
sys.modules[store.__name__] = store
exec(CODE, store.__dict__)
shown: dict = {}
exec(TEST, shown)
TestSqlite = shown["TestSqlite"]


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    monkeypatch.setitem(plugins.factories, "sqlite", store.SqliteBackend)


def test_it_is_as_short_as_is_promised():
    assert len(CODE.splitlines()) < 150
