"""Forecasts of what is under way."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quote_world import knowledge, measured, own_machine, workload

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.market.workload import Length
from trainmaster.advisor.model.measurement import Measurement
from trainmaster.advisor.quote.forecast import ExperimentProgress, RunningTask, forecast, remaining_s
from trainmaster.advisor.quote.timing import DRAWS, Timing
from trainmaster.spec.hardware import Hardware


def on_own_machine(found, *, tasks=1, steps=None, slots=2):
    work = workload("train", most=1, tasks=tasks, hardware=Hardware())
    work.lengths[1] = Length(steps, 1, 256 if steps else None)
    place = own_machine(slots)
    machines = Machines.of(place.catalogue.columns(), np.full(1, float(slots)))
    timing = Timing(work, knowledge(*found), machines, machines[:0], place.catalogue.offers, own_machine=True)
    candidates = Candidates.of(work, machines, machines[:0], slots)
    return timing, candidates[np.array([int(candidates.at_once.argmax())])]


def training(steps=1000):
    return on_own_machine([measured(1, 256, offer="local", tail_s=0.5)], steps=steps)


def tasks(total=8):
    return on_own_machine([Measurement(None, duration_s=d) for d in (9.9, 10, 10.1)], tasks=total)


def middle(draws):
    return float(np.median(draws))


def test_what_has_not_begun_takes_its_whole_time():
    timing, one = training()
    assert (remaining_s(timing, one, ExperimentProgress()) == timing.outcomes(one).time_s[:, 0]).all()


def test_half_of_the_steps_take_half_of_the_training():
    timing, one = training()
    whole = middle(timing.training_s(one))
    half = middle(remaining_s(timing, one, ExperimentProgress(running=(RunningTask(100, 0.5),))))
    assert half == pytest.approx(whole / 2 + 0.5, rel=0.03)


@settings(max_examples=40)
@given(st.floats(0.01, 0.98), st.floats(0.001, 0.5))
def test_more_done_leaves_less(share, more):
    timing, one = training()
    first = remaining_s(timing, one, ExperimentProgress(running=(RunningTask(10, share),)))
    then = remaining_s(timing, one, ExperimentProgress(running=(RunningTask(10, min(share + more, 1.0)),)))
    assert (then <= first + 1e-9).all()


def test_what_a_pruner_ends_is_not_waited_for():
    timing, one = training()
    shares = np.exp(0.3 * np.linspace(-2, 2, 33)) / 4
    few = replace(timing, workload=replace(timing.workload, trained=lambda *_: shares))
    whole, part = (middle(each.training_s(one)) for each in (timing, few))
    assert part == pytest.approx(whole / 4, rel=0.05)
    survivor = middle(remaining_s(few, one, ExperimentProgress(running=(RunningTask(100, 0.4),))))
    assert survivor == pytest.approx(0.4 * whole + 0.5, rel=0.05), "it comes as far again"
    at_end = middle(remaining_s(few, one, ExperimentProgress(running=(RunningTask(100, 0.9),))))
    assert at_end == pytest.approx(0.1 * whole + 0.5, rel=0.05)


def pruned(total, *plays):
    """A sweep of so many tasks of which a pruner lets those live that these plays say, two at once."""
    timing, one = on_own_machine([measured(1, 256, offer="local", tail_s=0.5)], steps=1000, tasks=total)
    share = float(np.mean(plays))
    work = replace(timing.workload, trained=lambda *_: [share], simulated_shares=plays)
    return replace(timing, workload=work), one, middle(timing.training_s(one))


def test_trials_that_begin_first_come_to_their_end_and_those_after_them_are_short():
    timing, one, whole = pruned(8, (1.0, 1.0, *[0.05] * 6))
    first = ExperimentProgress(running=(RunningTask(100, 0.3, number=0), RunningTask(100, 0.3, number=1)))
    each_once_s = middle(timing.task_s(one) - timing.training_s(one))
    assert middle(remaining_s(timing, one, first)) == pytest.approx(
        0.7 * whole + 3 * (0.05 * whole + each_once_s) + 0.25 * (0.05 * whole + each_once_s), rel=0.05
    )
    late = ExperimentProgress(
        ended=6, running=(RunningTask(100, 0.02, number=6), RunningTask(100, 0.3, number=7))
    )
    assert middle(remaining_s(timing, one, late)) == pytest.approx(0.3 * whole, rel=0.05), "as far again"


def test_a_long_trial_that_begins_last_is_waited_for():
    timing, one, whole = pruned(4, (1.0, 0.05, 0.05, 1.0))
    running = (RunningTask(100, 0.3, number=0), RunningTask(100, 0.02, number=1))
    once_s = middle(timing.task_s(one) - timing.training_s(one))
    expected = (0.03 + 0.05 + 1.0) * whole + 2 * once_s
    assert middle(remaining_s(timing, one, ExperimentProgress(running=running))) == pytest.approx(
        expected, rel=0.03
    )


def test_many_trials_keep_the_slots_busy_whatever_each_takes():
    timing, one, whole = pruned(20_000, (1.0, 1.0, 0.05, 0.15))
    once_s = middle(timing.task_s(one) - timing.training_s(one))
    # of the first half of the plays only the first two are meant, so nearly all take what the later half does
    expected = 20_000 / 2 * (0.1 * whole + once_s)
    running = (RunningTask(1, 0.1, number=0), RunningTask(1, 0.1, number=1))
    assert middle(remaining_s(timing, one, ExperimentProgress(running=running))) == pytest.approx(
        expected, rel=0.03
    )


def test_of_the_plays_of_a_pruner_those_count_that_let_a_trial_come_so_far():
    timing, one, whole = pruned(4, (1.0, 0.1, 0.1, 0.1), (0.1, 1.0, 0.4, 0.1))
    last = ExperimentProgress(ended=3, running=(RunningTask(100, 0.2, number=2),))
    assert middle(remaining_s(timing, one, last)) == pytest.approx(0.2 * whole + 0.5, rel=0.05)
    young = remaining_s(timing, one, ExperimentProgress(ended=3, running=(RunningTask(100, 0.05, number=2),)))
    assert np.percentile(young, 25) == pytest.approx(0.05 * whole + 0.5, rel=0.1)
    assert np.percentile(young, 75) == pytest.approx(0.35 * whole + 0.5, rel=0.1)


def test_of_many_trials_only_the_later_half_of_the_plays_stands_for_several():
    timing, one, whole = pruned(100, (1.0, 1.0, 0.1, 0.1))
    running = (RunningTask(1, 0.02, number=1), RunningTask(1, 0.02, number=50))
    assert middle(remaining_s(timing, one, ExperimentProgress(ended=98, running=running))) > 0.9 * whole
    late = (RunningTask(1, 0.02, number=2), RunningTask(1, 0.02, number=99))
    assert middle(remaining_s(timing, one, ExperimentProgress(ended=98, running=late))) < 0.2 * whole


def test_a_target_ends_a_task_where_its_curve_says():
    timing, one = training()
    whole = middle(timing.training_s(one))

    def left(*ends):
        return remaining_s(timing, one, ExperimentProgress(running=(RunningTask(100, 0.2, ends=ends),)))

    assert middle(left(0.5)) == pytest.approx(0.3 * whole + 0.5, rel=0.03)
    assert middle(left(1.0)) == pytest.approx(middle(left()), rel=0.03)
    both = left(0.4, 0.4, 0.8)
    assert np.percentile(both, 25) == pytest.approx(0.2 * whole, rel=0.1)
    assert np.percentile(both, 85) == pytest.approx(0.6 * whole, rel=0.1)
    assert middle(left(0.1)) > 0, "it goes on until it says so"


def test_tasks_without_steps_are_over_when_they_should_be():
    timing, one = tasks(total=1)
    left = remaining_s(timing, one, ExperimentProgress(running=(RunningTask(4.0),)))
    assert middle(left) == pytest.approx(6.0, abs=0.7)
    late = remaining_s(timing, one, ExperimentProgress(running=(RunningTask(40.0),)))
    assert 0 < middle(late) < 1


def test_waiting_tasks_share_the_slots():
    timing, one = tasks(total=8)
    running = (RunningTask(5.0), RunningTask(5.0))
    left = remaining_s(timing, one, ExperimentProgress(ended=2, running=running))
    assert middle(left) == pytest.approx((5 + 5 + 4 * 10) / 2 + 2.5, rel=0.1)
    assert middle(remaining_s(timing, one, ExperimentProgress(ended=6, running=running))) == pytest.approx(
        5, abs=0.7
    )


def test_a_generation_begins_when_all_before_it_are_over():
    """Three side by side on two slots: 20 s each, as the third has its turn alone; tasks that wait for nobody
    would fill the other slot."""
    timing, one = tasks(total=9)
    running = (RunningTask(5.0), RunningTask(5.0))
    doing = ExperimentProgress(ended=0, running=running)
    assert middle(remaining_s(timing, one, doing)) == pytest.approx(5 + 4 * 10, abs=2)
    timing = replace(timing, workload=replace(timing.workload, generation=3))
    assert middle(remaining_s(timing, one, doing)) == pytest.approx(15 + 2 * 20, abs=2)
    over = ExperimentProgress(ended=5, running=(RunningTask(5.0),))
    assert middle(remaining_s(timing, one, over)) == pytest.approx(5 + 20, abs=1.5)


def test_a_run_is_what_has_passed_and_the_critical_path_of_the_rest():
    left = {"a": np.full(DRAWS, 10.0), "b": np.full(DRAWS, 20.0), "c": np.full(DRAWS, 4.0)}
    time_s, cost = forecast(100.0, left, {"c": ["a"], "b": []}, 2.5)
    assert time_s.p50 == pytest.approx(120.5, abs=0.5)
    assert cost.p95 == 2.5
    over, _ = forecast(7.0, {}, {}, 0.0)
    assert 7.0 < over.p95 < 9.0


def test_a_run_ends_soon_after_its_last_task():
    time_s, _ = forecast(100.0, {}, {}, 0.0)
    assert 100.0 < time_s.p50 < 100.1
    assert time_s.p95 < 100.3


def test_one_start_says_less_of_the_next_than_many_do():
    def spread(many):
        return knowledge(*[replace(measured(1, 256), startup_s=10.0)] * many).startup_spread

    assert spread(1) > 0.35
    assert spread(16) < 0.6 * spread(1)
