"""What is done about a slow machine: asked for once, left at a checkpoint, told in a line, by any driver."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from trainmaster.advisor.model.step_trace import StepTrace
from trainmaster.cluster.record import ClusterState, Machine, marked_slow, new_record, swapped
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.service.quotes.adapter import Adapter
from trainmaster.spec import Recipe
from trainmaster.spec.states import State
from trainmaster.spec.topics import ADAPTED

BEGUN = 1000.0
RENTAL = Rental("m4.large", "us", "us-a", usd_per_hour=0.36)
RECIPE = """
name: x
objective: fastest
experiments:
  train: {command: c, steps: 5000, adapt: true, checkpoint: {every: 10s},
          distributed: {strategy: allreduce, workers: 2}}
  other: {command: c, steps: 5000}
"""


class Loop:
    """Has done at once what it is told."""

    def __init__(self) -> None:
        plan = ClusterPlan("train", ("train",), "lab", (RolePlan("worker", 2, (RENTAL,)),))
        machines = tuple(
            Machine(f"worker-{n}", "worker", "worker-0", RENTAL, f"i-{n}", started_at=BEGUN) for n in range(2)
        )
        record = new_record("x-1", plan, "home")
        self.record = record.changed([])
        object.__setattr__(self.record, "machines", machines)
        object.__setattr__(self.record, "state", ClusterState.ACTIVE)
        self.is_there = self.is_wanted = False

    def want(self) -> None:
        self.is_wanted = True

    def replace(self, machine: str, why: str, slowdown: float) -> None:
        self.record = marked_slow(self.record, machine, why, slowdown, BEGUN + 60)

    def swap(self, machine: str, *, keep: bool) -> None:
        self.record = swapped(self.record, machine, keep=keep)

    def successor_is_there(self, _machine: Machine) -> bool:
        return self.is_there


class Machines:
    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def loop_of(self, _attempt: str) -> Loop:
        return self.loop

    def machine_of(self, _attempt: str, member: str) -> Machine | None:
        return self.loop.record.machine(f"i-{member[-1]}")

    def machines_of(self, attempt: str) -> set[str]:
        machines = {machine.id for machine in self.loop.record.machines}
        return machines if "/train/0/" in attempt else {"i-0"}

    def why_kept(self, machine: Machine) -> str:
        return "" if machine.slow_at is None else "it stays"


class Bench:
    """A gang of two whose second member has waited for its processors since its 30th second."""

    def __init__(self, directory, *, slow_from: int = 30, traced_from: int = 0, rents: bool = True) -> None:
        self.loop = Loop()
        executor = Machines(self.loop) if rents else None
        self.told_again = 0
        quote = SimpleNamespace(look=lambda *_: [], tell_again=self.tell_again)
        self.adapter = Adapter(quote, "x-1", Recipe.from_text(RECIPE), executor, None)  # type: ignore[arg-type]
        task = SimpleNamespace(experiment="train", number=0, attempt=1, started_at=BEGUN)
        self.state = SimpleNamespace(
            state=State.RUNNING,
            course={},
            experiments={
                name: SimpleNamespace(live={0: SimpleNamespace(**{**vars(task), "experiment": name})})
                for name in ("train", "other")
            },
        )
        trace, rows = StepTrace(0.5), []
        for second in range(120):
            late = max(second - slow_from, 0)
            steps = 10 * (second - late) + 4 * late
            if second >= traced_from:
                trace.add(BEGUN + second, steps)
            for member, wait_s in (("worker-0", 0.1 * second), ("worker-1", 0.1 * second + 0.7 * late)):
                used = {"cpu_seconds": 0.02 * steps, "peak_rss_bytes": 1, "seconds": float(second)}
                rows.append({"member": member, "time": BEGUN + second, **used, "cpu_wait_seconds": wait_s})
        (directory / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.found = SimpleNamespace(
            trace=trace, directory=directory, eta_s=1000.0, steps_per_s=4.0, checkpoint_at=BEGUN + 100
        )

    def tell_again(self) -> None:
        self.told_again += 1

    def look(self, at: float, *names: str) -> list[str]:
        both = {(name, 0): self.found for name in names or ("train",)}
        notes = self.adapter.look(self.state, both, BEGUN + at)  # type: ignore[arg-type]
        assert all((note.topic == ADAPTED) == (note.experiment == "train") for note in notes), notes
        return [note.message.removeprefix("train: ") for note in notes]


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_another_machine_is_asked_for_once_and_then_waited_for(bench):
    assert bench.look(105) == []  # it may pass
    assert bench.look(116) == []  # it is told once it is written down
    (told,) = bench.look(119)
    assert "worker-1 waits" in told
    assert "another machine is asked for in place of node-2 (i-1): the run ends about" in told
    assert [m.is_slow for m in bench.loop.record.machines] == [False, True]
    assert bench.loop.record.machines[1].slow_why == told
    assert bench.look(121) == []
    bench.loop.is_there = True
    bench.found.checkpoint_at = BEGUN + 105
    assert bench.look(123) == []
    bench.found.checkpoint_at = BEGUN + 124
    (told,) = bench.look(126)
    assert told == "it goes on without node-2 (i-1), from its newest checkpoint"
    assert bench.loop.record.machines[1].is_leaving
    assert bench.look(128) == []
    assert not bench.told_again, "its members work there still"
    bench.state.experiments["train"].live[0].attempt = 2
    bench.look(130)
    bench.look(132)
    assert bench.told_again == 1, "what the run takes has changed"


def test_where_a_recipe_leaves_machines_alone_it_is_told_once_which_one_is_slow(bench):
    assert [bench.look(at, "other") for at in (80, 92, 104)] == [[], [], []], "it may pass"
    (told,) = bench.look(115, "other")
    assert told.startswith("other: a step takes 0.25 s, not 0.1 s, as worker-1 on node-2 (i-1) waits")
    assert told.endswith("with `adapt: true` in the recipe that is done at a checkpoint, if it pays")
    assert bench.look(119, "other") == []
    assert not any(machine.is_slow for machine in bench.loop.record.machines)


def test_the_next_driver_has_not_seen_how_quick_it_was_and_goes_on_all_the_same(tmp_path):
    bench = Bench(tmp_path, traced_from=60)
    bench.loop.replace("i-1", "it is slow", 2.5)
    bench.found.checkpoint_at = BEGUN + 119
    assert bench.look(117) == []
    assert bench.loop.is_wanted, "its members were sent by the driver before"
    bench.loop.is_there = True
    assert bench.look(120) == ["it goes on without node-2 (i-1), from its newest checkpoint"]


def test_a_task_on_other_machines_does_not_decide(bench):
    bench.look(105)
    bench.look(116)
    bench.loop.is_there = True
    own = bench.state.experiments["train"].live
    own |= {1: SimpleNamespace(experiment="train", number=1, attempt=1, started_at=BEGUN)}
    quick = SimpleNamespace(**{**vars(bench.found), "eta_s": 6.0, "checkpoint_at": BEGUN + 118})
    tasks = {("train", 1): quick, ("train", 0): bench.found}
    bench.adapter.look(bench.state, tasks, BEGUN + 119)
    slow = bench.loop.record.machines[1]
    assert not slow.holds_seat, "the other one has it, and stays"
    assert not slow.is_leaving, "a checkpoint of its own task is waited for"


def test_what_is_quick_again_stays(tmp_path):
    bench = Bench(tmp_path, slow_from=1000)
    bench.loop.replace("i-1", "it is slow", 2.5)
    bench.loop.is_there = True
    assert bench.look(119) == ["node-2 (i-1) stays: a change no longer shortens the last 17 min"]
    assert bench.loop.record.machines[1].holds_seat


@pytest.mark.parametrize(
    ("rents", "more", "why"),
    [
        (False, {}, "there is no other machine to go on with"),
        (True, {"checkpoint_at": None}, "there is no checkpoint to go on from yet"),
        (True, {"eta_s": 6.0}, "another one would save 3.6 s and cost 8 s"),
    ],
)
def test_why_nothing_is_changed_is_told_once(tmp_path, rents, more, why):
    bench = Bench(tmp_path, rents=rents)
    for name, value in more.items():
        setattr(bench.found, name, value)
    assert bench.look(105) == []
    (told,) = bench.look(116)
    assert told.endswith(f"nothing is changed: {why}")
    assert bench.look(119) == []
    assert not any(m.is_slow for m in bench.loop.record.machines)


def test_of_many_tasks_all_come_to_be_looked_at(bench, monkeypatch):
    seen = []
    monkeypatch.setattr(bench.adapter, "_only_tell", lambda task, *_: seen.append(task.number) or [])
    live = {n: SimpleNamespace(experiment="other", number=n, attempt=1, started_at=BEGUN) for n in range(20)}
    bench.state.experiments["other"] = SimpleNamespace(live=live)
    tasks = {("other", number): bench.found for number in live}
    for at in (0, 10, 20):
        bench.adapter.look(bench.state, tasks, BEGUN + at)
    assert set(seen) == set(live)
    assert len(seen) == 24
