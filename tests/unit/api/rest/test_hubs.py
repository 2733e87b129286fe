"""One look for all that listen to a run, which the event loop does not wait for."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

import pytest
import sqlalchemy as sa
from sqlalchemy import event

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from trainmaster.api.rest.hubs import Hub
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun
from trainmaster.db.held_runs import add_note
from trainmaster.service import Service
from trainmaster.service.runs.run_stream import RunStream, StreamCursor
from trainmaster.spec import Recipe
from trainmaster.spec.errors import StoreError

RECIPE = Recipe.from_dict({"name": "r", "experiments": {"main": {"command": "true"}}}).model_dump_json()


@pytest.fixture
def service(tmp_path):
    found = Service(Home(tmp_path, tmp_path, "file:///s", f"sqlite:///{tmp_path / 't.db'}"))
    found.database.create_run(
        AcceptedRun("r-1", "r", RECIPE, "r.yaml", "local", "code", "file:///s", [("main", 1)]), 1.0
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
    assert any("event: state" in text for text in found) != is_away, "a listener comes back"
    assert not listeners
    assert made_in[0] is not threading.main_thread()


@pytest.mark.parametrize("failures", [1, 2, 3, 5, 8])
def test_who_listens_while_the_database_is_away_gets_all_of_it_once(service, monkeypatch, failures):
    """A listener that is sent away comes back with the id of the last message that it got, as browsers do."""
    monkeypatch.setattr("trainmaster.api.rest.hubs.LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(service.database.retry_policy, "seconds", 0.0)
    left = []

    def away(*_):
        if left:
            left.pop()
            raise sa.exc.OperationalError("SELECT", {}, sqlite3.OperationalError("disk I/O error"))

    async def listen():
        hub, told, place, notes = Hub(service, "r-1"), [], "", 3
        while True:
            try:
                own = RunStream(service, "r-1", StreamCursor.decode(place))
            except StoreError:
                continue  # 503: it asks again
            async for text in hub.listen(own):
                if "event: state" not in text:
                    continue
                told.append(text)
                place = text.partition("id: ")[2].partition("\n")[0]
                if all(f"said {number}" in "".join(told) for number in range(3)):
                    return "".join(told)
                if notes:
                    notes -= 1
                    add_note(service.database, "r-1", f"said {notes}", 2.0)
                    left.extend([None] * failures)

    event.listen(service.database.engine, "before_cursor_execute", away)
    text = asyncio.run(asyncio.wait_for(listen(), 60.0))
    assert [text.count(f"said {number}") for number in range(3)] == [1, 1, 1]
