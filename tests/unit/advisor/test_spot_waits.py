"""What machines are taken for on which a job was measured."""

import numpy as np
import pytest
from quote_world import market, offer, workload

from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.advisor.quote.timing import Timing
from trainmaster.service.quotes.knowledge_builder import KnowledgeBuilder
from trainmaster.spec import Experiment, Strategy
from trainmaster.spec.hardware import Hardware


@pytest.mark.parametrize("spot", [False, True])
def test_a_type_is_known_by_whatever_offer_there_is_of_it(spot):
    point = Point(Strategy.ALLREDUCE, 1, nodes=1, local_batch=64, step_time_s=0.2)
    sold = market(offer("p3.8xlarge", 3.0, vcpus=32.0, gpus=4.0, spot=spot)).catalogue
    known = KnowledgeBuilder(sold).knowledge(
        Experiment(name="train", command="true", hardware=Hardware(gpus=4)),
        [Measurement(point, startup_s=1.0, offer="p3.8xlarge")],
    )
    assert known is not None
    assert (known.measured.accelerator, known.measured.cores) == ("V100", 8.0)
    assert known.model.context.nic == 10_000


@pytest.mark.parametrize("gpus", [None, 1])
def test_a_type_with_gpus_that_was_named_is_as_fast_as_it_was(gpus):
    """A recipe may name it, and ask for none of them: then neither it nor what was measured is a GPU's."""
    wanted = Hardware(instance=("p3.2xlarge",), gpus=gpus)
    place = market(offer("p3.2xlarge", 3.0))
    seen = Measurement(None, duration_s=6.0, offer="p3.2xlarge")
    known = KnowledgeBuilder(place.catalogue).knowledge(
        Experiment(name="train", command="true", hardware=wanted), [seen]
    )
    found = Machines.of(place.catalogue.columns(), np.ones(1))
    timing = Timing(workload(hardware=wanted), known, found, found[:0], place.catalogue.offers)
    assert [each.tolist() for each in timing.ratios] == [[0.0], [0.0]]
