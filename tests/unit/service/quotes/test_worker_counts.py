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


def test_where_a_sampler_learns_fewer_of_its_trials_are_ended(tmp_path):
    path = tmp_path / "recipe.yaml"

    def found(sampler, samples=24):
        search = {"metric": "loss", "goal": "min", "pruner": "median", "sampler": sampler}
        sweep = {"command": "true", "steps": 640, "parameters": {"lr": {"range": "0-1"}}, "search": search}
        path.write_text(json.dumps({"name": "job", "experiments": {"main": sweep | {"samples": samples}}}))
        return workload_of(read_recipe(path).experiments["main"], 0)

    assert found("tpe").trained.median > 1.05 * found("random").trained.median
    assert found("random", 8).trained.spread < 0.15, "five of eight come to their end in each play"


def test_what_was_seen_of_a_pruner_that_cannot_be_played_leaves_a_doubt(tmp_path):
    search = {"metric": "loss", "goal": "min", "pruner": "forecast"}
    sweep = {
        "command": "true",
        "steps": 640,
        "parameters": {"lr": {"range": "0-1"}},
        "search": search,
        "samples": 4,
    }
    (path := tmp_path / "recipe.yaml").write_text(json.dumps({"name": "job", "experiments": {"main": sweep}}))
    experiment = read_recipe(path).experiments["main"]
    unseen, once = (workload_of(experiment, 0, plays=[(1.0, 1.0, 0.2, 0.1)] * n).trained for n in (0, 1))
    assert unseen.spread > once.spread > 0.1
