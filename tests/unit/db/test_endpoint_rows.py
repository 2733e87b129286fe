"""Names of services, their replicas, and what proxies have in flight, on both engines."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from database_nouns import NOW, new_run

from trainmaster.db import access, endpoint_changes, endpoint_rows
from trainmaster.db.changes import ReplicaChange
from trainmaster.db.endpoint_changes import NewEndpoint, ReplicaState
from trainmaster.db.endpoint_rows import LOAD_VALID_S
from trainmaster.spec.errors import UsageError


def accept(database, run, name, team=None):
    admit = endpoint_changes.registering([NewEndpoint("a", name)], run, team, NOW, lambda _: None)
    database.create_run(new_run(run), NOW, admit)
    return endpoint_rows.of_run(database, run)[0]


def write(database, run, task, **values):
    change = ReplicaChange("a", task, values)
    database.write(lambda connection, _: endpoint_changes.write_replica(connection, run, change, NOW))


def test_a_name_is_taken_once_in_a_team_until_its_service_is_over(database):
    access.add_team(database, "red", None, NOW)
    accept(database, "r-1", "digits")
    with pytest.raises(UsageError, match="r-1"):
        accept(database, "r-2", "digits")
    assert not database.has_run("r-2")
    accept(database, "r-3", "digits", "red")
    database.write(lambda connection, _: endpoint_changes.close(connection, "r-1", "a", NOW))
    accept(database, "r-2", "digits")
    with pytest.raises(UsageError, match="r-2"):
        database.write(lambda connection, _: endpoint_changes.reopen(connection, "r-1"))
    database.write(lambda connection, _: endpoint_changes.close(connection, "r-2", "a", NOW))
    database.write(lambda connection, _: endpoint_changes.reopen(connection, "r-1"))
    open_first = endpoint_rows.named(database, "digits")
    assert [row["place"] is None for row in open_first] == [False, False, True]
    assert [row["run_id"] for row in endpoint_rows.of_team(database, [None], 10)] == ["r-1", "r-2"]
    assert [row["run_id"] for row in endpoint_rows.of_team(database, ["red"], 10)] == ["r-3"]


def test_of_many_who_take_a_name_at_once_one_has_it(database):
    barrier = Barrier(4)

    def taken(number):
        barrier.wait()
        try:
            return accept(database, f"r-{number}", "digits")["run_id"]
        except UsageError:
            return None

    with ThreadPoolExecutor(4) as pool:
        assert len(list(filter(None, pool.map(taken, range(4))))) == 1


def test_what_proxies_have_in_flight_is_added_up_and_gets_old(database):
    endpoint = accept(database, "r-1", "digits")["id"]
    write(database, "r-1", 0, state=ReplicaState.READY, port=4000, attempt=1)
    write(database, "r-1", 1, state=ReplicaState.STARTING)
    database.told = NOW
    endpoint_rows.report(database, f"{endpoint}-0", "one", 3)
    endpoint_rows.report(database, f"{endpoint}-0", "two", 9)
    endpoint_rows.report(database, f"{endpoint}-0", "two", 4)
    endpoint_rows.report(database, "no-such", "two", 4)

    def busy(now):
        return [row["in_flight"] for row in endpoint_rows.replicas(database, [endpoint], now)]

    assert busy(NOW + 1) == [7, 0]
    assert busy(NOW + LOAD_VALID_S + 1) == [0, 0]
    write(database, "r-1", 0, state=ReplicaState.GONE)
    endpoint_rows.report(database, f"{endpoint}-0", "one", 3)
    found = endpoint_rows.replicas(database, [endpoint], NOW)
    assert [(row["task"], row["state"]) for row in found] == [(1, ReplicaState.STARTING)]
    database.write(lambda connection, _: endpoint_changes.close(connection, "r-1", "a", NOW))
    assert not endpoint_rows.replicas(database, [endpoint], NOW)
