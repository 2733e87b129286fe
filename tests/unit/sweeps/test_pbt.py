import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.spec import Parameter
from trainmaster.sweeps import Goal, SearchSpace, Trial, TrialState, sampler_class
from trainmaster.sweeps.pbt import perturbed
from trainmaster.sweeps.space import Axis

PARAMETERS = {
    "lr": Parameter(range=("0.001", "1")),
    "batch": Parameter(values=(16, 32, 64, 128), texts=("16", "32", "64", "128")),
    "act": Parameter(values=("relu", "gelu"), texts=("relu", "gelu")),
}


def sampler(population=4, generations=3, goal=Goal.MAX, seed=0):
    options = {"population": str(population), "generations": str(generations)}
    return sampler_class("pbt")(SearchSpace(PARAMETERS, population * generations, seed), goal, options)


def generation(values, first=0, found=None):
    found = found or sampler(len(values))
    trials = []
    for at, value in enumerate(values):
        state = TrialState.FAILED if value is None else TrialState.COMPLETE
        trials.append(Trial(first + at, found.space.draw(at), state, value))
    return trials


def test_the_first_generation_is_random_and_fresh():
    found = sampler()
    for number in range(4):
        suggestion = found.ask([], number)
        assert suggestion.parent is None
        assert suggestion.parameters == found.space.draw(number)


def test_it_waits_for_the_whole_generation():
    history = generation([1, 2, 3, 4])
    history[2] = Trial(2, history[2].parameters)
    assert sampler().ask(history, 4) is None
    assert sampler().ask([*history, *generation([1], 4)], 5) is None


def test_the_worst_quarter_copies_the_best_and_the_others_go_on():
    history = generation([0.4, 0.1, 0.9, 0.5])
    found = [sampler().ask(history, 4 + member) for member in range(4)]
    assert [suggestion.parent for suggestion in found] == [0, 2, 2, 3]
    for member in (0, 2, 3):
        assert found[member].parameters == history[member].parameters
    assert found[1].parameters != history[1].parameters


def test_the_goal_turns_it_round_and_ties_go_to_the_lower_number():
    history = generation([0.4, 0.1, 0.9, 0.5])
    assert [sampler(goal=Goal.MIN).ask(history, 4 + m).parent for m in range(4)] == [0, 1, 1, 3]
    history = generation([0.5] * 4)
    assert [sampler().ask(history, 4 + m).parent for m in range(4)] == [0, 1, 2, 0]


def test_who_failed_or_diverged_copies_too():
    history = generation([None, float("nan"), 0.9, 0.5])
    assert [sampler().ask(history, 4 + m).parent for m in range(4)] == [2, 2, 2, 3]
    history = generation([None, None, 0.9, None])
    assert [sampler().ask(history, 4 + m).parent for m in range(4)] == [2, 2, 2, 2]
    assert sampler().ask(generation([None] * 4), 4).parent is None


def test_one_member_just_trains_on():
    assert sampler(population=1).ask(generation([0.1]), 1).parent == 0


@pytest.mark.parametrize("population", [2, 3, 4, 8, 16])
def test_how_many_copy(population):
    history = generation([float(value) for value in range(population)])
    parents = [sampler(population).ask(history, population + m).parent for m in range(population)]
    quarter = max(1, population // 4)
    assert sum(parent != member for member, parent in enumerate(parents)) == quarter
    assert all(parent >= population - quarter for parent in parents[:quarter])


@given(st.sampled_from(list(PARAMETERS)), st.integers(), st.floats(0, 1))
def test_a_perturbed_value_is_a_value(name, seed, unit):
    axis = Axis(name, PARAMETERS[name])
    value = axis.at_unit(unit)
    other = perturbed(axis, value, random.Random(seed))
    if axis.parameter.is_continuous:
        assert 0.001 <= other <= 1
    else:
        assert other in axis.parameter.values


def test_perturbed_by_a_fifth_or_one_place():
    rng = random.Random(0)
    lr, batch, act = (Axis(name, parameter) for name, parameter in PARAMETERS.items())
    found = [round(perturbed(lr, 0.5, rng), 9) for _ in range(1000)]
    assert 300 < found.count(0.4) < 450
    assert 300 < found.count(0.6) < 450
    near = [perturbed(batch, 32, rng) for _ in range(1000)]
    assert near.count(16) > 350
    assert near.count(64) > 350
    assert sum(perturbed(act, "relu", rng) == "relu" for _ in range(1000)) > 750
