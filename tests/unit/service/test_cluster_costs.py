"""A run's clusters as its quote sees them; what they will have cost; and what the user is told of it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest

from trainmaster.advisor.market.phases import ClusterWait, PhaseHistory, PhaseSample
from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.advisor.quote.forecast import RentedPart, forecast_rented
from trainmaster.advisor.quote.interval import Interval
from trainmaster.advisor.quote.timing import DRAWS
from trainmaster.cluster.record import ClusterRecord, ClusterState, Machine
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.control.loop.run_state import ExperimentState, RunState, Task
from trainmaster.control.measure.measuring import trace_of
from trainmaster.executors.base import Capacity
from trainmaster.service.cluster_costs import RecordedClusterCosts, where_in, where_on
from trainmaster.service.quotes.fingerprint import Fingerprint
from trainmaster.service.quotes.forecast_inputs import RentedNow
from trainmaster.service.quotes.history import History
from trainmaster.service.quotes.phase_records import ExperimentPhases
from trainmaster.service.quotes.quote_record import QuoteRecord
from trainmaster.service.quotes.quote_tracker import QuoteTracker
from trainmaster.spec import Strategy, read_recipe
from trainmaster.spec.states import State
from trainmaster.testing.waits import until

BEGAN = 1000.0
BACK = {"lab": [30.0] * 50}
READY = BEGAN + 90.0
PRICE = 3.6  # a tenth of a cent per second
LARGE = Rental("large", usd_per_hour=PRICE / 2, slots=4)


def record(name="main", count=2, *, up=True, rental=LARGE, **more):
    plan = ClusterPlan(name, (name,), "lab", (RolePlan("worker", count, (rental,)),))
    state = ClusterState.ACTIVE if up else ClusterState.PLANNED
    machines = tuple(
        Machine(f"worker-{n}", "worker", "t", rental, f"i-{n}", started_at=BEGAN) for n in range(count)
    )
    facts = {"asked_at": BEGAN - 5, "waited_s": READY - BEGAN + 5} if up else {}
    return ClusterRecord(f"r.{name}", "lab", "home", plan, state, machines if up else (), **facts, **more)


def test_what_is_there_costs_what_it_was_had_for():
    costs = RecordedClusterCosts("lab", lambda: [record(), record("next", 3, up=False)])
    main, following = costs.clusters()
    assert (main.machine, main.nodes, main.slots, main.is_there) == ("lab:large", 2, 8, True)
    assert (main.usd_per_hour, following.usd_per_hour) == (pytest.approx(PRICE), pytest.approx(1.5 * PRICE))
    assert not following.is_there
    assert costs.spent_usd(BEGAN + 100) == pytest.approx(0.1)
    assert costs.ready_at == READY


def test_what_setup_takes_is_still_to_come_where_no_image_saves_it():
    def seconds_left(images, paid_from=0.0, contents=None, **how):
        seen = tuple(PhaseSample(300.0, "lab:large", "a") for _ in range(30))
        histories = (PhaseHistory("setup", "a", seen), PhaseHistory("saving", "", seen[:0]))
        phases = {"main": ExperimentPhases("main", histories, images)}
        records = [ClusterRecord.of_row(asdict(record(paid_from=paid_from, brought=contents).as_row()))]
        costs = RecordedClusterCosts("lab", lambda: records, phases=phases)
        (one,) = costs.clusters()
        return float(np.median(replace(one.beside()["main"], **how).left_s(0)))

    assert seconds_left({}) == pytest.approx(300, rel=0.05)
    assert seconds_left({}, since_s=200.0) == pytest.approx(100, rel=0.2)
    assert 0 < seconds_left({}, is_over=True) < 2, "saving is still to come"
    region = record().plan.roles[0].rentals[0].region
    assert seconds_left({("lab", region): "ami-1"}) < 2
    assert seconds_left({}, paid_from=READY + 500) < 2, "it was made on such machines before"
    assert seconds_left({}, paid_from=READY + 500, contents=("a",)) < 2
    assert seconds_left({}, paid_from=READY + 500, contents=("b",)) == pytest.approx(300, rel=0.05)


def test_nothing_is_ready_before_a_cluster_was_up_and_a_warm_one_is_at_once():
    assert RecordedClusterCosts("lab", lambda: [record(up=False)]).ready_at is None
    assert RecordedClusterCosts("lab", lambda: [record(paid_from=READY + 500)]).ready_at == READY + 500


def test_what_was_had_instead_of_the_best_is_what_attempts_run_on():
    plan = ClusterPlan("main", ("main",), "lab", (RolePlan("worker", 1, (LARGE,)),))
    other = Rental("other", usd_per_hour=9.0, slots=16)
    machine = Machine("worker-0", "worker", "t", other, "i-0", started_at=BEGAN)
    found = ClusterRecord("r.main", "lab", "h", plan, ClusterState.ACTIVE, (machine,), waited_s=1.0)
    costs = RecordedClusterCosts("lab", lambda: [found])
    assert where_in(costs, "main").offer == "lab:other"
    assert costs.clusters()[0].usd_per_hour == 9.0
    own = replace(record(rental=Rental(slots=4, is_rented=False)), provider="hosts")
    mine = RecordedClusterCosts("hosts", lambda: [own])
    assert (where_in(mine, "main").offer, where_in(mine, "main").cores) == ("host", 4)


def test_a_sweep_over_several_places_has_the_slots_of_all_and_each_attempt_the_machine_of_its_own():
    own = replace(record(rental=Rental(slots=4, is_rented=False)), provider="hosts")
    rented = record()
    costs = RecordedClusterCosts("hosts", lambda: [own, rented])
    now = RentedNow("hosts", 0.0, costs.clusters())
    assert (now.slots("main"), now.slots("other")) == (16, 1)
    assert (where_on(own).offer, where_on(rented).offer) == ("host", "lab:large")


# --- what a run will have cost --------------------------------------------------------------------------


def seconds(value):
    return np.full(DRAWS, float(value))


def test_a_rented_run_costs_what_it_has_and_what_is_left():
    parts = [RentedPart(("a",), 3600.0, is_there=True)]
    time_s, cost = forecast_rented(100.0, 50.0, {"a": seconds(1000)}, {}, parts, "lab")
    assert time_s.p50 == pytest.approx(1104, rel=0.02)
    assert cost.p50 == pytest.approx(50 + 1004, rel=0.02)
    assert time_s.p5 < time_s.p50 < time_s.p95


def test_time_that_is_paid_already_is_not_paid_again():
    """Of a machine with a minimum of a minute that began 10 s ago the next 50 s are on the bill."""
    short = {"a": seconds(20)}
    ahead = [RentedPart(("a",), 3600.0, is_there=True, paid_s=50.0)]
    _, cost = forecast_rented(10.0, 60.0, short, {}, ahead, "lab")
    assert cost.p50 == pytest.approx(60)
    _, cost = forecast_rented(10.0, 60.0, {"a": seconds(200)}, {}, ahead, "lab")
    assert cost.p50 == pytest.approx(10 + 204, rel=0.03)
    to_come = [RentedPart(("b",), 3600.0, is_there=False, paid_s=6000.0)]
    _, cost = forecast_rented(0.0, 0.0, {"b": seconds(20)}, {}, to_come, "lab")
    assert cost.p50 == pytest.approx(6000)
    hours = [RentedPart(("a",), 1.0, is_there=True, paid_s=50.0, quantum_s=3600.0)]
    _, cost = forecast_rented(0.0, 1.0, {"a": seconds(4000)}, {}, hours, "lab")
    assert cost.p50 == pytest.approx(3)


def test_until_when_a_cluster_is_paid_follows_from_when_each_machine_began():
    minute = replace(LARGE, minimum_s=60.0)
    costs = RecordedClusterCosts("lab", lambda: [record(rental=minute), record("b", up=False, rental=minute)])
    main, to_come = costs.clusters()
    seen = main.paid_s(BEGAN + 10), main.paid_s(BEGAN + 70), to_come.paid_s(BEGAN)
    assert seen == pytest.approx((50, 0, 60))
    assert costs.spent_usd(BEGAN + 10) == costs.spent_usd(BEGAN + 10 + main.paid_s(BEGAN + 10))
    hours = [record(rental=replace(LARGE, quantum_s=3600.0))]
    (hourly,) = RecordedClusterCosts("lab", lambda: hours).clusters()
    assert (hourly.paid_s(BEGAN + 4000), hourly.quantum_s) == (pytest.approx(3200), 3600.0)
    assert replace(main, billed=()).paid_s(BEGAN) == 0.0


def test_machines_that_begin_to_come_are_waited_for_no_longer_and_billed_once():
    minute = replace(LARGE, minimum_s=600.0)
    costs = RecordedClusterCosts("lab", lambda: [replace(record(rental=minute), waited_s=None)])
    (coming,) = costs.clusters()
    now = BEGAN + 10
    assert (coming.is_there, coming.asked_at, coming.is_billed) == (False, BEGAN - 5, True)
    assert coming.paid_s(now) == pytest.approx(590)
    part = RentedPart(
        ("main",), 3600.0, is_there=False, paid_s=coming.paid_s(now), asked_s=15.0, is_billed=True
    )
    left = {"main": seconds(100)}
    time_s, cost = forecast_rented(15.0, 600.0, left, {}, [part], "lab", [ClusterWait(20.0)] * 200)
    assert time_s.p50 == pytest.approx(15 + 5 + 100 + 4, rel=0.08)
    assert cost.p50 == pytest.approx(600), "the minimum is on the bill"


def test_a_cluster_is_paid_from_its_first_experiment_to_its_last():
    left = {"a": seconds(100), "b": seconds(1000), "c": seconds(100)}
    after = {"b": ["a"], "c": ["b"]}
    one = [RentedPart(("a", "c"), 3600.0, is_there=True), RentedPart(("b",), 0.0, is_there=True)]
    _, held = forecast_rented(0.0, 0.0, left, after, one, "lab")
    assert held.p50 == pytest.approx(1204, rel=0.03)
    two = [RentedPart(("a",), 3600.0, is_there=True), RentedPart(("b", "c"), 0.0, is_there=True)]
    _, given_back = forecast_rented(0.0, 0.0, left, after, two, "lab")
    assert given_back.p50 == pytest.approx(104, rel=0.05)


def test_the_machine_that_drives_is_paid_to_the_end_of_the_run():
    """`--on-cluster` with several clusters: it was told at the start, and in no quote."""
    left, after = {"a": seconds(100), "b": seconds(1000)}, {"b": ["a"]}
    drives = RentedPart(("a",), 7200.0, is_there=True, driver_usd_per_hour=3600.0)
    parts = [drives, RentedPart(("b",), 0.0, is_there=True)]
    _, both = forecast_rented(0.0, 0.0, left, after, parts, "lab")
    assert both.p50 == pytest.approx(2 * 104 + 1000, rel=0.03)
    _, rest = forecast_rented(0.0, 208.0, {"b": seconds(1000)}, {}, parts, "lab")
    assert rest.p50 == pytest.approx(208 + 1004, rel=0.03), "also once its own work is done"
    costs = RecordedClusterCosts("lab", lambda: [record(), record("next", 3, up=False)], own_cluster="r.main")
    assert [each.driver_usd_per_hour for each in costs.clusters()] == [pytest.approx(PRICE / 2), 0.0]
    drives, other = record().machines
    alone = replace(record(), machines=(drives, replace(other, ended_at=READY)))
    costs = RecordedClusterCosts("lab", lambda: [alone], own_cluster="r.main")
    (left,) = costs.clusters()
    assert left.driver_usd_per_hour == pytest.approx(PRICE / 2), "the other one has been given back"


def test_what_has_no_room_on_its_cluster_beside_another_comes_after_it():
    left, one = {"a": seconds(100), "b": seconds(100)}, [RentedPart(("a", "b"), 3600.0, is_there=True)]
    for fills, least_s in ((0.5, 104), (0.75, 204)):
        time_s, cost = forecast_rented(0.0, 0.0, left, {}, one, "lab", fills={"a": fills, "b": fills})
        assert (time_s.p50, cost.p50) == pytest.approx((least_s + 4, least_s), rel=0.08)


def test_machines_that_are_not_there_yet_are_waited_for_and_paid_for_then():
    left, after = {"a": seconds(100), "b": seconds(100)}, {"b": ["a"]}
    parts = [RentedPart(("a",), 0.0, is_there=True), RentedPart(("b",), 3600.0, is_there=False)]
    time_s, cost = forecast_rented(0.0, 0.0, left, after, parts, "aws", [ClusterWait(400.0)] * 200)
    assert time_s.p50 == pytest.approx(200 + 390 + 30, rel=0.08)
    assert cost.p50 == pytest.approx(100 + 390 + 30, rel=0.08)
    mixed = [parts[0], replace(parts[1], provider="aws")]
    time_s, _ = forecast_rented(0.0, 0.0, left, after, mixed, "hosts", [ClusterWait(400.0, "", "aws")] * 200)
    assert time_s.p50 == pytest.approx(200 + 390 + 30, rel=0.08), "each place has waits of its own"
    done = forecast_rented(10.0, 5.0, {}, {}, parts, "lab")[1]
    assert done == Interval(5.0, 5.0, 5.0)


def test_what_is_kept_warm_is_not_given_back_and_what_was_is_not_waited_for():
    def of(**more):
        costs = RecordedClusterCosts("lab", lambda: [record(**more)], gave_back_s=BACK)
        (cluster,) = costs.clusters()
        return costs, cluster

    (costs, new), (_, warm) = of(), of(keep_s=600.0, paid_from=READY + 500)
    assert [phase for phase, _ in costs.expected(new)] == ["machines", "giving back"]
    assert list(costs.expected(warm)) == []
    part = RentedPart(("a",), 0.0, is_there=True, stays=new.stays)
    given_back = forecast_rented(0.0, 0.0, {"a": seconds(100)}, {}, [part], "lab", gave_back_s=BACK)
    part = replace(part, stays=warm.stays)
    kept = forecast_rented(0.0, 0.0, {"a": seconds(100)}, {}, [part], "lab", gave_back_s=BACK)
    assert given_back[0].p50 - kept[0].p50 == pytest.approx(30, rel=0.2)


# --- the tracker ------------------------------------------------------------------------------------------


class Store:
    forecast = None

    def __init__(self, *rows):
        self.rows = list(rows)

    def failed_attempts(self, _run):
        return {}

    def was_cancelled(self, _run):
        return False

    def forecast_of(self, _run):
        return self.forecast

    def put_forecast(self, _run, data):
        self.forecast = data

    def quotes_of(self, _run):
        return self.rows

    def add_quote(self, new, most_usd=None):
        self.rows.append({"kind": new.kind, "made_at": new.made_at, "data": new.data})


class World:
    """A run on two machines, and its tracker."""

    def __init__(self, directory, database=None, same=(), **keys):
        path = directory / "recipe.yaml"
        keys = {"command": "true", "distributed": {"workers": 2}, **keys}
        path.write_text(json.dumps({"name": "job", "provider": "lab", "experiments": {"main": keys}}))
        self.recipe = read_recipe(path)
        self.database = database or Store()
        self.trace = trace_of(self.recipe.experiments["main"], 0.5)
        self.task = Task("main", 0, State.RUNNING, attempt=1)
        experiment = ExperimentState("main", (), 1, 1, State.RUNNING, live={0: self.task}, created=1)
        self.run_state = RunState("r", {"main": experiment}, State.RUNNING)
        self.progress = {
            ("main", 0): SimpleNamespace(
                trace=self.trace,
                aimed=None,
                directory=directory,
                total_steps=self.recipe.experiments["main"].builtin_values().get("steps"),
                said_steps=0,
                saves_every_s=lambda *_, **__: None,
                metrics={},
                addresses={"worker-0": "10.0.0.1", "worker-1": "10.0.0.2"},
            )
        }
        self.rental = LARGE
        self.record = record(up=False)
        self.tracker = QuoteTracker(
            self.database,
            self.recipe,
            "r",
            lambda: {"main": History(Fingerprint("exact", "similar"), list(same))},
            elapsed=lambda now: now - BEGAN,
            capacity=Capacity(8),
            costs=RecordedClusterCosts("lab", lambda: [self.record]),
        )

    def look(self, until_s, step_s, ready_s=READY - BEGAN):
        """All that is told from the start until then; steps come once the machines are there."""
        lines = []
        for now in np.arange(BEGAN, BEGAN + until_s, 1.0).tolist():
            if now >= BEGAN + ready_s and self.task.started_at is None:
                self.record = record(rental=self.rental)
                self.task.started_at = now
            if self.task.started_at is not None:
                step = int((now - self.task.started_at) / step_s) + 1
                self.trace.add(now, step)
                self.progress["main", 0].metrics["step"] = step
            lines += [note.message for note in self.tracker.look(self.run_state, self.progress, now)]
            until(lambda: (found := self.tracker._thinking) is None or found.done(), "its quote")
        self.late = [line for line in lines if " is late: " in line]
        return [line for line in lines if line not in self.late]


def test_a_binding_quote_names_dollars_and_counts_the_wait(tmp_path):
    world = World(tmp_path, steps=400)
    lines = world.look(140, step_s=0.5)
    assert len(lines) == 1
    assert lines[0].startswith("quote: ")
    assert "and costs at most $0." in lines[0]
    assert [line.split(":")[:2] for line in world.late] == [["main", " machines is late"]]
    promise = QuoteRecord.of_row(world.database.rows[0])
    assert promise.kind == "binding"
    assert promise.made_at >= READY + 10
    assert promise.time_s.p50 == pytest.approx(293, rel=0.05)  # 90 s until they were there, 200 s of steps
    assert promise.cost_usd.p50 == pytest.approx(0.293, rel=0.1)  # of both machines, from the first second
    assert promise.holds(280.0, 0.28)
    assert not promise.holds(280.0, 0.5)
    assert not promise.holds(500.0, 0.28)


def test_a_binding_quote_counts_that_spot_machines_may_be_taken_back(tmp_path):
    """A long run most likely loses one of them; of a short one that is next to nothing."""
    spans = {}
    for steps in (400, 200_000):
        for spot in (False, True):
            (place := tmp_path / f"{steps}-{spot}").mkdir()
            world = World(place, steps=steps)
            world.rental = replace(LARGE, spot=spot)
            world.look(170, step_s=0.5)
            spans[steps, spot] = QuoteRecord.of_row(world.database.rows[0]).time_s
    assert spans[400, True].p95 == pytest.approx(spans[400, False].p95, rel=0.03)
    lost = [
        getattr(spans[200_000, True], mark) - getattr(spans[200_000, False], mark) for mark in ("p50", "p95")
    ]
    assert lost[0] > 100, "a machine or more: 56 node-hours"
    assert lost[1] > 900


def test_what_was_measured_on_other_machines_is_none_of_this(tmp_path):
    point = Point(Strategy.ALLREDUCE, 2, nodes=1, step_time_s=0.5)
    here = Measurement(point, duration_s=200.0, offer="local")
    world = World(tmp_path, same=[here])
    assert world.look(150, step_s=0.5) == []  # without a length only how long it took before would tell
    there = Measurement(point, duration_s=200.0, offer="lab:large")
    world = World(tmp_path, same=[there])
    assert [line.split(":")[0] for line in world.look(150, step_s=0.5)] == ["quote"]


LONG = Interval(100, 200, 1e6)


def row(kind, cost, time_s=LONG, **more):
    made = QuoteRecord(kind, BEGAN, time_s, cost, **more)
    return {"kind": kind, "made_at": BEGAN, "data": made.as_json()}


def test_a_run_that_will_cost_more_is_told_with_another_cluster(tmp_path):
    estimate = row("estimate", Interval(0, 0, 1), other="4 x huge (20 s, $5.00)")
    binding = row("binding", Interval(0.05, 0.06, 0.07))
    lines = World(tmp_path, Store(estimate, binding), steps=400).look(200, step_s=0.5)
    assert len(lines) == 1
    assert "it will cost more than quoted" in lines[0]
    assert "quoted were at most $0.07." in lines[0]
    assert "4 x huge (20 s, $5.00)" in lines[0]
    assert "gives the machines back" in lines[0]


@pytest.mark.parametrize("is_one", [True, False])
def test_what_was_estimated_is_expected_of_the_phases_of_rented_machines(tmp_path, is_one):
    """They were followed from the first look on, and the estimate was read later: no phase was late.

    Of a run of several experiments none was kept with its estimate.
    """
    steps = {"steps": {"p5": 1, "p50": 2, "p95": 3}}
    other = {} if is_one else {"next": {"steps": {"p5": 9, "p50": 10, "p95": 11}}}
    estimate = row("estimate", Interval(0, 0, 1), phases={"main": steps, **other})
    world = World(tmp_path, Store(estimate), steps=400)
    more = [record(name, up=False) for name in other]
    world.tracker._costs = RecordedClusterCosts("lab", lambda: [world.record, *more])
    lines = world.look(30, step_s=10.0, ready_s=2.0)
    assert [line for line in lines if "late" in line] == [
        "main: steps are late: 6 s until now, expected were at most 3 s"
    ]


def test_phases_that_were_kept_as_those_of_the_only_experiment_are_its_own():
    steps = {"steps": {"p5": 1, "p50": 2, "p95": 3}}
    old = {"kind": "estimate", "made_at": BEGAN}
    data = {"time_s": LONG.as_dict(), "cost_usd": LONG.as_dict(), "phases": steps}
    assert QuoteRecord.of_row({**old, "data": json.dumps(data)}).phases_of("main") == steps


def test_both_are_told_when_both_are_passed(tmp_path):
    binding = row("binding", Interval(0.05, 0.06, 0.07), Interval(50, 60, 75))
    lines = World(tmp_path, Store(binding), steps=400).look(160, step_s=0.5)
    assert "it will take longer and cost more than quoted" in lines[0]
    assert "at most 1 min 15 s and $0.07" in lines[0]


def test_points_of_a_gang_on_two_machines_say_so(tmp_path):
    world = World(tmp_path, steps=400)
    world.look(120, step_s=0.5)
    (measured,) = world.tracker._known.live["main"].values()
    assert (measured.offer, measured.point.nodes) == ("lab:large", 2)


# --- a sweep over several places --------------------------------------------------------------------------


class Spread:
    """A sweep of eight tasks of 100 steps: one at a time on a host of one's own, and one on a rented machine.

    Args:
        steps_s: what a step takes in each place, in their order.
        same: what was measured before.
    """

    def __init__(self, directory, steps_s, same=()):
        path = directory / "recipe.yaml"
        keys = {"command": "c {{x}}", "parameters": {"x": list(range(8))}, "steps": 100, "workers": 2}
        recipe = {"name": "job", "provider": ["hosts", "lab"], "experiments": {"main": keys}}
        path.write_text(json.dumps(recipe))
        own = record(count=1, rental=Rental(slots=1, is_rented=False))
        rented = record(count=1, rental=replace(LARGE, slots=1))
        self.records = [replace(own, provider="hosts"), rented]
        self.steps_s, self.database = steps_s, Store()
        self.recipe = read_recipe(path)
        self.tasks = {n: Task("main", n, State.RUNNING, attempt=1, started_at=READY) for n in (0, 1)}
        experiment = ExperimentState("main", (), 8, 8, State.RUNNING, live=dict(self.tasks), created=2)
        self.run_state = RunState("r", {"main": experiment}, State.RUNNING)
        self.progress = {
            ("main", n): SimpleNamespace(
                trace=trace_of(self.recipe.experiments["main"], 0.5),
                aimed=None,
                directory=directory,
                total_steps=100,
                said_steps=0,
                saves_every_s=lambda *_, **__: None,
                metrics={},
                addresses={},
            )
            for n in self.tasks
        }
        self.tracker = QuoteTracker(
            self.database,
            self.recipe,
            "r",
            lambda: {"main": History(Fingerprint("exact", "similar"), list(same))},
            elapsed=lambda now: now - READY,
            capacity=Capacity(8),
            costs=RecordedClusterCosts("hosts", lambda: self.records),
            where=lambda attempt: where_on(self.records[int(attempt.split("-")[-1].split("/")[-2])]),
        )

    def binding(self, until_s):
        """The quote that is bound while both first tasks train."""
        for now in np.arange(READY, READY + until_s, 0.5).tolist():
            for (_, n), found in self.progress.items():
                step = int((now - READY) / self.steps_s[n]) + 1
                found.trace.add(now, step)
                found.metrics["step"] = step
            self.tracker.look(self.run_state, self.progress, now)
            until(lambda: (found := self.tracker._thinking) is None or found.done(), "its quote")
        (only,) = [row for row in self.database.rows if row["kind"] == "binding"]
        return QuoteRecord.of_row(only)


@pytest.mark.parametrize("steps_s", [(1.0, 0.25), (0.25, 1.0)], ids=["first is slow", "first is fast"])
def test_a_sweep_over_two_places_is_quoted_by_the_speed_of_each(tmp_path, steps_s):
    """Of eight tasks the fast place makes six, one after the other, and the slow one two: 200 s.

    As fast as the first everywhere they would take 400 s, or 100 s.
    """
    found = Spread(tmp_path, steps_s).binding(21)
    assert 150 < found.time_s.p50 < 225
    assert found.time_s.holds(200.0)


def test_a_place_that_is_lost_or_given_back_takes_no_more_tasks_and_lends_no_speed(tmp_path):
    """All eight are made on the slow host: 800 s. With the fast machine they would take 200 s."""
    point = Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=0.25)
    before = [Measurement(point, duration_s=25.0, offer="lab:large", startup_s=0.1)] * 3
    world = Spread(tmp_path, (1.0, 0.25), before)
    world.records[1] = replace(world.records[1], state=ClusterState.ENDED)
    del world.run_state.experiments["main"].live[1], world.progress["main", 1]
    found = world.binding(40)
    assert found.time_s.holds(800.0)
    assert 700 < found.time_s.p50 < 900


def test_a_place_that_has_shown_nothing_yet_is_as_fast_as_it_was_before(tmp_path):
    point = Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=0.25)
    before = [Measurement(point, duration_s=25.0, offer="lab:large", startup_s=0.1)]
    world = Spread(tmp_path, (1.0, 0.25), before)
    del world.run_state.experiments["main"].live[1], world.progress["main", 1]
    assert world.binding(21).time_s.holds(200.0)
    unknown = Spread(tmp_path, (1.0, 0.25))
    del unknown.run_state.experiments["main"].live[1], unknown.progress["main", 1]
    wide = unknown.binding(21).time_s
    assert wide.p95 / wide.p5 > 1.3, "published figures say little"
