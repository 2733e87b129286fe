"""The keeper of a run's quote: what it says, once, and what it leaves alone."""

from __future__ import annotations

import json
import math
import random
from types import SimpleNamespace

import pytest

from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.advisor.model.step_trace import StepTrace
from trainmaster.advisor.model.task_numbers import task_numbers
from trainmaster.advisor.quote.forecast import Overhead
from trainmaster.advisor.quote.interval import Interval
from trainmaster.control.loop.recording import AttemptMachine
from trainmaster.control.loop.run_state import ExperimentState, RunState, Task
from trainmaster.control.measure.measuring import trace_of
from trainmaster.executors.base import Capacity
from trainmaster.executors.telemetry.usage import SAMPLES_FILE
from trainmaster.service.apps.rented_notebook import rented_notebook_recipe
from trainmaster.service.quotes.fingerprint import Fingerprint
from trainmaster.service.quotes.history import History
from trainmaster.service.quotes.measured_now import MeasuredNow
from trainmaster.service.quotes.quote_record import QuoteRecord, quote_summary, record_outcomes
from trainmaster.service.quotes.quote_tracker import QuoteTracker
from trainmaster.service.quotes.steadiness import TrainingProgress, is_upset, share_done
from trainmaster.spec import Strategy, read_recipe
from trainmaster.spec.log_normal import LogNormal
from trainmaster.spec.states import EndReason, State
from trainmaster.sweeps import Curve
from trainmaster.testing.waits import until

BEGAN = 1000.0


class Store:
    """Remembers what was promised."""

    forecast = None

    def __init__(self, *rows, state=State.RUNNING):
        self.rows = list(rows)
        self.state = state
        self.by_hand = False

    def forecast_of(self, _run):
        return self.forecast

    def put_forecast(self, _run, data):
        self.forecast = data

    def quotes_of(self, _run):
        return self.rows

    def add_quote(self, new, most_usd=None):
        row = {"id": len(self.rows), "kind": new.kind, "made_at": new.made_at, "data": new.data}
        self.rows.append(row | {"kept": None, "time_s": None, "cost_usd": None})

    def run_row(self, _run):
        return {"state": self.state}

    failed_attempts = measured_in = staticmethod(lambda _run: {})

    def was_cancelled(self, _run):
        return self.by_hand

    def record_outcome(self, number, outcome):
        self.rows[number] |= {"kept": outcome.kept, "time_s": outcome.time_s, "cost_usd": outcome.cost_usd}


NOW = Fingerprint("exact", "similar", (1, 2))


class World:
    """One experiment with one running task, and a keeper that looks at it."""

    def __init__(
        self, tmp_path, database=None, histories=None, told_before=(), others_s=None, budget=None,
        where=None, labels=None, **keys,
    ):  # fmt: skip
        tmp_path.mkdir(exist_ok=True)
        path = tmp_path / "recipe.yaml"
        keys = {"command": "true", **keys}
        top = {"labels": labels or {}} | ({} if budget is None else {"budget": {"total": f"${budget}"}})
        path.write_text(json.dumps({"name": "job", **top, "experiments": {"main": keys}}))
        recipe = self.recipe = read_recipe(path)
        self.database = database or Store()
        self.trace = trace_of(recipe.experiments["main"], 0.5)
        task = Task("main", 0, State.RUNNING, attempt=1, started_at=BEGAN)
        experiment = ExperimentState("main", (), 1, 1, State.RUNNING, live={0: task}, created=1)
        self.run_state = RunState("r", {"main": experiment}, State.RUNNING)
        self.progress = {
            ("main", 0): SimpleNamespace(
                trace=self.trace,
                directory=tmp_path,
                total_steps=recipe.experiments["main"].builtin_values().get("steps"),
                said_steps=0, metrics={}, aimed=None, addresses={}, saves_every_s=lambda *_, **__: None,
            )
        }  # fmt: skip
        self.tracker = QuoteTracker(
            self.database,
            recipe,
            "r",
            histories or dict,
            elapsed=lambda now: now - BEGAN,
            capacity=Capacity(2),
            told_before=told_before,
            others_s=others_s,
            where=where,
        )

    def look(self, until_s, every_s=1.0, step_s=None):
        """All that is told from the start until then; steps come meanwhile."""
        lines = []
        for i in range(int(until_s / every_s)):
            now = BEGAN + i * every_s
            if step_s is not None:
                step = int(i * every_s / step_s) + 1
                self.trace.add(now, step)
                self.progress["main", 0].metrics["step"] = step
            lines += [note.message for note in self.tracker.look(self.run_state, self.progress, now)]
            until(lambda: (found := self.tracker._thinking) is None or found.done(), "its quote")
        return lines


