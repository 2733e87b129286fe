"""What one process asks of all the runs that it holds, and which it finds."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from database_nouns import NOW, new_run

from trainmaster.db import Database, Lease, RetryPolicy, RunChange, Submission, run_facts
from trainmaster.db.held_runs import HeldDatabase, HeldRuns, add_note, count_open, undriven
from trainmaster.db.leases import LEASE_S
from trainmaster.db.queries import events
from trainmaster.spec.errors import FullDiskError, LeaseLostError
from trainmaster.spec.states import EndReason, State


@pytest.fixture
def store(url):
    found = Database(url)
    yield found
    found.close()


def sent(store: Database, run: str, home: str = "h", now: float = NOW) -> None:
    store.create_run(replace(new_run(run), home_id=home, submission=Submission("ann", None)), now, waits=True)


def test_what_was_sent_waits_for_whoever_takes_it_first(store):
    store.create_run(replace(new_run("own"), home_id="h"), NOW)
    sent(store, "b", now=NOW + 1)
    sent(store, "a")
    sent(store, "elsewhere", "other")
    assert undriven(store, "h") == ["a", "b"], "the oldest first"
    assert undriven(store, "h", 1) == ["a"]
    assert store.acquire("a", NOW) is not None
    assert undriven(store, "h") == ["b"]
    assert count_open(store, "h") == 2
    lease = store.acquire("b", NOW)
    store.commit(lease, [RunChange(State.WAITING, State.DONE, EndReason.USER_ERROR)], NOW)
    assert (undriven(store, "h"), count_open(store, "h")) == ([], 1)


def test_what_a_dead_process_held_is_found_at_once(store, monkeypatch):
    sent(store, "a")
    monkeypatch.setattr("trainmaster.db.database.this_process", lambda: "host/boot/pids:1:1")
    assert store.acquire("a", NOW).owner == "host/boot/pids:1:1"
    assert undriven(store, "h") == [], "it is of another machine, and not expired"
    monkeypatch.setattr("trainmaster.db.held_runs.is_alive", lambda owner, expires, now: False)
    assert undriven(store, "h") == ["a"]


def test_one_look_tells_of_all_runs_which_are_to_stop(store, monkeypatch):
    held = HeldRuns(store)
    leases = []
    for run in ("a", "b"):
        sent(store, run)
        leases.append(store.acquire(run, NOW))
    store.want_stop("a", EndReason.CANCELLED)
    assert held.stop_wanted("a") == (False, None), "nobody has looked"
    assert not held.renew(leases[0])
    run_facts.cancel_tasks(store, "b", ["a/1"], "ann")
    held.look()
    run_facts.cancel_tasks(store, "b", ["a/2"], "ann")
    monkeypatch.setattr(store, "read", None)  # nothing is asked for any more
    one = HeldDatabase(store, RetryPolicy(), held)
    assert [one.stop_wanted(run) for run in ("a", "b")] == [EndReason.CANCELLED, None]
    assert [one.cancelled_tasks(run) for run in ("a", "b")] == [{}, {"a/1": "ann"}]
    assert one.renew(leases[1], NOW) is None


def test_what_is_told_of_a_look_long_ago_is_asked_for_anew(store, monkeypatch):
    sent(store, "a")
    lease = store.acquire("a", NOW)
    held = HeldRuns(store)
    held.look()
    store.want_stop("a", EndReason.CANCELLED)
    one = HeldDatabase(store, RetryPolicy(), held)
    assert one.stop_wanted("a") is None
    monkeypatch.setattr("trainmaster.db.held_runs.FRESH_S", -1.0)
    assert one.stop_wanted("a") == EndReason.CANCELLED
    assert one.renew(lease, NOW) == EndReason.CANCELLED


def test_leases_are_extended_together_and_lost_ones_noticed(store, monkeypatch):
    sent(store, "a")
    sent(store, "b")
    leases = [store.acquire(run, NOW) for run in ("a", "b")]
    held = HeldRuns(store)
    held.look()
    before = [store.run_row(run)["lease_expires_at"] for run in ("a", "b")]
    assert held.renew(leases[0])
    monkeypatch.setattr("trainmaster.db.held_runs._TOGETHER_S", -1.0)
    held.look()
    after = [store.run_row(run)["lease_expires_at"] for run in ("a", "b")]
    assert after[0] > before[0], "its driver has asked for that"
    assert after[1] == before[1], "nobody has: its driver may hang"
    with pytest.raises(LeaseLostError):
        held.renew(Lease("a", leases[0].token - 1, leases[0].owner))


def test_leases_are_extended_by_the_first_look_after_writes_were_refused(store, monkeypatch):
    """Reads went on: their driver has heard of nothing."""
    sent(store, "a")
    held, lease = HeldRuns(store), store.acquire("a", NOW)
    held.look()
    monkeypatch.setattr("trainmaster.db.held_runs._TOGETHER_S", 0.0)
    assert held.renew(lease)
    at = [store.clock_s() + 20.0]
    monkeypatch.setattr(store, "clock_s", lambda *_: at[0])
    with monkeypatch.context() as no_room:
        no_room.setattr(store._transactions, "write", refuse)
        for _ in range(3):
            with pytest.raises(FullDiskError):
                held.look()
    at[0] += 1.0
    held.look()
    assert store.run_row("a")["lease_expires_at"] == pytest.approx(at[0] + LEASE_S)


def refuse(*_, **__):
    raise FullDiskError("the database refused a write", "")


def test_what_is_driven_no_more_is_given_up(store):
    sent(store, "a")
    sent(store, "b")
    store.acquire("a", NOW)
    driven = store.acquire("b", NOW)
    held = HeldRuns(store)
    held.look()
    held.release_all_but({"b"})
    assert [store.run_row(run)["lease_owner"] for run in ("a", "b")] == [None, driven.owner]
    assert undriven(store, "h") == ["a"]
    newer = store.acquire("a", NOW)
    held.release_all_but({"b"})
    assert store.run_row("a")["lease_owner"] == newer.owner, "seen before it was taken anew"


def test_a_run_that_nobody_drives_may_be_told_something(store):
    sent(store, "a")
    add_note(store, "a", "cannot be driven", NOW)
    assert events(store, "a")[-1]["message"] == "cannot be driven"
    said = len(events(store, "a"))
    add_note(store, "a", "cannot be driven", NOW)  # by another server
    assert len(events(store, "a")) == said
    add_note(store, "a", "cannot be driven: no key", NOW)
    assert len(events(store, "a")) == said + 1


def test_closing_the_database_of_one_run_leaves_the_others_theirs(store):
    one = HeldDatabase(store, RetryPolicy(), HeldRuns(store))
    one.close()
    sent(store, "a")
    assert one.has_run("a")


def test_of_many_who_write_at_once_only_who_lost_its_lease_is_refused(store):
    leases = []
    for number in range(8):
        sent(store, f"r{number}")
        leases.append(store.acquire(f"r{number}", NOW))
    store.acquire("r3", NOW)  # by another process, which fences the first one off
    held, refused = HeldRuns(store), []

    def begin(lease):
        try:
            one = HeldDatabase(store, RetryPolicy(), held)
            one.commit(lease, [RunChange(State.WAITING, State.RUNNING)], NOW)
        except LeaseLostError:
            refused.append(lease.run)

    threads = [threading.Thread(target=begin, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == ["r3"]
    states = [store.run_row(lease.run)["state"] for lease in leases]
    assert states == [State.RUNNING] * 3 + [State.WAITING] + [State.RUNNING] * 4
