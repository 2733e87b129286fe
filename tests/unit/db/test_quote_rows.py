"""Measurements and quotes: kept once, found by fingerprint, and the truth beside the promise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from database_nouns import NOW, new_run

from trainmaster.db import ActualOutcome, NewMeasurement, NewQuoteRow, RunChange, Submission
from trainmaster.spec.states import EndReason, State


def measured(name: str, at: float = 0.0, **values: object) -> NewMeasurement:
    found = {
        "fingerprint": "f",
        "similar": "s",
        "experiment": "train",
        "run_id": None,
        "data": "{}",
        **values,
    }
    return NewMeasurement(id=name, measured_at=NOW + at, **found)


def test_newest_first(database):
    database.add_measurement(*(measured(f"m-{at}", at) for at in (3, 1, 2)))
    database.add_measurement(measured("other", 9, fingerprint="g"))
    assert [row["id"] for row in database.measurements("f")] == ["m-3", "m-2", "m-1"]
    assert database.measurements("nothing") == []


def test_what_is_frequent_hides_nothing_that_is_rare(database):
    """A sweep of hundreds of tasks, and one run of another job before it: both count."""
    often = (measured(f"often-{n:03}", n, fingerprint="g") for n in range(150))
    database.add_measurement(
        measured("rare", -1, fingerprint="h"), measured("rare-2", -2, fingerprint="h"), *often
    )
    for rows in (database.similar_measurements("s", "f"), database.other_measurements("f")):
        names = [row["id"] for row in rows]
        assert (len(names), names[0], names[97:]) == (100, "often-149", ["often-052", "rare", "rare-2"])
    assert len(database.measurements("g")) == 100
    setups = (
        measured(f"setup-{n:03}", n, fingerprint="phase:setup:a", similar="phase:setup:") for n in range(150)
    )
    database.add_measurement(
        measured("other", -1, fingerprint="phase:setup:b", similar="phase:setup:"), *setups
    )
    assert len(database.phases("setup", "a")) == 100
    told = [row["id"] for row in database.phases("setup", "c")]
    assert (len(told), told[-1]) == (100, "other")
    assert [row["id"] for row in database.phases("setup", "b")][:2] == ["other", "setup-149"]


def test_similar_ones_are_not_the_same_ones(database):
    database.add_measurement(
        measured("same"), measured("like", fingerprint="g"), measured("unlike", similar="t")
    )
    assert [row["id"] for row in database.similar_measurements("s", "f")] == ["like"]


def test_each_team_has_its_own(database, lease):
    for team in ("red", "blue"):
        database.create_run(replace(new_run(f"r-{team}"), submission=Submission("ann", team)), NOW)
    of_runs = {"red": "r-red", "blue": "r-blue", "own": "r-1", "gone": "r-0", "profile": None}
    for at, (name, run) in enumerate(of_runs.items()):
        database.add_measurement(measured(name, -at, run_id=run))

    def names(rows):
        return [row["id"] for row in rows]

    for team, found in ((None, ["own", "gone", "profile"]), ("red", ["red"]), ("green", [])):
        assert names(database.measurements("f", team)) == found
        assert names(database.similar_measurements("s", "g", team)) == found
        assert names(database.other_measurements("g", "h", team=team)) == found
        assert database.other_measurements("f", team=team) == []


def test_an_attempt_that_is_measured_again_is_kept_once(database):
    database.add_measurement(measured("r-1/a/0/1", run_id="r-1", data='{"steps_done": 5}'))
    database.add_measurement(measured("r-1/a/0/1", 60, run_id="r-1", data='{"steps_done": 50}'))
    (row,) = database.measurements("f")
    assert (row["data"], row["measured_at"], row["run_id"]) == ('{"steps_done": 50}', NOW + 60, "r-1")
    database.add_measurement(measured("twice", data="1"), measured("twice", data="2"))
    assert [row["data"] for row in database.measurements("f") if row["id"] == "twice"] == ["2"]
    database.add_measurement()


def test_a_quote_that_is_repeated_after_a_crash_is_the_same_quote(database, lease):
    new = NewQuoteRow("r-1", "a", "estimate", NOW, "{}")
    assert database.add_quote(new) == database.add_quote(new)
    whole = database.add_quote(NewQuoteRow("r-1", None, "estimate", NOW, "{}"))
    assert whole == database.add_quote(NewQuoteRow("r-1", None, "estimate", NOW, '{"p50": 3}'))
    later = database.add_quote(NewQuoteRow("r-1", None, "binding", NOW + 60, "{}"))
    assert [(row["id"], row["data"]) for row in database.quotes_of("r-1")] == [
        (whole - 1, "{}"), (whole, '{"p50": 3}'), (later, "{}")
    ]  # fmt: skip
    assert database.quotes_of("r-2") == []


def test_the_truth_stands_beside_the_promise(database, lease):
    kept = database.add_quote(NewQuoteRow("r-1", None, "estimate", NOW, "{}"))
    database.add_quote(NewQuoteRow("r-1", None, "binding", NOW + 1, "{}"))
    for seconds in (70.0, 71.5):  # a run that was resumed ends twice
        database.record_outcome(kept, ActualOutcome(seconds, 0.25, False))
    first, second = database.quotes_of("r-1")
    assert (first["time_s"], first["cost_usd"], first["kept"]) == (71.5, 0.25, False)
    assert (second["time_s"], second["cost_usd"], second["kept"]) == (None, None, None)


@pytest.mark.parametrize("reason", [EndReason.SUCCEEDED, EndReason.CANCELLED, EndReason.DENIED])
def test_a_run_was_ended_by_hand_if_that_ended_it(database, lease, reason):
    """It may succeed though Ctrl-C was pressed: its models were being saved."""
    stopping = RunChange(State.RUNNING, State.STOPPING, EndReason.CANCELLED)
    database.commit(lease, [RunChange(State.WAITING, State.RUNNING), stopping], NOW)
    assert not database.was_cancelled("r-1")
    database.commit(lease, [RunChange(State.STOPPING, State.DONE, reason)], NOW)
    assert database.was_cancelled("r-1") is (reason is not EndReason.SUCCEEDED)
    database.requeue(lease, NOW)
    assert database.was_cancelled("r-1") is (reason is not EndReason.SUCCEEDED)