def history(*same):
    return lambda: {"main": History(NOW, list(same))}


def promise(kind="binding", p95=100.0):
    made = QuoteRecord(kind, BEGAN, Interval(50.0, 60.0, p95), Interval(0, 0, 0))
    row = {"id": 0, "kind": kind, "made_at": BEGAN, "data": made.as_json()}
    return row | {"kept": None, "time_s": None, "cost_usd": None}


def test_no_warning_is_repeated_by_the_next_driver(tmp_path):
    told = World(tmp_path / "first").look(300)
    assert told
    assert World(tmp_path / "next", told_before=told).look(300) == []


def test_a_task_that_shows_no_steps_is_warned_of_once(tmp_path):
    lines = World(tmp_path).look(300)
    assert len(lines) == 1
    assert "no quote for main" in lines[0]
    assert "metrics.pattern" in lines[0]


def test_a_first_run_is_told_once_what_other_jobs_took_and_nothing_is_promised(tmp_path):
    world = World(tmp_path, others_s=lambda: [5.0, 400.0, 500.0])
    assert world.look(14) == []
    told = world.look(50)
    others = "your 2 other jobs took 6 min 40 s to 8 min 20 s (of jobs that ran longer than this so far)"
    assert told == [f"no estimate: nothing is known of this job yet; {others}"]
    assert world.database.rows == []
    assert World(tmp_path / "next", others_s=lambda: [400.0], told_before=told).look(50) == []
    short = World(tmp_path / "short", others_s=lambda: [5.0, 9.0])
    assert short.look(50) == [], "no job of this home took so long"


def test_a_first_run_that_shows_steps_is_not_told_what_other_jobs_took(tmp_path):
    world = World(tmp_path, others_s=lambda: [400.0], command="train {{steps}}", steps=100)
    assert [line.split(":")[0] for line in world.look(45, step_s=0.5)] == ["quote"]


def test_a_training_without_length_is_told_the_keys_once(tmp_path):
    lines = World(tmp_path).look(300, step_s=0.5)
    assert len(lines) == 1
    assert "epochs" in lines[0]
    assert "steps" in lines[0]


def test_a_training_without_length_is_quoted_by_earlier_durations(tmp_path):
    point = Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=0.5)
    seen = Measurement(point, duration_s=200.0)
    world = World(tmp_path, histories=history(seen, seen))
    lines = world.look(90, step_s=0.5)
    assert [line.split(":")[0] for line in lines] == ["estimate", "quote"]
    assert {row["kind"] for row in world.database.rows} == {"estimate", "binding"}


@pytest.mark.parametrize(("depths", "ended", "told"), [((1,), 0, 0), ((1,), 1, 1), ((1, 8), 0, 1)])
def test_a_sweep_without_steps_is_bound_once_other_tasks_of_it_were_seen(tmp_path, depths, ended, told):
    seen = [Measurement(None, duration_s=200.0, of_task=task_numbers({"depth": each})) for each in depths]
    world = World(tmp_path, histories=history(*seen), parameters={"depth": [1, 8]})
    world.run_state.experiments["main"].ended = {EndReason.SUCCEEDED: 1} if ended else {}
    assert [line.split(":")[0] for line in world.look(50)] == ["estimate", *["quote"] * told]


def test_a_training_whose_script_says_its_length_is_quoted_by_its_steps(tmp_path):
    world = World(tmp_path)
    world.progress["main", 0].total_steps = world.progress["main", 0].said_steps = 400
    lines = world.look(60, step_s=0.5)
    assert [line.split(":")[0] for line in lines] == ["quote"]
    assert world.tracker._binding.time_s.p5 < 200 < world.tracker._binding.time_s.p95


