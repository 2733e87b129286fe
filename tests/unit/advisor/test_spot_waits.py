"""What was measured on machines that are only to be had as spot ones."""

import pytest
from quote_world import market, offer

from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.service.quotes.knowledge_builder import KnowledgeBuilder
from trainmaster.spec import Experiment, Strategy


@pytest.mark.parametrize("spot", [False, True])
def test_a_type_is_known_by_whatever_offer_there_is_of_it(spot):
    point = Point(Strategy.ALLREDUCE, 1, nodes=1, local_batch=64, step_time_s=0.2)
    sold = market(offer("p3.8xlarge", 3.0, vcpus=32.0, gpus=4.0, spot=spot)).catalogue
    known = KnowledgeBuilder(sold).knowledge(
        Experiment(name="train", command="true"), [Measurement(point, startup_s=1.0, offer="p3.8xlarge")]
    )
    assert known is not None
    assert (known.measured.accelerator, known.measured.cores) == ("V100", 8.0)
    assert known.model.context.nic == 10_000
