"""What an experiment has to do, as a quote counts it."""

from __future__ import annotations

import json
from math import log
from statistics import mean, pstdev

import pytest

from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.service.quotes.earlier_trials import EarlierTrials
from trainmaster.service.quotes.fingerprint import BEGUN
from trainmaster.service.quotes.job_numbers import as_long
from trainmaster.service.quotes.worker_counts import begun_at, with_length, workload_of
from trainmaster.spec import Strategy, read_recipe


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
    assert (found.trained is not None and mean(found.trained(4, 2)) < 1) == is_pruned
    assert all(play[:2] == (1.0, 1.0) for play in found.simulated_shares), (
        "two begin together, and nobody judges them"
    )
    assert bool(found.simulated_shares) == is_pruned


def test_where_a_sampler_learns_fewer_of_its_trials_are_ended(tmp_path):
    path = tmp_path / "recipe.yaml"

    def found(sampler, samples=24):
        search = {"metric": "loss", "goal": "min", "pruner": "median", "sampler": sampler}
        sweep = {"command": "true", "steps": 640, "parameters": {"lr": {"range": "0-1"}}, "search": search}
        path.write_text(json.dumps({"name": "job", "experiments": {"main": sweep | {"samples": samples}}}))
        return workload_of(read_recipe(path).experiments["main"], 0)

    few = found("random", 8).trained(8, 2)
    assert mean(found("tpe").trained(24, 2)) > 1.05 * mean(found("random").trained(24, 2))
    assert pstdev(map(log, few)) < 0.15, "five of eight come to their end in each play"


@pytest.mark.parametrize("pruner", ["asha", "hyperband", "median", "forecast"])
def test_trials_that_all_run_side_by_side_are_not_pruned_and_more_slots_are_never_slower(tmp_path, pruner):
    search = {"metric": "loss", "goal": "min", "pruner": pruner}
    keys = {"search": search, "parameters": {"lr": {"range": "0-1"}}, "samples": 8}
    (path := tmp_path / "recipe.yaml").write_text(
        json.dumps({"name": "job", "experiments": {"main": {"command": "true", "steps": 640, **keys}}})
    )
    found = workload_of(read_recipe(path).experiments["main"], 0)
    assert mean(found.trained(8, 8)) == pytest.approx(1.0, abs=0.05)
    last = [mean(found.trained(8, n)) * 8 / n for n in (1, 2, 4)]
    assert last == sorted(last, reverse=True), "more slots are never slower"
    assert last[0] < 8
    assert last[2] > 1.0, "four begin together, and have nothing to be compared with"
    assert mean(found.trained(800, 400)) > 0.5, "nor have 400"


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
    seen = EarlierTrials((1.0, 1.0, 0.2, 0.1), 2)
    unseen, once = (workload_of(experiment, 0, earlier_trials=[seen] * n).trained(4, 2) for n in (0, 1))
    assert pstdev(map(log, unseen)) > pstdev(map(log, once)) > 0.01


def test_what_a_checkpoint_has_done_is_not_counted_once_an_attempt_has_shown_it(tmp_path):
    def experiment(**keys):
        main = {"command": "train", "steps": 400, "checkpoint": {"every": "1m", "from": "line-1/main/0@3"}}
        path = tmp_path / "recipe.yaml"
        path.write_text(json.dumps({"name": "job", "experiments": {"main": main | keys}}))
        return read_recipe(path).experiments["main"]

    def attempt(at):
        return Measurement(Point(Strategy.ALLREDUCE, 1, step_time_s=0.02), begun_at=at)

    again = [attempt(280), attempt(350)]  # the second one went on from a checkpoint of its own
    assert begun_at(experiment(), again) == 280
    assert begun_at(experiment(), []) == begun_at(experiment(), [attempt(0), *again]) == 0
    assert begun_at(experiment(checkpoint={"every": "1m"}), again) == 0
    target = {"target": {"metric": "loss", "at_most": 0.1}}
    assert begun_at(experiment(**target), again) == 0, "a target may be reached at any step"
    assert begun_at(experiment(steps=280), again) == 0, "it makes 280 more"
    assert workload_of(experiment(), 0).begun(280).lengths[1].steps == 120
    assert workload_of(experiment(), 0).begun(500).lengths[1].steps == 1


def test_another_checkpoint_has_done_another_number_of_steps():
    measured = Measurement(
        Point(Strategy.ALLREDUCE, 1, step_time_s=0.02), begun_at=280, numbers={"steps": 400.0, BEGUN: 1.0}
    )
    assert as_long(measured, {"steps": 800.0, BEGUN: 1.0}).begun_at == 280
    assert as_long(measured, {"steps": 400.0, BEGUN: 2.0}).begun_at == 0
    assert as_long(measured, {"steps": 400.0}).begun_at == 0


@pytest.mark.parametrize(
    ("keys", "seen", "steps"),
    [
        ({}, [{}], 800),
        ({}, [], None),
        ({"steps": 50}, [{}], 50),
        ({}, [{}, {"said_steps": 900}], None),
        ({}, [{"duration_s": 9.0, "steps_done": 400}, {}], None),
        ({}, [{"duration_s": 9.0, "steps_done": 780}], 800),
        ({}, [{"duration_s": 9.0, "steps_done": 200, "begun_at": 600}], 800),
        ({"distributed": {"workers": 2}}, [{}], None),
        ({"distributed": {"workers": 2}}, [{"workers": 2}], 800),
        ({"distributed": {"workers": 3}}, [{}, {"workers": 2}], 800),
        ({"distributed": {"workers": 3}}, [{}, {"workers": 2, "said_steps": 400}], 267),
        ({"distributed": {"workers": 4}}, [{}, {"workers": 3, "said_steps": 267}], 200),
        ({"distributed": {"workers": 3}}, [{}, {"workers": 2, "said_steps": 700}], None),
        ({"distributed": {"workers": 3}}, [{"duration_s": 9.0, "steps_done": 9}, {"workers": 2}], None),
        ({"parameters": {"lr": [0.1, 0.2]}}, [{}], 800),
        ({"parameters": {"epochs": [1, 2]}}, [{}], None),
    ],
)
def test_a_script_says_how_long_it_is_where_the_recipe_does_not(tmp_path, keys, seen, steps):
    path = tmp_path / "recipe.yaml"
    if "distributed" in keys:
        keys = {"distributed": {"strategy": "allreduce", **keys["distributed"]}}
    path.write_text(json.dumps({"name": "job", "experiments": {"main": {"command": "train", **keys}}}))

    def attempt(workers=1, **values):
        return Measurement(
            Point(Strategy.ALLREDUCE, workers, step_time_s=0.02), **{"said_steps": 800, **values}
        )

    experiment = read_recipe(path).experiments["main"]
    assert with_length(experiment, [attempt(**each) for each in seen]).steps == steps
