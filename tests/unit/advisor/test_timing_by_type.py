"""What was measured on several types of machines: each is predicted by what was measured on it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quote_world import GB, market, offer, workload

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.market.workload import Length
from trainmaster.advisor.model import posterior
from trainmaster.advisor.model.devices import Device
from trainmaster.advisor.model.knowledge import Knowledge
from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.advisor.model.steptime import StepTimeModel
from trainmaster.advisor.quote.choosing import QuoteLimits, SampledCandidates, pick
from trainmaster.advisor.quote.infeasible import NoFeasibleQuote
from trainmaster.advisor.quote.quoting import Subject, make_quote
from trainmaster.advisor.quote.timing import Timing
from trainmaster.advisor.quote.timing_by_type import TimingByType
from trainmaster.spec import Strategy
from trainmaster.spec.hardware import Hardware

FASTEST = QuoteLimits(time_weight=1.0, cost_weight=0.0)
#: Seconds that 300 steps took in a lab, by type and number of machines (`lab-shared`).
SEEN = {"t2.small": {1: 120.0, 2: 72.0, 3: 65.0}, "m4.large": {1: 77.0, 2: 74.0, 3: 92.0}}
STEPS = 300
OFFERS = {
    name: offer(name, price, vcpus=vcpus, gpu="", gpus=0.0, nic=nic, provider="lab")
    for name, price, vcpus, nic in (("t2.small", 0.023, 1.0, 0.3), ("m4.large", 0.1, 2.0, 0.45))
}
DEVICES = {name: Device("", each.vcpus, name) for name, each in OFFERS.items()}


def measured(name, workers, seconds, steps=STEPS, **more):
    point = Point(
        Strategy.ALLREDUCE,
        workers,
        nodes=workers,
        parameter_servers=0,
        local_batch=12 // workers,
        nic_mbps=1000.0 * OFFERS[name].nic_gbps if workers > 1 else 20_000.0,
        step_time_s=seconds / steps,
    )
    return Measurement(point, startup_s=3.0, tail_s=0.5, offer=name, **more)


def every(seen=None):
    return [measured(name, n, s) for name, some in (seen or SEEN).items() for n, s in some.items()]


def subject(found, steps=STEPS, most=3):
    known = Knowledge.of(found, [], DEVICES, {})
    lengths = {n: Length(steps, 1, 12 // n) for n in range(1, most + 1)}
    return Subject(replace(workload(most=most, hardware=Hardware()), lengths=lengths), known)


def drawing(asked, place):
    found = Machines.of(place.catalogue.columns(), np.ones(len(place.catalogue)))
    timing = Timing(asked.workload, asked.knowledge, found, found[:0], place.catalogue.offers)
    return TimingByType.of(timing), Candidates.of(asked.workload, found, found[:0], None)


def steps_s(asked, *offers):
    """(3,) p5, p50 and p95 of the steps' time, by type and number of workers."""
    drawn, some = drawing(asked, market(*(offers or OFFERS.values())))
    found = {}
    for row in range(len(some)):
        one = some[np.array([row])]
        timing = drawn.timing(one)
        name = timing.offers[int(one.machine[0])].instance_type
        steps = STEPS * timing.step_s(one)[:, 0]
        found[name, int(one.workers[0])] = np.quantile(steps, (0.05, 0.5, 0.95)).tolist()
    return found


def test_each_measured_cluster_is_quoted_as_it_was_measured():
    found = steps_s(subject(every()))
    for name, some in SEEN.items():
        for workers, seconds in some.items():
            low, middle, high = found[name, workers]
            assert low <= seconds <= high, (name, workers)
            assert middle == pytest.approx(seconds, rel=0.08), (name, workers)


def test_the_fastest_pick_is_the_cluster_that_was_fastest():
    quote = make_quote([subject(every())], market(*OFFERS.values()), FASTEST).main
    assert quote.cluster.words() == "3 x t2.small"
    assert quote.measurements == 6
    assert {each["offer"] for each in quote.as_dict()["measured"]} == set(SEEN)


def test_the_order_of_what_was_measured_does_not_matter():
    one, other = steps_s(subject(every())), steps_s(subject(every()[::-1]))
    for key, (_, middle, _) in one.items():
        assert other[key][1] == pytest.approx(middle, rel=0.05)


def test_one_point_outweighs_what_is_published():
    """Two cores are published to be 1.7 times as fast as one: here they were as fast."""
    few = {"t2.small": SEEN["t2.small"], "m4.large": {1: 120.0}}
    found = steps_s(subject(every(few)))
    assert found["m4.large", 1][1] == pytest.approx(120, rel=0.05)
    for workers in (2, 3):  # the other type's points say how it goes on
        low, middle, high = found["m4.large", workers]
        assert middle == pytest.approx(SEEN["t2.small"][workers], rel=0.25)
        assert low < SEEN["t2.small"][workers] < high


def test_an_unmeasured_type_follows_the_one_with_most_points():
    other = offer("m4.xlarge", 0.2, vcpus=4.0, gpu="", gpus=0.0, nic=0.75, provider="lab")
    alone = subject(every({"t2.small": SEEN["t2.small"]}))
    both = subject(every({"t2.small": SEEN["t2.small"], "m4.large": {1: 300.0}}))
    assert steps_s(alone, other) == steps_s(both, other)


