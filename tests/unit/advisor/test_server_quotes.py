"""Quotes with parameter servers on machines of their own: what is left out could not have been picked."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quote_world import knowledge, market, measured, offer, workload

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.credits import with_nic_credits
from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.market.pairs import Pairs
from trainmaster.advisor.market.phases import ClusterWait
from trainmaster.advisor.quote.choosing import QuoteLimits, SampledCandidates, pick
from trainmaster.advisor.quote.infeasible import NoFeasibleQuote
from trainmaster.advisor.quote.quoting import Subject, make_quote
from trainmaster.advisor.quote.timing import Timing
from trainmaster.spec import Strategy
from trainmaster.spec.hardware import Hardware

V100 = offer("p3.2xlarge", 3.06)
PLACES = ("eu-west-1", "us-east-1")

nodes = st.builds(
    offer,
    st.just("m"),
    st.floats(0.05, 5),
    gpu=st.sampled_from(["V100", "T4"]),
    gpus=st.sampled_from([0.0, 1.0]),
    vcpus=st.sampled_from([2.0, 16.0]),
    cpu_baseline_share=st.sampled_from([None, 0.2]),
    nic=st.sampled_from([None, 0.5, 10.0]),
    nic_burst_gbps=st.sampled_from([None, 10.0, 25.0]),
    region=st.sampled_from(PLACES),
    billing_quantum_s=st.sampled_from([1.0, 3600.0]),
    provider=st.sampled_from(["aws", "azure"]),
)


def subject(sync, servers=2, most=6, cores=None, **more):
    points = [replace(measured(n, 64, sync=sync), server_cores=cores) for n in (1, 2)]
    return Subject(workload(sync=sync, servers=servers, most=most, **more), knowledge(*points))


def heavy(workers):
    """Of a job that sends for most of the time: twice 0.8 s of 500 MB over 10 Gbit/s, to one server."""
    found = measured(workers, 64, sync=Strategy.PS_SYNC)
    seconds = 0.02 + 0.8 * workers
    return replace(found, point=replace(found.point, gradient_bytes=5e8, step_time_s=seconds))


def named(offers):
    """The same with names of their own."""
    return [replace(each, instance_type=f"m{i}") for i, each in enumerate(offers)]


def everything(asked, offers):
    """All pairs of machines in one place, nothing left out."""
    place = market(*offers)
    where = [(o.provider, o.region) for o in offers]
    places = np.array([sorted(set(where)).index(each) for each in where])
    whole = Machines.of(place.catalogue.columns(), np.ones(len(offers)), places)
    gpus = np.array([o.accelerators > 0 for o in offers])
    timing = Timing(asked.workload, asked.knowledge, whole[gpus], whole, tuple(offers))
    return timing, Candidates.of(asked.workload, timing.machines, timing.servers, None)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(nodes, min_size=2, max_size=9),
    st.sampled_from([Strategy.PS_SYNC, Strategy.PS_ASYNC]),
    st.sampled_from([math.inf, 2500.0, 1200.0]),
    st.sampled_from([math.inf, 4.0, 1.0]),
    st.sampled_from([0.0, 0.0005, 1.0]),
    st.sampled_from([None, 3.0]),
)
def test_the_pick_is_that_of_brute_force_over_all_pairs(offers, sync, deadline, budget, time_weight, cores):
    offers = named([*offers, offer("gpu", 3.0, region=PLACES[0])])
    asked, limits = subject(sync, cores=cores), QuoteLimits(deadline, budget, time_weight=time_weight)
    timing, candidates = everything(asked, offers)
    brute = SampledCandidates.of(candidates, timing)
    best = pick(brute, timing, limits)
    if best is None:
        with pytest.raises(NoFeasibleQuote):
            make_quote([asked], market(*offers), limits)
        return
    found = make_quote([asked], market(*offers), limits).main
    assert found.cluster.worker.count == brute.candidates.machines[best]
    assert found.time_s.p50 == pytest.approx(brute.time_s[best, 1])
    assert found.cost_usd.p50 == pytest.approx(brute.cost_usd[best, 1])


@settings(max_examples=25, deadline=None)
@given(
    st.lists(nodes, min_size=2, max_size=25),
    st.sampled_from([Strategy.PS_SYNC, Strategy.PS_ASYNC]),
    st.sampled_from([None, 3.0]),
)
def test_every_pair_that_is_left_out_is_beaten_by_one_that_is_not(offers, sync, cores):
    offers = named([*offers, offer("gpu", 3.0, region=PLACES[0])])
    asked = subject(sync, most=2, cores=cores)
    timing, candidates = everything(asked, offers)
    workers = timing.machines.undominated()
    servers = timing.servers.as_servers(by_cores=cores is not None)
    pairs = Pairs.that_matter(workers, servers, np.zeros(len(workers), dtype=int))
    few = Timing(asked.workload, asked.knowledge, workers, servers, tuple(offers))
    kept = SampledCandidates.of(Candidates.of(asked.workload, workers, servers, None, pairs=pairs), few)
    assert len(kept) <= len(candidates)
    brute = SampledCandidates.of(candidates, timing)
    for row in range(len(brute)):
        same = kept.candidates.workers == brute.candidates.workers[row]
        faster = kept.sure_time <= brute.sure_time[row] * (1 + 1e-9)
        cheaper = kept.cost_usd[:, 1] <= brute.cost_usd[row, 1] * (1 + 1e-9)
        assert (same & faster & cheaper).any()


@settings(max_examples=15, deadline=None)
@given(
    nics=st.lists(st.sampled_from([None, 0.5, 25.0]), min_size=1, max_size=3),
    quantum=st.sampled_from([1.0, 3600.0]),
    spot=st.booleans(),
    alone=st.booleans(),
)
def test_bounds_are_below_every_outcome_with_servers_too(nics, quantum, spot, alone):
    work = workload(sync=Strategy.PS_ASYNC, servers=2, most=8, epochs=1, tasks=3)
    gpus = (offer("gpu", 3.0, spot=spot, billing_quantum_s=quantum), offer("blind", 2.0, nic=None))
    hosts = [offer(f"s{i}", 0.1 + i, gpus=0.0, nic=nic) for i, nic in enumerate(nics)]
    catalogue = market(*gpus, *hosts).catalogue
    whole = Machines.of(catalogue.columns(), np.ones(len(catalogue)))
    known = knowledge(*[replace(measured(n, 64, sync=Strategy.PS_ASYNC), server_cores=3.0) for n in (1, 2)])
    timing = Timing(work, known, whole[:2], whole[2:], catalogue.offers)
    some = Candidates.of(work, timing.machines, timing.servers, None)
    best, real = timing.at_best_s(some, alone=alone), timing.time_s(some)
    assert (np.tile(best, (len(real) // len(best), 1)) <= real + 1e-9).all()
    assert (timing.at_least_s(some) <= real).all()
    for row in (0, len(some) - 1):
        one = timing.at_best_s(some[np.array([row])], alone=alone)[:, 0]
        assert one == pytest.approx(best[:, row])


def test_a_server_of_another_region_is_never_taken_however_cheap():
    offers = [
        offer("gpu", 3.0, region=PLACES[0]),
        offer("here", 0.5, gpus=0.0, region=PLACES[0]),
        offer("there", 0.01, gpus=0.0, region=PLACES[1]),
    ]
    quote = make_quote([subject(Strategy.PS_ASYNC)], market(*offers), QuoteLimits()).main
    assert quote.cluster.server.instance == "here"


def test_the_servers_card_decides_where_it_is_the_slower_one():
    """Ten times the price is worth it for the fastest, not for the cheapest."""
    offers = [
        offer("gpu", 3.0, nic=25.0),
        offer("slow", 0.1, gpus=0.0, nic=0.5),
        offer("quick", 1.0, gpus=0.0, nic=25.0),
        offer("needless", 1.5, gpus=0.0, nic=100.0),
    ]
    asked = subject(Strategy.PS_SYNC, servers=1)
    fast = make_quote([asked], market(*offers), QuoteLimits(time_weight=1, cost_weight=0)).main
    assert fast.cluster.server.instance == "quick"


def test_network_cards_that_slow_down_cost_a_long_run_more_than_a_short_one():
    """Card and job are such that a tenth of the burst does not carry the gradients."""
    points = [heavy(n) for n in (1, 2, 4)]
    steady, bursting = offer("a", 1.0, nic=10.0), offer("a", 1.0, nic=0.75, nic_burst_gbps=10.0)
    ratios, quotes = [], []
    for epochs in (1, 300):
        work = workload(sync=Strategy.PS_SYNC, servers=1, most=2, epochs=epochs)
        known = Subject(work, knowledge(*points))
        limits = QuoteLimits(time_weight=1, cost_weight=0)
        slow, fast = (make_quote([known], market(each), limits).main for each in (bursting, steady))
        ratios.append(slow.time_s.p50 / fast.time_s.p50)
        quotes.append(slow)
    assert ratios[0] == pytest.approx(1, abs=0.02)
    assert ratios[1] > 1.5
    assert "credits" in quotes[1].bottleneck
    assert "credits" not in quotes[0].bottleneck


@given(
    st.floats(1, 1e6),
    st.floats(0, 1),
    st.floats(0.1, 25),
    st.floats(0.05, 1),
    st.floats(0.05, 1),
    st.floats(60, 6000),
)
def test_a_card_that_sustains_or_reaches_more_is_never_slower(busy, share, fast, less, sustained, launch):
    def of(reach, lasts):
        """A job that computes beside what it sends: at half the rate it sends for twice as long."""
        bits = busy * share * fast
        total = np.array([busy * (1 - share) + bits / reach])
        return with_nic_credits(
            total, np.array([bits]), np.array([reach]), np.array([lasts]), np.array([launch])
        )[0]

    best = of(fast, fast)
    assert best == pytest.approx(busy)
    slower = of(fast, fast * sustained)
    assert slower >= best * (1 - 1e-9)
    assert of(fast, fast * sustained * less) >= slower * (1 - 1e-9)
    if less >= sustained:
        assert of(fast * less, fast * sustained) >= slower * (1 - 1e-9)


def test_a_cluster_takes_as_long_whatever_else_is_looked_at():
    """The other one's card slows down, and so all cards were counted; alone none was."""
    some = {"gpu": "V100", "nic": None, "vcpus": 2.0}
    steady, tired = (offer("m", 1.0, gpus=0.0, nic_burst_gbps=burst, **some) for burst in (None, 10.0))
    timing, candidates = everything(
        subject(Strategy.PS_SYNC),
        named([steady, tired, offer("w", 0.5, gpu="T4", nic=None, vcpus=2.0), V100]),
    )
    together = timing.time_s(candidates)
    alone = [timing.time_s(candidates[np.array([i])])[:, 0] for i in range(len(candidates))]
    np.testing.assert_allclose(together, np.column_stack(alone), rtol=1e-9)


