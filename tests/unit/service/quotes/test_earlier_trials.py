"""Trials of the very same sweep come as far as they came before."""

import json
from statistics import mean
from types import SimpleNamespace

import pytest

from trainmaster.service.quotes import earlier_trials
from trainmaster.service.quotes.earlier_trials import EarlierTrials, trials_of_earlier_runs
from trainmaster.service.quotes.worker_counts import workload_of
from trainmaster.spec import read_recipe
from trainmaster.spec.errors import NotFoundError
from trainmaster.spec.states import EndReason

SHARES = (1.0, 1.0, 0.1, 0.05)


@pytest.fixture
def sweep(tmp_path):
    def read(seed=0, lr="0.01-0.5", pruner="asha"):
        search = {"metric": "loss", "goal": "min", "pruner": pruner}
        keys = {"search": search, "parameters": {"lr": {"range": lr}}, "samples": 4, "steps": 80}
        path = tmp_path / "recipe.yaml"
        main = {"command": "train {{steps}} {{lr}}", **keys}
        path.write_text(json.dumps({"name": "job", "seed": seed, "experiments": {"main": main}}))
        return read_recipe(path)

    return read


@pytest.fixture
def past(monkeypatch):
    """A database that knows runs, and what their trials made."""
    runs, tasks = {}, {}

    def run_row(run):
        if run not in runs:
            raise NotFoundError(run, "it was removed")
        return runs[run]

    def add(run, recipe, shares=SHARES, reason=EndReason.SUCCEEDED):
        runs[run] = {"id": run, "reason": reason, "recipe": recipe.model_dump_json()}
        tasks[run] = [
            {
                "experiment": "main",
                "end_reason": EndReason.SUCCEEDED if share == 1.0 else "PRUNED",
                "metrics": json.dumps({"step": 80 * share}),
                "started_at": 10.0 + max(number - 1, 0),
                "ended_at": 11.0 + (len(shares) if number == 0 else number - 1),
            }
            for number, share in enumerate(shares)
        ]

    monkeypatch.setattr(earlier_trials.queries, "tasks", lambda _, run, limit: tasks[run])
    return SimpleNamespace(add=add, database=SimpleNamespace(run_row=run_row))


def test_the_very_same_sweep_that_succeeded_counts(sweep, past):
    past.add("same", sweep())
    past.add("seed", sweep(seed=1))
    past.add("other", sweep(lr="0.1-0.2"))
    past.add("failed", sweep(), reason="FAILED")
    past.add("cut", sweep(), shares=(1.0, 0.5))
    runs = ["same", "same", None, "seed", "other", "failed", "cut", "removed"]
    assert trials_of_earlier_runs(past.database, sweep(), "main", runs) == (EarlierTrials(SHARES, 2),)
    assert trials_of_earlier_runs(past.database, sweep(seed=1), "main", runs) == (EarlierTrials(SHARES, 2),)
    assert trials_of_earlier_runs(past.database, sweep(seed=2), "main", runs) == ()


def test_what_was_seen_of_a_sweep_outweighs_play_the_more_the_oftener(sweep):
    alone, once, often = (
        workload_of(
            sweep().experiments["main"], 0, earlier_trials=[EarlierTrials((1.0, 1.0, 1.0, 1.0), 2)] * n
        )
        for n in (0, 1, 4)
    )
    assert mean(alone.trained(4, 2)) < mean(once.trained(4, 2)) < mean(often.trained(4, 2))
    assert mean(often.trained(4, 2)) == pytest.approx(1.0, abs=0.05)
    assert often.trained(4, 1) == alone.trained(4, 1), "one after the other more of them are compared"
    whole = sum(play == (1.0, 1.0, 1.0, 1.0) for play in often.simulated_shares)
    assert whole / len(often.simulated_shares) > 0.9
