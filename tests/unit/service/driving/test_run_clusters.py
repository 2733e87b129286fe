"""The rented side of a run, put together: what it reaps, and what it notes down of its clusters."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text

pytest.importorskip("asyncssh", reason="asyncssh is not installed")

from trainmaster.cluster.node_files import removal
from trainmaster.cluster.record import ClusterRecord, ClusterState, DamagedClusterError, Machine, new_record
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, Database, Lease
from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.driving import run_clusters as machines_module
from trainmaster.service.driving.run_clusters import RunClusters
from trainmaster.spec.errors import UsageError
from trainmaster.testing.waits import until

RENTAL = Rental("m4.large", "us", "us-a", usd_per_hour=0.36)
PLAN = ClusterPlan("train", ("train",), "lab", (RolePlan("worker", 1, (RENTAL,)),))
EVAL = ClusterPlan("eval", ("eval",), "lab", (RolePlan("worker", 2, (RENTAL,)),))


class Provider:
    """Notes which clusters are to be spared when all others are given back."""

    name = "lab"

    def __init__(self) -> None:
        self.spared: list[list[str]] = []
        self.lost: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def reap(self, known: Sequence[str]) -> list[str]:
        self.spared.append(list(known))
        self.meanwhile()
        return self.lost

    def close(self) -> None: ...


class World:
    def __init__(self, directory: Path) -> None:
        self.home = Home.from_environment({"TRAINMASTER_HOME": str(directory / "home")})
        self.database = Database(f"sqlite:///{directory / 'db'}")
        self.provider = Provider()
        self.said: list[str] = []
        self.made: list[RunClusters] = []

    def start(self, run: str, *records: ClusterRecord) -> Lease:
        """A run whose cluster is planned, or as given."""
        rows = [each.as_row() for each in records or [new_record(run, PLAN, self.home.identity())]]
        new = AcceptedRun(run, "n", "{}", "/r", "lab", "/c", "file:///s", [("train", 1)], clusters=rows)
        return self.database.create_run(new, time.time())

    def keep_warm(self, run: str) -> ClusterRecord:
        """A cluster that the run before has left."""
        now = time.time()
        machine = Machine("worker-0", "worker", "t", RENTAL, "i-0", "us-a", started_at=now - 60)
        planned = new_record(run, PLAN, self.home.identity(), keep_s=600.0)
        warm = replace(planned, state=ClusterState.KEPT, machines=(machine,), kept_until=now + 600)
        self.database.release(self.start(run, warm), now)
        return warm

    def machines(self, lease: Lease) -> RunClusters:
        made = RunClusters(
            self.database, self.home, lease, Path("/c"), ["lab"], {},
            lambda _: ProviderPlace(self.home.root, self.home.identity()), self.said.append,
            contents_of=lambda kept: ["setup", kept.run],
        )  # fmt: skip
        self.made.append(made)
        return made

    def mark(self, cluster: str) -> Path:
        path = self.home.root / "clusters" / cluster / "database"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.setattr(machines_module, "get_provider", lambda *_: made.provider)
    monkeypatch.setattr(machines_module, "_REAP_LATER_S", 0.0)
    yield made
    for each in made.made:
        each.close()
    made.database.close()


def test_a_mark_that_was_cut_short_spares_nobody(world: World) -> None:
    """Its driver was killed while it wrote: what is not ours by name must not be spared for ever."""
    world.mark("cut.train").write_text("")
    world.mark("other.train").write_text("postgresql://elsewhere/db")
    world.mark("mine.train").write_text(world.database.engine.url.render_as_string(hide_password=True))
    world.machines(world.start("run"))
    assert set(world.provider.spared[0]) == {"run.train", "other.train"}


@pytest.mark.parametrize("leaves_nothing", [True, False])
def test_machines_of_a_run_without_a_driver(
    world: World, monkeypatch: pytest.MonkeyPatch, leaves_nothing: bool
) -> None:
    """They are spared for `resume`, but where they would be off, and hold a quota for ever."""
    can = replace(capabilities_of("lab"), leaves_nothing=leaves_nothing)
    monkeypatch.setattr(machines_module, "capabilities_of", lambda _: can)
    left = new_record("left", EVAL, world.home.identity())
    world.database.release(world.start("left", left), time.time())
    driven = new_record("driven", EVAL, world.home.identity())
    world.start("driven", driven)
    world.machines(world.start("r"))
    (spared,) = world.provider.spared
    assert driven.id in spared
    assert (left.id in spared) is leaves_nothing


def test_a_mark_that_cannot_be_read_or_written_is_told(world: World) -> None:
    mark = world.mark("other.train")
    mark.mkdir()  # root may read every file
    machines = world.machines(world.start("run"))
    assert set(world.provider.spared[0]) == {"run.train", "other.train"}, "it may be another database's"
    assert any(str(mark) in said and "cannot be read" in said for said in world.said)
    active = replace(ClusterRecord.of_row(world.database.clusters_of("run")[0]), state=ClusterState.ACTIVE)
    (world.home.root / "clusters" / active.id).write_text("in the way")
    for _ in range(3):
        machines._write(active)
    assert sum("cannot be written" in said for said in world.said) == 1


def test_who_goes_on_with_machines_does_not_wait_for_their_provider(world: World) -> None:
    """It may not answer for minutes, or refuse credentials that have expired: leases must be renewed."""
    asked, go_on = threading.Event(), threading.Event()

    def refuse() -> None:
        asked.set()
        go_on.wait(10)
        raise UsageError("the credentials have expired", "Run `aws sso login`.")

    world.provider.meanwhile = refuse
    machine = Machine("worker-0", "worker", "t", RENTAL, "i-0", "us-a", started_at=time.time())
    planned = new_record("run", PLAN, world.home.identity())
    world.machines(world.start("run", replace(planned, state=ClusterState.ACTIVE, machines=(machine,))))
    assert asked.wait(10)
    go_on.set()
    until(lambda: any("aws sso login" in said for said in world.said), "it is told")


def test_a_mark_is_there_whole_or_not_at_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = world.start("run")
    machines = world.machines(lease)
    active = replace(ClusterRecord.of_row(world.database.clusters_of("run")[0]), state=ClusterState.ACTIVE)
    mark = world.mark(active.id)
    seen = []
    sync = os.fsync

    def synced(descriptor: int) -> None:
        sync(descriptor)
        seen.append(mark.exists())

    monkeypatch.setattr(os, "fsync", synced)
    machines._write(active)
    assert seen == [False], "a crash after the file was made, before it was written, leaves no empty mark"
    assert mark.read_text().startswith("sqlite:///")
    assert [path.name for path in mark.parent.iterdir()] == ["database"]


def reaped(world: World, count: int = 1) -> None:
    until(lambda: len(world.provider.spared) >= count, f"{count} looks for lost machines")


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        (["i-1"], "note: 1 machine without a run is given back: i-1"),
        (["i-1", "i-2"], "note: 2 machines without a run are given back: i-1, i-2"),
    ],
)
def test_machines_that_no_run_uses_are_told(world: World, lost: list[str], told: str) -> None:
    world.provider.lost = lost
    world.machines(world.start("run"))
    until(lambda: world.said, "what was given back is told")
    assert world.said == [told]


def test_a_cluster_that_is_about_to_be_rented_anew_is_spared(world: World) -> None:
    """That of a run which was resumed: its row says that it has ended, until its loop has written."""
    warm = world.keep_warm("before")
    home = world.home.identity()
    ended = replace(new_record("run", EVAL, home), state=ClusterState.ENDED)
    world.machines(world.start("run", new_record("run", PLAN, home), ended))
    reaped(world)
    assert world.said == [f"train: {warm.id} is still warm and used again"]
    assert {warm.id, "run.eval"} <= set(world.provider.spared[0])


def test_every_driver_of_a_run_knows_what_the_one_before_had_brought_to_warm_machines(world: World) -> None:
    world.keep_warm("before")
    lease = world.start("run")
    first, then = world.machines(lease), world.machines(lease)
    for each in (first, then):
        (found,) = each.executor.records()
        assert found.brought == ("before", "setup")
    assert (len(first.taken), len(then.taken)) == (1, 0), "its machines are looked at again"


def test_a_fault_in_a_late_look_for_lost_machines_is_no_fault_of_the_run(world: World) -> None:
    world.keep_warm("before")

    def fail() -> None:
        raise KeyError("an answer that nobody expected")

    world.provider.meanwhile = fail
    caught: list[Any] = []
    hook, threading.excepthook = threading.excepthook, caught.append
    try:
        machines = world.machines(world.start("run"))
        reaped(world)
        machines.close()
    finally:
        threading.excepthook = hook
    assert not caught


def test_nobody_hangs_up_under_a_late_look_for_lost_machines(world: World) -> None:
    """It uses the provider's connections."""
    world.keep_warm("before")
    begun, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def slow() -> None:
        begun.set()
        go_on.wait(5)
        order.append("reaped")

    world.provider.meanwhile = slow
    world.provider.close = lambda: order.append("closed")  # type: ignore[attr-defined]
    machines = world.machines(world.start("run"))
    assert begun.wait(5)
    threading.Timer(0.1, go_on.set).start()
    machines.close()
    assert order[:2] == ["reaped", "closed"]