def busy_server(workers, cores):
    """A worker keeps that many of the server's cores busy."""
    found = measured(workers, 64, sync=Strategy.PS_ASYNC)
    point = replace(found.point, step_time_s=found.point.step_time_s / workers)
    return replace(found, point=point, server_cores=cores * workers)


def test_a_server_with_few_cores_is_not_taken_where_updates_need_many():
    small = offer("small", 0.1, gpus=0.0, vcpus=1.0)
    large = offer("large", 0.4, gpus=0.0, vcpus=16.0)
    fastest = QuoteLimits(time_weight=1, cost_weight=0)
    taken = {}
    for cores in (0.01, 1.0):
        known = knowledge(*[busy_server(n, cores) for n in (1, 2, 4)])
        work = workload(sync=Strategy.PS_ASYNC, servers=1, most=4)
        taken[cores] = make_quote([Subject(work, known)], market(V100, small, large), fastest).main
        only = Subject(replace(work, server_hardware=Hardware(instance=("small",))), known)
        alone = make_quote([only], market(V100, small), fastest).main
        assert ("processors" in alone.bottleneck) is (cores == 1.0)
    assert taken[0.01].cluster.server.instance == "small"
    assert taken[1.0].cluster.server.instance == "large"


def test_a_server_whose_cpu_credits_run_out_holds_up_a_long_run():
    """As Jorge et al. saw it happen on a t2.small."""
    steady = offer("m", 0.1, gpus=0.0, vcpus=1.0)
    burst = offer("t2", 0.1, gpus=0.0, vcpus=1.0, cpu_baseline_share=0.2)
    known = knowledge(*[busy_server(n, 3.0) for n in (1, 2)])
    for epochs, ratio in ((2, 1.0), (200, 2.0)):
        facts = {"sync": Strategy.PS_ASYNC, "servers": 1, "most": 1, "epochs": epochs}
        slow, fast = (
            make_quote(
                [Subject(workload(server_hardware=Hardware(instance=(each.instance_type,)), **facts), known)],
                market(V100, each),
                QuoteLimits(),
            ).main
            for each in (burst, steady)
        )
        if ratio == 1.0:
            assert slow.time_s.p50 == pytest.approx(fast.time_s.p50, rel=0.02)
        else:
            assert slow.time_s.p50 > ratio * fast.time_s.p50
            assert "processors" in slow.bottleneck


def test_a_cluster_is_there_when_the_slowest_of_its_types_is():
    offers = [offer("worker", 2.0, provider="lab"), offer("server", 0.1, gpus=0.0, vcpus=1.0, provider="lab")]
    timing, some = everything(subject(Strategy.PS_SYNC, servers=1), offers)
    seen = [ClusterWait(10.0, "lab:worker", "lab")] * 9 + [ClusterWait(60.0, "lab:server", "lab")] * 9
    waits = replace(timing, waited=tuple(seen)).once_s(some)["machines"]
    apart = np.median(waits, axis=0)[timing.servers.index[some.server] == 1]
    assert np.median(waits, axis=0).min() < 20 < 45 < apart.min()
