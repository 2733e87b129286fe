import random

import pytest

from trainmaster.spec import Parameter
from trainmaster.sweeps import Goal, SearchSpace, Trial, TrialState
from trainmaster.sweeps.importance import importance

PARAMETERS = {
    "x": Parameter(range=("0", "1")),
    "k": Parameter(values=("a", "b", "c"), texts=("a", "b", "c")),
    "idle": Parameter(range=("0", "1")),
    "one": Parameter(values=(1,), texts=("1",)),
}


def trials(count, objective, state=TrialState.COMPLETE):
    space = SearchSpace(PARAMETERS, count, 0)
    return [Trial(n, space.draw(n), state, objective(space.draw(n))) for n in range(count)], space


@pytest.mark.parametrize("count", [16, 120])
@pytest.mark.parametrize("goal", Goal)
def test_what_matters_comes_first(count, goal):
    if count > 20:
        pytest.importorskip("optuna")
    found, space = trials(count, lambda p: p["x"] + 0.001 * random.Random(str(p)).random())
    measure, shares = importance(found, space, goal)
    assert measure == ("PED-ANOVA" if count > 20 else "rank correlation")
    assert max(shares, key=shares.get) == "x"
    assert sum(shares.values()) == pytest.approx(1)
    assert "one" not in shares


def test_choices_matter_too():
    found, space = trials(18, lambda p: {"a": 3, "b": 1, "c": 2}[p["k"]] + 0.01 * p["x"])
    assert importance(found, space, Goal.MAX)[1]["k"] > 0.5


def test_too_few_or_all_the_same_tell_nothing():
    found, space = trials(3, lambda p: p["x"])
    assert importance(found, space, Goal.MAX) == ("too few finished tasks", {})
    found, space = trials(30, lambda p: 1.0)
    assert importance(found, space, Goal.MAX) == ("too few finished tasks", {})
    found, space = trials(30, lambda p: p["x"], TrialState.PRUNED)
    assert importance(found, space, Goal.MAX) == ("too few finished tasks", {})
    found, space = trials(30, lambda p: float("nan"))
    assert importance(found, space, Goal.MAX) == ("too few finished tasks", {})
