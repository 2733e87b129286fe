"""Who may drive a run."""

from __future__ import annotations

import os

import pytest
import sqlalchemy as sa
from store_nouns import NOW

from trainmaster.store import is_alive, tables, this_process
from trainmaster.store.leases import LEASE_S, _start_ticks

HERE = this_process().rsplit(":", 2)[0]


def held_by(store, owner, expires_at=NOW + LEASE_S):
    with store.engine.begin() as connection:
        connection.execute(tables.run.update().values(lease_owner=owner, lease_expires_at=expires_at))


def owner_with(store):
    with store.engine.connect() as connection:
        return connection.execute(sa.select(tables.run.c.lease_owner)).scalar()


@pytest.mark.parametrize(
    "pid_and_start", ["4194999:1", f"{os.getpid()}:1", "x:1", ":"], ids=["none", "later", "text", "empty"]
)
def test_the_lease_of_a_dead_local_process_is_broken_at_once(store, lease, pid_and_start):
    held_by(store, f"{HERE}:{pid_and_start}", expires_at=NOW + 1e9)
    taken = store.acquire("r-1", NOW)
    assert (taken.token, taken.owner) == (2, this_process())


def test_the_lease_of_a_living_local_process_is_kept_whatever_the_clock_says(store, lease):
    parent = f"{HERE}:{os.getppid()}:{_start_ticks(os.getppid())}"
    held_by(store, parent, expires_at=NOW - 1e9)
    assert store.acquire("r-1", NOW) is None
    assert owner_with(store) == parent


def test_the_lease_of_another_machine_is_kept_until_it_expires(store, lease):
    held_by(store, "other/boot:1:1")
    assert store.acquire("r-1", NOW + LEASE_S - 1) is None
    assert store.acquire("r-1", NOW + LEASE_S + 1).token == 2


def test_a_released_lease_can_be_taken(store, lease):
    store.release(lease, NOW)
    assert owner_with(store) is None
    assert store.acquire("r-1", NOW).token == 2


def test_every_change_of_hands_has_a_larger_token(store, lease):
    tokens = [store.acquire("r-1", NOW + second).token for second in range(3)]
    assert tokens == [2, 3, 4]


def test_driven_time_adds_up_over_sessions(store, lease):
    store.renew(lease, NOW + 10)
    store.release(lease, NOW + 12)
    again = store.acquire("r-1", NOW + 100)
    assert store.run_row("r-1")["earlier_s"] == 12
    assert store.run_row("r-1")["session_at"] == NOW + 100
    store.release(again, NOW + 103)


def test_a_commit_renews_the_lease(store, lease):
    store.commit(lease, [], NOW + 50)
    assert store.run_row("r-1")["lease_expires_at"] == NOW + 50 + LEASE_S


def test_owners_are_told_apart():
    me = this_process()
    assert is_alive(me, None, NOW)
    assert not is_alive(None, NOW + 1, NOW)
    assert not is_alive("", NOW + 1, NOW)
    assert not is_alive("other/boot:1:1", None, NOW)
