"""What runs on this machine takes longer while its load is high: how much is learnt, and doubted."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.advisor.market.load import LoadCorrection, LoadEffect, mean_doubt
from trainmaster.advisor.market.phases import ClusterWait, PhaseHistory, PhaseSample, machines_belief
from trainmaster.advisor.model.knowledge import Knowledge
from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.spec import Strategy
from trainmaster.spec.log_normal import LogNormal

CORES = 2.0


def times(power, *loads):
    return [("job", load, 10.0 * (1 + load / CORES) ** power) for load in loads]


@pytest.mark.parametrize("power", [0.0, 0.8])
def test_what_was_seen_at_many_loads_says_how_times_follow_it(power):
    effect = LoadEffect.learnt(times(power, *[0.0, 2.0, 10.0, 20.0] * 8), CORES)
    assert effect.power == pytest.approx(power, abs=0.05)
    assert effect.doubt < LoadEffect().doubt / 3


def test_another_load_is_doubted_and_the_same_one_is_not():
    effect = LoadEffect()
    assert effect.shift(5.0, 5.0, CORES) == LoadCorrection(1.0, 0.0)
    later = effect.shift(0.0, 10.0, CORES)
    assert later.factor > 1.5
    assert later.doubt > 0.4


def test_a_load_that_nobody_knows_changes_nothing():
    assert LoadEffect.learnt([("job", None, 3.0)] * 9, CORES) == LoadEffect()
    assert LoadEffect().shift(None, 20.0, CORES) == LoadCorrection()


def test_what_only_waits_hardly_follows_the_load_and_is_surer_of_it():
    waits, computes = (LoadEffect.learnt([], CORES, busy) for busy in (0.0, 1.0))
    assert waits.power < 0.1 < computes.power
    assert waits.doubt < computes.doubt


def test_the_doubt_of_times_at_lower_and_at_higher_loads_cancels():
    effect = LoadEffect()
    both = [effect.shift(load, 4.0, CORES).doubt for load in (0.0, 16.0)]
    assert mean_doubt(both) < abs(both[0]) / 2
    assert mean_doubt([]) == 0.0


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.floats(0, 500), st.floats(0, 1e5)), max_size=20))
def test_any_history_gives_an_effect(seen):
    effect = LoadEffect.learnt(seen, CORES)
    shift = effect.shift(0.0, 50.0, CORES)
    assert math.isfinite(shift.factor)
    assert shift.factor > 0
    assert 0 < effect.doubt <= LoadEffect().doubt


def test_the_doubt_widens_waits_phases_and_starts():
    prior = LogNormal(15.0, 0.5)
    wait, phase, start = [], [], []
    for doubt in (0.0, 0.8):
        waited = [ClusterWait(10.0, "small", "lab", doubt=doubt)] * 9
        wait.append(machines_belief(prior, waited, "lab", "small").spread)
        seen = (PhaseSample(10.0, "lab:small", "a", doubt=doubt),) * 9
        phase.append(PhaseHistory("setup", "a", seen).belief("lab:small", stays=False).spread)
        point = Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=0.1)
        known = Knowledge.of([Measurement(point, startup_s=3.0, startup_doubt=doubt)] * 9, [], {}, {})
        assert known is not None
        start.append(known.startup_spread)
    for calm, doubted in (wait, phase, start):
        assert doubted == pytest.approx(math.hypot(calm, 0.8), abs=0.02)


def test_a_measurement_at_another_load_starts_and_steps_by_its_own_effects():
    point = Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=0.1)
    calm = Measurement(point, startup_s=4.0, warmup_s=1.0, duration_s=25.0)
    busy = calm.shifted(LoadCorrection(3.0, 0.5), LoadCorrection(2.0, 0.4))
    assert busy.point is not None
    assert (busy.startup_s, busy.warmup_s, busy.point.step_time_s) == (12.0, 3.0, 0.2)
    assert busy.duration_s == pytest.approx(3 * 5.0 + 2 * 20.0)
    assert (busy.work_doubt, busy.startup_doubt, busy.step_spread) == (0.4, 0.5, 0.0)
    assert calm.shifted(LoadCorrection(), LoadCorrection()) is calm
    assert "startup_doubt" not in busy.to_json()
    assert "work_doubt" not in busy.to_json()


def test_steps_that_were_seen_at_lower_and_at_higher_loads_are_doubted_less():
    point = Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=0.1)
    spreads = []
    for doubts in ((0.0, 0.0), (0.5, -0.5), (0.5, 0.5)):
        known = Knowledge.of([Measurement(point, work_doubt=doubt) for doubt in doubts], [], {}, {})
        assert known is not None
        spreads.append(known.extra_spread)
    assert spreads == pytest.approx([0.0, 0.0, 0.5])


def test_what_repeats_well_shows_sooner_that_the_load_does_nothing():
    def seen(spread):
        return [("a", load, 10.0 * math.exp(s)) for load in (0.0, 6.0) for s in (-spread, spread)] * 3

    steady, wild = (LoadEffect.learnt(seen(spread), CORES) for spread in (0.01, 0.6))
    assert steady.power < 0.03
    assert steady.doubt < 0.6 * wild.doubt
