import math
import tracemalloc
from collections import Counter
from decimal import Decimal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainmaster.spec.parameter import Parameter
from trainmaster.spec.task_space import Permutation, TaskSpace, Uniforms

INSIDE = """
experiments:
  mnist:
    framework: pytorch
    parameters:
      lr: {range: 0.1-0.3, sampling: uniform}
      samples: 1000
    workers: 100
    hardware: {gpu: k80}
    command:
      - python train.py --lr {{lr}}
"""
BESIDE = INSIDE.replace("  samples: 1000", "samples: 1000")


def space(
    *counts: int, samples: int | None = None, seed: int = 0, continuous: int = 0, **options
) -> TaskSpace:
    parameters = {
        f"d{at}": Parameter(values=tuple(range(count)), texts=tuple(map(str, range(count))))
        for at, count in enumerate(counts)
    }
    parameters |= {f"c{at}": Parameter(range=("0.1", "0.3")) for at in range(continuous)}
    return TaskSpace(parameters, samples, seed, **options)


def test_both_readings_of_figure_1_are_the_same(read):
    inside, beside = (read(text).experiments["mnist"] for text in (INSIDE, BESIDE))
    assert inside == beside
    assert (inside.samples, inside.workers, inside.hardware.gpu, inside.launcher) == (
        1000,
        100,
        "k80",
        "torchrun",
    )
    values = [task["lr"] for task in inside.tasks(0)]
    assert len(values) == len(set(values)) == 1000
    assert all(0.1 <= value <= 0.3 for value in values)
    assert list(inside.tasks(0)) == list(beside.tasks(0))
    assert inside.script({"lr": 0.25}) == "python train.py --lr 0.25"


def test_the_whole_product_runs_in_order_with_the_last_fastest():
    assert list(space(2, 3)) == [{"d0": a, "d1": b} for a in range(2) for b in range(3)]
    assert list(space()) == [{}]


def test_repetitions_without_parameters():
    assert list(space(samples=3)) == [{}, {}, {}]


def test_nothing_is_known_where_a_sampler_chooses():
    assert list(space(3, samples=4, chosen_later=True)) == [None] * 4


@pytest.mark.parametrize("index", [-1, 6])
def test_no_such_task(index):
    with pytest.raises(IndexError):
        space(2, 3).parameters(index)


@given(st.lists(st.integers(1, 7), max_size=4), st.integers(1, 400), st.integers())
def test_every_combination_appears_equally_often(counts, samples, seed):
    k = math.prod(counts)
    found = Counter(tuple(task.values()) for task in space(*counts, samples=samples, seed=seed))
    assert set(found.values()) <= {samples // k, -(-samples // k)}
    assert len(found) == min(samples, k)


@given(st.integers(1, 10**18), st.integers(), st.integers(0, 10**9))
def test_an_order_is_one_to_one(size, seed, number):
    order = Permutation(size, seed, number)
    some = range(min(size, 50))
    found = [order[index] for index in some]
    assert len(set(found)) == len(found)
    assert all(0 <= value < size for value in found)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 1000])
def test_an_order_has_all(size):
    assert sorted(Permutation(size, 1, 2)[index] for index in range(size)) == list(range(size))


def test_orders_look_random():
    """Each of the 6 orders of 3 things, and each of 10 things at each place, comes up about equally often."""
    orders = Counter(tuple(Permutation(3, 0, number)[index] for index in range(3)) for number in range(6000))
    assert len(orders) == 6
    assert all(850 < count < 1150 for count in orders.values())
    places = Counter(
        (index, Permutation(10, 0, number)[index]) for number in range(3000) for index in range(10)
    )
    assert all(230 < places[index, value] < 370 for index in range(10) for value in range(10))


def test_uniforms_are_uniform_and_addressed():
    numbers = Uniforms(0, "lr")
    found = [numbers[index] for index in range(10_000)]
    assert all(0 <= number <= 1 for number in found)
    assert all(900 < count < 1100 for count in Counter(int(number * 10) for number in found).values())
    assert numbers[77] == found[77]
    assert Uniforms(0, "momentum")[0] != found[0] != Uniforms(1, "lr")[0]


@given(st.integers(), st.integers(1, 60))
def test_random_access_equals_iteration_and_a_seed_is_all_that_matters(seed, samples):
    tasks = list(space(3, 4, samples=samples, seed=seed, continuous=2))
    again = space(3, 4, samples=samples, seed=seed, continuous=2)
    assert [again.parameters(index) for index in reversed(range(samples))] == tasks[::-1]
    assert list(space(3, 4, samples=samples + 9, seed=seed, continuous=2))[:samples] == tasks
    assert list(space(3, 4, samples=samples, seed=seed + 1, continuous=2)) != tasks


def test_discrete_and_continuous_are_paired_at_random():
    """The same combination meets other draws each time, and draws do not follow the combinations' order."""
    tasks = list(space(2, samples=2000, continuous=1))
    means = [sum(task["c0"] for task in tasks if task["d0"] == value) / 1000 for value in (0, 1)]
    assert all(abs(mean - 0.2) < 0.01 for mean in means)