def test_of_types_with_as_many_points_an_unmeasured_one_follows_the_more_alike():
    small, large = ({name: {1: seconds}} for name, seconds in (("t2.small", 120.0), ("m4.large", 400.0)))
    other = offer("c4.large", 0.1, vcpus=2.0, gpu="", gpus=0.0, nic=0.5, provider="lab")
    for seen in ({**small, **large}, {**large, **small}):
        assert steps_s(subject(every(seen)), other)["c4.large", 1][1] == pytest.approx(400, rel=0.1)


def test_memory_is_that_of_the_type_and_else_that_of_another():
    found = [measured("t2.small", 1, 120.0, memory_bytes=GB), measured("m4.large", 1, 77.0)]
    known = Knowledge.of(found, [], DEVICES, {})
    assert [each.memory_of(12)[0] for each in known.types] == pytest.approx([GB, GB])
    found[1] = replace(found[1], memory_bytes=2 * GB)
    drawn, some = drawing(subject(found, most=1), market(*OFFERS.values()))
    assert sorted(drawn.memory(some, device=False).tolist()) == pytest.approx([GB, 2 * GB])


def test_tasks_without_steps_take_what_they_took_on_their_type():
    found = [
        Measurement(None, offer=name, duration_s=seconds)
        for name, seconds in (("t2.small", 50.0), ("t2.small", 52.0), ("m4.large", 90.0))
    ]
    asked = subject(found, most=1)
    drawn, some = drawing(asked, market(*OFFERS.values()))
    task = {
        drawn.timing(one).offers[int(one.machine[0])].instance_type: np.median(drawn.timing(one).task_s(one))
        for one in (some[np.array([row])] for row in range(len(some)))
    }
    assert task["t2.small"] == pytest.approx(51, rel=0.05)
    assert task["m4.large"] == pytest.approx(90, rel=0.05)


MACHINES = st.builds(
    lambda name, price, vcpus, nic: offer(
        name, price, vcpus=vcpus, gpu="", gpus=0.0, nic=nic, provider="lab"
    ),
    st.sampled_from(["t2.small", "m4.large", "other-1", "other-2"]),
    st.floats(0.02, 0.3),
    st.sampled_from([1.0, 2.0, 4.0]),
    st.sampled_from([0.3, 1.0]),
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(MACHINES, min_size=2, max_size=4, unique_by=lambda each: each.instance_type),
    st.dictionaries(
        st.sampled_from(list(SEEN)),
        st.dictionaries(st.integers(1, 3), st.floats(20, 200), min_size=1),
        min_size=1,
    ),
    st.sampled_from([FASTEST, QuoteLimits(), QuoteLimits(deadline_s=200.0), QuoteLimits(budget_usd=0.01)]),
)
def test_the_pick_is_that_of_brute_force(offers, seen, limits):
    asked, place = subject(every(seen)), market(*offers)
    drawn, some = drawing(asked, place)
    whole = SampledCandidates.of(some, drawn)
    row = pick(whole, drawn, limits)
    if row is None:
        with pytest.raises(NoFeasibleQuote):
            make_quote([asked], place, limits)
        return
    found = make_quote([asked], place, limits).main
    assert found.cluster.workers == whole.candidates.workers[row]
    assert math.isclose(found.time_s.p50, whole.time_s[row, 1], rel_tol=1e-9)


def test_bounds_are_below_what_is_drawn():
    drawn, some = drawing(subject(every()), market(*OFFERS.values()))
    median = np.median(drawn.time_s(some), axis=0)
    for alone in (True, False):
        assert (np.median(drawn.at_best_s(some, alone=alone), axis=0) <= median * (1 + 1e-9)).all()
    assert len(drawn.alike(some)) == len(some)


def test_a_second_type_is_looked_for_near_the_first_ones_draws(monkeypatch):
    """How long it takes is counted: values of the formula, of three types together and of each alone."""
    looks, real = [], posterior.log_time
    monkeypatch.setattr(posterior, "log_time", lambda *given: looks.append(len(given[1])) or real(*given))
    found = []
    for name, slower in (("t2.small", 1.7), ("m4.large", 1.0), ("m4.xlarge", 0.6)):
        for n, batch in ((n, b) for n in (1, 2, 4, 8) for b in (32, 64)):
            seconds = (0.05 + 0.002 * batch) * slower * n**0.05 + 0.03 * (2 - 2 / n)
            point = Point(Strategy.ALLREDUCE, n, nodes=n, local_batch=float(batch), step_time_s=seconds)
            found.append(Measurement(point, offer=name))
    known = Knowledge.of(found, [], DEVICES, {})
    together = sum(looks)
    looks.clear()
    for name in {each.offer for each in found}:
        StepTimeModel.fit([each.point for each in found if each.offer == name])
    assert together < 0.8 * sum(looks)
    asked = Point(Strategy.ALLREDUCE, 16, nodes=16, local_batch=64.0)
    for each, slower in zip(known.types, (1.7, 1.0, 0.6), strict=True):
        answer = each.model.predict([asked])
        assert answer.typical[0] == pytest.approx(0.178 * slower * 16**0.05 + 0.03 * (2 - 2 / 16), rel=0.1)


def test_the_first_of_few_long_steps_counts_once():
    """An attempt that began in 1 s, and then made six steps of 10 s, takes 61 s again, and not 71 s."""
    point = Point(Strategy.ALLREDUCE, 1, nodes=1, step_time_s=10.0)
    seen = Measurement(point, startup_s=11.0, duration_s=61.0, tail_s=0.0, steps_done=6)
    assert seen.before_steps_s == pytest.approx(1.0)
    known = Knowledge.of([seen, seen], [], {"local": Device("", 2.0, "local")}, {}, 0)
    assert known.startup_s + 6 * seen.point.step_time_s == pytest.approx(61.0)
