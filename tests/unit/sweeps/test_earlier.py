"""A search goes on with the trials of an earlier one, or says what keeps it from that."""

from __future__ import annotations

import math

import pytest

from trainmaster.spec import Experiment, Parameter, Search
from trainmaster.sweeps import Curve, Trial, TrialState, make_sampler
from trainmaster.sweeps.earlier import from_json, mistakes, to_json

LR = Parameter(range=("0.001", "0.1"), sampling="log")
DEPTH = Parameter(values=(18, 34, 50))
ACT = Parameter(values=("relu", "gelu"))


def of(parameters, samples=20, sampler="tpe", goes_on="r-1/e", **search):
    found = Search(metric="loss", goal="min", sampler=sampler, goes_on=goes_on, **search)
    return Experiment(name="e", command="true", parameters=parameters, samples=samples, search=found)


def trials(*parameters):
    return [
        Trial(number, found, TrialState.COMPLETE, 0.5, Curve([(3, 0.5)]))
        for number, found in enumerate(parameters)
    ]


def wrong(experiment, before, *tried, seed=0):
    return [(path, str(error)) for path, error in mistakes(experiment, seed, before, 0, trials(*tried))]


TRIED = {"lr": 0.01, "depth": 34}


@pytest.mark.parametrize(
    ("parameters", "key", "said"),
    [
        ({"lr": LR, "depth": DEPTH}, None, ""),
        ({"lr": Parameter(range=("0.0001", "1")), "depth": DEPTH}, None, "a wider one"),
        ({"lr": LR, "depth": Parameter(range=("16", "66"), step="2")}, None, "a range that has it"),
        ({"lr": Parameter(range=("0.05", "0.1")), "depth": DEPTH}, "lr", "0.01, as task 0 had"),
        ({"lr": LR, "depth": Parameter(values=(18, 50))}, "depth", "34, as task 0 had"),
        ({"lr": LR, "depth": Parameter(values=("34", "50"))}, "depth", "34, as task 0 had"),
        ({"lr": LR, "depth": DEPTH, "act": ACT}, "act", "had no such parameter"),
        ({"lr": LR}, None, "other values of depth"),
    ],
)
def test_what_was_tried_must_be_in_the_space_of_now(parameters, key, said):
    found = wrong(of(parameters), of({"lr": LR, "depth": DEPTH}), TRIED)
    if key is None and "other values" not in said:
        assert found == []
        return
    ((path, message),) = found
    assert path == (("parameters",) if key is None else ("parameters", key))
    assert said in message


@pytest.mark.parametrize(
    ("now", "before", "key"),
    [
        ({"metric": "accuracy"}, {}, ("search", "metric")),
        ({"best": "min"}, {}, ("search", "best")),
        ({"best": "min"}, {"best": "min"}, None),
    ],
)
def test_values_must_mean_the_same(now, before, key):
    found = of({"lr": LR})
    found = found.model_copy(update={"search": found.search.model_copy(update=now)})
    tried = [Trial(0, {"lr": 0.01}, TrialState.COMPLETE, None if "metric" in now else 0.5)]
    paths = [path for path, _ in mistakes(found, 0, of({"lr": LR}, goes_on=None, **before), 0, tried)]
    assert paths == ([] if key is None else [key])


@pytest.mark.parametrize(
    ("now", "seed", "key", "said"),
    [
        (of({"d": DEPTH, "act": ACT}, 2, "random"), 0, None, ""),
        (
            of({"d": DEPTH, "act": ACT}, 3, "grid"),
            0,
            ("samples",),
            "of 6 combinations 4 were tried",
        ),
        (of({"d": DEPTH, "act": ACT}, 2, "random"), 1, ("search", "sampler"), "with seed 1 what"),
        (
            of({"d": DEPTH, "act": ACT}, 2, "qmc"),
            0,
            ("search", "sampler"),
            "cannot know which tasks random",
        ),
        (of({"d": DEPTH, "act": ACT}, None, "grid"), 0, ("samples",), "the earlier tasks had samples"),
        (
            of({"d": DEPTH, "act": Parameter(values=("relu", "gelu", "elu"))}, 2, "random"),
            0,
            ("parameters", "act"),
            "could draw earlier tasks again",
        ),
    ],
    ids=["same", "too-many", "seed", "sampler", "product", "space"],
)
def test_what_is_drawn_beforehand_repeats_nothing(now, seed, key, said):
    before = of({"d": DEPTH, "act": ACT}, 4, "random", goes_on=None)
    tried = [before.tasks(0).parameters(number) for number in range(4)]
    found = wrong(now, before, *tried, seed=seed)
    if key is not None:
        ((path, message),) = found
        assert path == key
        assert said in message
        return
    assert found == []
    search = now.search.model_copy(update={"goes_on": "r-1/e@4"})
    tasks = now.model_copy(update={"search": search}).tasks(0)
    drawn = [*tried, *(tasks.parameters(number) for number in range(2))]
    assert len({tuple(each.values()) for each in drawn}) == 6


@pytest.mark.parametrize(("sampler", "instead"), [("tpe", "tpe"), ("cmaes", "cmaes, or tpe")])
def test_a_sampler_that_fits_is_named_once(sampler, instead):
    before = of({"lr": LR}, 4, sampler, goes_on=None)
    ((path, message),) = wrong(of({"lr": LR}, 4, "random"), before)
    assert path == ("search", "sampler")
    assert message.endswith(f"\nWrite sampler: {instead}.")


def test_the_rest_of_a_whole_product_is_what_was_not_begun():
    before = of({"d": DEPTH, "act": ACT}, None, "grid", goes_on=None)
    rest = of({"d": DEPTH, "act": ACT}, None, "grid", goes_on="r-1/e@4")
    assert list(rest.tasks(0)) == list(before.tasks(0))[4:]
    assert wrong(rest, before, *list(before.tasks(0))[:4]) == []
    ((path, message),) = wrong(rest, before, *before.tasks(0))
    assert (path, "all 6 combinations were tried" in message) == (("search", "from"), True)


def test_a_space_of_low_discrepancy_goes_on_where_it_was():
    whole = make_sampler(of({"lr": LR}, 8, "qmc", goes_on=None), 0)
    rest = make_sampler(of({"lr": LR}, 4, "qmc", goes_on="r-1/e@4"), 0)
    assert [rest.ask([], number) for number in range(4, 8)] == [whole.ask([], n) for n in range(4, 8)]


def test_what_is_kept_of_trials_comes_back():
    kept = [
        *trials({"x": 1, "on": True, "act": "relu"}),
        Trial(1, {"x": 2.0}, TrialState.FAILED),
        Trial(2, {"x": 3}, TrialState.COMPLETE, math.nan),
    ]
    back = from_json(to_json(kept))
    assert back[:2] == tuple(kept[:2])
    assert back[2].has_value
    assert math.isnan(back[2].value or 0.0)
