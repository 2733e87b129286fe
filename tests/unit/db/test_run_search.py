"""Which runs a condition finds, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import json
import threading
from functools import partial

import pytest
from database_nouns import NOW, new_run

from trainmaster.db import queries, run_rows
from trainmaster.db import tables as t
from trainmaster.db.events import json_column
from trainmaster.service.runs.run_table import TableQuery, run_table
from trainmaster.spec.errors import NotFoundError
from trainmaster.spec.labels import changed

#: Of each run: columns, and of each task metrics and parameters.
RUNS = {
    "done": ({"state": "DONE", "reason": "SUCCEEDED", "cost_usd": 7.5, "labels": {"project": "x", "n": "5"}},
             [({"loss": 0.2, "acc": 1}, {"lr": 0.01, "opt": "adam", "fast": True}),
              ({"loss": 0.9}, {"lr": 0.0001, "opt": "SGD"})]),
    "nan": ({"state": "DONE", "reason": "USER_ERROR", "labels": {"project": 'a "b" \\', "who": "é%_"}},
            [({"loss": None, "a/b": 1, "my key": 2}, {"loss": 3.0})]),
    "new": ({"note": "100% odd_"}, []),
    "away": ({"provider": "aws", "team": "red", "submitted_by": "ann", "labels": {"project": "y"}},
             [({"loss": 5}, {"layers": 3})]),
}  # fmt: skip


@pytest.fixture
def filled(database):
    for number, (run, (columns, tasks)) in enumerate(RUNS.items()):
        database.create_run(new_run(run), NOW + number)
        columns = {**columns, "labels": json.dumps(columns.get("labels", {}))}
        first = database.experiment_rows(run)[0]["id"]
        rows = [
            {"experiment_id": first, "number": n, "state": "DONE",
             "metrics": json.dumps(metrics), "parameters": json.dumps(parameters)}
            for n, (metrics, parameters) in enumerate(tasks)
        ]  # fmt: skip

        def write(connection, _, run=run, columns=columns, rows=rows):
            connection.execute(t.run.update().where(t.run.c.id == run).values(columns))
            if rows:
                connection.execute(t.task.insert(), rows)

        database.write(write)
    return database


def found(database, where):
    which = queries.ALL_RUNS.narrowed(where, database)
    rows = [row["id"] for row in queries.runs(database, which=which)]
    assert queries.count_runs(database, which=which) == len(rows)
    return sorted(rows)


@pytest.mark.parametrize(
    ("where", "runs"),
    [
        ("loss < 0.3", ["done"]),
        ("loss < 0.3 and lr > 1e-3", ["done"]),
        ("loss < 0.3 and lr < 1e-3", []),  # not both of one task
        ("not loss < 1", ["away", "nan"]),
        ("loss != 5", ["done", "nan"]),
        ("loss = 5", ["away"]),
        ("loss = 3", ["nan"]),  # what is no number as a metric is looked for among parameters
        ("metric:loss = 3", []),
        ("param:loss = 3", ["nan"]),
        ("acc = 1 or layers = 3", ["away", "done"]),
        ("opt = adam", ["done"]),
        ("opt ~ sg", ["done"]),
        ("opt = 5", []),
        ("fast = true", ["done"]),
        ("fast = false", []),
        ("`my key` = 2 and a/b = 1", ["nan"]),
        ("loss", ["away", "done", "nan"]),
        ("not loss", ["new"]),
        ("metric:opt", []),
        ("project = x", ["done"]),
        ("project != x", ["away", "nan"]),
        ("label:project = 'a \"b\" \\\\'", ["nan"]),
        ("label:project", ["away", "done", "nan"]),
        ("not label:project", ["new"]),
        ("label:n = 5", ["done"]),
        ("n = 5", ["done"]),
        ("who = 'é%_'", ["nan"]),
        ("label:who ~ '%'", ["nan"]),
        ("label:who ~ 'x%'", []),
        ("state = DONE", ["done", "nan"]),
        ("state = succeeded", ["done"]),
        ("state != DONE", ["away", "new"]),
        ("state = WAITING or loss < 0.3", ["away", "done", "new"]),
        ("name ~ R", ["away", "done", "nan", "new"]),
        ("run = new", ["new"]),
        ("run !~ n", ["away"]),
        ("provider = aws", ["away"]),
        ("team = red and owner = ann", ["away"]),
        ("note ~ 'odd_'", ["new"]),
        ("cost > $5", ["done"]),
        ("cost <= 0", ["away", "nan", "new"]),
        ("age > 100d", []),
        ("age < 1d", ["away", "done", "nan", "new"]),
        ("created < 1990-01-01", ["away", "done", "nan", "new"]),
        ("layers = 3 and provider = aws and not state = DONE", ["away"]),
        ("`x' OR 1=1 --` = 1", []),
    ],
)
def test_what_is_found(filled, where, runs):
    assert found(filled, where) == runs


ODD = ['x"loss', "a\\\\loss", "loss\0", "\0loss", "größte loss", "\ud800 loss", "[0].loss", "%?:loss"]


@pytest.mark.parametrize("name", ODD)
def test_tasks_call_their_metrics_as_they_like(filled, name):
    [told] = json.loads(json_column({name: 7}))
    first = filled.experiment_rows("new")[0]["id"]
    row = {
        "experiment_id": first, "number": 0, "state": "DONE",
        "metrics": json_column({name: 7}), "parameters": json_column({"word": name}),
    }  # fmt: skip
    filled.write(lambda connection, _: connection.execute(t.task.insert(), row))
    table = run_table(filled, queries.ALL_RUNS, TableQuery(columns=(f"metric:{told}", "metric:loss")))
    assert table.values["new"] == {f"metric:{told}": 7}
    assert table.values["away"]["metric:loss"] == 5
    assert run_table(filled, queries.ALL_RUNS, TableQuery(columns=("param:word",))).values["new"]
    assert found(filled, "loss = 5") == ["away"], "others are found as before"


@pytest.mark.parametrize("name", ["loss\0", "\ud800 loss", "\udce9", "\U0001f600\udc00"])
def test_rows_of_older_versions_that_postgresql_cannot_read_break_no_list(filled, name):
    first = filled.experiment_rows("new")[0]["id"]
    old, new = ({name: 7, "acc": 3}, {"word": name}), ({"\U0001f600": 8, "acc": 4, "\\udce9": 1}, {})
    rows = [
        {"experiment_id": first, "number": number, "state": "DONE",
         "metrics": json.dumps(metrics), "parameters": json.dumps(parameters)}
        for number, (metrics, parameters) in enumerate((old, new))
    ]  # fmt: skip
    filled.write(lambda connection, _: connection.execute(t.task.insert(), rows))
    assert found(filled, "loss = 5 or word = no") == ["away"]
    assert found(filled, "`\U0001f600` = 8 and acc = 4") == ["new"], "what can be read is"
    columns = ("metric:acc", "metric:loss")
    assert run_table(filled, queries.ALL_RUNS, TableQuery(columns=columns)).values["away"]["metric:loss"] == 5


def test_pages_hold_only_what_is_found(filled):
    which = queries.ALL_RUNS.narrowed("label:project", filled)
    first = [row["id"] for row in queries.runs(filled, 2, None, which)]
    rest = [row["id"] for row in queries.runs(filled, 2, first[-1], which)]
    assert [*first, *rest] == ["away", "nan", "done"]
    assert queries.count_runs(filled, first[-1], which) == 1


def test_two_who_change_labels_at_once_both_succeed(filled):
    def write(key):
        for value in range(20):
            change = partial(changed, changes={key: str(value)})
            filled.write(lambda to, _, change=change: run_rows.describe(to, "new", change, None))

    threads = [threading.Thread(target=write, args=(key,)) for key in ("a", "b")]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    row = filled.run_row("new")
    assert (json.loads(row["labels"]), row["note"]) == ({"a": "19", "b": "19"}, "100% odd_")
    with pytest.raises(NotFoundError):
        filled.write(lambda connection, _: run_rows.describe(connection, "nosuch", dict, ""))
