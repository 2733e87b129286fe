"""The examples run as their READMEs say, and leave what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest
from learning import check_it_learned, needs

EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPE = "recipe.yaml"


def test_shards_are_written_and_read_back(tm):
    summary = tm.run(EXAMPLES / "shards" / RECIPE, "--yes", code=0)
    assert len(summary["models"]) == 16
    assert "every checksum right" in tm.logs(summary["run"], "--experiment", "count")


@pytest.mark.crossings  # `test_shards_are_written_and_read_back` has a task per part
def test_folders_are_inferred_with_the_trained_model(tm):
    pytest.importorskip("sklearn")
    pytest.importorskip("PIL")
    fewer = ("--set", "experiments.infer.parameters.folder=[0, 3, 7]")
    summary = tm.run(EXAMPLES / "folders" / RECIPE, "--yes", *fewer, code=0)
    found = [model["metrics"]["accuracy"] for model in summary["models"] if model["experiment"] == "infer"]
    assert len(found) == 3
    assert min(found) > 0.8


@pytest.mark.torch
def test_digits_are_learnt_by_two_processes(tm):
    pytest.importorskip("torch")
    summary = tm.run(EXAMPLES / "digits" / RECIPE, "--yes", code=0)
    assert summary["models"][0]["metrics"]["accuracy"] >= 0.95


@pytest.mark.crossings  # samplers learn without scikit-learn in `test_cli_search.py`
def test_boosting_is_tuned_three_ways(tm):
    needs("sklearn", "optuna")
    fewer = (
        *("grid.parameters.lr=[0.2]", "grid.parameters.l2=[0]", "grid.parameters.leaves=[31]"),
        *("random.samples=1", "tpe.samples=4"),
    )
    options = [word for each in fewer for word in ("--set", f"experiments.{each}")]
    summary = tm.run(EXAMPLES / "gbm-sweep" / RECIPE, "--yes", *options, timeout_s=300)
    counted = {name: each["tasks"] for name, each in summary["experiments"].items()}
    assert {name: each["total"] for name, each in counted.items()} == {"grid": 2, "random": 1, "tpe": 4}
    assert all(each["succeeded"] + each["pruned"] == each["total"] for each in counted.values())
    assert len(summary["models"]) == sum(each["succeeded"] for each in counted.values())
    best = summary["experiments"]["tpe"]["best"]
    assert best["value"] < 0.4  # 0.66 would be what a coin knows
    assert best["parameters"].keys() == {"lr", "leaves", "depth", "l2"}


@pytest.mark.tensorflow
@pytest.mark.crossings
def test_digits_are_learnt_by_workers_in_step(tm):
    """Synchronously: one step is a change of the weights by the mean gradient of both workers' batches."""
    needs("tensorflow", "sklearn")
    fewer = ("--set", "experiments.train.steps=100")
    summary = tm.run(EXAMPLES / "tf-ps" / "sync.yaml", "--yes", *fewer, timeout_s=300)
    (model,) = summary["models"]
    assert model["metrics"]["step"] == 100
    assert model["metrics"]["examples"] == 100 * 32 * 2
    assert model["metrics"]["accuracy"] > 0.85
    check_it_learned(tm.logs(summary["run"], "--member", "chief-0"), first=0.8, last=0.5)
    tm.until_quiet()
