"""What a measured point carries beside its step time, and what becomes of it."""

import json
from dataclasses import replace

import pytest
from quote_world import knowledge, market, measured, offer, training, workload

from trainmaster.advisor.model.knowledge import prepared
from trainmaster.advisor.model.measurement import MOST_STEP_DOUBT, Measurement, TimeShares
from trainmaster.advisor.quote.choosing import QuoteLimits
from trainmaster.advisor.quote.quoting import Subject, make_quote
from trainmaster.spec import Strategy

V100 = offer("p3.2xlarge", 3.06)


def seen(workers, **more):
    found = measured(workers, 64, **more)
    shares = TimeShares.of(cores=0.3, devices=None, server=0.5)
    point = replace(found.point, bytes_in=4e7, bytes_out=5e7)
    return replace(found, point=point, time_shares=shares, server_cores=1.5)


def test_all_of_it_survives_the_database():
    one = seen(2)
    assert Measurement.from_json(one.to_json()) == one
    old = replace(one, time_shares=None)
    assert Measurement.from_json(old.to_json()) == old


def test_steps_in_bursts_are_known_by_their_mean():
    """A row of an earlier version: most steps took 20 ms, and all together a second each."""
    point = replace(measured(1, 64).point, step_time_s=0.02)
    row = json.loads(Measurement(point, rare_share=49.0, step_spread=4.1).to_json())
    found = Measurement.from_json(json.dumps(row))
    assert found.point.step_time_s == pytest.approx(1.0)
    assert (found.rare_share, found.step_spread) == (0.0, MOST_STEP_DOUBT)
    assert knowledge(found).extra_spread < 1
    held = Measurement.from_json(json.dumps(row | {"held": 0.6}))
    assert MOST_STEP_DOUBT < held.step_spread < 1, "what others held may be more than that"
    calm = Measurement(point, rare_share=0.1, step_spread=0.3)
    assert Measurement.from_json(calm.to_json()) == calm


@pytest.mark.parametrize(
    ("sync", "gradient"), [("allreduce", 5e7 / 1.5), ("ps-sync", 5e7), ("ps-async", 2e8)]
)
def test_the_gradient_follows_from_the_bytes_per_step(sync, gradient):
    """A worker sends one to its servers for each step of its own; a global step is a fourth of these."""
    assert prepared(seen(4, sync=Strategy(sync)), None).gradient_bytes == pytest.approx(gradient)


def test_one_worker_sends_its_servers_a_gradient_too():
    assert prepared(seen(1, sync=Strategy.PS_SYNC), None).gradient_bytes == 5e7
    assert prepared(seen(1, sync=Strategy.ALLREDUCE), None).gradient_bytes is None


def test_several_machines_have_no_loopback_between_them():
    point = replace(seen(2).point, nic_mbps=None)
    assert prepared(Measurement(replace(point, nodes=1)), None).nic_mbps == 20_000
    assert prepared(Measurement(point), None).nic_mbps is None
    assert prepared(Measurement(point), 750.0).nic_mbps == 750


def test_where_the_time_went_is_told():
    quote = make_quote([Subject(workload(), knowledge(seen(1), seen(2)))], market(V100), QuoteLimits()).main
    one, two = quote.as_dict()["measured"]
    shares = {"computing": 0.3, "waiting": 0.7, "network": None, "server": 0.5, "data": None}
    assert one["time_shares"] == shares
    assert two["time_shares"]["network"] == pytest.approx(5e7 * 8 / 1e10 / two["step_time_s"], abs=1e-3)
    assert (two["bytes_in"], two["bytes_out"], two["workers"]) == (4e7, 5e7, 2)
    assert quote.bottleneck == (
        "waiting: workers computed 30% of the measured time; else they slept, or waited for what is not seen"
    )


def test_data_are_waited_for_only_where_disks_or_volumes_were():
    def told(data):
        found = seen(1)
        found = replace(found, time_shares=replace(found.time_shares, data=data))
        return make_quote(
            [Subject(workload(), knowledge(found))], market(V100), QuoteLimits()
        ).main.bottleneck

    assert told(0.5).startswith("waiting for data: ")
    assert "and waited for disks or volumes 50% of it" in told(0.5)
    assert told(0.05).startswith("waiting: ")
    assert make_quote([training()], market(V100), QuoteLimits()).main.bottleneck.startswith("compute")


def test_an_unknown_network_is_assumed_to_be_slow_and_named():
    blind = offer("blind", 0.5, nic=None)
    fast = QuoteLimits(time_weight=1, cost_weight=0)
    quote = make_quote([training()], market(blind), fast).main
    if quote.cluster.worker.count > 1:
        assert any("the network of blind is unknown" in note for note in quote.notes)
    both = make_quote([training()], market(blind, offer("known", 0.6)), fast).main
    assert both.cluster.worker.instance == "known"
