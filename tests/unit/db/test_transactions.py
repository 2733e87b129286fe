"""Transactions: whole or not at all, and only by the holder of the lease."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest
import sqlalchemy as sa
from database_nouns import NOW, ended, everything, new_run, opened, planned

from trainmaster.db import ExperimentChange, Lease, Note, Progress, RunChange, queries
from trainmaster.spec.errors import LeaseLostError, NotFoundError, StoreError
from trainmaster.spec.states import EndReason, State


def test_a_new_run_waits_and_has_its_first_event(database, lease):
    assert database.run_row("r-1")["state"] == State.WAITING
    rows = database.experiment_rows("r-1")
    assert [(row["name"], row["tasks_total"], row["state"]) for row in rows] == [
        ("a", 3, "WAITING"),
        ("b", 1, "WAITING"),
    ]
    assert [(e["kind"], e["after"]) for e in queries.events(database, "r-1")] == [("run", "WAITING")]


def test_a_transition_and_its_event_are_in_one_commit(database, lease):
    database.commit(lease, [planned(0, parameters={"lr": 0.1}), opened(0)], NOW + 1)
    (row,) = database.live_task_rows("r-1")
    assert (row["experiment"], row["number"], row["state"], row["attempt"]) == ("a", 0, "ACQUIRING", 1)
    assert json.loads(row["parameters"]) == {"lr": 0.1}
    found = [(e["experiment"], e["task"], e["attempt"], e["before"], e["after"]) for e in
             queries.events(database, "r-1")[1:]]  # fmt: skip
    assert found == [("a", 0, 0, "WAITING", "PLANNED"), ("a", 0, 1, "PLANNED", "ACQUIRING")]


def test_many_rows_and_kinds_in_one_commit(database, lease):
    changes = [
        RunChange(State.WAITING, State.RUNNING),
        ExperimentChange("a", State.WAITING, State.RUNNING),
        *(planned(number) for number in range(3)),
        *(opened(number) for number in range(3)),
        Progress("a", 1, {"metrics": {"loss": 2.5}}),
        Note("quota is low", "a", 1, 1),
        ExperimentChange(
            "b", State.WAITING, State.STOPPING, EndReason.SKIPPED, "a failed", EndReason.SKIPPED
        ),
    ]
    database.commit(lease, changes, NOW)
    rows = database.live_task_rows("r-1")
    assert [json.loads(row["metrics"]) for row in rows] == [{}, {"loss": 2.5}, {}]
    assert database.run_row("r-1")["state"] == "RUNNING"
    b = database.experiment_rows("r-1")[1]
    assert (b["reason"], b["rest_reason"], b["message"]) == ("SKIPPED", "SKIPPED", "a failed")
    events = queries.events(database, "r-1")
    assert len(events) == 1 + len(changes) - 1  # progress is no event
    rows = queries.attempts(database, "r-1")
    assert [(row["experiment"], row["task"], row["number"]) for row in rows] == [
        ("a", 0, 1),
        ("a", 1, 1),
        ("a", 2, 1),
    ]
    assert [row["task"] for row in queries.attempts(database, "r-1", after=rows[0]["id"])] == [1, 2]
    assert queries.ended_attempts(database, [row["id"] for row in rows]) <= {row["id"] for row in rows}


def test_an_attempt_is_closed_with_its_records(database, lease):
    database.commit(lease, [planned(0), opened(0)], NOW)
    database.commit(lease, [ended(0, EndReason.OOM)], NOW + 9)
    (row,) = everything(database)["attempt"]
    assert (row["number"], row["reason"], row["opened_at"], row["ended_at"]) == (1, "OOM", NOW, NOW + 5)
    (task,) = everything(database)["task"]
    assert (task["state"], task["reason"], task["message"]) == ("DONE", "OOM", "so")


def test_an_attempt_that_goes_on_has_begun_when_its_task_says(database, lease):
    database.commit(lease, [planned(0), opened(0), planned(1), opened(1)], NOW)
    database.commit(lease, [Progress("a", 0, {"started_at": NOW + 1.0, "restored": 2})], NOW + 1)
    found = {row["task"]: row for row in queries.attempt_details(database, "r-1", 9)}
    assert [(row["started_at"], row["restored"]) for _, row in sorted(found.items())] == [
        (NOW + 1, 2),
        (None, None),
    ]
    database.commit(lease, [ended(0, EndReason.OOM)], NOW + 9)
    closed = next(row for row in queries.attempt_details(database, "r-1", 9) if row["task"] == 0)
    assert (closed["ended_at"], closed["experiment"]) == (NOW + 5, "a")


@pytest.mark.parametrize(
    "bad",
    [
        planned(0),  # a second row for the task
        opened(0),  # a second row for the attempt
        Progress("a", 0, {"no_such_column": 1}),
        planned(1, started_at=object()),
    ],
)
def test_a_commit_is_whole_or_nothing(database, lease, bad):
    database.commit(lease, [planned(0), opened(0)], NOW)
    before = everything(database)
    with pytest.raises((StoreError, sa.exc.SQLAlchemyError)):
        database.commit(lease, [RunChange(State.WAITING, State.RUNNING), planned(2), bad], NOW + 1)
    assert everything(database) == before


@pytest.mark.parametrize(
    "act",
    [
        lambda database, lease: database.commit(
            lease, [RunChange(State.WAITING, State.RUNNING), planned(1)], NOW
        ),
        lambda database, lease: database.requeue(lease, NOW),
        lambda database, lease: database.renew(lease, NOW),
    ],
    ids=["commit", "requeue", "renew"],
)
def test_a_stale_lease_changes_nothing(database, lease, act):
    database.commit(lease, [planned(0), opened(0), ended(0, EndReason.OOM)], NOW)
    newer = database.acquire("r-1", NOW + 1)
    assert newer.token > lease.token
    before = everything(database)
    for stale in (lease, replace(lease, token=99)):
        with pytest.raises(LeaseLostError):
            act(database, stale)
    assert everything(database) == before
    database.release(lease, NOW + 3)  # no effect either
    assert everything(database) == before


def test_a_released_lease_is_stale(database, lease):
    database.release(lease, NOW)
    with pytest.raises(LeaseLostError):
        database.commit(lease, [planned(0)], NOW)


def test_requeue_makes_wait_again_what_did_not_succeed(database, lease):
    reasons = (EndReason.SUCCEEDED, EndReason.USER_ERROR, EndReason.CANCELLED)
    for number, reason in enumerate(reasons):
        used = {"retries_used": 2, "free_restarts": 3, "not_before": NOW + 9, "end_reason": reason}
        database.commit(lease, [planned(number, **used), opened(number), ended(number, reason)], NOW)
    database.commit(
        lease,
        [
            RunChange(State.WAITING, State.RUNNING),
            ExperimentChange("a", State.RUNNING, State.DONE, EndReason.USER_ERROR, "bad", None),
            ExperimentChange("b", State.STOPPING, State.DONE, EndReason.SKIPPED, "", EndReason.SKIPPED),
            RunChange(State.RUNNING, State.DONE, EndReason.USER_ERROR, "bad"),
        ],
        NOW,
    )
    database.want_stop("r-1", EndReason.CANCELLED)
    last = queries.last_event(database, "r-1")
    database.requeue(lease, NOW + 1)
    rows = database.live_task_rows("r-1")
    assert [row["number"] for row in rows] == [1, 2]
    for row in rows:
        assert (row["state"], row["reason"], row["message"], row["attempt"]) == ("WAITING", None, "", 1)
        assert (row["retries_used"], row["free_restarts"], row["not_before"], row["end_reason"]) == (
            0,
            0,
            0,
            None,
        )
    for row in database.experiment_rows("r-1"):
        assert (row["state"], row["reason"], row["rest_reason"]) == ("WAITING", None, None)
    assert (database.run_row("r-1")["state"], database.stop_wanted("r-1")) == ("WAITING", None)
    events = queries.events(database, "r-1", last)
    assert [(e["kind"], e["before"], e["after"], e["reason"]) for e in events] == [
        ("run", "DONE", "WAITING", None),
        ("experiment", "DONE", "WAITING", "USER_ERROR"),
        ("experiment", "DONE", "WAITING", "SKIPPED"),
        ("task", "DONE", "WAITING", "USER_ERROR"),
        ("task", "DONE", "WAITING", "CANCELLED"),
    ]


def test_requeue_leaves_what_succeeded(database, lease):
    database.commit(lease, [ExperimentChange("b", State.RUNNING, State.DONE, EndReason.SUCCEEDED)], NOW)
    database.requeue(lease, NOW)
    assert database.experiment_rows("r-1")[1]["reason"] == "SUCCEEDED"


def test_tallies_count_rows_per_state_and_reason(database, lease):
    for number, reason in enumerate((EndReason.OOM, EndReason.SUCCEEDED, EndReason.OOM)):
        database.commit(lease, [planned(number), opened(number), ended(number, reason)], NOW)
    database.commit(lease, [planned(0, "b")], NOW)
    other = database.create_run(new_run("r-2"), NOW)
    database.commit(other, [planned(0)], NOW)
    found = {
        (r["experiment"], r["state"], r["reason"]): (r["tasks"], r["first"]) for r in database.tallies("r-1")
    }
    assert found == {
        ("a", "DONE", "OOM"): (2, 0),
        ("a", "DONE", "SUCCEEDED"): (1, 1),
        ("b", "PLANNED", None): (1, 0),
    }


def test_the_end_of_a_run_takes_the_wish_to_stop_back(database, lease):
    database.want_stop("r-1", EndReason.BUDGET)
    assert database.renew(lease, NOW) is EndReason.BUDGET
    database.commit(lease, [RunChange(State.STOPPING, State.DONE, EndReason.BUDGET)], NOW + 7)
    assert database.stop_wanted("r-1") is None
    assert database.run_row("r-1")["ended_at"] == NOW + 7


def test_json_columns_hold_json_and_never_nan(database, lease):
    values = {"metrics": {"ü": [1, None, "x"]}, "bad_checkpoints": (1, 2), "parameters": {"lr": 1e-4}}
    database.commit(lease, [planned(0, **values)], NOW)
    (row,) = database.live_task_rows("r-1")
    assert json.loads(row["metrics"]) == {"ü": [1, None, "x"]}
    assert json.loads(row["bad_checkpoints"]) == [1, 2]
    with pytest.raises(ValueError, match="JSON"):
        database.commit(lease, [planned(1, metrics={"loss": float("nan")})], NOW)


def test_no_such_run(database):
    for ask in (
        lambda: database.run_row("r-9"),
        lambda: database.acquire("r-9", NOW),
        lambda: database.want_stop("r-9", EndReason.CANCELLED),
    ):
        with pytest.raises(NotFoundError, match="there is no run 'r-9'"):
            ask()


def test_two_threads_write_at_once_and_nothing_is_lost(database):
    leases = [database.create_run(new_run(f"r-{index}", (("a", 50),)), NOW) for index in range(2)]
    errors: list[Exception] = []

    def drive(lease: Lease) -> None:
        try:
            for number in range(50):
                database.commit(lease, [planned(number), opened(number)], NOW)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test must see it
            errors.append(error)

    threads = [threading.Thread(target=drive, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for lease in leases:
        assert [row["number"] for row in database.live_task_rows(lease.run)] == list(range(50))
        assert len(queries.events(database, lease.run)) == 101


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_few_kept_models_are_not_looked_for_among_all_tasks(database):
    query = queries.kept_models_query("a-1").compile(database.engine, compile_kwargs={"literal_binds": True})
    with database.engine.connect() as connection:
        plan = connection.execute(sa.text(f"EXPLAIN QUERY PLAN {query}")).all()
    assert any("ix_task_kept" in row[3] for row in plan), plan
