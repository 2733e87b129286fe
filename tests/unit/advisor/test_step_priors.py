"""What is believed of a job before it is measured."""

import numpy as np
import pytest

from trainmaster.advisor.model.measurement import Point
from trainmaster.advisor.model.priors import (
    ABSENT,
    NAMES,
    achieved_bytes_per_second,
    bounded,
    doubted,
    priors_of,
    shipped,
    shortest_s,
)
from trainmaster.advisor.model.shapes import Columns, MeasuredContext
from trainmaster.spec import Strategy


def mean(name, seconds, per_node=1, **known):
    """The prior's mean of one parameter of an all-reduce job."""
    columns = Columns.of([Point(Strategy.ALLREDUCE, per_node, nodes=1, local_batch=32, **known)])
    context, times = MeasuredContext.of(columns), np.array([seconds])
    (prior,) = priors_of(columns, times, context, shipped(0))
    return float(prior.rows[0, NAMES[0].index(name) - 1])


def test_communication_of_a_long_step_is_a_smaller_part_of_it():
    assert mean("rho_out", 0.1) > mean("rho_out", 1.0) > mean("rho_out", 100.0)
    # beyond two seconds it is long by its batch or accumulated gradients: they go with one over its length
    assert mean("rho_out", 100.0) - mean("rho_out", 10.0) == pytest.approx(-np.log(10), rel=0.1)


def test_accumulated_gradients_make_a_long_step_of_a_large_batch():
    """What is exchanged does not shrink with the batch that is left on each of many workers."""
    points = [
        Point(Strategy.ALLREDUCE, n, nodes=n, local_batch=4096 / n, step_time_s=8.0 / n) for n in (1, 4, 16)
    ]
    columns, times = Columns.of(points), np.array([p.step_time_s for p in points])
    assert shortest_s(columns, times) == pytest.approx(2.0)  # of the typical batch, 1024
    assert shortest_s(columns[:1], times[:1]) == 8.0


def test_a_known_network_says_how_long_gradients_take():
    known = {"nic_mbps": 10_000, "gradient_bytes": 100e6}
    expected = np.log(100e6 / achieved_bytes_per_second(10_000) / 0.2)
    assert mean("rho_out", 0.2, **known) == pytest.approx(expected)


@pytest.mark.parametrize("kind", range(3))
def test_tables_are_whole(kind):
    for prior in shipped(kind):
        assert prior.rows.shape == (4, len(NAMES[kind]) - 1)
        assert (prior.spread > 0).all()
        assert ((prior.absent >= 0) & (prior.absent < 1)).all()
        for grid in (prior.grid, doubted(prior.grid)):
            assert grid.sum() == pytest.approx(1)


def test_an_absent_term_costs_nothing_and_exponents_have_either_sign():
    names = NAMES[0][1:]
    theta = np.full((1, len(names)), -0.4)
    absent = np.array([[name in ("hop_in", "crowd") for name in names]])
    found = dict(zip(names, bounded(0, theta, absent)[0], strict=True))
    assert found["hop_in"] == ABSENT
    assert found["crowd"] == 0
    assert found["share"] == -0.4
