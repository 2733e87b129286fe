"""What was measured before, as the owner of a home and its teams are told."""

from __future__ import annotations

import json

import pytest

from trainmaster.advisor.model.measurement import Measurement
from trainmaster.advisor.model.profile import Point
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, Database, NewMeasurement, Submission
from trainmaster.service.quotes.history import experience_of, histories
from trainmaster.spec import Strategy, read_recipe

OWNER = "r-owner"


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path / 'd.db'}")


@pytest.fixture
def database(home):
    found = Database(home.database_url)
    for run, team in ((OWNER, None), ("r-red", "red"), ("r-blue", "blue")):
        new = AcceptedRun(
            run, "job", "{}", "/recipe.yaml", "aws", "/code", home.store_url, [("main", 1)],
            submission=Submission("ann", team),
        )  # fmt: skip
        found.create_run(new, 1.0)
    yield found
    found.close()


@pytest.fixture
def recipe(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    path = code / "recipe.yaml"
    path.write_text(json.dumps({"name": "job", "experiments": {"main": {"command": "true"}}}))
    return read_recipe(path)


def keep(database, run, exact, similar, duration_s, workers=1):
    point = Point(Strategy.ALLREDUCE, workers, nodes=1, local_batch=8.0, step_time_s=0.1)
    data = Measurement(point, duration_s=duration_s, offer="local").to_json()
    name = f"{run}/{exact}/{workers}"
    database.add_measurement(NewMeasurement(name, exact, similar, "main", run, data, duration_s))


def test_a_team_is_told_what_its_own_runs_have_measured(database, home, recipe):
    key = histories(database, home, recipe)["main"].fingerprint
    for duration_s, run in enumerate((None, "r-removed", OWNER, "r-red", "r-blue"), 1):
        keep(database, run, key.exact, key.similar, float(duration_s))
        keep(database, run, "other", key.similar, 10.0 * duration_s)
    told = {}
    for team in (None, "red", "blue", "green"):
        found = histories(database, home, recipe, team=team)["main"]
        assert (found.fingerprint, found.team) == (key, team)
        told[team] = [[each.duration_s for each in some] for some in (found.same, found.similar)]
    assert told == {
        None: [[3.0, 2.0, 1.0], [30.0, 20.0, 10.0]],
        "red": [[4.0], [40.0]],
        "blue": [[5.0], [50.0]],
        "green": [[], []],
    }


def test_a_team_learns_of_machines_from_its_own_jobs(database):
    for workers in (1, 2):
        keep(database, "r-red", "job", "s", 1.0, workers)
    assert experience_of(database, "mine", team="red").jobs == 1
    assert experience_of(database, "mine", team="blue") is None
    assert experience_of(database, "mine") is None
