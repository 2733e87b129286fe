"""How quotes turned out: both sides of an interval are outside, and a run that failed says nothing of it."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import text

from trainmaster.advisor.quote.interval import Interval
from trainmaster.db import AcceptedRun, ActualOutcome, Database, NewMeasurement, NewQuoteRow, RunChange
from trainmaster.db import tables as t
from trainmaster.service.quotes.quote_record import QuoteRecord, quote_summary, record_outcomes
from trainmaster.service.quotes.score import Score, binomial_interval, job_of, outcomes, report, score_line
from trainmaster.spec.states import EndReason, State

FREE = Interval(0.0, 0.0, 0.0)
PAID = Interval(1.0, 2.0, 3.0)


@pytest.fixture
def database(tmp_path):
    found = Database(f"sqlite:///{tmp_path / 'trainmaster.db'}")
    yield found
    found.close()


def ended(database, name, time_s, *, cost=0.0, usd=FREE, provider="local", kind="estimate", tasks=1,
          reason=EndReason.SUCCEEDED, home="h", state=State.DONE):  # fmt: skip
    recipe = json.dumps({"experiments": {"main": {"distributed": None}}})
    new = AcceptedRun(
        name, "job", recipe, "r.yaml", provider, "code", "file:///s", [("main", tasks)], "", home
    )
    lease = database.create_run(new, 1.0)
    promise = QuoteRecord(kind, 1.0, Interval(50.0, 60.0, 100.0), usd)
    quote = database.add_quote(NewQuoteRow(name, None, kind, 1.0, promise.as_json()))
    if state is State.DONE:
        kept = reason is EndReason.SUCCEEDED and promise.holds(time_s, cost)
        database.record_outcome(quote, ActualOutcome(time_s, cost, kept))
        for before, after in ((State.WAITING, State.STOPPING), (State.STOPPING, State.DONE)):
            database.commit(lease, [RunChange(before, after, reason)], 2.0)


def test_early_and_late_are_both_outside(database):
    ended(database, "in", 60.0)
    ended(database, "early", 49.0)
    ended(database, "late", 101.0)
    ended(database, "cheap", 60.0, cost=0.5, usd=PAID)
    score = Score.of(outcomes(database, "h"))
    assert (score.runs, score.kept, score.judged) == (4, 3, 4)
    assert (score.inside, score.early, score.late) == (1, 2, 1)
    assert score.time_width == 2.0
    sides = "1 came out inside the interval, 2 below it, 1 above it"
    assert score.line == f"how good such quotes were: of 4 runs here, {sides}"


def test_a_quote_that_an_earlier_version_has_stored_is_read(database):
    ended(database, "old", 101.0)
    old = {"time_s": {"p5": 50.0, "p50": 60.0, "p95": 100.0}, "cost_usd": {"p5": 0.0, "p50": 0.0, "p95": 0.0}}
    database.execute(text("update quote set data = :data").bindparams(data=json.dumps(old)))
    assert (Score.of(outcomes(database, "h")).late, report(outcomes(database, "h"))["estimate"]["runs"]) == (
        1,
        1,
    )
    told = quote_summary(database, "old")
    assert (told["kept"], told["outside"], told["measurements"]) == (False, "late", 0)


def test_a_run_that_failed_is_not_kept_and_says_nothing_of_the_interval(database):
    ended(database, "good", 60.0)
    ended(database, "bad", 60.0, reason=EndReason.OOM)
    score = Score.of(outcomes(database, "h"))
    assert (score.runs, score.kept, score.judged, score.inside) == (2, 1, 1, 1)


def test_a_quote_that_was_not_kept_tells_which_attempts_failed(database):
    for name, time_s in (("late", 101.0), ("kept", 60.0)):
        ended(database, name, time_s)
        experiment = database.read(t.experiment.select().filter_by(run_id=name))[0]["id"]
        ends = [EndReason.OOM, EndReason.NODE_LOST, EndReason.NODE_LOST, EndReason.SUCCEEDED, None]
        rows = [
            {"experiment_id": experiment, "task": 0, "number": number, "reason": reason, "opened_at": 1.0}
            for number, reason in enumerate(ends, 1)
        ]
        database.execute(t.attempt.insert().values(rows))
    assert quote_summary(database, "late")["actual"]["failed_attempts"] == {"NODE_LOST": 2, "OOM": 1}
    assert "failed_attempts" not in quote_summary(database, "kept")["actual"]


@pytest.mark.parametrize(
    ("shares", "is_told"), [((0.4, 0.5, 0.0), True), ((0.0, 0.05, 0.9), False), ((), False)]
)
def test_a_quote_that_was_not_kept_tells_that_other_work_held_the_processors(database, shares, is_told):
    for name, time_s in (("late", 101.0), ("kept", 60.0)):
        ended(database, name, time_s)
        rows = [
            NewMeasurement(f"{name}/{i}", "f", "s", "main", name, json.dumps({"held": held}), 2.0)
            for i, held in enumerate((*shares, None))
        ]
        database.add_measurement(*rows)
    words = "other work held its processors for 40 % of the time"
    assert quote_summary(database, "late")["actual"].get("held") == (words if is_told else None)
    assert "held" not in quote_summary(database, "kept")["actual"]


def test_a_run_that_a_person_has_ended_says_nothing_though_it_was_resumed(database):
    ended(database, "good", 60.0)
    ends = {"given-up": EndReason.CANCELLED, "denied": EndReason.DENIED, "resumed": EndReason.SUCCEEDED}
    for name, reason in ends.items():
        ended(database, name, 600.0, reason=reason)
        if name == "resumed":
            interrupt(database, name)
        record_outcomes(database, name, reason, 600.0, 0.0)
    found = outcomes(database, "h")
    score = Score.of(found)
    assert (score.runs, score.kept, score.by_hand, score.judged, score.inside) == (1, 1, 3, 1, 1)
    assert report(found)["estimate"]["ended_by_hand"] == 3
    assert quote_summary(database, "resumed")["ended_by_hand"]


def interrupt(database, name):
    """It goes on, is interrupted, and resumed to its end."""
    lease = database.acquire(name, 3.0)
    waits, stops, done = State.WAITING, State.STOPPING, State.DONE
    for reason in (EndReason.CANCELLED, EndReason.SUCCEEDED):
        for before, after in ((done, waits), (waits, stops), (stops, done)):
            database.commit(lease, [RunChange(before, after, reason if after is done else None)], 3.0)


def test_runs_that_go_on_and_those_of_other_homes_do_not_count(database):
    ended(database, "mine", 60.0)
    ended(database, "theirs", 60.0, home="other")
    ended(database, "alive", 60.0, state=State.WAITING)
    assert [each.run for each in outcomes(database, "h")] == ["mine"]


def test_the_line_is_of_like_quotes(database):
    assert score_line(database, "h", "estimate", "local") == ""
    ended(database, "a", 60.0)
    ended(database, "b", 60.0, provider="aws")
    ended(database, "c", 600.0, kind="binding")
    said = "how good such quotes were: of {} here, {} came out inside the interval"
    assert score_line(database, "h", "estimate", "local") == said.format("1 run", 1)
    assert score_line(database, "h", "estimate") == said.format("2 runs", 2)
    assert score_line(database, "h", "binding") == said.format("1 run", 0) + ", 1 above it"


def test_the_report_is_by_kind_provider_and_job(database):
    assert report([])["binding"]["kept"] == {"of": 0, "n": 0, "share": None, "low": None, "high": None}
    ended(database, "a", 60.0)
    ended(database, "b", 60.0, tasks=8)
    shown = report(outcomes(database, "h"))["estimate"]
    assert [(each["provider"], each["job"]) for each in shown["by"]] == [
        ("local", "single"), ("local", "sweep"),
    ]  # fmt: skip
    assert shown["coverage"] | {"low": 0, "high": 0} == {
        "of": 2, "n": 2, "share": 1.0, "low": 0, "high": 0, "nominal": 0.9,
    }  # fmt: skip


@pytest.mark.parametrize(("hits", "trials"), [(0, 1), (1, 1), (11, 12), (90, 100)])
def test_a_share_lies_in_its_interval(hits, trials):
    low, high = binomial_interval(hits, trials)
    assert 0 <= low <= hits / trials <= high <= 1
    assert low < high


@pytest.mark.parametrize(
    ("distributed", "tasks", "job"),
    [
        ({"workers": 2, "parameter_servers": 1}, 1, "ps"),
        ({"workers": 2, "parameter_servers": 0}, 9, "gang"),
        ({"workers": 1, "parameter_servers": 0}, 9, "sweep"),
        (None, 1, "single"),
    ],
)
def test_kinds_of_jobs(distributed, tasks, job):
    assert job_of({"experiments": {"main": {"distributed": distributed}}}, tasks) == job


def test_several_experiments_are_a_workflow():
    assert job_of({"experiments": {"a": {}, "b": {}}}, 2) == "workflow"
