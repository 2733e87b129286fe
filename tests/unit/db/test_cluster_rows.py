"""Rows of clusters: written by the run's driver, taken over by one run only."""

from __future__ import annotations

from dataclasses import replace

import pytest
from database_nouns import NOW, new_run
from sqlalchemy import text

from trainmaster.db import ClusterRow, Lease, RunChange, Submission, access
from trainmaster.spec.errors import LeaseLostError
from trainmaster.spec.states import EndReason, State


def row(name: str = "r-1.a", state: str = "ACTIVE", **more: object) -> ClusterRow:
    return ClusterRow(name, "lab", "home", state, "{}", **more)  # type: ignore[arg-type]


def begun(database, name: str = "r-1", **more: object) -> Lease:
    return database.create_run(replace(new_run(), id=name, **more), NOW)


def test_clusters_are_accepted_with_their_run(database):
    begun(database, clusters=[row(state="PLANNED"), row("r-1.b", "PLANNED")])
    assert [found["id"] for found in database.clusters_of("r-1")] == ["r-1.a", "r-1.b"]


def test_the_last_word_counts(database):
    lease = begun(database)
    database.put_cluster(lease, row(), NOW)
    database.put_cluster(lease, row(state="ENDED", waited_s=4.0), NOW + 1)
    (found,) = database.clusters_of("r-1")
    assert (found["state"], found["waited_s"], found["changed_at"]) == ("ENDED", 4.0, NOW + 1)
    assert [each["waited_s"] for each in database.cluster_waits("lab")] == [4.0]
    assert database.cluster_waits("aws") == []
    assert database.living_clusters("lab", "home") == []


def test_each_place_of_a_run_tells_how_long_its_machines_took_to_go(database):
    """Not the first one only, and none by the slowest; what left before the end says nothing."""
    lease = begun(database, clusters=[])
    for name, provider in (("r-1.a", "lab"), ("r-1.b", "hosts"), ("r-1.c", "aws"), ("r-1.d", "im")):
        database.put_cluster(lease, replace(row(name), provider=provider), NOW)
    ended = replace(row("r-1.c", "ENDED"), provider="aws")
    database.put_cluster(lease, ended, NOW + 4)
    database.commit(lease, [RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)], NOW + 5)
    database.put_cluster(lease, replace(row("r-1.b", "ENDED"), provider="hosts"), NOW + 7)
    database.put_cluster(lease, row("r-1.a", "ENDED"), NOW + 35)
    database.put_cluster(lease, replace(row("r-1.d", "KEPT"), provider="im"), NOW + 36)
    database.release(lease, NOW + 40)
    found = {name: database.gave_back_s(name) for name in ("lab", "hosts", "aws", "im")}
    assert found == {"lab": [30.0], "hosts": [2.0], "aws": [], "im": []}


def test_who_lost_the_run_writes_nothing(database):
    lease = begun(database)
    stale = Lease("r-1", lease.token - 1, lease.owner)
    with pytest.raises(LeaseLostError):
        database.put_cluster(stale, row(), NOW)
    with pytest.raises(LeaseLostError):
        database.put_cost(stale, 3.0, NOW)
    assert database.clusters_of("r-1") == []
    assert database.run_row("r-1")["cost_usd"] == 0.0


def test_the_bill(database):
    database.put_cost(begun(database), 1.25, NOW)
    assert database.run_row("r-1")["cost_usd"] == 1.25


def test_a_warm_cluster_has_one_taker(database):
    first, second, third = begun(database), begun(database, "r-2"), begun(database, "r-3")
    database.put_cluster(first, row(state="KEPT", kept_until=NOW + 60), NOW)
    assert database.take_kept_cluster(second, row(), NOW + 1)
    assert database.take_kept_cluster(second, row(), NOW + 1), "a repeated call finds its own work"
    assert not database.take_kept_cluster(third, row(), NOW + 2)
    (found,) = database.clusters_of("r-2")
    assert (found["state"], found["kept_until"]) == ("ACTIVE", None)
    assert database.clusters_of("r-1") == []


def test_a_warm_cluster_stays_with_its_team(database):
    for team in ("red", "blue"):
        access.add_team(database, team, {"monthly_usd": None}, NOW)
    ours = begun(database, submission=Submission("ann", "red"))
    others = begun(database, "r-2", submission=Submission("bob", "blue"))
    owners, next_one = begun(database, "r-3"), begun(database, "r-4", submission=Submission("eve", "red"))
    database.put_cluster(ours, row(state="KEPT", kept_until=NOW + 60), NOW)
    assert not database.take_kept_cluster(others, row(), NOW + 1)
    assert not database.take_kept_cluster(owners, row(), NOW + 1)
    assert database.take_kept_cluster(next_one, row(), NOW + 1)


def test_a_warm_cluster_that_is_over_is_nobodys(database):
    first, second = begun(database), begun(database, "r-2")
    database.put_cluster(first, row(state="KEPT", kept_until=NOW + 60), NOW)
    assert not database.take_kept_cluster(second, row(), NOW + 61)


def test_what_may_still_cost_money(database):
    lease = begun(database)
    database.put_cluster(lease, row(), NOW)
    database.put_cluster(lease, row("r-1.b", "ENDED"), NOW)
    (found,) = database.living_clusters("lab", "home")
    assert (found["id"], found["run_state"]) == ("r-1.a", "WAITING")
    assert found["lease_owner"] == lease.owner
    assert database.living_clusters("lab", "another home") == []


def test_a_warm_cluster_is_taken_with_what_is_written_of_it_from_then_on(database):
    first, second = begun(database), begun(database, "r-2")
    database.put_cluster(first, row(state="KEPT", kept_until=NOW + 60), NOW)
    taken = replace(row(), data='{"plan": "of r-2"}')
    assert database.take_kept_cluster(second, taken, NOW + 1)
    (found,) = database.clusters_of("r-2")
    assert found["data"] == taken.data, "a driver that is killed now leaves a cluster of this run"


def test_whose_it_was_before_writes_it_no_more(database):
    first, second = begun(database), begun(database, "r-2")
    database.put_cluster(first, row(state="KEPT", kept_until=NOW + 60), NOW)
    assert database.take_kept_cluster(second, row(), NOW + 1)
    with pytest.raises(LeaseLostError):
        database.put_cluster(first, row(), NOW + 2)
    database.put_cluster(second, row(state="ENDED"), NOW + 3)


def test_the_end_of_a_cluster_that_no_run_uses(database):
    lease = begun(database)
    database.put_cluster(lease, row(state="KEPT", kept_until=NOW + 60), NOW)
    assert not database.end_unused_cluster(row(state="ENDING"), NOW), "its run goes on"
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE run SET state = 'DONE' WHERE id = 'r-1'"))
    assert database.end_unused_cluster(row(state="ENDING"), NOW)
    second = begun(database, "r-2")
    assert not database.take_kept_cluster(second, row(), NOW + 1), "it is about to end"
    assert database.end_unused_cluster(row(state="ENDED"), NOW + 2)
    assert not database.end_unused_cluster(row(state="ENDED"), NOW + 3), "it has ended"
    assert database.living_clusters("lab", "home") == []


def test_a_cluster_that_was_taken_over_is_used(database):
    first, second = begun(database), begun(database, "r-2")
    database.put_cluster(first, row(state="KEPT", kept_until=NOW + 60), NOW)
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE run SET state = 'DONE' WHERE id = 'r-1'"))
    assert database.take_kept_cluster(second, row(), NOW + 1)
    assert not database.end_unused_cluster(row(state="ENDING"), NOW + 2)
