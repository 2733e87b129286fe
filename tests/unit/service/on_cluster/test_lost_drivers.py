"""The machine that drives a run is lost: the next command that looks goes on with it, and one drives."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")

from away_scene import RUN, Scene, killed, lost_when_it_drives

from trainmaster.api import EmbeddedClient
from trainmaster.cli.drive import drive
from trainmaster.control.task.layout import Home
from trainmaster.db import RunChange, run_transfer
from trainmaster.db import database as db_module
from trainmaster.service import Service
from trainmaster.service.driving import background, provider_connection
from trainmaster.service.driving.drivers import RunMonitor
from trainmaster.service.driving.driving import Driving
from trainmaster.service.on_cluster import away as away_module
from trainmaster.service.on_cluster.away import AwayRuns
from trainmaster.service.on_cluster.driver_store import LOST_S, DriverStore
from trainmaster.spec.errors import LeaseLostError, UsageError
from trainmaster.spec.states import EndReason, State
from trainmaster.testing.waits import until


@pytest.fixture
def scene(tmp_path, monkeypatch):
    found = Scene(tmp_path, monkeypatch)
    yield found
    found.close()


def test_whoever_looks_at_a_run_whose_machine_is_lost_is_told_that_nobody_drives_it(scene):
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    scene.away().look(RUN)
    assert scene.home.brief(RUN)["driven"]
    scene.away(lost_s=-1).look(RUN)  # as `status` and `logs` do
    assert not scene.home.brief(RUN)["driven"]
    assert scene.home.status(RUN)["driver"] is None
    assert scene.row["away"] is not None  # a program takes nothing over unless it says so


def test_who_looks_at_a_run_whose_machine_is_lost_has_it_go_on_once(scene):
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    left, away = [], scene.away()
    away.go_on = left.append
    away.look(RUN)
    assert left == []
    away.lost_s = -1
    for look in (away.look, lambda _: away.look_at_all()):
        look(RUN)
        assert left == [RUN]
    away.lost_s = 1e9  # it was cut off, or somebody has handed it over once more
    away.look(RUN)
    away.lost_s = -1
    away.look(RUN)
    assert left == [RUN, RUN]
    away = scene.away(lost_s=-1)
    away.go_on = lambda _: killed()
    with pytest.raises(KeyboardInterrupt):
        away.look(RUN)
    assert scene.home.brief(RUN)["driven"]  # nobody who follows it takes it for left meanwhile
    away.look(RUN)
    assert not scene.home.brief(RUN)["driven"]  # it could not go on: people are told


def test_a_server_of_its_home_shows_it_and_goes_on_when_its_machine_is_lost(scene, monkeypatch):
    pytest.importorskip("fastapi", reason="the extra `server` is not installed")
    from starlette.testclient import TestClient

    from trainmaster.api.rest.app import make_app, make_state

    monkeypatch.setattr("trainmaster.service.driving.drivers.BEAT_S", 0.05)
    scene.hand_over(scene.begins)
    database, lease, publication = scene.drives(scene.drivers[-1])
    publication.begin()
    state, left = make_state(scene.home, scene.environ), []
    state.away.away.go_on = left.append
    bearer = {"Authorization": f"Bearer {state.access.create_token('me', ['read'])['token']}"}
    with TestClient(make_app(state)) as browser:

        def shown():
            return browser.get(f"/api/v1/runs/{RUN}", headers=bearer).json()

        database.commit(lease, [RunChange(State.WAITING, State.RUNNING)], time.time())
        publication.publish()
        until(lambda: shown()["state"] == State.RUNNING, "what its machine has said")
        assert shown()["driver"]["state"] == "working"
        monkeypatch.setattr(DriverStore, "now", lambda _: time.time() + 2 * LOST_S)
        until(lambda: left == [RUN], "it goes on")


def test_a_server_tries_again_by_itself_to_go_on_with_one_that_is_lost_and_says_so(scene, monkeypatch):
    """It tried again only when the lost driver was heard of once more."""
    monkeypatch.setattr(away_module, "_AGAIN_S", 0.02)
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    answers, started = ["the place is away", "the place is away", "no such key", ""], []

    def check(*_):
        if why := answers.pop(0):
            raise UsageError(why, "Wait.")

    monkeypatch.setattr(provider_connection, "check_provider", check)
    monkeypatch.setattr(background, "_start", lambda _, run, *__: started.append(run))
    monkeypatch.setattr(DriverStore, "now", lambda _: time.time() + 2 * LOST_S)
    looks = RunMonitor(scene.home, scene.environ)

    def goes_on():
        looks.turn()
        return started == [RUN]

    until(goes_on, "it goes on")
    notes = [each["message"] for each in scene.home.events(RUN) if each["kind"] == "note"]
    assert [note.partition("is tried again: ")[2] for note in notes if "tried again" in note] == [
        "the place is away. Wait.", "no such key. Wait.",
    ]  # fmt: skip


def test_it_is_tried_again_less_often_each_time(scene, monkeypatch):
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    now, at, away = [0.0], [], scene.away(lost_s=-1)
    monkeypatch.setattr(away_module.time, "monotonic", lambda: now[0])
    away.go_on = lambda _: at.append(now[0])
    while now[0] < 2000:
        away.look(RUN)
        now[0] += 5.0
    assert at == [0.0, 30.0, 90.0, 210.0, 450.0, 930.0, 1530.0]


def test_a_server_looks_at_all_others_while_the_store_of_one_stalls(scene, monkeypatch):
    monkeypatch.setattr(run_transfer, "runs_away", lambda *_: ["stalls", "fails", "other"])
    looks, goes_on, looked = RunMonitor(scene.home, scene.environ), threading.Event(), []

    def look(run):
        looked.append(run)
        if run == "stalls":
            goes_on.wait(60.0)
        if run == "fails":
            raise OSError("no room")

    looks.away = SimpleNamespace(look=look)
    try:
        looks.turn()
        until(lambda: all(looks._looks[each].done() for each in ("fails", "other")), "they are looked at")
        with pytest.raises(OSError, match="no room"):
            looks.turn()
        until(lambda: looked.count("other") == 2, "and again")
        assert looked.count("stalls") == 1
    finally:
        goes_on.set()


def test_what_runs_have_cost_is_what_their_machines_have_said(scene, monkeypatch):
    for name, value in scene.environ.items():
        monkeypatch.setenv(name, value)
    scene.hand_over(scene.begins)
    database, lease, publication = scene.drives(scene.drivers[-1])
    publication.begin()
    client = EmbeddedClient()
    assert client.cost("run")["total"]["usd"] == 0
    database.put_cost(lease, 3.5, time.time())
    publication.publish()
    assert client.cost("run")["total"]["usd"] == 3.5
    client.close()


def test_a_run_of_another_home_is_not_taken_over(scene, monkeypatch):
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    away = scene.away(lost_s=-1)
    away.go_on = lambda _: killed()
    monkeypatch.setattr(Home, "identity", lambda _: "another")
    away.look(RUN)
    assert not scene.home.brief(RUN)["driven"]


def test_a_run_that_is_just_handed_over_is_left_alone_and_later_gone_on_with(scene, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        scene.hand_over(killed)
    left, away = [], scene.away(lost_s=-1)
    away.go_on = left.append
    away.look(RUN)
    assert (left, scene.home.brief(RUN)["driven"]) == ([], True)
    clock_s = type(scene.home.database).clock_s
    monkeypatch.setattr(type(scene.home.database), "clock_s", lambda self: clock_s(self) + 600)
    away.look(RUN)
    assert left == [RUN]


def test_a_run_that_was_over_when_its_machine_was_lost_is_taken_back_by_who_looks(scene):
    scene.hand_over(scene.begins)
    database, lease, publication = scene.drives(scene.drivers[-1])
    publication.begin()
    over = RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED, "well")
    database.commit(lease, [over], time.time())
    publication.close(None)
    away = scene.away(lost_s=-1)
    away.go_on = lambda _: killed()
    away.look(RUN)
    assert (scene.row["state"], scene.row["away"]) == ("DONE", None)


def test_a_driver_whose_machine_is_ended_in_order_says_so_and_others_go_on_at_once(scene):
    scene.hand_over(scene.begins)
    database, lease, publication = scene.drives(scene.drivers[-1])
    publication.begin()
    left, away = [], scene.away()
    away.go_on = left.append
    away.look(RUN)
    assert left == []
    database.commit(lease, [RunChange(State.WAITING, State.RUNNING)], time.time())
    publication.on_sigterm()
    away.look(RUN)
    assert (left, scene.row["state"]) == ([RUN], "RUNNING")
    away.take_back(RUN)
    assert scene.row["away"] is None
    with pytest.raises(LeaseLostError):  # somebody has ended the driver alone, and it begins again
        publication.publish()


def test_a_driver_that_is_ended_before_it_has_begun_leaves_what_the_one_before_has_published(scene):
    scene.hand_over(scene.begins)
    database, lease, publication = scene.drives(scene.drivers[-1])
    publication.begin()
    database.commit(lease, [RunChange(State.WAITING, State.RUNNING)], time.time())
    publication.publish()
    before = publication._store.state().news
    publication._ended.set()
    next_one = scene.drivers[-1]._publication(lease)
    next_one._give_up = lambda: None
    next_one.leave()
    state = publication._store.state()
    assert state.news == before > 0
    assert state.age_s < LOST_S


def test_a_driver_that_is_ended_by_what_gives_its_machine_back_has_not_left(scene):
    scene.hand_over(scene.begins)
    publication = scene.drives(scene.drivers[-1])[2]
    publication.begin()
    publication.finish()
    publication.leave()
    state = publication._store.state()
    assert state.is_over
    assert state.age_s < LOST_S


def test_of_two_that_take_a_run_over_at_once_and_its_machine_that_comes_back_one_drives(scene, monkeypatch):
    scene.hand_over(scene.begins)
    database, lease, publication = scene.drives(scene.drivers[-1])
    publication.begin()
    for name, value in scene.environ.items():
        monkeypatch.setenv(name, value)
    driven, come_back = [], run_transfer.come_back

    def drives(driving):
        driven.append(driving.session.lease)

    def other_is_quicker(*given):
        with monkeypatch.context() as other:
            other.setattr(run_transfer, "come_back", come_back)
            other.setattr(db_module, "this_process", lambda: "another-machine:1:2")
            drive(RUN, lost=True)
        return come_back(*given)

    with monkeypatch.context() as patched:
        patched.setattr(DriverStore, "now", lambda _: time.time() + 2 * LOST_S)
        patched.setattr(Driving, "run", drives)
        patched.setattr(run_transfer, "come_back", other_is_quicker)
        drive(RUN, lost=True)
    assert [(each.owner, each.token > lease.token) for each in driven] == [("another-machine:1:2", True)]
    assert not scene.is_free()
    # The machine was only cut off:
    database.commit(lease, [RunChange(State.WAITING, State.RUNNING)], time.time())
    with pytest.raises(LeaseLostError):
        publication.publish()
    assert not scene.driver().settle(scene.last[-1])


def test_who_looks_is_told_that_it_goes_on_or_why_it_cannot(scene, monkeypatch):
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    started, said = [], []

    class Process:
        returncode = None

        def __init__(self, words, **_):
            started.append(words[-3:])
            scene.away(lost_s=-1).take_back(RUN)
            assert scene.home.database.acquire(RUN, time.time()) is not None

        def wait(self):
            return 0

    monkeypatch.setattr("subprocess.Popen", Process)
    monkeypatch.setattr(DriverStore, "now", lambda _: time.time() + 2 * LOST_S)
    for name, value in scene.environ.items():
        monkeypatch.setenv(name, value)

    def refuses(*_):
        raise UsageError("no credentials", "Log in.")

    def has_no_token(*_):
        raise UsageError("secrets: no value for TOKEN", "Export it.")

    def passes(*_):
        return {}

    for check, secrets_of in ((refuses, passes), (passes, has_no_token), (passes, passes)):
        monkeypatch.setattr(provider_connection, "check_provider", check)
        monkeypatch.setattr(Service, "secrets_of", secrets_of)
        client = EmbeddedClient()
        client.on_lost = said.append
        monkeypatch.setattr(AwayRuns, "_follow", lambda *_: None)
        assert client.resolve(RUN) == RUN
        client.close()
    assert "cannot be driven from here: no credentials" in said[0]
    assert "cannot be driven from here: secrets: no value for TOKEN" in said[1]
    assert "it goes on, driven from here" in said[2]
    assert (len(said), started) == (3, [["_drive", RUN, "--lost"]])
