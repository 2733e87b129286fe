import importlib.util
import math
import statistics
import subprocess
import sys
from importlib import metadata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.spec import Parameter, Sampling, TaskSpace
from trainmaster.spec.errors import MissingPartError, UsageError
from trainmaster.sweeps import Goal, SearchSpace, Trial, TrialState, sampler_class
from trainmaster.sweeps.space import Axis, AxisKind

XY = {"x": Parameter(range=("-5", "5")), "y": Parameter(range=("-5", "5"))}


def listed(*values):
    return Parameter(values=values, texts=tuple(map(str, values)))


def minimise(name, objective, samples, seed, parameters=XY, options=None):
    sampler = sampler_class(name)(SearchSpace(parameters, samples, seed), Goal.MIN, options or {})
    history = []
    for number in range(samples):
        values = sampler.ask(history, number).parameters
        history.append(Trial(number, values, TrialState.COMPLETE, objective(values)))
    return min(trial.value for trial in history)


def bowl(values):
    return (values["x"] - 1.3) ** 2 + (values["y"] + 2.1) ** 2


@pytest.mark.parametrize("name", ["tpe", "cmaes"])
def test_those_that_learn_beat_random_search_on_average(name):
    seeds = range(8)
    learnt = statistics.fmean(minimise(name, bowl, 60, seed) for seed in seeds)
    random = statistics.fmean(minimise("random", bowl, 60, seed) for seed in seeds)
    assert learnt < random / 2


def test_random_and_grid_are_the_tasks_without_a_search():
    parameters = {**XY, "k": listed("a", "b")}
    space = TaskSpace(parameters, 9, 4)
    for name in ("random", "grid"):
        sampler = sampler_class(name)(SearchSpace(parameters, 9, 4), Goal.MAX, {})
        assert [sampler.ask([], n).parameters for n in range(9)] == list(space)
        assert not sampler.looks_back


@pytest.mark.parametrize("seed", range(5))
def test_quasi_random_points_fill_each_axis_evenly(seed):
    sampler = sampler_class("qmc")(SearchSpace(XY, 64, seed), Goal.MIN, {})
    points = [sampler.ask([], n).parameters for n in range(64)]
    cells = {math.floor((point["x"] + 5) / 10 * 64) for point in points}
    assert len(cells) == 64, "base 2: one in each 64th"
    thirds = [math.floor((point["y"] + 5) / 10 * 9) for point in points[:63]]
    assert all(thirds.count(cell) == 7 for cell in range(9)), "base 3: seven in each 9th"


def test_nan_counts_as_worst():
    """Half of the space diverges: the model must learn to keep away from it."""

    def diverges(values):
        return math.nan if values["x"] > 0 else (values["x"] + 2) ** 2 + values["y"] ** 2

    sampler = sampler_class("tpe")(SearchSpace(XY, 60, 0), Goal.MIN, {})
    history = []
    for number in range(60):
        values = sampler.ask(history, number).parameters
        history.append(Trial(number, values, TrialState.COMPLETE, diverges(values)))
    assert sum(trial.parameters["x"] > 0 for trial in history[30:]) <= 6


def test_parallel_trials_keep_away_from_each_other():
    history = [
        Trial(n, {"x": x, "y": 0.0}, TrialState.COMPLETE, x * x)
        for n, x in enumerate([-4.0, -2.0, -0.5, 0.5, 2.0, 4.0, 3.0, -3.0, 1.0, -1.0])
    ]
    sampler = sampler_class("tpe")(SearchSpace(XY, 100, 0), Goal.MIN, {})
    asked = []
    for number in range(10, 18):
        values = sampler.ask(history, number).parameters
        asked.append((values["x"], values["y"]))
        history.append(Trial(number, values))
    assert len(set(asked)) == 8


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tpe", {"startup": "none"}, "startup"),
        ("tpe", {"startup": "0"}, "at least 1"),
        ("cmaes", {"population": "2"}, "at least 3"),
        ("pbt", {"population": "x"}, "whole number"),
    ],
)
def test_a_bad_option_is_named(name, options, message):
    with pytest.raises(UsageError, match=message):
        sampler_class(name)(SearchSpace(XY, 10, 0), Goal.MIN, options)


