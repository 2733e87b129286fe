"""What the network cards of a cluster send in a step, and what it costs of their credits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.advisor.market.credits import sent_mbit, slowed
from trainmaster.advisor.market.pairs import NetworkCards
from trainmaster.advisor.model.measurement import Point
from trainmaster.advisor.model.physics import step_time
from trainmaster.advisor.model.priors import NAMES, achieved_bytes_per_second, bounded, shipped
from trainmaster.advisor.model.shapes import KINDS, Columns, MeasuredContext, Shapes
from trainmaster.spec import Strategy

CARD_MBPS = 10_000.0

zs = st.lists(st.floats(-3, 3), min_size=16, max_size=16).map(np.array)


def theta(kind: int = 0, z=None, **known: float):
    """One vector: prior means, moved by z spreads."""
    prior = shipped(kind)[0]
    moved = prior.rows[0] + prior.spread * (0.0 if z is None else z[: len(prior.spread)])
    vector = bounded(kind, moved[None], np.zeros((1, len(moved)), bool))[0]
    row = dict(zip(NAMES[kind], np.r_[0.0, vector], strict=True)) | known
    return np.array([[row[name] for name in NAMES[kind]]])


def context(gradient: float | None = None, nic_mbps: float | None = CARD_MBPS) -> MeasuredContext:
    point = Point(Strategy.ALLREDUCE, 1, gradient_bytes=gradient, nic_mbps=nic_mbps)
    return MeasuredContext.of(Columns.of([point]))


def shapes(*some: Point) -> Shapes:
    columns = Columns.of(some)
    return Shapes.of(columns, MeasuredContext.of(columns))


def ring(nodes: int, per_node: int = 1) -> Point:
    return Point(
        Strategy.ALLREDUCE, workers=nodes * per_node, nodes=nodes, local_batch=64, nic_mbps=CARD_MBPS
    )


def test_a_ring_of_all_workers_sends_more_than_one_of_the_nodes() -> None:
    one, known = shapes(ring(2, per_node=8)), context(gradient=100 * 1e6 / 8)
    of_nodes, of_workers = (sent_mbit(theta(flat=flat), one, known)[0].item() for flat in (-20, 20))
    assert of_nodes == pytest.approx(100 * (2 - 2 / 2))
    assert of_workers == pytest.approx(100 * (2 - 2 / 16))
    alone = sent_mbit(theta(flat=20), shapes(ring(1, per_node=8)), known)[0]
    assert alone.item() == 0, "nothing leaves the machine"


def test_servers_and_workers_send_what_they_hand_over() -> None:
    for sync, worker, server in ((Strategy.PS_SYNC, 2.0, 4.0), (Strategy.PS_ASYNC, 0.25, 0.5)):
        point = Point(sync, workers=8, nodes=4, parameter_servers=2, local_batch=64)
        sent = sent_mbit(theta(KINDS.index(sync)), shapes(point), context(gradient=1e6 / 8))
        assert [each.item() for each in sent] == pytest.approx([worker, server])


def test_a_job_that_uses_its_card_all_day_spends_what_flows_and_not_what_the_card_could_do() -> None:
    """Collectives reach 64 % of 10 Gbit/s: a card that sustains 70 % never slows such a job down."""
    achieved = achieved_bytes_per_second(CARD_MBPS)
    one = shapes(ring(4))
    at = theta(rho_out=np.log(1e8 / achieved), flat=-20)
    sent = sent_mbit(at, one, context())[0]
    step_s = 1e8 * 1.5 / achieved
    assert sent.item() / step_s == pytest.approx(achieved * 8 / 1e6)
    steps, nan = 1e7, np.array([np.nan])

    def takes_s(sustained_mbps: float) -> float:
        fast, sustained = np.array([CARD_MBPS]), np.array([sustained_mbps])
        cards = NetworkCards(fast, fast, sustained, nan, nan)
        total = np.array([[steps * step_s]])
        return slowed(total, (steps * sent, 0 * sent), cards, np.array([[1800.0]])).item() / total.item()

    assert takes_s(7000.0) == 1
    assert takes_s(3200.0) == pytest.approx(0.643 * CARD_MBPS / 3200, rel=0.01)


@settings(max_examples=100, deadline=None)
@given(zs, st.integers(1, 16), st.sampled_from([1, 2, 8]), st.floats(100, 400_000))
def test_what_is_sent_is_what_the_step_time_model_sends_but_no_more_than_the_card_can(
    z, nodes, per_node, card_mbps
) -> None:
    """In every draw, however large a gradient that draw believes in."""
    some = shapes(ring(nodes, per_node))
    nothing = dict.fromkeys(("rho_in", "hop_in", "hop_out", "trips", "contend", "straggle"), -60.0)
    at = theta(z=z, **nothing, crowd=0.0, share=0.0, exposed=-60.0, overlap=9.0)
    sending_s = step_time(at, some, free="compute").item()
    sent = sent_mbit(at, some, context(nic_mbps=card_mbps))[0].item()
    achieved_mbps = achieved_bytes_per_second(card_mbps) * 8 / 1e6
    assert achieved_mbps < card_mbps
    assert sent == pytest.approx(achieved_mbps * sending_s, rel=1e-3, abs=1e-3)
