"""What only waits takes as long on another device: how much of a worker's time that is."""

from dataclasses import replace

import numpy as np
import pytest
from quote_world import DEVICES, knowledge, market, measured, offer, workload

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.model.devices import Device
from trainmaster.advisor.model.knowledge import Knowledge
from trainmaster.advisor.model.measurement import TimeShares
from trainmaster.advisor.quote.timing import Timing
from trainmaster.spec.hardware import Hardware


def seen(computing, workers=(1,), **more):
    shares = TimeShares(computing=computing)
    return [measured(n, 32, offer="local", time_shares=shares, cores=computing, **more) for n in workers]


def steps_s(known, vcpus=(0.25, 2.0), per_node=1.0):
    """On a machine with two cores, and on one with a quarter of one, the shorter one first."""
    place = market(*(offer(f"m{each}", 0.1 * each, gpus=0.0, gpu="", vcpus=each) for each in vcpus))
    found = Machines.of(place.catalogue.columns(), np.full(len(vcpus), per_node))
    work = workload(most=1, hardware=Hardware())
    timing = Timing(work, known, found, found[:0], place.catalogue.offers)
    some = Candidates.of(work, found, timing.servers, None)
    return sorted(np.median(timing.step_s(some), axis=0).tolist())


def test_a_job_that_waits_takes_about_as_long_on_a_slower_machine():
    waits, computes, unknown = (
        knowledge(*seen(0.05)),
        knowledge(*seen(1.0)),
        knowledge(measured(1, 32, offer="local", cores=1.0)),
    )
    for known, least, most in ((waits, 1.0, 1.25), (computes, 2.0, 20.0)):
        fast, slow = steps_s(known)
        assert least <= slow / fast <= most
    assert (computes.computes, unknown.computes) == (pytest.approx(1.0, abs=0.1), 1.0)


def test_what_other_work_kept_from_it_counts_as_computing():
    known = knowledge(*seen(0.2, held=0.6))
    assert known.computes == pytest.approx(0.8, abs=0.1)
    assert known.computing_share == pytest.approx(0.8), "it was called limited by waiting"


def test_on_a_slower_machine_a_job_takes_as_long_however_much_other_work_kept_from_it_when_it_was_measured():
    alone, beside = (knowledge(*seen(busy, held=held)) for busy, held in ((1.0, 0.0), (0.25, 0.75)))
    assert steps_s(beside, (0.5, 2.0)) == pytest.approx(steps_s(alone, (0.5, 2.0)), rel=0.02)


def test_a_part_of_a_core_that_is_kept_busy_is_all_that_the_machine_has():
    (one,) = seen(0.25)
    for cores, share in ((0.25, 1.0), (1.0, 0.25)):
        known = Knowledge.of([one], [], {"local": Device("", cores, "local")}, {})
        assert known is not None
        assert known.computes == pytest.approx(share, abs=0.1)


@pytest.mark.parametrize(("busy", "slower"), [(0.13, 1.0), (0.225, 1.0), (0.44, 2.0)])
def test_tasks_side_by_side_take_longer_once_they_want_more_than_their_machine_has(busy, slower):
    """On the type where the job was measured, of which every task has half."""
    (one,) = seen(busy)
    known = Knowledge.of([replace(one, offer="m0.45")], [], {"m0.45": Device("", 0.45, "m0.45")}, {})
    (alone,), (shared,) = (steps_s(known, vcpus=(0.45,), per_node=tasks) for tasks in (1.0, 2.0))
    assert shared / alone == pytest.approx(slower, rel=0.05)


def test_waiting_for_the_network_is_no_waiting_of_a_worker_itself():
    alone, *gangs = (measured(n, 32, offer="local") for n in (1, 2, 4))
    slow = [
        replace(
            each,
            point=replace(each.point, step_time_s=8 * each.point.step_time_s),
            time_shares=TimeShares(computing=1 / 8),
        )
        for each in gangs
    ]
    known = Knowledge.of([replace(alone, time_shares=TimeShares(computing=1.0)), *slow], [], DEVICES, {})
    assert known is not None
    assert known.computes > 0.6
