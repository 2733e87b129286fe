"""Laws that hold for every parameter vector and every shape."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.advisor.model.physics import WORDS, name_bottlenecks, step_time
from trainmaster.advisor.model.priors import BELIEFS, NAMES, achieved_bytes_per_second
from trainmaster.advisor.model.profile import Point
from trainmaster.advisor.model.shapes import Columns, MeasuredContext, Shapes
from trainmaster.spec import Strategy

MEAN = np.log([belief.median for belief in BELIEFS.values()])
SPREAD = np.array([belief.spread for belief in BELIEFS.values()])

thetas = st.lists(st.floats(-3, 3), min_size=len(NAMES), max_size=len(NAMES)).map(
    lambda z: (MEAN + SPREAD * np.array(z))[None]
)
syncs = st.sampled_from(list(Strategy))
PARTS = [
    "compute",
    "input",
    "straggle",
    "intra",
    "hop_intra",
    "nic",
    "hop_inter",
    "trips",
    "server",
    "shared",
]


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


def pair(theta, point, **values):
    """Seconds of a point, and of the same point changed."""
    return step_time(theta, shapes(point, changed(point, **values)))[0]


@settings(max_examples=150, deadline=None)
@given(thetas, points())
def test_times_are_positive_and_finite(theta, point):
    time = step_time(theta, shapes(point))
    assert np.isfinite(time).all()
    assert (time > 0).all()


@settings(max_examples=150, deadline=None)
@given(thetas, points(), st.floats(1, 16))
def test_what_cannot_help_does_not_help(theta, point, factor):
    slow = 1 - 1e-9
    before, after = pair(theta, point, latency_ms=point.latency_ms * factor + 1)
    assert after >= before * slow
    before, after = pair(theta, point, nic_mbps=point.nic_mbps / factor)
    assert after >= before * slow
    before, after = pair(theta, point, local_batch=point.local_batch * factor)
    assert after >= before * slow


@settings(max_examples=150, deadline=None)
@given(thetas, points(), st.integers(2, 8))
def test_more_of_everything(theta, point, factor):
    """More nodes never shorten a synchronous step, and always the time per asynchronous global step."""
    before, after = pair(theta, point, workers=point.workers * factor, nodes=point.nodes * factor)
    if point.sync is Strategy.PS_ASYNC:
        assert after <= before * (1 + 1e-9)
    else:
        assert after >= before * (1 - 1e-9)
    if point.sync.has_servers:
        before, after = pair(theta, point, parameter_servers=point.parameter_servers * factor)
        assert after <= before * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(thetas, points(), st.sampled_from(PARTS))
def test_a_free_part_never_costs(theta, point, part):
    shape = shapes(point)
    assert (step_time(theta, shape, free=part) <= step_time(theta, shape) * (1 + 1e-9)).all()


@settings(max_examples=60, deadline=None)
@given(thetas, st.lists(points(), min_size=1, max_size=6))
def test_a_shape_does_not_depend_on_its_neighbours(theta, some):
    columns = Columns.of(some)
    context = MeasuredContext.of(columns)
    together = step_time(theta, Shapes.of(columns, context))
    alone = [step_time(theta, Shapes.of(columns[i : i + 1], context))[0, 0] for i in range(len(some))]
    assert together[0] == pytest.approx(alone)


def test_one_worker_alone_pays_for_no_network():
    alone = shapes(Point(Strategy.ALLREDUCE, 1, nodes=1, local_batch=32, latency_ms=100))
    for part in ("nic", "hop_inter", "trips", "intra", "hop_intra"):
        assert step_time(MEAN[None], alone, free=part) == step_time(MEAN[None], alone)


def test_an_asynchronous_worker_alone_is_a_synchronous_one():
    sync, asynchronous = (
        Point(s, 1, parameter_servers=2, local_batch=8) for s in (Strategy.PS_SYNC, Strategy.PS_ASYNC)
    )
    assert step_time(MEAN[None], shapes(sync)) == pytest.approx(step_time(MEAN[None], shapes(asynchronous)))


@pytest.mark.parametrize(
    ("parameter", "value", "point", "word"),
    [
        ("fixed", 1.0, Point(Strategy.ALLREDUCE, 1, nodes=1), "compute"),
        ("input", 50.0, Point(Strategy.ALLREDUCE, 8, nodes=1), "input"),
        ("nic", 1e6, Point(Strategy.ALLREDUCE, 8, nodes=8), "nic"),
        ("intra", 1e6, Point(Strategy.ALLREDUCE, 8, nodes=1), "intra"),
        ("trips", 50.0, Point(Strategy.ALLREDUCE, 8, nodes=8, latency_ms=100), "trips"),
        ("straggle", 9.0, Point(Strategy.ALLREDUCE, 64, nodes=64), "straggle"),
        ("hop_inter", 9.0, Point(Strategy.ALLREDUCE, 8, nodes=8), "hop_inter"),
        ("server", 1e-6, Point(Strategy.PS_SYNC, 16, parameter_servers=1), "server"),
        ("nic", 1e6, Point(Strategy.PS_ASYNC, 16, parameter_servers=1), "server_nic"),
    ],
)
def test_the_bottleneck_is_what_was_made_slow(parameter, value, point, word):
    theta = MEAN.copy()
    theta[NAMES.index(parameter)] = np.log(value)
    assert name_bottlenecks(theta, shapes(point)) == (WORDS[word],)


def test_faster_cards_achieve_more_but_a_smaller_part():
    rates = [achieved_bytes_per_second(mbps) for mbps in (1e3, 1e4, 1e5, 4e5)]
    parts = [rate * 8 / 1e6 / mbps for rate, mbps in zip(rates, (1e3, 1e4, 1e5, 4e5), strict=True)]
    assert rates == sorted(rates)
    assert parts == sorted(parts, reverse=True)
    assert parts[0] == pytest.approx(0.85)


def test_a_flat_ring_hardly_grows_with_the_nodes():
    """One ring of all workers sends nearly everything over each network card, from two nodes on."""

    def growth(flat):
        natural = np.array([belief.median for belief in BELIEFS.values()])
        values = dict(zip(NAMES, natural, strict=True))
        values |= {"nic": 1e7, "congestion": 1e-9, "hop_inter": 1e-12, "hop_flat": 1e-12, "flat": flat}
        theta = np.log([list(values.values())])
        two, many = step_time(
            theta,
            shapes(
                Point(Strategy.ALLREDUCE, 16, nodes=2, local_batch=32),
                Point(Strategy.ALLREDUCE, 128, nodes=16, local_batch=32),
            ),
        )[0]
        return many / two

    assert growth(1e6) == pytest.approx((1 - 1 / 128) / (1 - 1 / 16), rel=0.02)
    assert growth(1e-6) == pytest.approx((1 - 1 / 16) / (1 - 1 / 2), rel=0.02)
