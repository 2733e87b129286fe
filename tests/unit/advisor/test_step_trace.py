"""Step times out of observations: whatever a script shows, and however coarsely, the right time comes out."""

from __future__ import annotations

import math
import random
import sys
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from trainmaster.advisor.model.intervals import MOST
from trainmaster.advisor.model.step_trace import StepTrace


class Job(NamedTuple):
    """What a synthetic script does; seconds."""

    step_s: float = 0.1
    steps: int = 400
    noise: float = 0.0
    startup_s: float = 3.0
    warm_steps: int = 0
    warm_factor: float = 1.0
    epoch_steps: int = 0
    pause_s: float = 0.0
    every: int = 1
    look_s: float = 0.0
    labels: bool = False
    first_number: int = 1
    seed: int = 0


def rows(job: Job) -> list[tuple[float, float, float | None]]:
    """(time, step, epoch) at which each report is written."""
    chance = random.Random(job.seed)
    now, found = job.startup_s - job.step_s, []
    for done in range(1, job.steps + 1):
        factor = job.warm_factor if done <= job.warm_steps else 1.0
        now += job.step_s * factor * math.exp(chance.gauss(0, job.noise))
        if done % job.every == 0:
            epoch = (done - 1) // job.epoch_steps if job.epoch_steps and job.labels else None
            found.append((now, done - 1 + job.first_number, epoch))
        if job.epoch_steps and done % job.epoch_steps == 0:
            now += job.pause_s
    return found


def seen(job: Job) -> list[tuple[float, float, float | None]]:
    """The same as it is seen by looking every so often."""
    if not job.look_s:
        return rows(job)
    return [(math.ceil(at / job.look_s) * job.look_s, step, epoch) for at, step, epoch in rows(job)]


def traced(job: Job, **keys: float) -> StepTrace:
    trace = StepTrace(job.look_s, **keys)
    for at, step, epoch in seen(job):
        trace.add(at, step, None, epoch)
    return trace


JOBS = st.builds(
    Job,
    step_s=st.floats(0.002, 5.0),
    steps=st.integers(200, 600),
    noise=st.floats(0.0, 0.3),
    startup_s=st.floats(6.0, 60.0),
    warm_steps=st.integers(0, 60),
    warm_factor=st.sampled_from([0.5, 1.0, 3.0, 10.0]),
    epoch_steps=st.sampled_from([0, 37, 50]),
    pause_s=st.floats(0.0, 30.0),
    every=st.sampled_from([1, 3, 10]),
    look_s=st.sampled_from([0.0, 0.02, 0.5]),
    labels=st.just(True),
    first_number=st.sampled_from([0, 1]),
    seed=st.integers(0, 1000),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(JOBS)
def test_the_step_time_is_found(job):
    found = traced(job).steady()
    total_s = job.steps * job.step_s
    if found is None:
        assert total_s <= 2 * job.look_s + job.startup_s  # over before somebody looked twice
        return
    assert found.p10_s <= found.step_time_s <= found.p90_s
    mean_s = job.step_s * math.exp(job.noise**2 / 2)
    grain_s = max(job.look_s, job.every * job.step_s)
    if (job.epoch_steps and job.epoch_steps * job.step_s < 8 * grain_s) or total_s <= 40 * grain_s:
        return  # nobody can look into its epochs
    warm_s = job.warm_steps * job.step_s * job.warm_factor
    if warm_s > 0.4 * (total_s - job.warm_steps * job.step_s):
        return  # mostly warm-up
    sampling = 4 * job.noise / math.sqrt(max(1.0, found.steps / 2))
    assert found.step_time_s == pytest.approx(mean_s, rel=0.06 + sampling + 4 * job.look_s / found.seconds)


@settings(max_examples=60, deadline=None)
@given(JOBS, st.integers(0, 2**32))
def test_how_it_is_cut_changes_nothing(job, seed):
    chance = random.Random(seed)
    whole, looked_at = StepTrace(job.look_s), StepTrace(job.look_s)
    for at, step, epoch in seen(job):
        whole.add(at, step, None, epoch)
        looked_at.add(at, step, None, epoch)
        if chance.random() < 0.05:
            looked_at.steady()
            looked_at.is_tight()
    assert whole.steady() == looked_at.steady()
    assert whole.startup_s(0.0) == looked_at.startup_s(0.0)


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 50), st.integers(), st.floats(), st.text(max_size=3)
)