def test_a_damaged_row_keeps_nothing_from_being_given_back(world: World) -> None:
    """Neither what is warm from being used, nor what is lost from being found."""
    for run, state in (("over", "ACTIVE"), ("warm", "KEPT")):
        world.keep_warm(run)
        with world.database.engine.begin() as connection:
            connection.execute(text("UPDATE run SET state = 'DONE' WHERE id = :run"), {"run": run})
            values = {"run": run, "state": state}
            connection.execute(
                text("UPDATE cluster SET data = '{}', state = :state WHERE run_id = :run"), values
            )
    world.machines(world.start("run"))
    assert set(world.provider.spared[0]) == {"run.train", "warm.train"}
    assert any(
        "the row of cluster over.train" in said and "clusters end over.train" in said for said in world.said
    )


def test_a_run_whose_own_row_is_damaged_says_what_to_do(world: World) -> None:
    lease = world.start("run")
    with world.database.engine.begin() as connection:
        connection.execute(text("UPDATE cluster SET data = 'x'"))
    with pytest.raises(DamagedClusterError, match=r"trainmaster clusters end run\.train"):
        world.machines(lease)


OWN = replace(RENTAL, is_rented=False)


@pytest.mark.parametrize(
    ("state", "rental", "waits"),
    [
        (ClusterState.ENDED, RENTAL, False),
        (ClusterState.ENDED, OWN, True),
        (ClusterState.KEPT, RENTAL, True),
        (ClusterState.ACTIVE, RENTAL, True),
    ],
)
def test_what_is_removed_on_machines_that_were_given_back_is_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch, state: ClusterState, rental: Rental, waits: bool
) -> None:
    """They are gone: each would be dialled for 5 s, after the bill."""
    machines, asked, answers = world.machines(world.start("run")), threading.Event(), threading.Event()

    def shell(*_: object) -> None:
        asked.set()
        answers.wait(60)

    machine = Machine("worker-0", "worker", "t", rental, "i-0", started_at=1.0)
    record = replace(new_record("run", PLAN, "home"), state=state, machines=(machine,))
    monkeypatch.setattr(machines.executor, "records", lambda: [record])
    monkeypatch.setattr(machines.site._files, "shell", shell)
    monkeypatch.setattr(removal, "_GATHER_S", 0.0)
    machines.site._remover.remove(SimpleNamespace(id="i-0"), "/runs/run")
    assert asked.wait(60)
    patience = []
    monkeypatch.setattr(machines.site._remover._thread, "join", patience.append)
    machines.close()
    answers.set()
    assert [each > 0 for each in patience] == [waits]
