"""Rows of clusters: written by who drives the run, taken over by one run only."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text
from store_nouns import NOW, new_run

from trainmaster.db import ClusterRow, Lease
from trainmaster.spec.errors import LeaseLostError


def row(name: str = "r-1.a", state: str = "ACTIVE", **more: object) -> ClusterRow:
    return ClusterRow(name, "lab", "home", state, "{}", **more)  # type: ignore[arg-type]


def begun(store, name: str = "r-1", **more: object) -> Lease:
    return store.create_run(replace(new_run(), id=name, **more), NOW)


def test_clusters_are_accepted_with_their_run(store):
    begun(store, clusters=[row(state="PLANNED"), row("r-1.b", "PLANNED")])
    assert [found["id"] for found in store.clusters_of("r-1")] == ["r-1.a", "r-1.b"]


def test_the_last_word_counts(store):
    lease = begun(store)
    store.put_cluster(lease, row(), NOW)
    store.put_cluster(lease, row(state="ENDED", waited_s=4.0), NOW + 1)
    (found,) = store.clusters_of("r-1")
    assert (found["state"], found["waited_s"], found["changed_at"]) == ("ENDED", 4.0, NOW + 1)
    assert store.cluster_waits("lab") == [4.0]
    assert store.cluster_waits("aws") == []
    assert store.living_clusters("lab", "home") == []


def test_who_lost_the_run_writes_nothing(store):
    lease = begun(store)
    stale = Lease("r-1", lease.token - 1, lease.owner)
    with pytest.raises(LeaseLostError):
        store.put_cluster(stale, row(), NOW)
    with pytest.raises(LeaseLostError):
        store.put_cost(stale, 3.0)
    assert store.clusters_of("r-1") == []
    assert store.run_row("r-1")["cost_usd"] == 0.0


def test_the_bill(store):
    store.put_cost(begun(store), 1.25)
    assert store.run_row("r-1")["cost_usd"] == 1.25


def test_a_warm_cluster_has_one_taker(store):
    first, second, third = begun(store), begun(store, "r-2"), begun(store, "r-3")
    store.put_cluster(first, row(state="KEPT", kept_until=NOW + 60), NOW)
    assert store.take_kept_cluster(second, row(), NOW + 1)
    assert store.take_kept_cluster(second, row(), NOW + 1), "a repeated call finds its own work"
    assert not store.take_kept_cluster(third, row(), NOW + 2)
    (found,) = store.clusters_of("r-2")
    assert (found["state"], found["kept_until"]) == ("ACTIVE", None)
    assert store.clusters_of("r-1") == []


def test_a_warm_cluster_that_is_over_is_nobodys(store):
    first, second = begun(store), begun(store, "r-2")
    store.put_cluster(first, row(state="KEPT", kept_until=NOW + 60), NOW)
    assert not store.take_kept_cluster(second, row(), NOW + 61)


def test_what_may_still_cost_money(store):
    lease = begun(store)
    store.put_cluster(lease, row(), NOW)
    store.put_cluster(lease, row("r-1.b", "ENDED"), NOW)
    (found,) = store.living_clusters("lab", "home")
    assert (found["id"], found["run_state"]) == ("r-1.a", "WAITING")
    assert found["lease_owner"] == lease.owner
    assert store.living_clusters("lab", "another home") == []


def test_a_warm_cluster_is_taken_with_what_is_written_of_it_from_then_on(store):
    first, second = begun(store), begun(store, "r-2")
    store.put_cluster(first, row(state="KEPT", kept_until=NOW + 60), NOW)
    taken = replace(row(), data='{"plan": "of r-2"}')
    assert store.take_kept_cluster(second, taken, NOW + 1)
    (found,) = store.clusters_of("r-2")
    assert found["data"] == taken.data, "whoever is killed now finds a cluster of this run"


def test_whose_it_was_before_writes_it_no_more(store):
    first, second = begun(store), begun(store, "r-2")
    store.put_cluster(first, row(state="KEPT", kept_until=NOW + 60), NOW)
    assert store.take_kept_cluster(second, row(), NOW + 1)
    with pytest.raises(LeaseLostError):
        store.put_cluster(first, row(), NOW + 2)
    store.put_cluster(second, row(state="ENDED"), NOW + 3)


def test_the_end_of_a_cluster_that_no_run_uses(store):
    lease = begun(store)
    store.put_cluster(lease, row(state="KEPT", kept_until=NOW + 60), NOW)
    assert not store.end_unused_cluster(row(state="ENDING"), NOW), "its run goes on"
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE run SET state = 'DONE' WHERE id = 'r-1'"))
    assert store.end_unused_cluster(row(state="ENDING"), NOW)
    second = begun(store, "r-2")
    assert not store.take_kept_cluster(second, row(), NOW + 1), "it is about to end"
    assert store.end_unused_cluster(row(state="ENDED"), NOW + 2)
    assert not store.end_unused_cluster(row(state="ENDED"), NOW + 3), "it has ended"
    assert store.living_clusters("lab", "home") == []


def test_a_cluster_that_was_taken_over_is_used(store):
    first, second = begun(store), begun(store, "r-2")
    store.put_cluster(first, row(state="KEPT", kept_until=NOW + 60), NOW)
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE run SET state = 'DONE' WHERE id = 'r-1'"))
    assert store.take_kept_cluster(second, row(), NOW + 1)
    assert not store.end_unused_cluster(row(state="ENDING"), NOW + 2)
