"""What the network cards of a cluster send in a step, and what it costs of their credits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.advisor.market.credits import sent_mbit, slowed
from trainmaster.advisor.market.pairs import Cards
from trainmaster.advisor.model.physics import step_time
from trainmaster.advisor.model.priors import BELIEFS, INDEX, NAMES, achieved_bytes_per_second
from trainmaster.advisor.model.profile import Point
from trainmaster.advisor.model.shapes import Columns, MeasuredContext, Shapes
from trainmaster.spec import Strategy

MEAN = np.log([belief.median for belief in BELIEFS.values()])
SPREAD = np.array([belief.spread for belief in BELIEFS.values()])
CARD_MBPS = 10_000.0

thetas = st.lists(st.floats(-3, 3), min_size=len(NAMES), max_size=len(NAMES)).map(
    lambda z: (MEAN + SPREAD * np.array(z))[None]
)


def theta(**natural: float):
    found = MEAN.copy()
    for name, value in natural.items():
        found[INDEX[name]] = np.log(value)
    return found[None]


def shapes(*some: Point) -> Shapes:
    columns = Columns.of(some)
    return Shapes.of(columns, MeasuredContext.of(columns))


def ring(nodes: int, per_node: int = 1) -> Point:
    return Point(
        Strategy.ALLREDUCE, workers=nodes * per_node, nodes=nodes, local_batch=64, nic_mbps=CARD_MBPS
    )


def test_a_ring_of_all_workers_sends_more_than_one_of_the_nodes() -> None:
    one = shapes(ring(2, per_node=8))
    mbit = 1e6 / 8
    of_nodes, of_workers = (
        sent_mbit(theta(gradient=100 * mbit, flat=flat), one, np.nan)[0].item() for flat in (1e-9, 1e9)
    )
    assert of_nodes == pytest.approx(100 * (2 - 2 / 2))
    assert of_workers == pytest.approx(100 * (2 - 2 / 16))
    alone = sent_mbit(theta(flat=1e9), shapes(ring(1, per_node=8)), np.nan)[0]
    assert alone.item() == 0, "nothing leaves the machine"


def test_servers_and_workers_send_what_they_hand_over() -> None:
    for sync, worker, server in ((Strategy.PS_SYNC, 2.0, 4.0), (Strategy.PS_ASYNC, 0.25, 0.5)):
        point = Point(sync, workers=8, nodes=4, parameter_servers=2, local_batch=64)
        sent = sent_mbit(theta(gradient=1e6 / 8), shapes(point), np.nan)
        assert [each.item() for each in sent] == pytest.approx([worker, server])


def test_a_job_that_uses_its_card_all_day_spends_what_flows_and_not_what_the_card_could_do() -> None:
    """Collectives reach 64 % of 10 Gbit/s: a card that sustains 70 % never slows such a job down."""
    achieved = achieved_bytes_per_second(CARD_MBPS)
    one = shapes(ring(4))
    at = theta(gradient=1e8, nic=achieved, flat=1e-9)
    sent = sent_mbit(at, one, CARD_MBPS)[0]
    step_s = 1e8 * 1.5 / achieved
    assert sent.item() / step_s == pytest.approx(achieved * 8 / 1e6)
    steps, nan = 1e7, np.array([np.nan])

    def takes_s(sustained_mbps: float) -> float:
        fast, sustained = np.array([CARD_MBPS]), np.array([sustained_mbps])
        cards = Cards(fast, fast, sustained, nan, nan)
        total = np.array([[steps * step_s]])
        return slowed(total, (steps * sent, 0 * sent), cards, np.array([[1800.0]])).item() / total.item()

    assert takes_s(7000.0) == 1
    assert takes_s(3200.0) == pytest.approx(0.643 * CARD_MBPS / 3200, rel=0.01)


@settings(max_examples=100, deadline=None)
@given(thetas, st.integers(1, 16), st.sampled_from([1, 2, 8]), st.floats(100, 400_000))
def test_what_is_sent_is_what_the_step_time_model_sends_but_no_more_than_the_card_can(
    at, nodes, per_node, card_mbps
) -> None:
    """In every draw, however large a gradient that draw believes in."""
    some = shapes(ring(nodes, per_node))
    for name in ("compute", "hop_intra", "hop_inter", "hop_flat", "trips", "congestion"):
        at[0, INDEX[name]] = -60  # a job that does nothing else
    at[0, INDEX["intra"]] = 90
    achieved_mbps = float(np.exp(at[0, INDEX["nic"]])) * 8 / 1e6
    sending_s = step_time(at, some).item()
    sent = sent_mbit(at, some, card_mbps)[0].item()
    assert sent == pytest.approx(min(achieved_mbps, card_mbps) * sending_s, rel=1e-3, abs=1e-3)