def test_what_is_too_wide_to_promise_anything_is_not_bound(tmp_path):
    point = Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=0.5)
    seen = Measurement(point, duration_s=200.0, step_spread=1.5)
    world = World(tmp_path, histories=lambda: {"main": History(NOW, [], [seen, seen])})
    lines = world.look(90, step_s=0.5)
    assert [line.split(":")[0] for line in lines] == ["estimate"]
    assert {row["kind"] for row in world.database.rows} == {"estimate"}


def test_steps_are_known_well_only_once_they_are_a_measurement():
    """Else a quote would be bound by other versions, whose steps count, while its own come."""
    trace, seen = StepTrace(0.5), dict[int, bool]()
    for i in range(8):
        trace.add(BEGAN + i, 10 * i + 1)
        if (found := trace.steady()) is not None:
            seen[found.blocks] = TrainingProgress(trace, share=0.5, trained_s=10.0).is_steady
    assert (seen[2], seen[3]) == (False, True)


def test_steps_since_the_newest_report_count(tmp_path):
    world = World(tmp_path, steps=10)
    for step in range(1, 6):
        world.trace.add(BEGAN + 4.0 * step, step)
    found = world.progress["main", 0]
    assert share_done(found) == share_done(found, BEGAN + 20.0) == pytest.approx(0.5)
    assert share_done(found, BEGAN + 22.0) == pytest.approx(0.55)
    assert share_done(found, BEGAN + 90.0) == pytest.approx(0.6), "the sixth is late, not the seventh there"


def test_what_ended_before_the_length_that_its_script_says_may_do_so_again(tmp_path):
    point = Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=0.5)
    seen = Measurement(point, duration_s=200.0, steps_done=400, said_steps=4000)
    world = World(tmp_path, histories=history(seen, seen))
    world.progress["main", 0].total_steps = world.progress["main", 0].said_steps = 4000
    lines = world.look(90, step_s=0.5)
    assert [line.split(":")[0] for line in lines] == ["estimate", "quote"]
    assert world.tracker._binding.time_s.p95 < 400


def test_what_passes_the_length_of_an_earlier_version_says_so_once_and_its_estimate_holds_no_more(tmp_path):
    earlier = Measurement(
        Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=0.1), duration_s=20.0, steps_done=200, offer="local"
    )
    world = World(tmp_path, histories=lambda: {"main": History(NOW, [], [earlier])})
    told = world.look(60, step_s=0.1)
    why = "main has passed the 200 steps of earlier versions of this code: how long it trains is not known"
    assert told[0].startswith("estimate: ")
    assert [each for each in told if why in each] == told[-1:], "nothing is forecast any more"
    assert told[-1] == f"{why}; what was foretold of it does not hold any more"
    assert "ends" not in world.run_state.course
    assert world.run_state.course["passed"] == why
    (steps,) = (each for each in world.run_state.course["phases"]["main"] if each["phase"] == "steps")
    assert steps["expected_s"] is None
    assert quote_summary(world.database, "r")["passed"] == why
    world.database.state = State.DONE
    record_outcomes(world.database, "r", EndReason.SUCCEEDED, 80.0, 0.0)
    judged = quote_summary(world.database, "r")
    assert (judged["kept"], judged["passed"]) == (False, why), "and why it was not kept is the same"
    again = World(tmp_path / "next", database=world.database, histories=world.tracker._histories)
    assert not [line for line in again.look(60, step_s=0.1) if "passed" in line], "the next driver knows"


def test_nothing_is_bound_by_other_versions_of_the_code_before_its_own_steps(tmp_path):
    """One of two minutes was bound to 36 s while PyTorch was still loaded."""
    point = Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=0.5)
    kin = Measurement(point, startup_s=1.0, duration_s=200.0, steps_done=400)
    world = World(tmp_path, steps=400, histories=lambda: {"main": History(NOW, [], [kin])})
    assert world.look(30)[0].startswith("estimate: ")
    assert [row["kind"] for row in world.database.rows] == ["estimate"]


