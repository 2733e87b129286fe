"""Recipes of keys that were drawn, ended and killed at any moment: `resume` brings each of them to its end.

Each seed crosses what has tests of its own: graphs, grids and searches, gangs, failures with and without
retries, checkpoints, bounds, data of other experiments, and what a person or a crash does meanwhile.
"""

from __future__ import annotations

import random
import signal
import time
from typing import Any

import pytest
from any_recipe import JOB, check_models, check_order, recipe

MOMENTS = ("", "killed", "killed", "interrupted", "cancelled")


def stop(tm: Any, call: Any, run: str, moment: str) -> None:
    """What happens to a run meanwhile, and then it is over or undriven."""
    if moment == "killed":
        call.kill()
    elif moment == "interrupted":
        call.send(signal.SIGINT)
        call.wait()
    elif moment == "cancelled":
        tm.call("cancel", run)
        call.wait()


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.crossings) for seed in range(2, 40))]
)
def test_any_recipe_comes_to_its_end(tm, seed):
    chance = random.Random(seed)
    content = recipe(chance)
    tm.write("job.py", JOB)
    call = tm.start("run", tm.recipe(content))
    run = call.run_id()
    for moment in chance.choices(MOMENTS, k=2):
        time.sleep(chance.uniform(0.05, 2.5))
        stop(tm, call, run, moment)
        if call.over:
            call = tm.start("resume", run)
    call.wait()
    while (found := tm.status(run))["reason"] != "SUCCEEDED":  # what failed once has no more retries
        assert found["reason"] in ("USER_ERROR", "CANCELLED"), found
        before = found["experiments"]
        tm.call("resume", run, code=None)
        assert tm.status(run)["experiments"] != before, "nothing has changed by a `resume`"
    check_models(content, found)
    check_order(content, tm.marks("begun"), tm.marks("ended"))
    tm.until_quiet()
