"""Laws that hold for every parameter vector and every shape."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.advisor.model.measurement import Point
from trainmaster.advisor.model.physics import PARTS, WORDS, name_bottlenecks, own_time, step_time
from trainmaster.advisor.model.priors import NAMES, achieved_bytes_per_second, bounded, shipped
from trainmaster.advisor.model.shapes import KINDS, Columns, MeasuredContext, Shapes
from trainmaster.spec import Strategy


def theta(kind, z=None, **known):
    """One vector: prior means, moved by z spreads; no exponents of either sign unless they are given."""
    prior = shipped(kind)[0]
    moved = prior.rows[0] + prior.spread * (
        np.zeros(len(prior.spread)) if z is None else z[: len(prior.spread)]
    )
    row = dict(
        zip(
            NAMES[kind],
            np.r_[0.0, bounded(kind, moved[None], np.zeros((1, len(moved)), bool))[0]],
            strict=True,
        )
    )
    row |= dict.fromkeys(("pile",) if kind else ("crowd", "share"), 0.0) | known
    return np.array([[row[name] for name in NAMES[kind]]])


zs = st.lists(st.floats(-3, 3), min_size=16, max_size=16).map(np.array)
syncs = st.sampled_from(list(Strategy))


@st.composite
def points(draw):
    sync = draw(syncs)
    nodes = draw(st.integers(1, 64))
    return Point(
        sync,
        workers=nodes * draw(st.sampled_from([1, 2, 4, 8])),
        nodes=nodes,
        parameter_servers=draw(st.integers(1, 8)) if sync.has_servers else 0,
        local_batch=draw(st.floats(1, 4096)),
        latency_ms=draw(st.floats(0, 200)),
        nic_mbps=draw(st.floats(100, 400_000)),
    )


def shapes(*some):
    columns = Columns.of(some)
    return Shapes.of(columns, MeasuredContext.of(columns))


def changed(point, **values):
    return Point(**{name: getattr(point, name) for name in Point.__dataclass_fields__} | values)


def pair(z, point, known=None, **values):
    """Seconds of a point, and of the same point changed."""
    vector = theta(KINDS.index(point.sync), z, **known or {})
    return step_time(vector, shapes(point, changed(point, **values)))[0]


@settings(max_examples=150, deadline=None)
@given(zs, points())
def test_times_are_positive_and_finite(z, point):
    time = step_time(theta(KINDS.index(point.sync), z), shapes(point))
    assert np.isfinite(time).all()
    assert (time > 0).all()


@settings(max_examples=150, deadline=None)
@given(zs, points(), st.floats(1, 16))
def test_what_cannot_help_does_not_help(z, point, factor):
    slow = 1 - 1e-9
    before, after = pair(z, point, latency_ms=point.latency_ms * factor + 1)
    assert after >= before * slow
    before, after = pair(z, point, nic_mbps=point.nic_mbps / factor)
    assert after >= before * slow
    before, after = pair(z, point, local_batch=point.local_batch * factor)
    assert after >= before * slow


@settings(max_examples=150, deadline=None)
@given(zs, points(), st.integers(2, 8))
def test_more_of_everything(z, point, factor):
    """More nodes never shorten a synchronous step; more servers only lengthen it by exchanges with them."""
    before, after = pair(z, point, workers=point.workers * factor, nodes=point.nodes * factor)
    if point.sync is not Strategy.PS_ASYNC:
        assert after >= before * (1 - 1e-9)
    if point.sync.has_servers:
        more = point.parameter_servers * factor
        before, after = pair(z, point, {"fan": -60.0}, parameter_servers=more)
        assert after <= before * (1 + 1e-9)


def test_a_worker_exchanges_with_each_server():
    """Servers divide an update, but a worker waits for all of them: there can be too many."""
    some = shapes(*(Point(Strategy.PS_SYNC, 64, nodes=64, parameter_servers=p) for p in (1, 4, 64)))
    one, few, many = step_time(theta(1, fan=-3.0, serve=-3.0, shared=-9.0), some)[0]
    assert few < one
    assert few < many


def test_a_network_may_get_faster_with_more_nodes():
    """One flow is capped on several clouds; more nodes open more."""
    some = shapes(*(Point(Strategy.ALLREDUCE, n, nodes=n, local_batch=32) for n in (4, 32)))
    few, many = step_time(theta(0, rho_out=2.0, crowd=-0.5, straggle=-9.0, hop_out=-9.0), some)[0]
    assert many < few


@settings(max_examples=100, deadline=None)
@given(zs, points(), st.integers(0, 7))
def test_a_free_part_never_costs(z, point, which):
    kind = KINDS.index(point.sync)
    parts = PARTS[kind > 0]
    vector, shape = theta(kind, z), shapes(point)
    assert (
        step_time(vector, shape, free=parts[which % len(parts)]) <= step_time(vector, shape) * (1 + 1e-9)
    ).all()


@settings(max_examples=60, deadline=None)
@given(zs, st.lists(points(), min_size=1, max_size=6))
def test_a_shape_does_not_depend_on_its_neighbours(z, some):
    some = [p for p in some if p.sync is some[0].sync]
    columns = Columns.of(some)
    context, vector = MeasuredContext.of(columns), theta(KINDS.index(some[0].sync), z)
    together = step_time(vector, Shapes.of(columns, context))
    alone = [step_time(vector, Shapes.of(columns[i : i + 1], context))[0, 0] for i in range(len(some))]
    assert together[0] == pytest.approx(alone)


def test_one_worker_alone_pays_for_no_network():
    alone = shapes(Point(Strategy.ALLREDUCE, 1, nodes=1, local_batch=32, latency_ms=100))
    for part in ("nic", "hop_inter", "trips", "intra", "hop_intra"):
        assert step_time(theta(0), alone, free=part) == step_time(theta(0), alone)


def test_a_worker_of_its_own_is_the_least():
    some = shapes(*(Point(Strategy.PS_ASYNC, n, nodes=n, parameter_servers=1) for n in (1, 4, 16)))
    assert (own_time(theta(2), some) <= step_time(theta(2), some)).all()


@pytest.mark.parametrize(
    ("parameter", "value", "point", "word"),
    [
        ("fixed", 1.0, Point(Strategy.ALLREDUCE, 1, nodes=1), "compute"),
        ("contend", -0.3, Point(Strategy.ALLREDUCE, 64, nodes=1), "compute"),
        ("rho_out", 4.0, Point(Strategy.ALLREDUCE, 8, nodes=8), "nic"),
        ("rho_in", 4.0, Point(Strategy.ALLREDUCE, 8, nodes=1), "intra"),
        ("hop_in", 3.0, Point(Strategy.ALLREDUCE, 8, nodes=1), "hop_intra"),
        ("trips", 5.0, Point(Strategy.ALLREDUCE, 8, nodes=8, latency_ms=100), "trips"),
        ("hop_out", 4.0, Point(Strategy.ALLREDUCE, 8, nodes=8), "hop_inter"),
        ("wire", -5.0, Point(Strategy.PS_SYNC, 64, parameter_servers=1), "server"),
        ("wire", 5.0, Point(Strategy.PS_ASYNC, 64, parameter_servers=1), "server_nic"),
        ("fan", 0.0, Point(Strategy.PS_SYNC, 64, parameter_servers=64), "fan"),
        ("shared", 3.0, Point(Strategy.PS_ASYNC, 64, parameter_servers=4), "shared"),
    ],
)
def test_the_bottleneck_is_what_was_made_slow(parameter, value, point, word):
    vector = theta(KINDS.index(point.sync), **{parameter: value})
    assert name_bottlenecks(vector, shapes(point)) == (WORDS[word],)


def test_faster_cards_achieve_more_but_a_smaller_part():
    rates = [achieved_bytes_per_second(mbps) for mbps in (1e3, 1e4, 1e5, 4e5)]
    parts = [rate * 8 / 1e6 / mbps for rate, mbps in zip(rates, (1e3, 1e4, 1e5, 4e5), strict=True)]
    assert rates == sorted(rates)
    assert parts == sorted(parts, reverse=True)
    assert parts[0] == pytest.approx(0.85)


def test_a_flat_ring_hardly_grows_with_the_nodes():
    """One ring of all workers sends nearly everything over each network card, from two nodes on."""

    def growth(flat):
        vector = theta(0, rho_out=6.0, hop_out=-9.0, hop_in=-9.0, rho_in=-9.0, straggle=-9.0, flat=flat)
        two, many = step_time(
            vector,
            shapes(
                Point(Strategy.ALLREDUCE, 16, nodes=2, local_batch=32),
                Point(Strategy.ALLREDUCE, 128, nodes=16, local_batch=32),
            ),
        )[0]
        return many / two

    assert growth(20.0) == pytest.approx((1 - 1 / 128) / (1 - 1 / 16), rel=0.02)
    assert growth(-20.0) == pytest.approx((1 - 1 / 16) / (1 - 1 / 2), rel=0.02)
