"""What is rented now, and the end of what no run uses."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text

from trainmaster.cluster.record import ClusterRecord, ClusterState, Machine, new_record
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, Database
from trainmaster.providers.base import Node, NodeState, ProviderGoneError, ProviderPlace
from trainmaster.service import clusters as clusters_module
from trainmaster.service.clusters import clusters_of_home, end_clusters
from trainmaster.service.runs.summary import run_summary
from trainmaster.spec.errors import NotFoundError, ProviderError, UsageError

RENTAL = Rental("m4.large", "us", "us-a", usd_per_hour=0.36)


class Provider:
    """Gives machines back, unless it is no more itself."""

    def __init__(self) -> None:
        self.released: list[str] = []
        self.is_gone = False
        self.refusals: dict[str, Exception] = {}

    def release(self, cluster: str) -> None:
        if self.is_gone:
            raise ProviderGoneError("the lab is down")
        if cluster in self.refusals:
            raise self.refusals[cluster]
        self.released.append(cluster)

    def nodes(self, cluster: str) -> list[Node]:
        return [Node("i-0", cluster, "worker", NodeState.GONE, ended_at=time.time() - 1)]


class World:
    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = Home.from_environment({"TRAINMASTER_HOME": str(directory / "home")})
        self.database = Database(f"sqlite:///{directory / 'db'}")
        self.provider = Provider()
        self.said: list[str] = []
        monkeypatch.setattr(clusters_module, "get_provider", lambda *_: self.provider)

    def has(self, run: str, state: ClusterState, *, over: bool = True, **more: Any) -> ClusterRecord:
        """A run with a cluster of one machine."""
        plan = ClusterPlan("train", ("train",), "lab", (RolePlan("worker", 1, (RENTAL,)),))
        machine = Machine("worker-0", "worker", "t", RENTAL, "i-0", "us-a", started_at=time.time() - 3600)
        values = {"state": state, "machines": (machine,), "keep_s": 600.0, **more}
        record = replace(new_record(run, plan, self.home.identity()), **values)
        new = AcceptedRun(
            run,
            "n",
            '{"experiments": {}}',
            "/r",
            "lab",
            "/c",
            "file:///s",
            [("train", 1)],
            clusters=[record.as_row()],
        )
        lease = self.database.create_run(new, time.time())
        if over:
            self.database.release(lease, time.time())
            with self.database.engine.begin() as connection:
                over = "UPDATE run SET state = 'DONE', ended_at = :at WHERE id = :run"
                connection.execute(text(over), {"run": run, "at": time.time() - 100})
        (self.home.root / "clusters" / record.id).mkdir(parents=True)
        return record

    def listed(self) -> dict[str, Any]:
        return {one["id"]: one for one in clusters_of_home(self.database, self.home, time.time())}

    def end(self, *wanted: str) -> list[str]:
        ended = end_clusters(self.database, self.home, {}, wanted or None, self.said.append)
        return [one["id"] for one in ended]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_a_clock_that_was_set_back_keeps_nothing_warm_for_longer_than_was_asked(world: World) -> None:
    ends_at = time.time() + 86_400
    world.has("warm", ClusterState.KEPT, kept_until=ends_at + 600)
    assert world.listed()["warm.train"]["kept_until"] < ends_at, "600 s are what was asked"


def test_what_there_is(world: World) -> None:
    now = time.time()
    world.has("warm", ClusterState.KEPT, kept_until=now + 300)
    world.has("late", ClusterState.KEPT, kept_until=now - 1)
    world.has("busy", ClusterState.ACTIVE, over=False)
    world.has("left", ClusterState.ENDING)
    world.has("gone", ClusterState.ENDED)
    found = world.listed()
    assert {name: one["state"] for name, one in found.items()} == {
        "warm.train": "kept",
        "busy.train": "used",
        "left.train": "left",
    }
    warm = found["warm.train"]
    assert warm["usd_per_hour"] == pytest.approx(0.36)
    assert warm["idle_usd"] == pytest.approx(0.36 * 300 / 3600, rel=0.05)
    assert found["left.train"]["idle_usd"] == pytest.approx(0.36 * 100 / 3600, rel=0.05), (
        "since its run ended"
    )
    assert found["busy.train"]["idle_usd"] == 0
    assert warm["machines"] == [
        {
            "id": "i-0",
            "name": "node-1",
            "seat": "worker-0",
            "type": "m4.large",
            "zone": "us-a",
            "spot": False,
        }
    ]


def test_what_another_server_has_rented_is_listed_and_given_back_by_its_id(world: World) -> None:
    for run, can_move in (("lost", True), ("bound", False)):
        world.has(run, ClusterState.ACTIVE)
        with world.database.engine.begin() as connection:
            connection.execute(text("UPDATE cluster SET home_id = 'other' WHERE run_id = :run"), {"run": run})
            connection.execute(
                text("UPDATE run SET can_move = :moves WHERE id = :run"), {"run": run, "moves": can_move}
            )
    assert list(world.listed()) == ["lost.train"], "its price counts, whatever has rented it"
    assert world.end() == [], "all are those of the home"
    asked: list[str] = []
    place = ProviderPlace(world.home.root / "access" / "lost", "other")

    def access_to(run: str) -> ProviderPlace:
        asked.append(run)
        return place

    given = (world.database, world.home, {}, ["lost.train"], world.said.append, access_to)
    assert [one["id"] for one in end_clusters(*given)] == ["lost.train"]
    assert (asked, world.provider.released) == (["lost"], ["lost.train"])
    assert world.listed() == {}


def test_all_that_no_run_uses_is_given_back(world: World) -> None:
    world.has("warm", ClusterState.KEPT, kept_until=time.time() + 300)
    world.has("busy", ClusterState.ACTIVE, over=False)
    world.has("left", ClusterState.ACTIVE)
    assert sorted(world.end()) == ["left.train", "warm.train"]
    left, warm = sorted(world.said)
    assert re.fullmatch(r"left\.train: 1 machine given back, \$0\.01 since left", left)
    assert re.fullmatch(r"warm\.train: 1 machine given back, \$0\.03 since warm", warm)
    assert sorted(world.provider.released) == ["left.train", "warm.train"]
    assert list(world.listed()) == ["busy.train"]
    assert not (world.home.root / "clusters" / "warm.train").exists(), "its keys go with it"
    assert world.end() == []
    (row,) = world.database.clusters_of("warm")
    (machine,) = ClusterRecord.of_row(row).machines
    assert machine.ended_at is not None
    assert machine.ended_at < time.time() - 0.5, "as the provider says, for the bill"


def test_what_a_run_uses_is_not_ended(world: World) -> None:
    world.has("busy", ClusterState.ACTIVE, over=False)
    with pytest.raises(UsageError, match="used by busy"):
        world.end("busy.train")
    with pytest.raises(NotFoundError):
        world.end("nobody.train")
    assert not world.provider.released


def test_a_lab_that_is_down_has_ended_its_machines(world: World) -> None:
    world.has("warm", ClusterState.KEPT, kept_until=time.time() + 300)
    world.provider.is_gone = True
    assert world.end("warm.train") == ["warm.train"]
    assert world.listed() == {}


def test_one_that_cannot_be_given_back_keeps_none_of_the_others(world: World) -> None:
    for name in ("first", "second", "third"):
        world.has(name, ClusterState.KEPT, kept_until=time.time() + 300)
    world.provider.refusals["second.train"] = ProviderError("EC2 does not answer", "Try later.")
    with pytest.raises(ProviderError, match="EC2 does not answer"):
        world.end()
    assert sorted(world.provider.released) == ["first.train", "third.train"]
    assert "second.train: EC2 does not answer. Try later." in world.said
    assert {name: one["state"] for name, one in world.listed().items()} == {"second.train": "left"}
    world.provider.refusals.clear()
    assert world.end() == ["second.train"], "the next time"


def damage(world: World, run: str, data: str = '{"machines": [') -> None:
    with world.database.engine.begin() as connection:
        connection.execute(
            text("UPDATE cluster SET data = :data WHERE run_id = :run"), {"run": run, "data": data}
        )


def test_a_damaged_row_hides_neither_its_machines_nor_those_of_others(world: World) -> None:
    world.has("warm", ClusterState.KEPT, kept_until=time.time() + 300)
    world.has("gone", ClusterState.ACTIVE, over=False)
    damage(world, "gone")
    listed = world.listed()
    assert listed["warm.train"]["state"] == "kept"
    assert listed["gone.train"]["state"] == "used", "its driver lives, and writes it anew"
    assert "the row of cluster gone.train" in listed["gone.train"]["problem"]
    with pytest.raises(UsageError, match="trainmaster cancel gone"):
        world.end("gone.train")
    with world.database.engine.begin() as connection:
        connection.execute(text("UPDATE run SET lease_owner = NULL WHERE id = 'gone'"))
    assert world.listed()["gone.train"]["state"] == "damaged"
    world.provider.refusals["gone.train"] = ProviderError("EC2 does not answer", "Try later.")
    with pytest.raises(ProviderError):
        world.end("gone.train")
    assert "gone.train" in world.listed(), "it may still have machines"
    world.provider.refusals.clear()
    assert world.end("gone.train") == ["gone.train"]
    assert world.provider.released == ["gone.train"]
    assert list(world.listed()) == ["warm.train"]


def test_all_that_is_damaged_is_given_back_with_the_rest(world: World) -> None:
    world.has("warm", ClusterState.KEPT, kept_until=time.time() + 300)
    world.has("left", ClusterState.ACTIVE)
    damage(world, "left", "[" * 100_000)
    with world.database.engine.begin() as connection:
        connection.execute(text("UPDATE run SET recipe = '[{' WHERE id = 'left'"))
    assert run_summary(world.database, "left")["run"] == "left"
    assert sorted(world.end()) == ["left.train", "warm.train"]
    assert sorted(world.provider.released) == ["left.train", "warm.train"]
    assert world.listed() == {}


def test_a_lab_of_which_nothing_is_left_has_no_machines_either(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is not even a provider to ask."""
    world.has("warm", ClusterState.KEPT, kept_until=time.time() + 300)

    def none(*_: object) -> Any:
        raise ProviderGoneError("no lab is up")

    monkeypatch.setattr(clusters_module, "get_provider", none)
    before = time.time()
    assert world.end() == ["warm.train"]
    assert world.listed() == {}
    (row,) = world.database.clusters_of("warm")
    (machine,) = ClusterRecord.of_row(row).machines
    assert machine.ended_at is not None
    assert before <= machine.ended_at <= time.time(), "so that the bill ends"