FINITE = st.decimals(-(10**6), 10**6, allow_nan=False, places=4)


@given(FINITE, FINITE, st.floats(0, 1))
def test_draws_lie_in_their_range(low, high, uniform):
    assume(low < high)
    drawn = Parameter(range=(str(low), str(high))).draw(uniform)
    assert float(low) <= drawn <= float(high)
    if low > 0:
        assert (
            float(low) <= Parameter(range=(str(low), str(high)), sampling="log").draw(uniform) <= float(high)
        )


def test_ends_are_included():
    for sampling in ("uniform", "log"):
        parameter = Parameter(range=("1e-4", "1e-2"), sampling=sampling)
        assert (parameter.draw(0.0), parameter.draw(1.0)) == pytest.approx((1e-4, 1e-2), rel=1e-12)
    assert Parameter(range=("1e-4", "1e-2"), sampling="log").draw(0.5) == pytest.approx(1e-3)


@given(FINITE, st.decimals("0.0001", 1000, places=4), st.integers(1, 200))
def test_steps_are_exact(low, step, count):
    parameter = Parameter(range=(str(low), str(low + step * count)), step=str(step))
    assert parameter.count == count + 1
    for index in range(count + 1):
        value = parameter.value(index)
        assert Decimal(repr(value)) == low + step * index or isinstance(value, int)


@pytest.mark.parametrize(
    ("ends", "step", "texts"),
    [
        ("[0, 3]", "1", ["0", "1", "2", "3"]),
        ("0-0.5", "0.1", ["0.0", "0.1", "0.2", "0.3", "0.4", "0.5"]),
        ("-1--0.5", "0.25", ["-1.0", "-0.75", "-0.5"]),
        ("-2-2", "2", ["-2", "0", "2"]),
        ("+1-+3", "+1", ["1", "2", "3"]),
        ("1e2-1e3", "300", ["100", "400", "700", "1000"]),
        ("1e-4-3e-4", "1e-4", ["0.0001", "0.0002", "0.0003"]),
        ("0-1", "0.3", ["0.0", "0.3", "0.6", "0.9"]),
        ("[0x10, 0o21]", "1", ["16", "17"]),
        (".5-1.", ".5", ["0.5", "1.0"]),
        ("10000000000000000-10000000000000002", "1", [str(10**16), str(10**16 + 1), str(10**16 + 2)]),
    ],
)
def test_ranges_in_steps(read, ends, step, texts):
    recipe = read(
        f"experiments: {{a: {{command: 'x {{{{p}}}}', parameters: {{p: {{range: {ends}, step: {step}}}}}}}}}"
    )
    experiment = recipe.experiments["a"]
    assert [experiment.script(task)[2:] for task in experiment.tasks(0)] == texts


@pytest.mark.parametrize(
    ("ends", "bounds"),
    [
        ("0.1-0.3", (0.1, 0.3)),
        ("1e-4-1e-2", (1e-4, 1e-2)),
        ("-1--0.5", (-1, -0.5)),
        ("-1e+2-1E-2", (-100, 0.01)),
        ("[-1, 2]", (-1, 2)),
        ("'1 - 2'", (1, 2)),
        ("-.5-.5", (-0.5, 0.5)),
        ("1-2", (1, 2)),
    ],
)
def test_continuous_ranges(read, ends, bounds):
    recipe = read(f"experiments: {{a: {{command: x, samples: 50, parameters: {{p: {{range: {ends}}}}}}}}}")
    parameter = recipe.experiments["a"].parameters["p"]
    assert parameter.is_continuous
    assert parameter.bounds == bounds
    assert all(bounds[0] <= task["p"] <= bounds[1] for task in recipe.experiments["a"].tasks(0))


def test_values_print_as_they_are_written(read):
    listed = "[3.10, 1e3, 007, 0x1F, True, 'a b', '3.10']"
    recipe = read(f"experiments: {{a: {{command: 'x {{{{p}}}}', parameters: {{p: {listed}}}}}}}")
    experiment = recipe.experiments["a"]
    assert [task["p"] for task in experiment.tasks(0)] == [3.1, 1000.0, 7, 31, True, "a b", "3.10"]
    written = [experiment.script(task)[2:] for task in experiment.tasks(0)]
    assert written == ["3.10", "1e3", "007", "0x1F", "True", "'a b'", "3.10"]
    assert experiment.environment({"p": 3.1}) == {"TRAINMASTER_PARAM_P": "3.10"}
    assert experiment.script({"p": 0.5}) == "x 0.5"


def test_a_million_tasks_need_no_memory():
    for tasks in (space(10, 10, samples=1_000_000, continuous=1), space(1000, 1000)):
        for index in range(2000):
            tasks.parameters(index)
        tracemalloc.start()
        for index in range(0, len(tasks), 400):
            tasks.parameters(index)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(tasks) == 1_000_000
        assert peak < 200_000
