"""Priors that learn from jobs before."""

import numpy as np

from trainmaster.advisor.model.experience import Experience
from trainmaster.advisor.model.measurement import Point
from trainmaster.advisor.model.priors import INDEX, shipped
from trainmaster.advisor.model.steptime import StepTimeModel
from trainmaster.spec import Strategy


def job(compute, network, workers=(1, 2, 4, 8)):
    """A job on machines whose network takes so long per exchange."""
    return [
        Point(Strategy.ALLREDUCE, n, nodes=n, local_batch=32, step_time_s=compute + network * 2 * (n - 1) / n)
        for n in workers
    ]


def spread(model, n):
    found = model.predict([Point(Strategy.ALLREDUCE, n, nodes=n, local_batch=32)])
    return float(found.typical[0]), (float(found.low[0]), float(found.high[0]))


def test_jobs_on_a_slow_network_teach_the_next_one():
    network = 0.3
    experience = Experience.of([job(0.2 * k, network) for k in (1.0, 1.5, 0.8, 1.2, 0.9, 1.1)])
    alone = job(0.22, network, workers=(1,))
    before, _ = spread(StepTimeModel.fit(alone), 4)
    after, (low, high) = spread(StepTimeModel.fit(alone, experience=experience), 4)
    truth = 0.22 + network * 1.5
    assert abs(np.log(after / truth)) < abs(np.log(before / truth))
    assert low < truth < high


def test_nothing_learnt_changes_nothing():
    assert Experience.of([]) is None
    one = job(0.2, 0.01)
    assert spread(StepTimeModel.fit(one), 16) == spread(StepTimeModel.fit(one, experience=None), 16)


def test_what_a_job_says_nothing_about_stays():
    experience = Experience.of([job(0.2, 0.05), job(0.3, 0.05)])
    assert experience.jobs == 2
    assert experience.priors(1) is not experience.priors(0)
    assert all((a.rows == b.rows).all() for a, b in zip(experience.priors(1), shipped(1), strict=True))
    (learnt,), (before,) = experience.priors(0), shipped(0)
    inside = INDEX[0]["rho_in"] - 1  # no node had two workers
    assert abs(learnt.rows[0, inside] - before.rows[0, inside]) < 0.15


def test_a_job_does_not_learn_from_itself():
    rows = [*job(0.2, 0.3), *job(0.3, 0.3)]
    one = Experience.of([rows[:4], rows[4:]]).without("1").priors(0)[0]
    alone = Experience.of([rows[:4]]).priors(0)[0]
    assert np.allclose(one.rows, alone.rows, atol=0.1)
    assert Experience.of([rows[:4]]).without("0").priors(0)[0].rows is not alone.rows


def test_own_points_outweigh_history():
    """A job that was measured well is predicted as before, whatever others were like."""
    experience = Experience.of([job(0.2, 0.5) for _ in range(5)])
    own = job(0.2, 0.01)
    plain, _ = spread(StepTimeModel.fit(own), 8)
    learnt, _ = spread(StepTimeModel.fit(own, experience=experience), 8)
    assert abs(np.log(learnt / plain)) < 0.05
