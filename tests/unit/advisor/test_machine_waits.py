"""How long machines are waited for: by how many come together, by kind, as wide as few waits allow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quote_world import market, offer, training

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.market.phases import ClusterWait, MachineCountEffect, machines_belief
from trainmaster.advisor.quote.timing import Timing
from trainmaster.spec.log_normal import LogNormal

PRIOR = LogNormal(15.0, 0.5)


def waits(*numbers, one_s=10.0, power=0.6):
    return [ClusterWait(one_s * number**power, "large", "lab", machines=number) for number in numbers]


def believed(waited, machines):
    return machines_belief(PRIOR, waited, "lab", "large", machines=machines)


def test_what_many_took_says_what_one_takes_and_the_other_way_round():
    seen = waits(*[1, 2, 4, 8] * 5)
    assert believed(seen, 1).median == pytest.approx(10.0, rel=0.15)
    assert believed(seen, 8).median == pytest.approx(10.0 * 8**0.6, rel=0.15)


def test_more_are_never_there_sooner_and_beyond_what_was_seen_the_doubt_grows():
    seen = waits(1, 1, 2, 1)
    found = [believed(seen, number) for number in (1, 2, 4, 16)]
    assert [each.median for each in found] == sorted(each.median for each in found)
    assert found[3].spread > found[1].spread
    effect = MachineCountEffect.learnt(waits(1, 2, 4, 8, power=-0.8), "lab")
    assert effect.power >= 0.0


def test_waits_of_other_providers_say_nothing():
    assert (
        MachineCountEffect.learnt(waits(1, 2, 4, 8), "aws").power
        == MachineCountEffect.learnt([], "aws").power
    )


def test_the_doubt_of_few_waits_is_wider_than_their_spread_and_no_wider_than_before_them():
    two = believed([ClusterWait(10.0, "large", "lab"), ClusterWait(14.0, "large", "lab")], 1)
    many = believed([ClusterWait(10.0, "large", "lab"), ClusterWait(14.0, "large", "lab")] * 20, 1)
    assert many.spread < two.spread <= PRIOR.spread


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.1, 5_000.0)), max_size=30), st.integers(1, 128))
def test_any_history_gives_a_belief(seen, machines):
    waited = [ClusterWait(seconds, "large", "lab", machines=number) for number, seconds in seen]
    found = believed(waited, machines)
    assert np.isfinite([found.median, found.spread]).all()
    assert found.median > 0


def test_a_machine_that_is_there_is_not_waited_for():
    assert machines_belief(LogNormal(0.0, 0.0), [], "local", "", machines=4).quantiles == (0.0, 0.0, 0.0)


def test_a_quote_of_four_machines_waits_as_long_as_four_do():
    place, subject = market(offer("p3.2xlarge", 3.06)), training(most=4)
    found = Machines.of(place.catalogue.columns(), np.ones(1))
    waited = tuple(ClusterWait(30.0 * n**0.6, "p3.2xlarge", machines=n) for n in [1, 2, 4] * 6)
    timing = Timing(
        subject.workload, subject.knowledge, found, found[:0], place.catalogue.offers, waited=waited
    )
    some = Candidates.of(subject.workload, found, timing.servers, None)
    wait = {
        int(number): float(np.median(timing.once_s(some[np.array([row])])["machines"]))
        for row, number in enumerate(some.machines)
    }
    assert wait[4] / wait[1] == pytest.approx(4**0.6, rel=0.15)
    whole = timing.time_s(some)
    assert (timing.at_best_s(some, alone=True).min() <= whole.max(0)).all()