def test_one_that_is_taken_over_in_that_moment_is_left_alone(world: World) -> None:
    warm = world.has("warm", ClusterState.KEPT, kept_until=time.time() + 300)
    lister = world.database.living_clusters

    def living(*arguments: Any, **more: Any) -> Any:
        found = lister(*arguments, **more)
        new = AcceptedRun("next", "n", "{}", "/r", "lab", "/c", "file:///s", [("train", 1)])
        lease = world.database.create_run(new, time.time())
        taken = replace(warm, state=ClusterState.ACTIVE, kept_until=None)
        assert world.database.take_kept_cluster(lease, taken.as_row(), time.time())
        return found

    database: Any = SimpleNamespace(
        living_clusters=living,
        end_unused_cluster=world.database.end_unused_cluster,
        clock_s=world.database.clock_s,
    )
    assert end_clusters(database, world.home, {}, None, world.said.append) == []
    assert world.said == ["warm.train: a run uses it again"]
    assert not world.provider.released


def test_what_a_run_left_on_hosts_is_ended_before_they_are_given_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def leave(_home: Home, _place: object, record: ClusterRecord, run: str, nodes: list[Node]) -> list[str]:
        assert not world.provider.released
        asked.append((record.id, run, [node.id for node in nodes]))
        return ["i-0 keeps what left left there: no answer"]

    monkeypatch.setattr(clusters_module, "leave_hosts", leave)
    host = Machine("worker-0", "worker", "t", replace(RENTAL, instance_type="", is_rented=False), "i-0")
    world.has("left", ClusterState.ENDING, machines=(host,))
    assert world.end() == ["left.train"]
    assert asked == [("left.train", "left", ["i-0"])]
    assert world.said[0] == "i-0 keeps what left left there: no answer"
    assert world.provider.released == ["left.train"]
    world.has("rented", ClusterState.ENDING)
    assert world.end() == ["rented.train"]
    assert len(asked) == 1, "rented machines take it along"


