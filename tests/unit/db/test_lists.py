"""Lists by pages: together they are the whole, in its order, also while runs begin."""

from __future__ import annotations

import pytest
from database_nouns import NOW, new_run

from trainmaster.db import queries
from trainmaster.db import tables as t

#: Two began at the same moment, three at another.
BEGAN = {"r-a": 5.0, "r-b": 3.0, "r-c": 3.0, "r-d": 1.0, "r-e": 1.0, "r-f": 1.0, "s-a": 4.0}
NEWEST_FIRST = ["r-a", "s-a", "r-b", "r-c", "r-d", "r-e", "r-f"]


@pytest.fixture
def listed(database):
    for run, began in BEGAN.items():
        database.create_run(new_run(run), NOW + began)
    return database


def pages(read, limit, key):
    found, page = [], read(limit, None)
    while page:
        assert len(page) <= limit
        found += page
        page = read(limit, key(page[-1]))
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 50])
def test_pages_of_runs_are_the_whole(listed, limit):
    found = pages(lambda most, after: queries.runs(listed, most, after), limit, lambda row: row["id"])
    assert [row["id"] for row in found] == NEWEST_FIRST
    assert "recipe" not in found[0]


def test_what_begins_between_two_pages_moves_nothing(listed):
    first = queries.runs(listed, 3)
    listed.create_run(new_run("r-new"), NOW + 9)
    rest = queries.runs(listed, None, first[-1]["id"])
    assert [row["id"] for row in [*first, *rest]] == NEWEST_FIRST


def test_how_many_come_after(listed):
    assert queries.count_runs(listed) == 7
    assert [queries.count_runs(listed, run) for run in NEWEST_FIRST] == [6, 5, 4, 3, 2, 1, 0]
    assert queries.runs(listed, 5, "nosuch") == []


def test_ids_that_begin_so(listed):
    assert queries.run_ids(listed) == NEWEST_FIRST
    assert queries.run_ids(listed, "r-", 3) == ["r-a", "r-b", "r-c"]
    assert queries.run_ids(listed, "R-") == []
    assert queries.run_ids(listed, "%") == []


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
def test_pages_of_models_are_the_whole(listed, limit):
    with listed.engine.begin() as connection:
        for row in connection.execute(t.experiment.select()).mappings().all():
            tasks = range(3 if row["name"] == "a" else 1)
            here = [
                {"experiment_id": row["id"], "number": n, "state": "DONE", "model_uri": "x"} for n in tasks
            ]
            connection.execute(t.task.insert(), here)
    whole = [dict(row) for row in queries.models(listed, None)]
    assert [row["run"] for row in whole[::4]] == NEWEST_FIRST
    found = pages(
        lambda most, after: queries.models(listed, None, limit=most, after=after),
        limit,
        lambda row: (row["run"], row["experiment"], row["task"]),
    )
    assert [dict(row) for row in found] == whole
    assert len(queries.models(listed, "r-c", limit=2)) == 2
