"""Tasks of a sweep whose parameters differ take more or less: by a guess first, then by what was seen."""

from dataclasses import replace

import numpy as np
import pytest
from quote_world import own_machine, training

from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.measurement import Measurement
from trainmaster.advisor.model.task_numbers import task_numbers
from trainmaster.advisor.quote.choosing import QuoteLimits
from trainmaster.advisor.quote.forecast import ExperimentProgress, RunningTask, remaining_s
from trainmaster.advisor.quote.quoting import make_quote
from trainmaster.advisor.quote.supply import own_cluster, own_timing
from trainmaster.advisor.quote.task_sizes import TaskSizes
from trainmaster.spec import read_recipe

DEPTHS = [task_numbers({"depth": depth, "lr": 0.1}) for depth in (1, 2, 4, 8)]
NORMAL = np.random.default_rng(0).standard_normal((384, 1))


def seen(depth, seconds):
    return Measurement(point=None, duration_s=seconds, of_task=task_numbers({"depth": depth, "lr": 0.1}))


def spans(sizes):
    return np.quantile(sizes.factors, [0.05, 0.5, 0.95], axis=1).T


def test_before_others_were_seen_a_size_may_do_nothing_or_take_its_share():
    sizes = TaskSizes.of(DEPTHS, [seen(1, 10.0)], NORMAL)
    assert spans(sizes)[0] == pytest.approx([1, 1, 1])
    low, middle, high = spans(sizes)[3]
    assert low < 1.05 < middle < 8 < 8**1.3 < high, "twice as wide a layer computes up to four times as much"
    assert sizes.note().startswith("tasks differ in depth, and one was measured")


def test_before_others_were_seen_a_choice_may_be_twice_as_slow():
    """Of 20 other cells, kernels, optimizers and activations four took over 1.7 times as long, or a third."""
    tasks = [task_numbers({"kernel": kernel}) for kernel in ("linear", "rbf")]
    measured = [Measurement(point=None, duration_s=10.0, of_task=tasks[0])]
    low, middle, high = spans(TaskSizes.of(tasks, measured, NORMAL))[1]
    assert low < 0.5
    assert middle == pytest.approx(1, abs=0.1)
    assert high > 2


def test_tasks_that_have_ended_tell_those_that_wait():
    sizes = TaskSizes.of(DEPTHS, [seen(1, 10.0), seen(2, 20.0), seen(4, 40.0)], NORMAL)
    low, middle, high = spans(sizes)[3] * 20  # the middle of what was seen
    assert low < 80 < high
    assert middle == pytest.approx(80, rel=0.15)
    assert "learnt from 3 of them" in sizes.note()


@pytest.mark.parametrize("name", ["lr", "seed", "shard"])
def test_rates_seeds_and_shards_are_no_sizes(name):
    tasks = [task_numbers({name: value}) for value in ((0.1, 0.5) if name == "lr" else (1, 8))]
    measured = [Measurement(point=None, duration_s=10.0, of_task=tasks[0])]
    assert TaskSizes.of(tasks, measured, NORMAL).note() == ""


def test_tasks_are_alike_where_it_is_not_known_of_which_one_was_measured():
    assert not TaskSizes.of(DEPTHS, [replace(seen(1, 10.0), of_task=None)], NORMAL).names


def test_the_longest_task_at_the_end_is_waited_for():
    sizes = TaskSizes(np.array([[1.0], [1.0], [1.0], [9.0]]), ("depth",))
    assert sizes.over(np.array([1.0, 2.0, 4.0])).ravel() == pytest.approx([12 / 4, 10 / 2, 9.0])


def sweep(measured_of=(0,)):
    asked = training(most=1, tasks=4, sizes=tuple(DEPTHS))
    points = tuple(
        replace(each, of_task=DEPTHS[i]) for i in measured_of for each in asked.knowledge.measurements
    )
    return replace(asked, knowledge=replace(asked.knowledge, measurements=points))


def test_the_quote_of_such_a_sweep_is_wider_and_says_why():
    alike = replace(sweep(), workload=replace(sweep().workload, sizes=()))
    quote, plain = (make_quote([each], own_machine(), QuoteLimits()).main for each in (sweep(), alike))
    assert quote.time_s.p95 > 2 * plain.time_s.p95
    assert quote.time_s.p5 < 1.3 * plain.time_s.p50
    assert any("tasks differ in depth" in note for note in quote.notes)
    assert not any("tasks differ" in note for note in plain.notes)


def test_what_is_left_is_of_the_tasks_that_are_left():
    asked = sweep((0, 1, 2, 3))
    timing = own_timing(asked.workload, asked.knowledge, own_machine().catalogue, 1, 0)
    sizes = np.array([[1.0], [1.0], [1.0], [10.0]]) * np.ones((1, 384))
    object.__setattr__(timing, "sizes", TaskSizes(sizes, ("depth",)))
    one = own_cluster(timing, 1, 1, 1, 1)
    first = np.median(timing.training_s(one)) / (13 / 4)
    last = remaining_s(timing, one, ExperimentProgress(3, (RunningTask(1.0, 0.5, number=3),)))
    assert np.median(last) == pytest.approx(5 * first, rel=0.2)
    two = remaining_s(timing, one, ExperimentProgress(2, (RunningTask(1.0, 0.5, number=2),)))
    assert np.median(two) == pytest.approx(10.5 * first, rel=0.2)


def test_a_recipe_s_tasks_have_the_sizes_of_their_parameters(tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        "experiments:\n  train:\n    steps: 5\n    parameters: {depth: [1, 4], act: [relu, gelu]}\n"
        "    command: python train.py {{depth}} {{act}}\n"
    )
    experiment = read_recipe(tmp_path / "recipe.yaml").experiments["train"]
    assert [*map(sorted, Workload.of(experiment, 0).sizes)] == [
        ["act=relu", "depth"], ["act=gelu", "depth"], ["act=relu", "depth"], ["act=gelu", "depth"],
    ]  # fmt: skip
