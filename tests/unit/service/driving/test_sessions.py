"""What a process does that wants a run which another one holds."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainmaster.api.embedded import EmbeddedClient
from trainmaster.control.loop.controller import Controller
from trainmaster.db import Database, RunChange, tables
from trainmaster.service.driving import driving, sessions
from trainmaster.service.driving.driving import Driving
from trainmaster.service.driving.execution_backend import local_backend
from trainmaster.service.on_cluster.away import AwayRuns
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.spec import Recipe
from trainmaster.spec.errors import LeaseLostError, UsageError
from trainmaster.spec.states import EndReason, State

RECIPE = "name: job\nexperiments: {main: {command: 'true'}}\n"


@pytest.fixture
def ended(tmp_path, monkeypatch):
    """A run that was cancelled, whose driver has not given its lease back; (service, run, lease)."""
    client = EmbeddedClient(tmp_path / "home")
    (*_, plan) = client.plan_run(Recipe.from_text(RECIPE, directory=tmp_path), str(tmp_path / "r.yaml"))
    run = client.accept_run(plan.id).run
    lease = client._sessions[run].lease
    database = client._service.database
    database.commit(lease, [RunChange(State.WAITING, State.DONE, EndReason.CANCELLED)], time.time())
    monkeypatch.setattr("trainmaster.db.database.this_process", lambda: "another:1:1")
    yield client._service, run, lease
    client.close()


def test_a_run_that_has_just_ended_is_resumed_once_its_driver_lets_go(ended, monkeypatch):
    service, run, lease = ended
    monkeypatch.setattr(sessions.time, "sleep", lambda _: service.database.release(lease, time.time()))
    session = service.resume(run, {})
    assert session.lease.token > lease.token
    assert service.database.run_row(run)["state"] != State.DONE


def test_one_whose_driver_does_not_let_go_is_told_to_be_tried_later(ended, monkeypatch):
    service, run, _ = ended
    monkeypatch.setattr(sessions, "_GIVEN_BACK_S", -1.0)
    with pytest.raises(UsageError, match="still gives back what it held"):
        service.resume(run, {})


def test_a_run_whose_store_is_gone_does_not_begin_anew(ended):
    service, run, lease = ended
    service.database.release(lease, time.time())
    store = Path(service.database.run_row(run)["store_url"].removeprefix("file://"))
    store.rename(store.with_name("moved"))
    with pytest.raises(UsageError, match="it knows nothing of it") as refused:
        service.resume(run, {})
    assert "ln -s NEW OLD" in refused.value.hint
    assert not store.exists()
    store.mkdir()
    (store / "runs").mkdir()
    (store / "runs/another.json").write_text("{}")  # another disk is mounted there
    with pytest.raises(UsageError, match="it knows nothing of it"):
        service.resume(run, {})
    shutil.rmtree(store)
    store.symlink_to(store.with_name("moved"))
    assert service.resume(run, {}) is not None


def test_an_hour_by_which_the_clock_is_set_is_no_time_of_the_run(ended, monkeypatch):
    service, run, lease = ended
    monkeypatch.setattr("trainmaster.db.database.this_process", lambda: lease.owner)
    service.database.release(lease, time.time())
    session, set_s = service.resume(run, {}), 0.0
    begun = time.time()
    controller = Controller(
        database=service.database, lease=session.lease, run_state=SimpleNamespace(experiments={}),
        actions=SimpleNamespace(jobs=None), executor=None, policies={}, clock=lambda: begun,
        wall=lambda: begun + set_s,
    )  # fmt: skip
    assert controller._clock_notes(begun) == []
    set_s = 3600.0
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + set_s)
    assert service.brief(run)["seconds"] > 3600
    (note,) = controller._clock_notes(begun)
    assert note.message == "the clock here was set 1 h forward, which is no time of the run"
    assert controller._clock_notes(begun) == []
    service.database.commit(session.lease, [note], controller.wall())
    assert service.brief(run)["seconds"] < 60
    over = [RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)]
    service.database.commit(session.lease, over, controller.wall())
    service.database.release(session.lease, controller.wall())
    assert service.brief(run)["seconds"] < 60


@pytest.mark.parametrize("off_s", [300.0, -300.0])
def test_a_clock_that_is_not_the_databases_is_no_time_of_the_run(ended, monkeypatch, off_s):
    """The database is elsewhere: it judges leases by its own clock, and rows of a run are of that one."""
    service, run, lease = ended
    monkeypatch.setattr("trainmaster.db.database.this_process", lambda: lease.owner)
    service.database.release(lease)
    monkeypatch.setattr(Database, "clock_s", lambda *_: time.time() + off_s)

    def end(controller):
        over = [RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)]
        controller.database.commit(controller.lease, over, controller.wall())
        controller.run_state.state = State.DONE

    monkeypatch.setattr(Controller, "run", end)
    before = service.database.run_row(run)
    monkeypatch.setattr(
        driving,
        "local_backend",
        lambda *given: replace(local_backend(*given), executor=SimpleNamespace(open=lambda *_: None)),
    )
    Driving(service, service.resume(run, {}), {}).run()
    row = service.database.run_row(run)
    assert 0 <= row["ended_at"] - row["session_at"] < 60
    assert row["closed_at"] is not None
    assert row["earlier_s"] - before["earlier_s"] < 60


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_that_give_a_run_more_at_once_one_does(ended, monkeypatch, is_first):
    """Both are threads of one server: to the database they are one process."""
    service, run, lease = ended
    monkeypatch.setattr("trainmaster.db.database.this_process", lambda: lease.owner)
    service.database.release(lease)
    acquire, others = sessions._acquire, [20.0]

    def acquired(*given):
        mine = None if is_first else acquire(*given)
        if others:
            other = service.resume(run, {}, None, others.pop())
            service.database.release(other.lease)
        return mine or acquire(*given)

    monkeypatch.setattr(sessions, "_acquire", acquired)
    with pytest.raises((UsageError, LeaseLostError)):
        service.resume(run, {}, None, 40.0)
    row = service.database.run_row(run)
    assert stored_recipe(row).budget.total_usd == 20.0
    assert (row["state"], row["lease_owner"]) == (State.WAITING, None), "a driver takes it"


def test_a_run_that_its_machine_drives_keeps_its_cap(ended, monkeypatch):
    service, run, _ = ended
    service.database.execute(tables.run.update().values(away="{}", state=State.RUNNING))
    monkeypatch.setattr(AwayRuns, "take_back", lambda *_: None)
    assert service.resume(run, {}) is None
    with pytest.raises(UsageError, match=r"is not over: its budget\.total stays"):
        service.resume(run, {}, None, 40.0)
