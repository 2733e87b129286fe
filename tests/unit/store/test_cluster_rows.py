"""Rows of clusters: only whose run they are may write them; a warm one is taken once, and whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from store_nouns import NOW, new_run

from trainmaster.spec.errors import LeaseLostError
from trainmaster.store.cluster_rows import ClusterRow

ROW = ClusterRow("r-1.a", "lab", "home", "ACTIVE", "{}")
WARM = replace(ROW, state="KEPT", kept_until=NOW + 60)
TAKEN = replace(ROW, data='{"plan": "of r-2"}')


@pytest.fixture
def other(store):
    return store.create_run(new_run("r-2"), NOW)


def test_it_is_written_and_written_again(store, lease):
    store.put_cluster(lease, ROW, NOW)
    store.put_cluster(lease, replace(ROW, data="[]"), NOW + 1)
    (row,) = store.clusters_of("r-1")
    assert (row["state"], row["data"]) == ("ACTIVE", "[]")
    (living,) = store.living_clusters("lab", "home")
    assert (living["run_state"], living["lease_owner"]) == ("WAITING", lease.owner)


def test_a_warm_one_is_taken_once_with_what_is_written_of_it_from_then_on(store, lease, other):
    store.put_cluster(lease, WARM, NOW)
    assert store.take_kept_cluster(other, TAKEN, NOW + 1)
    (row,) = store.clusters_of("r-2")
    assert (row["state"], row["data"], row["kept_until"]) == ("ACTIVE", TAKEN.data, None)
    assert store.take_kept_cluster(other, TAKEN, NOW + 2), "asked again, as the answer was lost"
    third = store.create_run(new_run("r-3"), NOW)
    assert not store.take_kept_cluster(third, TAKEN, NOW + 3)
    assert not store.clusters_of("r-1")


def test_whose_it_was_writes_it_no_more(store, lease, other):
    store.put_cluster(lease, WARM, NOW)
    store.take_kept_cluster(other, TAKEN, NOW + 1)
    with pytest.raises(LeaseLostError):
        store.put_cluster(lease, ROW, NOW + 2)
    store.put_cluster(other, ROW, NOW + 3)


def test_it_is_too_late_for_one_that_ends_itself(store, lease, other):
    store.put_cluster(lease, WARM, NOW)
    assert not store.take_kept_cluster(other, TAKEN, NOW + 61)
