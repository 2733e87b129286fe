"""What there is beside a cloud: hosts of one's own, a lab's smaller machines, machines that are too small."""

import math
from dataclasses import replace

import numpy as np
import pytest
from quote_world import GB, knowledge, market, measured, offer, step_s, training, workload

from trainmaster.advisor.market.memory_floor import LEAST_MEMORY_BYTES, Shares, roomy
from trainmaster.advisor.quote.choosing import QuoteLimits
from trainmaster.advisor.quote.quoting import Subject, make_quote
from trainmaster.advisor.quote.supply import offers_for, per_node_of
from trainmaster.spec import Strategy
from trainmaster.spec.hardware import Hardware

CPUS = {"gpus": 0.0, "gpu": ""}


def own_hosts(count, slots=2.0):
    here = offer("host", 0.0, vcpus=slots, provider="hosts", nic=None, **CPUS)
    return market(replace(here, memory_bytes=1), hosts=count)


def on_cpus(sync=Strategy.ALLREDUCE, **more):
    points = [measured(n, b, "local", sync, memory_bytes=2.0 * GB) for n in (1, 2, 4) for b in (32, 128)]
    return Subject(workload(hardware=Hardware(), sync=sync, **more), knowledge(*points))


def test_hosts_cost_nothing_and_the_fastest_number_of_them_is_taken():
    one = make_quote([on_cpus()], own_hosts(4), QuoteLimits()).main
    assert one.cluster.worker.instance == "host"
    assert 1 < one.cluster.workers <= 4
    assert one.cluster.worker.count == one.cluster.workers
    assert one.cost_usd.p95 == 0
    assert one.memory_headroom is None
    assert one.time_s.p50 == pytest.approx(10 * 196 * step_s(4, 64), rel=0.3)


def test_there_are_never_more_nodes_than_hosts_and_a_job_that_needs_more_shares_them():
    alone = make_quote([on_cpus()], own_hosts(1), QuoteLimits()).main
    assert (alone.cluster.workers, alone.cluster.worker.count) == (1, 1)
    subject = on_cpus()
    lengths = {8: subject.workload.lengths[8]}
    fixed = replace(subject, workload=replace(subject.workload, lengths=lengths))
    shared = make_quote([fixed], own_hosts(2), QuoteLimits()).main
    assert (shared.cluster.workers, shared.cluster.worker.count) == (8, 2)


def test_tasks_spread_over_the_hosts():
    subject = on_cpus(most=1, tasks=32)
    one = make_quote([subject], own_hosts(3, slots=4.0), QuoteLimits()).main
    assert one.cluster.worker.count <= 3
    assert one.cluster.at_once <= 12


def test_wishes_choose_nothing_on_hosts():
    subject = on_cpus()
    wishes = replace(subject.workload, hardware=Hardware(instance=("m4.large",), spot=True, region="r"))
    assert make_quote(
        [replace(subject, workload=wishes)], own_hosts(2), QuoteLimits()
    ).main.cluster.worker.count