def test_a_version_that_no_longer_shows_steps_is_warned_of_and_quoted_by_earlier_ones(tmp_path):
    point = Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=0.5)
    kin = Measurement(point, startup_s=20.0, duration_s=220.0, steps_done=400)
    kins = lambda: {"main": History(NOW, [], [kin])}  # noqa: E731
    world = World(tmp_path, steps=400, histories=kins)
    estimate, warning, quote = [line for line in world.look(100) if not line.startswith("main: first step")]
    assert (estimate.split(":")[0], quote.split(":")[0]) == ("estimate", "quote")
    assert warning.startswith("warning: the quote of main is by earlier versions alone: no steps are seen")
    (bound,) = [row for row in world.database.rows if row["kind"] == "binding"]
    assert bound["made_at"] >= BEGAN + 80, "it may begin as late as they did"
    shows = World(tmp_path, steps=400, histories=kins)
    assert not any("warning" in line for line in shows.look(150, step_s=0.5))


def test_a_notebook_is_neither_warned_of_nor_quoted_by_how_long_others_were(tmp_path):
    """It ends when whoever works in it does."""
    text, _ = rented_notebook_recipe("aws", {}, 1800.0)
    labels = json.loads(text)["labels"]
    before = Measurement(None, duration_s=300.0, startup_s=1.0)
    seen = lambda: {"main": History(NOW, [before], [])}  # noqa: E731
    assert World(tmp_path / "a", labels=labels, histories=seen).look(150) == []
    lines = World(tmp_path / "b", histories=seen).look(150)
    assert lines[0].startswith("estimate: 5 min"), "another program is quoted by that"


def test_steady_steps_make_a_binding_quote_and_then_silence(tmp_path):
    world = World(tmp_path, steps=400)
    lines = world.look(150, step_s=0.5)
    assert len(lines) == 1
    assert lines[0].startswith("quote: 3 min 2")
    assert len(world.database.rows) == 1


def test_what_others_hold_of_one_host_of_a_gang_makes_its_quote_wider(tmp_path):
    """It was bound as narrow as if both hosts were quiet."""
    widths = []
    for waited in (0.0, 0.5):
        path, gang = tmp_path / str(waited), {"strategy": "allreduce", "workers": 2}
        world = World(path, steps=400, distributed=gang, where=lambda _: AttemptMachine("host", 1))
        world.tracker._place.offers = lambda _: ("host",)
        world.progress["main", 0].addresses = {"worker-0": "10.0.0.1", "worker-1": "10.0.0.2"}
        rows = [
            {"member": f"worker-{one}", "seconds": at, "cpu_seconds": at / 2, "peak_rss_bytes": 1}
            | {"cpu_wait_seconds": at * waited * one, "machine_cpu_seconds": at / 2 + at * waited * one}
            for at in range(1, 60)
            for one in (0, 1)
        ]
        (path / SAMPLES_FILE).write_text("".join(f"{json.dumps(each)}\n" for each in rows))
        world.look(60, step_s=0.5)
        (quote,) = world.database.rows
        time_s = QuoteRecord.of_row(quote).time_s
        widths.append(time_s.p95 / time_s.p5)
    assert widths[1] > 1.2 * widths[0]


@pytest.mark.parametrize(
    ("cap_usd", "said"),
    [(0.32, "; its cap of $0.32 will end it before (BUDGET)"),
     (0.40, "; its cap of $0.40 may end it before (BUDGET)"), (0.43, "")],
)  # fmt: skip
def test_a_quote_beyond_the_cap_of_its_run_says_so(tmp_path, cap_usd, said):
    tracker = World(tmp_path, budget=cap_usd).tracker
    found = QuoteRecord("binding", BEGAN, Interval(365.0, 437.0, 513.0), Interval(0.30, 0.37, 0.43))
    (note,) = tracker._promise(found, World(tmp_path).run_state, BEGAN)
    assert note.message.endswith("and costs at most $0.43" + said)