@given(
    st.lists(st.tuples(st.one_of(st.floats(), st.floats(0, 100)), ANYTHING, ANYTHING, ANYTHING), max_size=60),
    st.floats(),
    st.floats(),
)
@example([(0.0, 10**400, None, None), (1e308, 1, 5, 5), (-1e308, 2, 6, 6)], 0.0, math.nan)
def test_it_never_raises(told, per_epoch, per_step):
    trace = StepTrace(0.02, per_epoch, per_step)
    for at, step, examples, epoch in told:
        trace.add(at, step, examples, epoch)
        found = trace.steady()
        if found is not None:
            assert found.step_time_s > 0
            assert found.warmup_s >= 0
        trace.is_tight()
    assert trace.startup_s(0.0) >= 0
    assert trace.tail_s(0.0) >= 0


@pytest.mark.parametrize("factor", [2.0, 8.0])
def test_warm_up_is_dropped_and_told(factor):
    trace = traced(Job(noise=0.05, warm_steps=40, warm_factor=factor, seed=3))
    found = trace.steady()
    assert found.step_time_s == pytest.approx(0.1, rel=0.03)
    # the first of them belongs to the start
    assert found.warmup_s == pytest.approx(39 * 0.1 * (factor - 1), rel=0.1)
    assert 30 <= trace.steps - found.steps <= 60


def test_a_first_step_that_compiles_belongs_to_the_start():
    trace = StepTrace()
    for step in range(1, 60):
        trace.add(20.0 + 0.1 * step, step)
    assert trace.startup_s(5.0) == pytest.approx(15.1)
    assert trace.steady().warmup_s == pytest.approx(0.0, abs=1e-9)


def test_one_slow_step_in_the_middle_is_no_warm_up():
    trace = StepTrace()
    for step in range(1, 101):
        trace.add(0.1 * step + (4.0 if step > 45 else 0.0), step)
    found = trace.steady()
    assert (trace.steps - found.steps, found.step_time_s) == (0, pytest.approx(0.1, rel=0.01))
    assert found.mean_s == pytest.approx(0.1 + 4.0 / 99)


@pytest.mark.parametrize(("labels", "first_number"), [(True, 0), (True, 1), (False, 0), (False, 1)])
@pytest.mark.parametrize("every", [1, 5])
def test_pauses_at_epochs_ends(labels, first_number, every):
    job = Job(noise=0.05, epoch_steps=50, pause_s=2.5, labels=labels, first_number=first_number, every=every)
    found = traced(job, steps_per_epoch=50.0).steady()
    assert found.step_time_s == pytest.approx(0.1, rel=0.02)
    assert found.pause_s == pytest.approx(2.5, rel=0.05)


def test_without_an_epoch_no_pause_is_known():
    assert traced(Job()).steady().pause_s is None
    assert traced(Job(epoch_steps=50, labels=True)).steady().pause_s == pytest.approx(0.0, abs=0.01)


def test_an_epochs_summary_after_its_validation():
    """Steps without an epoch, and a row of its own when an epoch is over."""
    trace, now = StepTrace(), 0.0
    for epoch in range(4):
        for step in range(30):
            now += 0.2
            trace.add(now, epoch * 30 + step + 1)
        now += 5.0
        trace.add(now, None, None, epoch)
    found = trace.steady()
    assert found.step_time_s == pytest.approx(0.2)
    assert found.pause_s == pytest.approx(5.0)


@pytest.mark.parametrize("first_number", [0, 1])
def test_steps_that_each_epoch_numbers_anew(first_number):
    trace, now = StepTrace(), 0.0
    for epoch in range(5):
        for step in range(20):
            now += 0.2
            trace.add(now, step + first_number, None, epoch)
        now += 3.0
    found = trace.steady()
    assert trace.steps == 99
    assert found.step_time_s == pytest.approx(0.2)
    assert found.pause_s == pytest.approx(3.0)


def test_bars_that_begin_anew_without_an_epoch():
    trace, now = StepTrace(), 0.0
    for _ in range(6):
        for step in range(1, 21):
            now += 0.2
            trace.add(now, step)
        now += 3.0
    found = trace.steady()
    assert trace.steps > 60
    assert found.step_time_s == pytest.approx(0.2)
    assert found.pause_s == pytest.approx(3.0)


