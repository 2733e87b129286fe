"""Tests of routes that ask for `served` share one server of a module."""

from __future__ import annotations

import pytest
from served_home import Served


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    pytest.importorskip("fastapi", reason="the extra `server` is not installed")
    found = Served(tmp_path_factory.mktemp("served"))
    yield found
    found.service.close()
