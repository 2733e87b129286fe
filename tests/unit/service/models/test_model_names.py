"""Which model is meant by the name of a run."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from trainmaster.service.models import model_names
from trainmaster.spec.errors import NotFoundError, TrainmasterError
from trainmaster.spec.states import EndReason, State


@pytest.fixture
def database(monkeypatch):
    """Of a run ``r-1``: its experiments, and which of them left a model."""

    def make(experiments, *models, state=State.DONE, reason=EndReason.SUCCEEDED):
        recipe, ended = json.dumps({"experiments": experiments}), {"state": state, "reason": reason}
        rows = [{"experiment": name, "task": 0, "uri": f"s3://b/{name}"} for name in models]
        monkeypatch.setattr(model_names.queries, "models", lambda *_: rows)
        return SimpleNamespace(read=lambda _: [{}], run_row=lambda _: {"recipe": recipe, **ended})

    return make


PREP_AND_TRAIN = {"prep": {}, "train": {"after": [], "data": {"d": {"experiment": "prep"}}}}


def test_a_runs_only_model_is_that_of_what_leads_to_nothing_else(database):
    assert model_names.find_model(database(PREP_AND_TRAIN, "train"), "r-1") == "s3://b/train"
    chain = {"a": {}, "b": {"after": ["a"]}, "c": {"after": ["b"]}}
    assert model_names.find_model(database(chain, "c"), "r-1") == "s3://b/c"


@pytest.mark.parametrize("experiments", [PREP_AND_TRAIN, {"prep": {}, "train": {}}])
def test_another_experiments_model_is_given_only_by_its_name(database, experiments):
    found = database(experiments, "prep")
    with pytest.raises(NotFoundError, match="train left no model; the only one is of prep") as refused:
        model_names.find_model(found, "r-1")
    assert refused.value.hint == "If that is meant, name it: r-1/prep/0"
    assert model_names.find_model(found, "r-1/prep") == "s3://b/prep"
    with pytest.raises(NotFoundError, match="r-1/train: there is no such model"):
        model_names.find_model(found, "r-1/train")


@pytest.mark.parametrize(
    ("ended", "said", "hint"),
    [
        ({}, "r-1 left no model", "TRAINMASTER_OUTPUT_DIR"),
        ({"reason": EndReason.USER_ERROR}, "r-1 left no model: it ended as USER_ERROR", "status r-1"),
        ({"state": State.RUNNING, "reason": None}, "r-1 has no model yet", "when it has ended"),
    ],
)
def test_a_run_without_a_model_says_why(database, ended, said, hint):
    with pytest.raises(NotFoundError) as refused:
        model_names.find_model(database(PREP_AND_TRAIN, **ended), "r-1")
    assert refused.value.args[0] == said
    assert hint in refused.value.hint


@pytest.fixture
def swept(monkeypatch):
    """Of a run ``r-1`` whose one experiment searches: two models each of it, and of another experiment."""
    rows = [
        {"experiment": name, "task": task, "uri": f"s3://b/{name}/{task}", "metrics": json.dumps(metrics)}
        for name, metrics, task in (
            ("sweep", {"lr": 1, "loss": 0.1, "f1": 0.7}, 0),
            ("sweep", {"lr": 2, "loss": 0.2, "f1": 0.9}, 1),
            ("grid", {"lr": 1, "loss": 0.3}, 0),
            ("grid", {"lr": 2, "loss": 0.2}, 1),
            ("odd", {"lr": 3}, 0),
            ("odd", {"lr": 4}, 1),
        )
    ]

    def models(_database, _run, experiment=None):
        return [row for row in rows if experiment in (None, row["experiment"])]

    recipe = json.dumps(
        {"experiments": {"sweep": {"search": {"metric": "f1", "goal": "max"}}, "grid": {}, "odd": {}}}
    )
    monkeypatch.setattr(model_names.queries, "models", models)
    return SimpleNamespace(read=lambda _: [{}], run_row=lambda _: {"recipe": recipe})


@pytest.mark.parametrize(
    ("name", "uri"), [("r-1/sweep/best", "s3://b/sweep/1"), ("r-1/grid/best", "s3://b/grid/1")]
)
def test_the_best_model_is_that_of_the_metric_that_the_recipe_looks_at(swept, name, uri):
    assert model_names.find_model(swept, name) == uri


@pytest.mark.parametrize(
    ("name", "said", "hint"),
    [
        ("r-1/best", "models of 3 experiments", "r-1/sweep/best, r-1/grid/best"),
        ("r-1/odd/best", "no metric says which model is the best; seen: lr", "`trainmaster models r-1`"),
        ("r-1/none/best", "there is no such model", "`trainmaster models r-1`"),
    ],
)
def test_a_best_model_that_nothing_says_is_told(swept, name, said, hint):
    with pytest.raises(TrainmasterError) as refused:
        model_names.find_model(swept, name)
    assert said in refused.value.args[0]
    assert hint in refused.value.hint