@pytest.mark.parametrize(("shows_after_s", "soonest_s", "latest_s"), [(200, 60, 66), (20, 22, 50)])
def test_a_place_without_steps_keeps_the_others_from_a_quote_for_a_minute_only(
    tmp_path, shows_after_s, soonest_s, latest_s
):
    """What runs there may show none at all: nothing was bound as long as it ran."""
    world = World(
        tmp_path, steps=2000, where=lambda id: AttemptMachine("far" if id == "r/main/1/1" else "local", 2)
    )
    experiment, far = world.run_state.experiments["main"], trace_of(world.recipe.experiments["main"], 0.5)
    experiment.total, experiment.created = 2, 2
    experiment.live[1] = Task("main", 1, State.RUNNING, attempt=1, started_at=BEGAN)
    world.progress["main", 1] = SimpleNamespace(**{**vars(world.progress["main", 0]), "trace": far})
    told = []
    for now in range(90):
        world.trace.add(BEGAN + now, 2 * now + 1)
        if now >= shows_after_s:
            far.add(BEGAN + now, 2 * (now - shows_after_s) + 1)
        told += [
            (now, note.message) for note in world.tracker.look(world.run_state, world.progress, BEGAN + now)
        ]
        until(lambda: (found := world.tracker._thinking) is None or found.done(), "its quote")
    ((at, line),) = told
    assert line.startswith("quote: ")
    assert soonest_s <= at <= latest_s


def test_a_run_that_is_resumed_keeps_its_quote(tmp_path):
    database = Store(promise(p95=1000.0))
    assert World(tmp_path, database, steps=400).look(150, step_s=0.5) == []
    assert len(database.rows) == 1


def test_a_forecast_beyond_the_quote_is_told_once(tmp_path):
    lines = World(tmp_path, Store(promise(p95=100.0)), steps=400).look(180, step_s=0.5)
    assert len(lines) == 1
    assert "longer than quoted" in lines[0]


def test_a_forecast_beyond_the_quote_is_not_told_again_by_the_next_driver(tmp_path):
    database = Store(promise(p95=100.0))
    assert len(World(tmp_path, database, steps=400).look(180, step_s=0.5)) == 1
    assert World(tmp_path, database, steps=400).look(180, step_s=0.5) == []


def test_a_failure_ends_the_forecasts_and_not_the_run(tmp_path):
    def broken():
        raise RuntimeError("gone")

    lines = World(tmp_path, histories=broken).look(120)
    assert lines == ["no quote: internal error: RuntimeError: gone"]


@pytest.mark.parametrize(
    ("step", "seen", "share"),
    [
        (None, (), None),
        (50, (), 0.5),
        (math.nan, (), None),
        (-5, (), 0.0),
        ("7", (), None),
        (80, (60, 80), 0.8),  # it goes on from a checkpoint
        (5, (1, 25, 50), 0.5),  # it numbers the steps of each epoch: 50 were seen
        (None, (1, 20), 0.2),
    ],
)
def test_the_share_that_is_done(tmp_path, step, seen, share):
    world = World(tmp_path, steps=100)
    for i, number in enumerate(seen):
        world.trace.add(BEGAN + i, number)
    found = world.progress["main", 0]
    found.metrics = {} if step is None else {"step": step}
    assert share_done(found) == (None if share is None else pytest.approx(share, abs=0.02))
    found.total_steps = None
    assert share_done(found) is None


def test_of_many_tasks_the_newest_count():
    point = Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=0.5)
    live = {number: Measurement(point, measured_at=number) for number in range(500)}
    same, similar = MeasuredNow(live={"main": live}).of("main")
    assert len(same) == 100
    assert same[-1].measured_at == 499
    assert similar == []


@pytest.mark.parametrize(
    ("same", "lines", "whose"),
    [
        (1, [(1, 2)], "earlier runs"),
        (0, [(1, 2), (1, 2)], "this code with other parameters or data"),
        (0, [(1, 2), (1, 3)], "earlier versions of this code"),
    ],
)
def test_whose_measurements_an_estimate_is_from(same, lines, whose):
    point = Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=0.5)
    known, others = MeasuredNow(), [Measurement(point, code_lines=each) for each in lines]
    known.read("main", History(NOW, [Measurement(point)] * same, others), others[0].offer)
    assert known.sources() == whose


