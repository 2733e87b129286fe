"""Tests of routes that ask for `served` share one server of a module, and all requests one event loop."""

from __future__ import annotations

import pytest
from served_home import Served


@pytest.fixture(scope="module", autouse=True)
def one_event_loop():
    """Else each request has a thread and an event loop of its own made, twice: a fifth of its CPU time."""
    testclient = pytest.importorskip("fastapi.testclient", reason="the extra `server` is not installed")
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal("asyncio") as portal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(testclient.TestClient, "portal", portal)
        yield


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    pytest.importorskip("fastapi", reason="the extra `server` is not installed")
    found = Served(tmp_path_factory.mktemp("served"))
    yield found
    found.service.close()
