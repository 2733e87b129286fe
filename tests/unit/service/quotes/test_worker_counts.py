"""What an experiment has to do, as a quote counts it."""

from __future__ import annotations

import json

import pytest

from trainmaster.service.quotes.worker_counts import workload_of
from trainmaster.spec import read_recipe


@pytest.mark.parametrize(
    ("keys", "is_pruned"),
    [
        ({"search": {"metric": "loss", "goal": "min", "pruner": "asha"}}, True),
        ({"search": {"metric": "loss", "goal": "min"}}, False),
        ({}, False),
    ],
)
def test_a_sweep_counts_what_its_pruner_leaves(tmp_path, keys, is_pruned):
    sweep = {"command": "true", "steps": 640, "parameters": {"lr": [0.1, 0.2, 0.3, 0.4]}, **keys}
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({"name": "job", "experiments": {"main": sweep}}))
    found = workload_of(read_recipe(path).experiments["main"], 0)
    assert (found.trained is not None and found.trained.median < 1) == is_pruned
    assert all(play[:2] == (1.0, 1.0) for play in found.plays), "two begin together, and nobody judges them"
    assert bool(found.plays) == is_pruned
