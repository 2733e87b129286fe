"""How many apps of a team are open at once, on both engines, and by several servers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from trainmaster.db import access, apps, tables
from trainmaster.spec.states import State


def row(number, team, at=1.0):
    return {
        "id": f"te-{team}-{number}", "kind": "tensorboard", "team": team, "opened_by": "ann", "runs": "[]",
        "home_id": "h", "place": f"{team}-{number}", "state": State.WAITING, "created_at": at, "used_at": at,
    }  # fmt: skip


def test_of_many_who_open_at_once_no_more_than_its_places_get_one(database):
    access.add_team(database, "red", None, 1.0)
    barrier = Barrier(6)

    def opened(number):
        barrier.wait()
        return apps.add(database, row(number, "red"), 3)

    with ThreadPoolExecutor(6) as pool:
        found = [each["place"] for each in pool.map(opened, range(6)) if each is not None]
    assert len(found) == len(set(found)) == 3
    there = int(found[0].removeprefix("red-"))
    assert apps.add(database, row(there, "red"), 3)["place"] == found[0]
    assert apps.add(database, row(0, None), 1)["team"] is None
    assert apps.add(database, row(1, None), 1) is None
    apps.end(database, f"te-{found[0]}", "over", 2.0)
    assert apps.add(database, row(7, "red"), 3)["id"] == "te-red-7"


def test_apps_that_are_over_hide_none_that_is_open(database):
    access.add_team(database, "red", None, 1.0)
    apps.add(database, row(0, "red"), 1)
    with database.engine.begin() as connection:
        over = {"state": State.DONE, "place": None}
        connection.execute(tables.app.insert(), [{**row(n, "red", 2.0), **over} for n in range(1, 300)])
    assert apps.add(database, row(300, "red"), 1) is None
