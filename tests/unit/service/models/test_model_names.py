"""Which model is meant by the name of a run."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from trainmaster.service.models import model_names
from trainmaster.spec.errors import NotFoundError
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
