"""Versions and aliases on both engines: numbers are given once, of two who move an alias one wins."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from database_nouns import NOW, new_run

from trainmaster.db import Database, ExperimentChange, TaskChange, queries, registry
from trainmaster.db.changes import Promotion
from trainmaster.db.registry_rows import (
    AliasMove,
    AliasMovedError,
    ModelInUseError,
    NewVersionRow,
    RunModel,
    UsedVersion,
    use,
)
from trainmaster.spec.errors import NotFoundError
from trainmaster.spec.states import EndReason, State


@pytest.fixture
def two(database, lease):
    """A model with the versions 1 and 2, which is ``production``."""
    for task in (0, 1):
        registry.register(database, version(task), "production", NOW + task)
    return database


def version(task=0, name="digits", team="", tags=()):
    return NewVersionRow(team, name, RunModel("r-1", "a", task, f"file:///{task}"), "anna", dict(tags))


def aliases(database, team=""):
    return {row["alias"]: row["version"] for row in registry.aliases(database, team)}


def test_the_same_model_is_one_version_and_numbers_are_never_given_again(database, lease):
    register = registry.register
    assert register(database, version(0), None, NOW) == (1, True)
    assert register(database, version(0, tags={"a": "1"}), None, NOW) == (1, False)
    assert register(database, version(1), None, NOW) == (2, True)
    assert register(database, version(0, team="red"), None, NOW) == (1, True)
    registry.remove_version(database, "", "digits", 2)
    assert register(database, version(1), None, NOW) == (3, True)
    rows = registry.versions(database, "", "digits")
    assert [(row["version"], row["tags"]) for row in rows] == [(3, "{}"), (1, '{"a":"1"}')]
    (model,) = registry.models(database, "")
    assert (model["last_version"], model["versions"]) == (3, 2)


def test_an_alias_moves_only_from_where_it_is_thought_to_be(two):
    registry.move(two, "", "digits", AliasMove("production", 1, "bob"), NOW, 2)
    with pytest.raises(AliasMovedError, match="means version 1 since bob moved it; it meant version 2"):
        registry.move(two, "", "digits", AliasMove("production", None, "carl"), NOW, 2)
    assert not registry.move(two, "", "digits", AliasMove("production", 1, "carl"), NOW, 7), (
        "it is there already"
    )
    with pytest.raises(AliasMovedError, match="there was none"):
        registry.move(two, "", "digits", AliasMove("production", 2, "carl"), NOW, None)
    with pytest.raises(NotFoundError, match="no version 9"):
        registry.move(two, "", "digits", AliasMove("production", 9, "carl"), NOW, 1)
    assert aliases(two) == {"production": 1}
    history = [(row["before"], row["version"], row["moved_by"]) for row in registry.moves(two, "", "digits")]
    assert history == [(2, 1, "bob"), (1, 2, "anna"), (None, 1, "anna")]


def test_what_is_needed_is_not_removed(two):
    with pytest.raises(ModelInUseError, match="digits@2 is digits@production"):
        registry.remove_version(two, "", "digits", 2)
    two.create_run(new_run("r-2"), NOW, lambda c: use(c, "r-2", [UsedVersion("a", "w", "", "digits", 1)]))
    with pytest.raises(ModelInUseError, match="r-2 starts from digits@1"):
        registry.remove_version(two, "", "digits", 1)
    with pytest.raises(NotFoundError, match="no version 5"):
        two.create_run(new_run("r-3"), NOW, lambda c: use(c, "r-3", [UsedVersion("a", "w", "", "digits", 5)]))
    assert not two.has_run("r-3")


def succeeded(**models):
    """What is committed when all tasks have succeeded: metrics of each."""
    tasks = [
        TaskChange("a", number, 1, State.WAITING, State.PLANNED, creates=True,
                   fields={"model_uri": f"file:///{number}", "metrics": metrics})
        for number, metrics in enumerate(models["metrics"])
    ]  # fmt: skip
    promotes = Promotion("digits", "production", models.get("metric"), models.get("smallest", False))
    done = ExperimentChange("a", State.RUNNING, State.DONE, EndReason.SUCCEEDED, promotes=promotes)
    return [*tasks, done]


def notes(database):
    return [row["message"] for row in queries.events(database, "r-1") if row["kind"] == "note"]


def test_the_best_model_of_an_experiment_is_promoted_with_its_end_and_once(database, lease):
    losses = [{"loss": 0.5}, {"loss": 0.25}, {"loss": "none"}, {}]
    changes = succeeded(metrics=losses, metric="loss", smallest=True)
    database.commit(lease, changes, NOW)
    assert aliases(database) == {"production": 1}
    assert registry.versions(database, "", "digits")[0]["task"] == 1
    (said,) = notes(database)
    assert said == "promoted: digits@production is version 1, r-1/a/1"
    registry.register(database, version(9), "production", NOW)
    database.commit(lease, changes[-1:], NOW)  # as after a resume
    assert aliases(database) == {"production": 2}, "what was moved by hand since stays"
    assert len(registry.versions(database, "", "digits")) == 2
    assert notes(database)[-1].endswith("version 1 stays as it is")


@pytest.mark.parametrize(
    ("models", "why"),
    [
        ({"metrics": []}, "it left no model"),
        ({"metrics": [{"loss": 1}], "metric": "accuracy"}, "accuracy of no model is known"),
    ],
)
def test_without_a_best_model_nothing_is_promoted_and_that_is_said(database, lease, models, why):
    database.commit(lease, succeeded(**models), NOW)
    assert aliases(database) == {}
    assert notes(database) == [f"nothing becomes digits@production: {why}"]


def test_of_many_at_once_one_moves_the_alias_and_each_version_has_its_number(two, url):
    def race(number):
        other = Database(url)
        try:
            made = registry.register(other, version(10 + number), None, NOW)[0]
            registry.move(other, "", "digits", AliasMove("production", made, f"who-{number}"), NOW, 2)
        except AliasMovedError:
            return made, False
        finally:
            other.close()
        return made, True

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(race, range(4)))
    assert sorted(number for number, _ in found) == [3, 4, 5, 6]
    (winner,) = [number for number, has_won in found if has_won]
    assert aliases(two) == {"production": winner}
    assert registry.moves(two, "", "digits")[0]["version"] == winner
