"""`benchmarks/quotes_replay.py`: a home goes through its past, and nothing is known before it was."""

import importlib.util
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from trainmaster.db import AcceptedRun, Database, NewMeasurement

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def replay(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("quotes_replay", FOLDER / "quotes_replay.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in ("common", "quotes_kept", "quote_jobs"):
        sys.modules.pop(name, None)


@pytest.fixture
def home(tmp_path):
    place = tmp_path / "home"
    (place / "snapshots").mkdir(parents=True)
    with closing(Database(f"sqlite:///{place / 'trainmaster.db'}")) as database:
        for run, at in (("first", 100.0), ("second", 200.0)):
            new = AcceptedRun(run, "job", "{}", "/recipe.yaml", "local", "/code", "file:///s", [("main", 1)])
            database.create_run(new, at)
            database.put_forecast(run, json.dumps({"courses": {}}))
            database.add_measurement(NewMeasurement(run, "exact", "like", "main", run, "{}", at + 50))
    with closing(sqlite3.connect(place / "trainmaster.db")) as base, base:
        base.execute("update run set ended_at = created_at + 50, closed_at = created_at + 60")
    return place


def test_what_was_learnt_later_is_not_known_and_the_home_stays_the_same(replay, home, tmp_path):
    root = tmp_path / "copy"
    root.mkdir()
    past = replay.Past(home, root, [(90.0, 1.5), (190.0, 20.0)])
    asked = "select (select count(*) from measurement), (select count(*) from quote where data like ?)"
    counts = []
    for at in (100.0, 155.0, 170.0, 1e9):
        past.until(at)
        with closing(sqlite3.connect(root / "trainmaster.db")) as base:
            counts.append(base.execute(asked, ('%"load"%',)).fetchone())
    assert counts == [(0, 0), (1, 0), (1, 1), (2, 2)]
    assert (past.load(100.0), past.load(500.0)) == (1.5, 20.0)
    with closing(sqlite3.connect(home / "trainmaster.db")) as base:
        assert base.execute("select count(*) from measurement").fetchone() == (2,)


def test_intervals_are_scored_against_their_truths(replay):
    told = {"p5": 8.0, "p50": 10.0, "p95": 12.5}
    found = replay.score([(told, 9.0), (told, 13.0), (told, 7.0)])
    assert (found["within_p95"], found["inside"], found["p95_over_p50"]) == (0.667, 0.333, 1.25)
