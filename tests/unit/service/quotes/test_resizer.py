"""A gang that becomes larger or smaller: asked for, waited for, written down, stopped; by any driver."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.cluster.observed import Scaling
from trainmaster.cluster.record import ClusterState, Machine, new_record
from trainmaster.cluster.renting.growth import grown
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.control.decide.resizing import SizeForecast
from trainmaster.control.task.gangs import member_names, sized
from trainmaster.service.quotes.resizer import Resizer
from trainmaster.service.quotes.worker_counts import with_workers
from trainmaster.spec import Recipe
from trainmaster.spec.facts import Fact, RunFacts
from trainmaster.spec.states import State
from trainmaster.spec.topics import ADAPTED

BEGUN = 1000.0
RENTED = Rental("m4.large", "us", "us-a", usd_per_hour=1.0)
SPOT = Rental("m4.large", "us", "us-a", spot=True, usd_per_hour=0.3, most_usd_per_hour=1.0)
HOST = Rental(is_rented=False)
SIZES = (SizeForecast(1, 0, 1.9, 2.0), SizeForecast(2, 0, 1.0, 1.0), SizeForecast(4, 0, 0.52, 0.56))
AS_QUICK = (SizeForecast(1, 0, 1.0, 1.02), *SIZES[1:])


class Loop:
    """A cluster whose machines are there when the test says so."""

    def __init__(
        self,
        rental: Rental,
        others: tuple[str, ...] = (),
        dearer: tuple[Rental, ...] = (),
        servers: tuple[int, ...] = (),
    ) -> None:
        roles = (RolePlan("worker", 2, (rental, *dearer)), *(RolePlan("ps", n, (rental,)) for n in servers))
        plan = ClusterPlan("train", ("train", *others), "lab", roles)
        self.record = new_record("x-1", plan, "home")
        machines = [
            Machine(f"worker-{n}", "worker", "t", rental, f"i-{n}", started_at=BEGUN) for n in range(2)
        ]
        self._has(machines)
        self.scaling = Scaling()
        self.there = 2
        self.wanted = False

    def want(self) -> None:
        self.wanted = True

    def _has(self, machines: list[Machine]) -> None:
        object.__setattr__(self.record, "machines", tuple(machines))
        object.__setattr__(self.record, "state", ClusterState.ACTIVE)

    def grow(self, role: RolePlan) -> None:
        object.__setattr__(self.record, "plan", grown(self.record.plan, [role]))

    @property
    def awaits(self) -> bool:
        needed = sum((self.scaling.needed or {}).values())
        return self.there < min(needed, len(self.record.seats))


class Bench:
    """A gang of two for which four are better."""

    def __init__(
        self,
        rental: Rental | None = RENTED,
        *,
        objective: str = "fastest",
        budget: str = "{}",
        strategy: str = "",
        sizes: tuple[SizeForecast, ...] = SIZES,
        others: tuple[str, ...] = (),
        workers: str = "1..8",
        per_hour: float = float("inf"),
        dearer: tuple[Rental, ...] = (),
        servers: tuple[int, ...] = (),
        due: tuple[float, float] = (float("inf"), float("inf")),
    ) -> None:
        text = f"""
name: x
objective: {objective}
experiments:
  train: {{command: c, steps: 5000, adapt: true, checkpoint: {{every: 10s}}, grace: 7s, batch: {{global: 64}},
          distributed: {{workers: {workers}{strategy}}}}}