def test_machines_of_a_lab_are_chosen_by_what_is_published_and_timed_by_what_they_are():
    kind = offer("m4.xlarge", 0.2, vcpus=4.0, nic=1.0, **CPUS)
    subject = Subject(
        workload(most=1, hardware=Hardware(cpus=4, memory_bytes=32 * GB)),
        knowledge(*(measured(1, b, "local", cores=2.0) for b in (32, 128, 256))),
    )
    whole = make_quote([subject], market(kind), QuoteLimits()).main
    place = market(kind, shares=Shares(0.125, 0.125, 0.125))
    part = make_quote([subject], place, QuoteLimits()).main
    assert part.cluster.worker.instance == "m4.xlarge"
    assert part.step_s.p50 > 2 * whole.step_s.p50
    real = place.real(place.catalogue).offers[0]
    assert (real.vcpus, real.memory_bytes, real.nic_gbps) == (0.5, 61 * GB // 8, 0.125)
    tiny = Shares(0.1, 0.001, 1.0, least_memory_bytes=2**29).of(kind)
    assert tiny.memory_bytes == 2**29
    assert Shares(0.125, 1.0, 1.0, runtime_cores=0.05).of(kind).vcpus == pytest.approx(0.45)
    assert Shares(0.01, 1.0, 1.0, runtime_cores=0.05).of(kind).vcpus > 0


def test_machines_that_nothing_fits_in_are_left_out_unless_they_are_asked_for():
    tiny = offer("tiny", 0.01, memory_bytes=LEAST_MEMORY_BYTES - 1)
    least = offer("least", 0.02, memory_bytes=LEAST_MEMORY_BYTES)
    job = workload(hardware=Hardware())
    assert [o.instance_type for o in offers_for(job, market(tiny, least))] == ["least"]
    assert [o.instance_type for o in offers_for(job, market(tiny))] == ["tiny"]
    for asked in (Hardware(instance=("t*",)), Hardware(memory_bytes=1)):
        assert tiny in roomy([tiny, least], asked)


@pytest.mark.parametrize(
    ("tasks", "cpus", "most", "expected"),
    [(1, None, 1, 1), (3, None, 1, 3), (40, None, 1, 8), (40, 3, 1, 2), (40, None, 4, 1), (40, 16, 1, 1)],
)
def test_single_processes_share_a_machine_as_its_slots_have_it(tasks, cpus, most, expected):
    job = workload(tasks=tasks, most=most, hardware=Hardware(cpus=cpus))
    place = market(offer("m", 1.0, vcpus=8.0, **CPUS))
    assert per_node_of(job, place.catalogue, place).tolist() == [expected]


def test_a_single_task_has_all_cores_of_its_machine():
    slow = training(most=1)
    few, many = (offer(f"m{n}", 1.0, vcpus=float(n), **CPUS) for n in (2, 16))
    subject = Subject(
        replace(slow.workload, hardware=Hardware()),
        knowledge(*(measured(1, b, "local", cores=2.0) for b in (32, 128))),
    )
    steps = [make_quote([subject], market(kind), QuoteLimits()).main.step_s.p50 for kind in (few, many)]
    assert steps[0] > 2 * steps[1]


def test_servers_that_sit_with_workers_cost_nothing_of_their_own():
    kind, server = offer("p3.2xlarge", 3.06), offer("m4.large", 0.1, **CPUS)
    job = Subject(
        workload(sync=Strategy.PS_ASYNC, servers=1),
        knowledge(*(measured(n, b, sync=Strategy.PS_ASYNC) for n in (1, 2, 4) for b in (32, 128))),
    )
    apart = make_quote([job], market(kind, server), QuoteLimits()).main.cluster
    assert apart.server is not None
    together = make_quote([job], market(kind, server, servers_apart=False), QuoteLimits()).main.cluster
    assert together.server is None
    assert together.usd_per_hour == together.worker.count * together.worker.usd_per_hour
    own = replace(job, workload=replace(job.workload, own_servers=True))
    assert make_quote([own], market(kind, server, servers_apart=False), QuoteLimits()).main.cluster.server


def test_servers_on_hosts_are_no_machines_of_their_own():
    subject = on_cpus(sync=Strategy.PS_ASYNC, servers=1)
    one = make_quote([subject], own_hosts(2), QuoteLimits()).main
    assert one.cluster.server is None
    assert math.isfinite(one.time_s.p95)
    assert np.isfinite(one.step_s.p50)


def test_a_network_that_nobody_told_is_not_as_fast_as_the_inside_of_one_machine():
    """A gang was quoted 10 s (5 to 30) on two hosts, and took 49 s: the ways between them were a loopback."""
    point = replace(measured(2, 8).point, nodes=1, nic_mbps=None, step_time_s=0.01)
    seen = knowledge(replace(measured(2, 8), point=point, startup_s=0.5, offer="local"))
    job = Subject(workload(most=2), seen)
    job = replace(job, workload=replace(job.workload, lengths={2: job.workload.lengths[2]}))

    def steps_s(nic):
        here = offer("host", 0.0, provider="hosts", nic=nic, **CPUS)
        made = make_quote([job], market(here, hosts=2), QuoteLimits(), 0).main
        return next(each.time_s for each in made.phases if each.name == "steps")

    untold, gigabit, fast = steps_s(None), steps_s(1.0), steps_s(20.0)
    assert untold.p50 > 2 * fast.p50
    assert untold.p95 > 1.2 * gigabit.p95
    assert untold.p5 < 1.2 * gigabit.p5  # there it is little of the step


def test_of_a_gang_whose_exchange_nothing_counted_no_more_is_believed_than_its_members_can_hold():
    """Three ranks were quoted 48 s (9 s to 45 min), and took 23 s."""
    point = replace(measured(2, 8).point, nodes=1, nic_mbps=None, bytes_out=None, step_time_s=0.005)

    def steps_s(memory_bytes):
        found = replace(measured(2, 8), point=point, offer="local", memory_bytes=memory_bytes)
        job = Subject(workload(most=2), knowledge(found))
        job = replace(job, workload=replace(job.workload, lengths={2: job.workload.lengths[2]}))
        here = offer("host", 0.0, provider="hosts", nic=None, **CPUS)
        made = make_quote([job], market(here, hosts=2), QuoteLimits(), 0).main
        return next(each.time_s for each in made.phases if each.name == "steps")

    little, much = steps_s(4e6), steps_s(None)
    assert little.p95 < 0.3 * much.p95
    assert little.p50 < 0.7 * much.p50
    assert little.p5 > 0.9 * much.p5
