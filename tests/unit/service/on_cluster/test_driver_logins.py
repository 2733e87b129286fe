"""Logins that are made for one machine: they go when it does not drive a run, or no more."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")

from away_scene import RUN, Scene, killed, lost_when_it_drives

from trainmaster.db import RunChange
from trainmaster.service.on_cluster.driver_store import DriverStore
from trainmaster.service.on_cluster.hand_over import HandingOver, _Ready
from trainmaster.spec.errors import ProviderError
from trainmaster.spec.states import EndReason, State


@pytest.fixture
def scene(tmp_path, monkeypatch):
    found = Scene(tmp_path, monkeypatch)
    yield found
    found.close()


def makes(monkeypatch, login):
    """All places make such a login for a machine that is to drive."""
    for module in ("providers.sent_settings", "service.on_cluster.hand_over"):
        monkeypatch.setattr(f"trainmaster.{module}.driver_login", lambda *_: login)


def until_removed():
    """What is removed in the background is."""
    for thread in threading.enumerate():
        if thread.name.startswith("removes a login"):
            thread.join()


def test_a_login_that_was_made_for_a_machine_goes_when_it_does_not_drive(scene, monkeypatch):
    removed = []
    login = SimpleNamespace(make=lambda *_: {"LOGIN": "of its own"}, remove=lambda *its: removed.append(its))
    makes(monkeypatch, login)
    assert not scene.hand_over(lambda _: "it has no room")
    scene.handing.close()
    assert scene.sent[-1].files == {"LOGIN": "of its own"}
    assert removed == [("c-1", "i-1")]
    scene.lease = scene.home.database.acquire(RUN, time.time())
    assert scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    scene.handing.close()
    assert removed == [("c-1", "i-1")]
    scene.away(lost_s=-1).take_back(RUN)
    until_removed()
    assert removed == [("c-1", "i-1")] * 2
    scene.lease = scene.home.database.acquire(RUN, time.time())
    with pytest.raises(KeyboardInterrupt):  # the home, before the machine has heard anything
        scene.hand_over(killed)
    scene.away().take_back(RUN)
    until_removed()
    assert removed == [("c-1", "i-1")] * 3


def test_a_run_is_taken_back_before_the_login_of_its_machine_is_removed(scene, monkeypatch):
    removed, may_end = [], threading.Event()
    login = SimpleNamespace(make=lambda *_: {}, remove=lambda *_: removed.append(may_end.wait(60)))
    makes(monkeypatch, login)
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    scene.away(lost_s=-1).take_back(RUN)
    assert scene.is_free(), "a place may be slow, and who follows a run waits for seconds only"
    may_end.set()
    until_removed()
    assert removed == [True]


def test_the_login_of_a_run_that_is_over_is_removed_by_who_takes_it_back(scene, monkeypatch):
    """A process that ends waits for that, and can begin no more threads."""
    removers = []

    def remove(*_):
        removers.append(threading.current_thread())
        raise ProviderError("it does not answer; the login goes with the machine")

    login = SimpleNamespace(make=lambda *_: {}, remove=remove)
    makes(monkeypatch, login)
    scene.hand_over(lambda assignment: lost_when_it_drives(scene, assignment))
    database, publication = scene.drivers[-1]._service.database, scene.publications[-1]
    over = RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED, "well")
    database.commit(publication._lease, [over], time.time())
    publication.finish()
    scene.away().look(RUN)
    assert (scene.row["away"], removers) == (None, [threading.current_thread()])


def test_a_login_that_is_made_while_the_run_ends_is_removed_and_none_is_made_later(scene, monkeypatch):
    """A place may take its time, and who was told that the run has ended is gone by then."""
    handing, seen = HandingOver(scene.home, RUN, scene.environ, lambda _: None), []
    closing = threading.Thread(target=handing.close)

    def make(*_):
        closing.start()
        closing.join(0.2)  # it waits for this
        seen.append("made")
        return {}

    login = SimpleNamespace(make=make, remove=lambda *_: seen.append("removed"))
    makes(monkeypatch, login)
    store = DriverStore.free(scene.store_url, RUN)
    handing._assignment("c-1", "i-1", store)
    closing.join()
    with pytest.raises(ProviderError):
        handing._assignment("c-1", "i-2", store)
    assert seen == ["made", "removed"]


def test_what_was_made_for_a_machine_after_the_run_has_ended_is_removed(scene, monkeypatch):
    packages = "trainmaster.cluster.bootstrap.runtime_package.cached_runtime_packages"
    monkeypatch.setattr(packages, lambda *_, **__: ())
    handing, ended = HandingOver(scene.home, RUN, scene.environ, lambda _: None), []
    link = SimpleNamespace(close=lambda: ended.append("link"), is_open=lambda: True)

    def made_ready(cluster, node, _packages):
        handing.close()
        handing._unused[node.id] = lambda: ended.append(node.id)
        handing._link = link
        return _Ready(cluster, node.id, 1, (0, 0), link)

    monkeypatch.setattr(handing, "_made_ready", made_ready)
    machine = "c-1", SimpleNamespace(id="i-1")
    handing._prepare(SimpleNamespace(first_machine=lambda: machine, records=list, next_driver=""))
    assert ended == ["link", "i-1"]
