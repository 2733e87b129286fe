"""Priors that learn from jobs before."""

import numpy as np

from trainmaster.advisor.model.experience import BETWEEN, Experience
from trainmaster.advisor.model.priors import INDEX
from trainmaster.advisor.model.profile import Point
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
    past = [StepTimeModel.fit(job(0.2 * k, network)).coordinates for k in (1.0, 1.5, 0.8, 1.2)]
    experience = Experience.of(past)
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
    experience = Experience.of([StepTimeModel.fit(job(0.2, 0.05)).coordinates])
    server = INDEX["server"]  # there was none
    assert experience.shift[server] == 0
    assert experience.width[server] == 1
    assert (experience.width >= BETWEEN).all()
    assert experience.jobs == 1


def test_own_points_outweigh_history():
    """A job that was measured well is predicted as before, whatever others were like."""
    experience = Experience.of([StepTimeModel.fit(job(0.2, 0.5)).coordinates for _ in range(5)])
    own = job(0.2, 0.01)
    plain, _ = spread(StepTimeModel.fit(own), 8)
    learnt, _ = spread(StepTimeModel.fit(own, experience=experience), 8)
    assert abs(np.log(learnt / plain)) < 0.05
