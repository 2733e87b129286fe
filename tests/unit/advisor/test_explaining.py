"""Where the time of a quote goes, and where its doubt comes from: it adds up, and a look narrows it."""

import numpy as np
import pytest
from quote_world import market, offer, training

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.market.phases import PhaseHistory, PhaseSample
from trainmaster.advisor.quote.choosing import QuoteLimits
from trainmaster.advisor.quote.explaining import bought, explained
from trainmaster.advisor.quote.quoting import make_quote
from trainmaster.advisor.quote.timing import Timing

OFFER = offer("p3.2xlarge", 3.06)
UNSEEN = PhaseHistory("setup", "a")
SEEN = PhaseHistory("setup", "a", tuple(PhaseSample(20.0, "p3.2xlarge", "a") for _ in range(50)))


def of(*once, spot=False):
    place, subject = market(offer("p3.2xlarge", 3.06, spot=spot)), training(most=1, once=once)
    found = Machines.of(place.catalogue.columns(), np.ones(1))
    timing = Timing(subject.workload, subject.knowledge, found, found[:0], place.catalogue.offers)
    one = Candidates.of(subject.workload, found, timing.servers, None)[np.array([0])]
    return timing, one


@pytest.mark.parametrize("spot", [False, True])
def test_shares_of_the_doubt_add_up(spot):
    phases = explained(*of(UNSEEN, spot=spot))
    assert sum(each.doubt for each in phases) == pytest.approx(1.0)
    assert {"machines", "setup", "first step", "steps", "giving back"} <= {each.name for each in phases}
    assert ("interruptions" in {each.name for each in phases}) is spot


def test_what_was_never_seen_is_where_the_doubt_is_and_a_minute_takes_most_of_it():
    def doubt(history):
        return {each.name: each.doubt for each in explained(*of(history))}["setup"]

    assert doubt(UNSEEN) > 5 * doubt(SEEN)
    more = bought(*of(UNSEEN))
    assert more is not None
    assert more.instance == "p3.2xlarge"
    assert more.then_s.p95 - more.then_s.p5 < more.now_s.p95 - more.now_s.p5
    assert more.then_s.p50 == pytest.approx(more.now_s.p50, rel=0.05)
    assert more.cost_usd == pytest.approx(3.06 / 3600 * more.seconds)


def test_a_quote_says_it():
    told = make_quote([training(most=1, once=(UNSEEN,))], market(OFFER), QuoteLimits()).as_dict()
    assert [each["phase"] for each in told["phases"]][:2] == ["machines", "setup"]
    assert told["more_measuring"]["instance"] == "p3.2xlarge"
