"""The examples run as their READMEs say, and leave what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPE = "recipe.yaml"


def test_shards_are_written_and_read_back(tm):
    summary = tm.run(EXAMPLES / "shards" / RECIPE, "--yes", code=0)
    assert len(summary["models"]) == 16
    assert "every checksum right" in tm.logs(summary["run"], "--experiment", "count")


def test_folders_are_inferred_with_the_trained_model(tm):
    pytest.importorskip("sklearn")
    pytest.importorskip("PIL")
    summary = tm.run(EXAMPLES / "folders" / RECIPE, "--yes", code=0)
    found = [model["metrics"]["accuracy"] for model in summary["models"] if model["experiment"] == "infer"]
    assert len(found) == 8
    assert min(found) > 0.8


@pytest.mark.torch
def test_digits_are_learnt_by_two_processes(tm):
    pytest.importorskip("torch")
    summary = tm.run(EXAMPLES / "digits" / RECIPE, "--yes", code=0)
    assert summary["models"][0]["metrics"]["accuracy"] >= 0.95
