"""How many steps a target takes: curves that came to it, that did not, and other batches, of known truth."""

import math
from dataclasses import replace

import numpy as np
import pytest

from trainmaster.advisor.model.measurement import ObservedCurve
from trainmaster.advisor.model.target_steps import TargetBelief, target_belief


def curve(*, until, batch=None, scale=1.0, is_run=True, every=10, seed=0):
    """Of a job that comes to .88 at step 1,147 x scale, with noise."""
    rng = np.random.default_rng(seed)
    steps = range(every, until + 1, every)
    values = [
        1 - 0.8 * (step / scale / 10) ** -0.4 * math.exp(0.01 * rng.standard_normal()) for step in steps
    ]
    return ObservedCurve("accuracy", tuple(zip(map(float, steps), values, strict=True)), batch, is_run)


def belief(*curves, aim=0.88, **more):
    found = target_belief(curves, "accuracy", aim, more_is_better=True, **more)
    assert found is not None
    return found


def quantiles(found: TargetBelief, batch=math.nan, tasks=1):
    return np.quantile(found.steps(np.array([batch]), tasks), (0.05, 0.5, 0.95), method="lower")


def test_runs_that_came_to_it_say_when_and_more_of_them_say_it_better():
    one, many = belief(curve(until=1500)), belief(*(curve(until=1500, seed=n) for n in range(8)))
    assert (one.curves, one.reached, many.curves, many.reached) == (1, 1, 8, 8)
    (early, middle, late), (sooner, about, later) = quantiles(one), quantiles(many)
    assert middle == pytest.approx(1100, rel=0.1)
    assert about == pytest.approx(1100, rel=0.1)
    assert later - sooner < late - early


def test_a_run_that_ended_before_says_not_before_its_last_step():
    early, middle, _ = quantiles(belief(curve(until=600)))
    assert early > 600 * 0.7  # another run may come to it somewhat sooner
    assert 800 < middle < 2000


def test_one_that_came_to_it_says_more_than_one_that_was_cut_short():
    told = quantiles(belief(curve(until=40), curve(until=1500)))
    assert told[1] == pytest.approx(1100, rel=0.2)


def test_measurements_count_where_there_is_no_run():
    minute, run = curve(until=300, is_run=False), curve(until=1500)
    assert belief(minute).is_measured
    assert not belief(minute, run).is_measured
    assert belief(minute, run).curves == 1


def test_other_versions_of_the_job_say_less_however_many_there_are():
    own = [curve(until=1500, seed=n) for n in range(8)]
    kin = belief(*(replace(each, is_kin=True) for each in own))
    (early, _, late), (sooner, about, later) = quantiles(belief(*own)), quantiles(kin)
    assert kin.is_kin
    assert about == pytest.approx(1100, rel=0.15)
    assert later / sooner > 2 * late / early


def test_never_is_an_answer():
    flat = ObservedCurve(
        "accuracy", tuple((float(s), 0.5 - 0.3 * 0.9 ** (s / 10)) for s in range(10, 1500, 10))
    )
    assert belief(flat, aim=0.9).never > 0.9


def test_nothing_seen_is_no_belief():
    assert target_belief([curve(until=300)], "loss", 0.1, more_is_better=False) is None
    assert target_belief([], "loss", 0.1, more_is_better=False) is None


def steps_of(batch, critical, least=100):
    return least * (1 + critical / batch)


def seen(batch, critical, seed=0, noise=0.03):
    """A curve of a job with a critical batch that comes to it at a step that follows."""
    scale = steps_of(batch, critical) / 1147 * math.exp(noise * np.random.default_rng(seed).standard_normal())
    until = int(2000 * scale)
    return curve(until=until, batch=batch, scale=scale, every=max(until // 150, 1), seed=seed)


@pytest.mark.parametrize("critical", [30.0, 500.0, 8000.0])
def test_runs_with_other_batches_tell_the_critical_batch(critical):
    found = belief(seen(64, critical), seen(256, critical, 1), seen(1024, critical, 2), batch=256.0)
    for batch in (64.0, 512.0, 2048.0):
        early, middle, late = quantiles(found, batch)
        assert early < steps_of(batch, critical) < late
        assert middle == pytest.approx(steps_of(batch, critical), rel=0.35)


def test_without_other_batches_it_is_a_doubt_that_grows_with_the_distance():
    found = belief(seen(256, 500), batch=256.0)
    widths = [late / early for early, _, late in (quantiles(found, b) for b in (256.0, 512.0, 4096.0))]
    assert widths[0] < widths[1] < widths[2]
    # never more steps with a larger batch, and never so few that examples would be saved
    factor = found.factor(np.array([512.0]))
    assert (factor <= 1).all()
    assert (factor >= 0.5).all()


def test_the_share_of_the_steps_is_all_of_them_at_most_and_that_of_many_tasks_is_their_mean():
    found = belief(curve(until=1500))
    steps, batch = np.array([500.0, 1200.0, 5000.0]), np.full(3, np.nan)
    share = found.share(steps, batch)
    assert (np.median(share[:, 0]), share.max()) == (1.0, 1.0)
    assert np.median(share[:, 2]) == pytest.approx(1100 / 5000, rel=0.1)
    many = found.share(steps, batch, tasks=16)
    assert many[:, 1].std() < share[:, 1].std()
    assert many[:, 1].mean() == pytest.approx(share[:, 1].mean(), rel=0.1)


def test_the_same_curves_give_the_same_digits():
    curves = [curve(until=1500), curve(until=300, seed=3)]
    assert (belief(*curves).log_steps == belief(*curves).log_steps).all()


def test_the_noise_of_gradients_tells_the_critical_batch_where_no_other_batch_was_seen():
    def critical(noise):
        one = seen(256, 500)
        found = belief(ObservedCurve(one.metric, one.points, one.batch, noise=noise), batch=256.0).critical
        return float(np.median(found[found > 0])), float((found == 0).mean())

    unknown, no_gain = critical(None)
    few, many = critical(16 / 256), critical(16_000 / 256)
    assert few[0] < unknown / 2 < unknown * 2 < many[0]
    assert few[1] == pytest.approx(no_gain, abs=0.1), "whether the script uses it is not known by that"


def test_what_was_known_before_narrows_the_forecast_of_a_run_unless_it_is_another_case():
    known = belief(*(curve(until=1500, seed=n) for n in range(4)))
    forecast = np.sort(np.append(np.exp(np.linspace(math.log(300), math.log(9000), 700)), [math.inf] * 100))
    narrow = known.weighed(forecast)
    assert np.quantile(narrow, 0.5, method="lower") == pytest.approx(1100, rel=0.15)
    assert np.quantile(narrow, 0.95, method="lower") < 2000
    late = np.sort(np.exp(np.linspace(math.log(20_000), math.log(90_000), 800)))
    assert (known.weighed(late) == late).all()
    not_reached = belief(curve(until=300))
    assert (not_reached.weighed(forecast) == forecast).all()
