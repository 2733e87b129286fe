"""What people want of a run whose driver is on a machine of it comes there."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")
from away_scene import RUN, Scene, lost_when_it_drives

from trainmaster.cli.drive import drive
from trainmaster.db import run_transfer
from trainmaster.service.driving.driving import Driving
from trainmaster.service.driving.sessions import cancel_tasks
from trainmaster.service.on_cluster.driver_store import LOST_S, DriverStore
from trainmaster.spec.states import EndReason


@pytest.fixture
def scene(tmp_path, monkeypatch):
    found = Scene(tmp_path, monkeypatch)
    yield found
    found.close()


def test_a_wish_reaches_the_machine(scene):
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    assert scene.away().cancel(RUN)
    assert scene.drivers[-1]._store.wished() == EndReason.CANCELLED
    assert not scene.away(lost_s=-1).cancel(RUN)  # of a machine that is lost it is done here


def test_what_people_want_in_the_moment_in_which_it_moves_is_heard(scene, monkeypatch):
    go_away = run_transfer.go_away

    def just_before(*given):
        cancel_tasks(scene.home, RUN, ["0"], "ada", scene.environ)
        scene.home.database.want_stop(RUN, EndReason.CANCELLED)
        go_away(*given)

    monkeypatch.setattr(run_transfer, "go_away", just_before)
    scene.hand_over(scene.begins)
    there = scene.drivers[-1]._service.database
    assert (there.cancelled_tasks(RUN), there.stop_wanted(RUN)) == ({"main/0": "ada"}, EndReason.CANCELLED)


def test_a_wish_that_its_machine_was_lost_with_is_heard_by_who_goes_on(scene, monkeypatch):
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    assert scene.away().cancel(RUN)
    monkeypatch.setattr(DriverStore, "now", lambda _: time.time() + 2 * LOST_S)
    for name, value in scene.environ.items():
        monkeypatch.setenv(name, value)
    wanted = []
    monkeypatch.setattr(Driving, "run", lambda it: wanted.append(it.opened.database.stop_wanted(RUN)))
    drive(RUN, lost=True)  # as whoever looks at it has it begun
    assert wanted == [EndReason.CANCELLED]


def test_which_tasks_are_to_end_reaches_the_machine(scene):
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    [task] = cancel_tasks(scene.home, RUN, ["0"], "ada", scene.environ)
    name = f"{task['experiment']}/0"
    scene.drivers[-1]._store.put_cancelled_tasks({"nosuch/0": "ada", name: "ada"})
    for _ in range(2):  # as it does with every beat, which goes on whatever is asked
        scene.publications[-1]._hear_people()
    assert scene.drivers[-1]._service.database.cancelled_tasks(RUN) == {name: "ada"}
    assert scene.home.database.cancelled_tasks(RUN) == {name: "ada"}, "when the run is its home's again"
