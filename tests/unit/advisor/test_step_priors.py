"""What is believed of a job before it is measured."""

import numpy as np
import pytest

from trainmaster.advisor.model.priors import INDEX, LONGEST_COMPUTE_S, Prior
from trainmaster.advisor.model.profile import Point
from trainmaster.advisor.model.shapes import Columns, MeasuredContext
from trainmaster.spec import Strategy


def prior(seconds, per_node=1, **known):
    columns = Columns.of([Point(Strategy.ALLREDUCE, per_node, nodes=1, local_batch=32, **known)])
    return Prior.of(columns, MeasuredContext.of(columns), np.array([seconds]))


def test_a_long_step_does_not_mean_a_larger_model_forever():
    """Accumulated gradients make a step as long as one likes."""
    gradient = INDEX["gradient"]
    assert prior(1.0).mean[gradient] > prior(0.1).mean[gradient]
    assert prior(100.0).mean[gradient] == pytest.approx(prior(LONGEST_COMPUTE_S).mean[gradient])
    assert prior(100.0).mean[INDEX["compute"]] == pytest.approx(np.log(100.0))


def test_a_node_with_more_devices_has_a_faster_network_unless_it_is_known():
    nic = INDEX["nic"]
    assert prior(0.2, per_node=8).mean[nic] > prior(0.2, per_node=1).mean[nic]
    known = {"nic_mbps": 10_000}
    assert prior(0.2, per_node=8, **known).mean[nic] == prior(0.2, per_node=1, **known).mean[nic]