def test_a_restart_begins_a_new_trace():
    trace = StepTrace()
    for step in range(1, 101):
        trace.add(float(step), step)
    for step in range(50, 101):
        trace.add(200.0 + 0.1 * step, step)
    assert trace.steps == 50
    assert trace.first_at == 205.0
    assert trace.steady().step_time_s == pytest.approx(0.1)


@pytest.mark.parametrize(("step_s", "noise", "knows"), [(0.2, 0.0, True), (0.2, 4.0, False)])
def test_an_attempt_that_is_followed_from_step_500_on_tells_its_startup_where_its_steps_are_even(
    step_s, noise, knows
):
    trace, began = StepTrace(), 10.0
    trace.add(began + 8.0 + 500 * step_s, 500)
    trace.restart(began + 8.0 + 500 * step_s, is_own=True)
    for step in range(501, 601):
        trace.add(began + 8.0 + step * step_s + noise * (step // 10 % 3), step)
    assert trace.knows_start(began) is knows
    assert trace.steps_done == 600
    if knows:
        assert trace.startup_s(began) == pytest.approx(8.0 + step_s)


def test_an_attempt_that_goes_on_from_a_checkpoint_and_is_followed_later_does_not_tell_its_startup():
    trace = StepTrace()
    trace.add(100.0, 500)
    trace.restart(100.0)
    for step in range(501, 601):
        trace.add(100.0 + 0.2 * (step - 500), step)
    assert not trace.knows_start(10.0)


def test_only_epochs_are_printed():
    trace = StepTrace(steps_per_epoch=100)
    for epoch in range(1, 9):
        trace.add(5.0 + 12.0 * epoch, None, None, epoch)
    found = trace.steady()
    assert found.step_time_s == pytest.approx(0.12)
    assert found.pause_s == 0.0  # it is in the steps
    assert trace.startup_s(0.0) == pytest.approx(5.0 + 0.12)


def test_what_it_counts_is_known():
    for rows, known, unit in (
        ([{"epoch": 1}], {}, "epoch"),
        ([{"epoch": 1}], {"steps_per_epoch": 20}, "step"),
        ([{"epoch": 1}, {"step": 30, "epoch": 2}], {}, "step"),
        ([{"examples": 64, "epoch": 1}], {"examples_per_step": 32}, "step"),
    ):
        trace = StepTrace(**known)
        for at, row in enumerate(rows):
            trace.add(float(at), **row)
        assert trace.unit == unit


def test_only_examples_are_counted():
    trace = StepTrace(examples_per_step=64)
    for look in range(1, 50):
        trace.add(0.5 * look, None, 640 * look)
    found = trace.steady()
    assert found.step_time_s == pytest.approx(0.05)
    assert found.examples_per_step == pytest.approx(64)


def test_examples_beside_steps_tell_the_batch():
    trace = StepTrace()
    for step in range(1, 30):
        trace.add(0.5 * step, step, 32 * step)
    assert trace.steady().examples_per_step == pytest.approx(32)


def test_parts_of_epochs_beside_steps_end_none():
    """Hugging Face's Trainer says ``'epoch': 0.09`` now and then, and steps between."""
    trace = StepTrace()
    for step in range(1, 251):
        trace.add(0.1 * step + 2.0 * (step > 100) + 2.0 * (step > 200), step)
        if step % 10 == 0:
            trace.add(0.1 * step + 2.0 * (step > 100) + 2.0 * (step > 200), epoch=step / 100)
    steady = trace.steady()
    assert steady.step_time_s == pytest.approx(0.1)
    assert steady.pause_s == pytest.approx(2.0)


def test_steps_are_finer_than_epochs_seen_before():
    trace = StepTrace(steps_per_epoch=10)
    trace.add(1.0, None, None, 0)
    for step in range(1, 40):
        trace.add(2.0 + 0.3 * step, step, None, step // 10)
    assert trace.steady().step_time_s == pytest.approx(0.3)


def test_first_steps_that_were_not_shown():
    trace = StepTrace()
    for step in range(100, 1001, 100):
        trace.add(7.0 + 0.1 * step, step)
    assert trace.startup_s(0.0) == pytest.approx(7.1)
    assert trace.steps_done == 1000


def test_who_goes_on_from_a_checkpoint_has_not_made_all_those_steps_here():
    trace = StepTrace()
    for step in range(5001, 5101):
        trace.add(9.0 + 0.1 * (step - 5000), step)
    assert trace.startup_s(0.0) == pytest.approx(9.1)
    assert trace.steps_done == 100


def test_tail():
    assert traced(Job(startup_s=3.0, steps=11)).tail_s(6.5) == pytest.approx(2.5)


def test_how_many_steps_at_a_moment():
    trace = StepTrace()
    assert trace.steps_at(5.0) == 0
    for step in range(10, 51, 10):
        trace.add(float(step), step)
    assert [trace.steps_at(at) for at in (0.0, 10.0, 15.0, 50.0, 99.0)] == [0, 0, 5, 40, 40]


class TestTightness:
    def until_tight(self, job: Job) -> tuple[float, StepTrace]:
        trace = StepTrace(job.look_s)
        for at, step, epoch in seen(job):
            trace.add(at, step, None, epoch)
            if trace.is_tight():
                return at, trace
        return math.inf, trace

    def test_regular_steps_are_enough_soon(self):
        at, trace = self.until_tight(Job(noise=0.02, look_s=0.02))
        assert at < 9.5
        assert trace.steady().step_time_s == pytest.approx(0.1, rel=0.03)

    def test_not_before_there_are_enough_of_them(self):
        at, _ = self.until_tight(Job(step_s=0.005, steps=2000))
        assert at >= 3.0 + 5.0
        at, _ = self.until_tight(Job(step_s=1.0))
        assert at >= 3.0 + 20.0

    def test_noise_takes_longer(self):
        quiet, _ = self.until_tight(Job(noise=0.05, steps=4000))
        noisy, _ = self.until_tight(Job(noise=0.6, steps=4000))
        assert quiet < noisy < math.inf

    def test_who_becomes_ever_slower_is_never_steady(self):
        trace, now = StepTrace(), 0.0
        for step in range(1, 300):
            now += 0.1 * (1 + step / 100)
            trace.add(now, step)
            assert not trace.is_tight()

    def test_the_interval_holds_the_truth(self):
        held = tried = 0
        for seed in range(200):
            chance, trace, now, slow = random.Random(seed), StepTrace(), 0.0, 0.0
            for step in range(1, 400):
                slow = 0.8 * slow + 0.6 * chance.gauss(0, 0.1)  # neighbours are alike
                now += 0.1 * (1 + slow)
                trace.add(now, step)
            found = trace.steady()
            tried += 1
            held += abs(found.step_time_s - 0.1) <= found.half_width_s
        assert 0.88 <= held / tried <= 1.0


def test_memory_is_bounded_and_nothing_is_lost_by_it():
    trace = StepTrace()
    for step in range(1, 40 * MOST):
        trace.add(0.1 * step + 2.0 * (step // 1000), step, None, step // 1000)
    kept = trace._intervals.all()
    assert len(kept) <= 2 * MOST
    assert sys.getsizeof(kept) < 100_000
    found = trace.steady()
    assert found.step_time_s == pytest.approx(0.1)
    assert found.pause_s == pytest.approx(2.0)


def test_memory_is_bounded_where_every_interval_ends_an_epoch():
    trace = StepTrace()
    for step in range(1, 10 * MOST):
        trace.add(0.1 * step, step, None, step)
    assert len(trace._intervals.all()) <= 2 * MOST
    assert trace.steady().step_time_s == pytest.approx(0.1)


def test_the_mean_of_steps_in_bursts_is_known_better_than_their_median():
    """A volume comes in large parts over a network: most steps wait for nothing, and some for all others."""
    trace, at, long = StepTrace(0.5), 1000.0, {3: 10.0, 9: 5.0, 16: 3.3}
    for step in range(1, 21):
        at += long.get(step, 0.02)
        trace.add(at, step)
    found = trace.steady()
    assert found is not None
    by_mean = found.by_mean()
    assert found.step_time_s == pytest.approx(0.02)
    assert by_mean.step_time_s == pytest.approx(18.62 / 19, rel=0.01)
    assert by_mean.half_width_s == pytest.approx(1.96 * found.mean_error * found.mean_s)
    assert 0.4 < found.mean_error <= 1
    assert abs(found.drift) > 10 > by_mean.drift == 0


def test_steps_that_are_regular_stay_what_they_are():
    found = traced(Job(noise=0.2)).steady()
    assert found is not None
    assert found.by_mean() is found
