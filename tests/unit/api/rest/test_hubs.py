"""One look for all who listen to a run, which the event loop does not wait for."""

from __future__ import annotations

import asyncio
import threading

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from trainmaster.api.rest.hubs import Hub
from trainmaster.control.layout import Home
from trainmaster.db import NewRun
from trainmaster.service import Service
from trainmaster.service.runs.run_stream import RunStream
from trainmaster.spec import Recipe
from trainmaster.spec.errors import StoreError

RECIPE = Recipe.from_dict({"name": "r", "experiments": {"main": {"command": "true"}}}).model_dump_json()


@pytest.fixture
def service(tmp_path):
    found = Service(Home(tmp_path, tmp_path, "file:///s", f"sqlite:///{tmp_path / 't.db'}"))
    found.database.create_run(
        NewRun("r-1", "r", RECIPE, "r.yaml", "local", "code", "file:///s", [("main", 1)]), 1.0
    )
    yield found
    found.close()


@pytest.mark.parametrize("is_away", [False, True])
def test_the_event_loop_does_not_wait_for_the_database(service, monkeypatch, is_away):
    own = RunStream(service, "r-1")
    made_in = []

    def make(*args):
        made_in.append(threading.current_thread())
        if is_away:
            raise StoreError("the database cannot be read", "")
        return RunStream(*args)

    async def listen():
        hub = Hub(service, "r-1")
        found = []
        async for text in hub.listen(own):
            found.append(text)
            if "event: state" in text:
                hub.end()
        return found, hub._listeners

    monkeypatch.setattr("trainmaster.api.rest.hubs.RunStream", make)
    found, listeners = asyncio.run(listen())
    assert any("event: state" in text for text in found) != is_away, "who listens comes back"
    assert not listeners
    assert made_in[0] is not threading.main_thread()