def cost_usd(world: World, run: str) -> float:
    return float(world.database.run_row(run)["cost_usd"])


def test_what_warm_machines_cost_is_on_the_bill_of_the_run_that_keeps_them(world: World) -> None:
    now = time.time()
    world.has("warm", ClusterState.KEPT, kept_until=now + 300)
    kept = run_summary(world.database, "warm")
    assert kept["kept_usd"] == pytest.approx(0.36 * 300 / 3600, rel=0.05), "a line of its own while they are"
    assert kept["cost_usd"] == 0
    world.end("warm.train")
    assert cost_usd(world, "warm") == pytest.approx(0.36 * 100 / 3600, rel=0.1), "since the run was over"
    assert "kept_usd" not in run_summary(world.database, "warm")


def test_a_run_that_takes_warm_machines_over_does_not_pay_for_their_idle_time(world: World) -> None:
    record = world.has("warm", ClusterState.KEPT, kept_until=time.time() + 300)
    lease = world.database.create_run(
        AcceptedRun("next", "n", "{}", "/r", "lab", "/c", "file:///s", [("train", 1)]), time.time()
    )
    taken = replace(record, state=ClusterState.ACTIVE, kept_until=None)
    for _ in range(2):  # as after a crash
        assert world.database.take_kept_cluster(lease, taken.as_row(), time.time(), 0.25)
    assert (cost_usd(world, "warm"), cost_usd(world, "next")) == (0.25, 0.0)