@pytest.mark.parametrize("usd", [0.0046 / 3, 0.005 / 3])
def test_a_price_that_is_certain_is_kept_however_it_is_rounded(usd):
    as_quoted = QuoteRecord("binding", 0.0, Interval(50, 60, 70), Interval(usd, usd, usd)).as_json()
    stored = QuoteRecord.of_row({"kind": "binding", "made_at": 0.0, "data": as_quoted})
    assert stored.kept(EndReason.SUCCEEDED, False, 60.0, usd)
    assert stored.outside(60.0, usd) is None


@pytest.mark.parametrize(
    ("reason", "by_hand", "time_s", "kept", "outside"),
    [
        (EndReason.SUCCEEDED, False, 99.0, True, None),
        (EndReason.SUCCEEDED, False, 101.0, False, "late"),
        (EndReason.USER_ERROR, False, 5.0, False, "early"),
        (EndReason.SUCCEEDED, False, 49.0, True, "early"),
        (EndReason.CANCELLED, True, 5.0, None, None),
        (EndReason.SUCCEEDED, True, 101.0, None, None),
    ],
)
def test_kept_is_success_within_time_and_either_side_is_told(reason, by_hand, time_s, kept, outside):
    database = Store(promise(p95=100.0), state=State.DONE)
    database.by_hand = by_hand
    record_outcomes(database, "r", reason, time_s, 0.0)
    found = quote_summary(database, "r")
    assert (found["kept"], found["outside"], found["ended_by_hand"]) == (kept, outside, by_hand)
    database.state = State.RUNNING  # resumed: it has yet to show it
    found = quote_summary(database, "r")
    assert (found["kept"], found["outside"], found["ended_by_hand"]) == (None, None, False)


def test_nothing_is_bound_in_the_middle_of_a_recovery(tmp_path):
    """Three of three that were made then were too low."""
    world = World(tmp_path, steps=4000)
    task = world.run_state.experiments["main"].live[0]
    task.state, task.attempt = State.RECOVERING, 1
    assert world.look(60, step_s=0.5) == []
    task.state, task.attempt = State.STAGING, 2
    assert world.look(60) == []
    task.state = State.RUNNING
    (line,) = world.look(100, step_s=0.5)
    assert line.startswith("quote: ")


def test_nothing_is_bound_while_it_waits_for_slots(tmp_path):
    point = Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=0.5)
    seen = Measurement(point, duration_s=200.0)
    world = World(tmp_path, histories=history(seen, seen))
    task = world.run_state.experiments["main"].live[0]
    task.state, task.started_at = State.ACQUIRING, None
    world.progress.clear()
    assert [line.split(":")[0] for line in world.look(90)] == ["estimate"]


def test_a_quote_after_any_wait_says_what_of_it_is_not_counted(tmp_path):
    world = World(tmp_path, steps=400)
    world.run_state.queue_wait.undriven(20.0)
    (line,) = world.look(150, step_s=0.5)
    assert "; what it waits for other runs, people or a driver is not counted" in line


def test_a_run_that_was_ended_by_hand_before_is_not_said_to_be_judged(tmp_path):
    world = World(tmp_path, steps=400)
    world.database.by_hand = True
    (line,) = world.look(150, step_s=0.5)
    assert "not judged" in line
    assert "it is kept if" not in line


@pytest.mark.parametrize("step_s", [0.2, 0.7])
def test_a_run_of_twenty_seconds_gets_a_binding_quote_as_soon_as_it_is_narrow(tmp_path, step_s):
    world = World(tmp_path, steps=int(20 / step_s))
    (line,) = world.look(12, every_s=0.5, step_s=step_s)
    assert line.startswith("quote: ")
    bound = QuoteRecord.of_row(world.database.rows[0])
    assert bound.holds(20.5, 0.0)
    assert bound.time_s.p95 <= 1.25 * bound.time_s.p50


def test_nothing_is_bound_while_its_setup_is_made_and_that_is_counted(tmp_path):
    point = Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=0.5)
    seen = Measurement(point, duration_s=200.0)
    world = World(tmp_path, histories=history(seen, seen))
    world.tracker._beside_here = lambda: {"main": Overhead((("setup", LogNormal(500.0, 0.1)),))}
    task = world.run_state.experiments["main"].live[0]
    task.state, task.started_at = State.STAGING, None
    world.progress.clear()
    (line,) = world.look(90)
    assert line.startswith("estimate: 12 min")