"""
        text += f"budget: {budget}\n" if budget != "{}" else ""
        recipe = Recipe.from_text(text)
        self.recipe = with_workers(recipe, {"train": 2})
        self.loop = None if rental is None else Loop(rental, others, dearer, servers)
        self.nodes = None if self.loop is None else SimpleNamespace(loop_of=lambda _: self.loop)
        self.rows: dict[tuple[Fact, str], str] = {}
        self.stopped: list[tuple[str, float]] = []
        self.quote = SimpleNamespace(
            sizes={"train": sizes}, due=lambda _: due, resized=self._resized, tell_again=lambda: None
        )
        self.quoted = self.recipe
        self.task: Any = SimpleNamespace(
            experiment="train", number=0, attempt=1, started_at=BEGUN, state=State.RUNNING, key=("train", 0)
        )
        done = dict.fromkeys(others, SimpleNamespace(state=State.RUNNING, live={}))
        train = SimpleNamespace(state=State.RUNNING, live={0: self.task})
        self.state: Any = SimpleNamespace(course={}, experiments={"train": train, **done})
        self.found: Any = SimpleNamespace(eta_s=3600.0, checkpoint_at=BEGUN + 15)
        self.per_hour = per_hour
        self.drive()

    def _resized(self, recipe: Recipe) -> None:
        self.quoted = recipe

    def _record(self, kind: Fact, name: str, value: str) -> str:
        return self.rows.setdefault((kind, name), value)

    def drive(self) -> None:
        """A driver begins, from what is written down."""
        if self.loop is not None:
            self.loop.scaling, self.loop.wanted = Scaling(), False
        self.facts = RunFacts(self.rows, self._record)
        executor = SimpleNamespace(stop=lambda attempt, grace_s: self.stopped.append((attempt, grace_s)))
        costs = SimpleNamespace(spent_usd=lambda _: 0.5)
        self.resizer = Resizer(
            self.quote,
            "x-1",
            self.recipe,
            executor,
            self.nodes,
            costs,
            self.facts,  # type: ignore[arg-type]
            self.per_hour,
        )
        self.resizer.begin(self.state)

    def look(self, at: float) -> list[str]:
        notes = self.resizer.look(self.state, {("train", 0): self.found}, BEGUN + at)
        assert all(note.topic == ADAPTED and note.experiment == "train" for note in notes)
        return [note.message.removeprefix("train: ") for note in notes]

    def next_attempt(self, at: float) -> int:
        """The attempt has ended as it was told to; members of the one that follows."""
        self.task.attempt += 1
        self.task.started_at = BEGUN + at
        self.look(at)
        present = sized(self.recipe.experiments["train"], self.facts, self.task.attempt)
        return len(member_names(present))


#: Where a run is driven, and what it works with; what is asked for, and what it goes on with.
CROSSINGS = {
    "this machine": ({"rental": None}, 0, 4),
    "rented": ({}, 2, 4),
    "spot": ({"rental": SPOT}, 2, 4),
    "hosts of one's own": ({"rental": HOST}, 2, 4),
    "a server's team, with a cap that suffices": ({"budget": "{total: $10}"}, 2, 4),
    "the cap would be reached": ({"budget": "{total: $2}"}, 0, None),
    "the cap per hour would be reached": ({"per_hour": 3.0}, 0, None),
    "cheapest": ({"objective": "cheapest"}, 0, None),
    "cheapest, and late": ({"objective": "cheapest", "due": (3000.0, 50.0)}, 2, 4),
    "late, and its quote would be broken by its cost": (
        {"objective": "cheapest", "due": (3000.0, 2.0)},
        0,
        None,
    ),
    "cheapest, and fewer are as quick": ({"objective": "cheapest", "sizes": AS_QUICK}, 0, 1),
    "machines that others of the run work on": ({"others": ("eval",)}, 0, None),
    "nothing is known yet": ({"sizes": ()}, 0, None),
}


@pytest.mark.parametrize("name", CROSSINGS)
def test_crossings(name):
    keys, asked, then = CROSSINGS[name]
    bench = Bench(**keys)
    told = bench.look(20)
    assert len(told) <= 1
    nodes = 0 if bench.loop is None else bench.loop.record.plan.nodes - 2
    assert nodes == asked
    if asked and bench.loop:
        bench.found.checkpoint_at = BEGUN + 21
        assert bench.look(22) == [], "its machines are not there"
        assert not bench.stopped
        bench.loop.there += asked
    bench.found.checkpoint_at = BEGUN + 23
    told += bench.look(24)
    if then is None:
        assert not bench.stopped
        assert not bench.rows
        return
    assert "is to go on with" in told[0]
    assert told[1].startswith("it goes on with")
    assert bench.stopped == [("x-1/train/0/1", 7.0)]
    assert bench.next_attempt(30) == then
    assert bench.quoted.experiments["train"].distributed.workers == then
    assert bench.loop is None or (bench.loop.scaling.needed or {"worker": bench.loop.record.plan.nodes}) == {
        "worker": then
    }


@pytest.mark.parametrize("at", ["decided", "machines", "written", "stopped", "next"])
def test_a_driver_that_is_killed_anywhere_changes_it_once(at):
    bench = Bench()
    bench.look(20)
    if at == "decided":
        bench.drive()
        bench.look(21)
    bench.loop.there = 4
    if at == "machines":
        bench.drive()
        assert len(bench.loop.record.seats) == 4, "what was asked for is there"
        bench.look(22)
    bench.found.checkpoint_at = BEGUN + 23
    bench.look(24)
    assert len(bench.stopped) == 1
    if at in ("written", "stopped"):
        bench.stopped.clear() if at == "written" else None
        bench.drive()
        assert bench.loop.scaling.needed in (None, {"worker": 4}), "none is given back"
        assert bench.look(25) == []
        assert {attempt for attempt, _ in bench.stopped} == {"x-1/train/0/1"}
    assert bench.next_attempt(30) == 4
    if at == "next":
        bench.drive()
    assert bench.quoted.experiments["train"].distributed.workers == 4
    assert list(bench.rows) == [(Fact.SIZE, "train/2")]
    bench.quote.sizes = {"train": (SizeForecast(4, 0, 1.0, 1.0), SizeForecast(2, 0, 0.3, 0.3))}
    assert bench.look(50) == ["4 workers stay: their number was changed 26 s ago"]
    assert len(bench.rows) == 1


def test_what_no_longer_pays_stays_and_its_machines_are_given_back():
    bench = Bench()
    bench.look(20)
    assert bench.loop.scaling.needed == {"worker": 4}
    bench.loop.there, bench.found.eta_s = 4, 10.0
    assert bench.look(40) == ["2 workers stay: a change no longer pays"]
    bench.look(42)
    assert bench.loop.scaling.needed == {"worker": 2}
    assert not bench.rows


@pytest.mark.parametrize("is_killed", [False, True])
def test_machines_of_a_first_change_are_given_back_if_its_attempt_ends_before(is_killed):
    bench = Bench()
    bench.look(20)
    if is_killed:
        bench.drive()
        assert bench.loop.scaling.needed is None, "what is asked for may be decided again"
    bench.task.attempt, bench.task.state = 2, State.WAITING
    bench.look(30)
    assert not bench.resizer.is_changing(bench.task)
    assert bench.loop.record.plan.nodes == 4
    assert bench.loop.scaling.needed == {"worker": 2}


def test_what_an_earlier_driver_asked_for_is_had_by_the_next_one():
    bench = Bench()
    bench.look(20)
    bench.drive()
    assert len(bench.look(21)) == 1
    assert bench.loop.wanted
    bench.found.checkpoint_at = BEGUN + 22
    bench.look(23)
    assert not bench.stopped, "its machines are not there"


def test_more_parameter_servers_go_where_the_workers_are():
    sizes = (SizeForecast(2, 1, 1.0, 1.0), SizeForecast(2, 2, 0.5, 0.55))
    bench = Bench(strategy=", strategy: ps-sync", workers="2", sizes=sizes)
    assert "2 workers and 2 parameter servers instead of 2 workers and 1" in bench.look(20)[0]
    bench.found.checkpoint_at = BEGUN + 21
    bench.look(22)
    assert bench.next_attempt(30) == 5  # and the chief
    assert bench.loop.record.plan.nodes == 2


@pytest.mark.parametrize(("per_hour", "zones"), [(10.0, ["us-a"]), (12.0, ["us-a", "us-b"])])
def test_more_machines_are_not_had_in_ways_that_are_then_too_dear_per_hour(per_hour, zones):
    dearer = replace(RENTED, instance_type="m5.large", zone="us-b", usd_per_hour=3.0, memory_bytes=8 << 30)
    bench = Bench(per_hour=per_hour, dearer=(dearer,))
    bench.look(20)
    (role,) = bench.loop.record.plan.roles
    assert (role.count, [rental.zone for rental in role.rentals]) == (4, zones)
    there = replace(bench.loop.record.machines[0], rental=dearer)
    assert not bench.loop.record.is_outgrown(there), "what was had before stays"


def test_servers_of_their_own_machines_are_waited_for_though_there_are_as_many_in_all():
    sizes = (SizeForecast(2, 1, 1.0, 1.0), SizeForecast(1, 2, 0.5, 0.55))
    bench = Bench(strategy=", strategy: ps-sync", sizes=sizes, servers=(1,))
    bench.loop.there = 3
    assert "on 1 machine more" in bench.look(20)[0]
    assert bench.loop.scaling.needed == {"worker": 1, "ps": 2}
    assert [role.count for role in bench.loop.record.plan.roles] == [2, 2]


def test_a_machine_that_is_being_replaced_comes_first():
    bench = Bench()
    slow = bench.loop.record.machines[0]
    object.__setattr__(slow, "is_slow", True)
    assert bench.look(20) == []
    assert bench.loop.record.plan.nodes == 2