def test_cmaes_needs_numbers():
    with pytest.raises(UsageError, match="tpe"):
        sampler_class("cmaes")(SearchSpace({"k": listed("a", "b"), "x": XY["x"]}, 9, 0), Goal.MIN, {})


def test_an_unknown_sampler_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"(?s)no sampler 'tpf'.*tpe.*cmaes, grid, pbt, qmc, random, tpe"):
        sampler_class("tpf")


@pytest.mark.parametrize(("name", "module"), [("tpe", "optuna"), ("cmaes", "cmaes")])
def test_a_missing_library_is_named_with_what_to_install(monkeypatch, name, module):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == module else real(n, *a))
    with pytest.raises(MissingPartError, match=rf"(?s){module}.*trainmaster\[sweep\]"):
        sampler_class(name)(SearchSpace(XY, 10, 0), Goal.MIN, {})


def test_a_plug_in_is_found_by_its_name(monkeypatch):
    point = metadata.EntryPoint("mine", "trainmaster.sweeps.fixed:RandomSampler", "trainmaster.samplers")
    broken = metadata.EntryPoint("broken", "trainmaster.nowhere:Sampler", "trainmaster.samplers")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point, broken] * (group == point.group))
    assert sampler_class("mine").name == "random"
    with pytest.raises(MissingPartError, match="cannot be loaded"):
        sampler_class("broken")
    with pytest.raises(UsageError, match="mine"):
        sampler_class("yours")


def test_nothing_heavy_is_imported_with_the_package():
    code = (
        "import sys, trainmaster.sweeps as s; s.sampler_class('tpe'); s.sampler_class('cmaes');"
        "s.pruner_class('asha'); assert not {'optuna', 'cmaes', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.tuples(NUMBERS, NUMBERS).filter(lambda ends: ends[0] < ends[1]), st.floats(0, 1))
def test_a_continuous_axis_and_its_unit(ends, unit):
    axis = Axis("x", Parameter(range=(repr(ends[0]), repr(ends[1]))))
    value = axis.at_unit(unit)
    assert ends[0] <= value <= ends[1]
    assert math.isclose(axis.unit(value), unit, abs_tol=1e-3) or (ends[1] - ends[0]) < 1e-6


@given(st.floats(-9, -1), st.floats(0, 9), st.floats(0, 1))
def test_a_log_axis_and_its_unit(low, high, unit):
    axis = Axis("x", Parameter(range=(repr(10**low), repr(10**high)), sampling=Sampling.LOG))
    assert math.isclose(axis.unit(axis.at_unit(unit)), unit, abs_tol=1e-6)


@given(st.integers(-50, 50), st.integers(1, 200), st.integers(1, 9))
def test_an_ordered_axis_and_its_positions(start, count, step):
    if count == 1:
        return
    axis = Axis("x", Parameter(range=(str(start), str(start + step * (count - 1))), step=str(step)))
    assert axis.kind is AxisKind.ORDERED
    for at in (0, count // 2, count - 1):
        value = axis.value(at)
        assert axis.position(value) == at
        assert axis.at_unit(axis.unit(value)) == value


def test_kinds_of_lists():
    kinds = [
        ((16, 32, 64), AxisKind.ORDERED),
        ((3.0, 2, 1), AxisKind.ORDERED),
        ((1, 2), AxisKind.CHOICE),
        ((1, 3, 2), AxisKind.CHOICE),
        ((1, 2, "3"), AxisKind.CHOICE),
        ((True, False, True), AxisKind.CHOICE),
        ((7,), AxisKind.CONSTANT),
    ]
    for values, kind in kinds:
        assert Axis("x", listed(*values)).kind is kind, values


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["tpe", "cmaes"]), st.data())
def test_any_table_gives_one_answer(seed, name, data):
    space = SearchSpace(XY, 40, seed)
    count = data.draw(st.integers(0, 30))
    values = st.one_of(st.floats(-10, 10), st.sampled_from([math.nan, math.inf]))
    history = [
        Trial(
            n,
            space.draw(n),
            state := data.draw(st.sampled_from(TrialState)),
            None if state is TrialState.FAILED else data.draw(values),
        )
        for n in range(count)
    ]
    make = sampler_class(name)
    known = make(space, Goal.MAX, {})
    for number in sorted({count // 3, count // 2, count}):
        assert known.ask(history[:number], number) == make(space, Goal.MAX, {}).ask(history[:number], number)