@pytest.mark.parametrize("steps", [400, 100])
def test_nothing_is_bound_after_the_last_step_nor_just_before(tmp_path, steps):
    """It would be about what cannot be changed any more: saving, mostly."""
    world = World(tmp_path, steps=steps)
    world.tracker._next_at = BEGAN + 0.48 * steps
    assert world.look(steps * 0.6, step_s=0.5) == []


def test_after_a_loss_the_quote_is_looked_at_again_once_it_is_steady(tmp_path):
    world = World(tmp_path, Store(promise(p95=1000.0)), steps=400)
    task = world.run_state.experiments["main"].live[0]
    assert world.look(30, step_s=0.5) == []
    task.state, task.attempt = State.RECOVERING, 1
    lines = world.look(120)
    assert len(lines) == 1
    assert "looked at again once it trains steadily" in lines[0]
    task.state, task.attempt = State.RUNNING, 2
    (line,) = world.look(180, step_s=0.5)
    assert line.startswith("still within the quote: ")


@pytest.mark.parametrize("keys", [{}, {"steps": 4000}], ids=["stepless", "silent"])
def test_what_shows_no_steps_and_has_begun_again_is_quoted(tmp_path, keys):
    """No step tells when it is where it was: as soon as it runs, or after a minute of silence."""
    took = [Measurement(None, duration_s=600.0 + n, startup_s=1.0, measured_at=1.0) for n in range(5)]
    world = World(tmp_path, histories=history(*took), **keys)
    world.run_state.experiments["main"].live[0].attempt = 2
    world.look(120)
    assert [row["kind"] for row in world.database.rows][-1] == "binding"


def test_a_trial_that_waits_for_its_turn_again_upsets_nothing(tmp_path):
    world = World(tmp_path, steps=400)
    experiment = world.run_state.experiments["main"]
    experiment.live[1] = Task("main", 1, State.WAITING, attempt=2)
    world.look(30, step_s=0.5)
    now = BEGAN + 30
    assert not is_upset(world.run_state, world.progress, now, ())
    experiment.live[1].state = State.STAGING
    assert is_upset(world.run_state, world.progress, now, ())
    experiment.live[1].state, experiment.live[0].state = State.WAITING, State.RECOVERING
    assert is_upset(world.run_state, world.progress, now, ())


def test_a_target_makes_the_quote_end_where_the_curve_says(tmp_path):
    whole = World(tmp_path, steps=4000)
    whole.look(100, step_s=0.5)
    aims = World(tmp_path, steps=4000, target={"metric": "loss", "at_most": 0.05})
    steps = range(1, 200, 4)
    aims.progress["main", 0].aimed = Curve((step, (1 + step / 5) ** -0.8) for step in steps)
    aims.look(100, step_s=0.5)
    ours, theirs = (
        [QuoteRecord.of_row(row).time_s for row in world.database.rows][-1] for world in (aims, whole)
    )
    assert theirs.p5 > 1500
    assert ours.p50 == pytest.approx(105, rel=0.2)  # at step 207 of 4,000, of half a second each


def test_a_run_to_a_target_is_bound_by_the_share_of_what_it_makes_until_there(tmp_path):
    """Its steps vary, so that a third of its 30 s has to be seen: of its most steps that would be all."""
    world = World(tmp_path, steps=1500, target={"metric": "loss", "at_most": 0.02})
    world.progress["main", 0].aimed = Curve((step, (1 + step / 5) ** -0.8) for step in range(1, 200, 4))
    chance, step = random.Random(0), 1
    for tick in range(40):
        now = BEGAN + tick / 2
        step += chance.choice((1, 1, 1, 40))
        world.trace.add(now, step)
        world.progress["main", 0].metrics["step"] = step
        world.tracker.look(world.run_state, world.progress, now)
        until(lambda: (found := world.tracker._thinking) is None or found.done(), "its quote")
    assert [row["kind"] for row in world.database.rows] == ["binding"]
