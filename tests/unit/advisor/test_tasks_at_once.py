"""How many tasks run at a time: a quote reckons with what the run's loop has under way."""

from __future__ import annotations

import pytest
from quote_world import offer

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.quote.supply import Supply, per_node_of
from trainmaster.control.task.gangs import tasks_here, tasks_on_nodes
from trainmaster.executors.base import Capacity
from trainmaster.providers.catalogue import Catalogue
from trainmaster.spec import Distributed, Experiment, Hardware, Parameter, Search

PAIR, FOUR_ON_TWO = {"workers": 2}, {"workers": 4, "per_node": 2}
UNEVEN, SERVED = {"workers": 3, "per_node": 2}, {"strategy": "ps-sync", "workers": 2, "parameter_servers": 1}
PBT = Search(metric="loss", goal="min", sampler="pbt", population=3, generations=4)


def experiment(workers=None, distributed=None, hardware=None, tasks=12, **what):
    shape = Distributed(**distributed) if distributed else None
    return Experiment(
        name="e",
        command="true",
        workers=workers,
        distributed=shape,
        hardware=Hardware(**hardware or {}),
        parameters={"x": Parameter(range=("1", str(tasks)), step="1")},
        **what,
    )


@pytest.mark.parametrize("workers", [None, 1, 2, 3, 5, 99])
@pytest.mark.parametrize("distributed", [None, PAIR, FOUR_ON_TWO, UNEVEN, SERVED])
@pytest.mark.parametrize("hardware", [{}, {"cpus": 2}, {"gpus": 1}, {"gpus": 2, "cpus": 4}])
@pytest.mark.parametrize(("slots", "gpus"), [(1, 1), (3, 2), (8, 4), (64, 0)])
def test_here(workers, distributed, hardware, slots, gpus):
    found = experiment(workers, distributed, hardware)
    work = Workload.of(found, 0)
    here = Catalogue("local", (offer("here", 0.0, gpus=0.0, vcpus=float(slots), provider="local"),))
    machines = Machines.of(here.columns(), per_node_of(work, here, Supply(here, own_machine=True)))
    quoted = Candidates.of(work, machines, machines[:0], slots, gpus=gpus)
    runs = min(tasks_here(found, Capacity(slots, tuple(map(str, range(gpus))))), work.tasks)
    assert quoted.at_once.tolist() == [runs]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("hardware", [{}, {"cpus": 3}, {"gpus": 1}, {"gpus": 2, "cpus": 4}, {"gpu": "V100"}])
@pytest.mark.parametrize(("slots", "gpus"), [(2, 2), (8, 4), (64, 8)])
def test_on_machines_that_are_rented(workers, hardware, slots, gpus):
    """Of so many machines, as many tasks as the run would have there; fewer where memory holds no more."""
    found = experiment(workers, None, hardware)
    work = Workload.of(found, 0)
    there = Catalogue("list", (offer("m", 1.0, gpus=float(gpus), vcpus=float(slots)),))
    machines = Machines.of(there.columns(), per_node_of(work, there, Supply(there)))
    quoted = Candidates.of(work, machines, machines[:0], None)
    most = {}
    for count, at_once in zip(quoted.machines.tolist(), quoted.at_once.tolist(), strict=True):
        most[count] = max(most.get(count, 0), at_once)
    assert max(most) <= workers
    node = (max(slots, found.hardware.cpus or 1), gpus)
    for count, at_once in most.items():
        assert at_once == min(tasks_on_nodes(found, [node] * int(count)), work.tasks)


def test_hosts_that_do_not_say_their_slots_have_a_task_each():
    work = Workload.of(experiment(), 0)
    host = Catalogue("hosts", (offer("host", 0.0, gpus=0.0, vcpus=16.0, provider="hosts"),))
    for are_whole, tasks in ((True, 3), (False, 12)):
        machines = Machines.of(
            host.columns(), per_node_of(work, host, Supply(host, hosts=3, are_whole=are_whole))
        )
        assert max(Candidates.of(work, machines, machines[:0], None, hosts=3).at_once) == tasks


def test_a_population_is_side_by_side_and_its_generations_are_not():
    found = experiment(samples=12, search=PBT)
    work = Workload.of(found, 0)
    assert (work.tasks, work.side_by_side, found.side_by_side(0)) == (12, 3, 3)
    assert [float(work.waves(n)) for n in (1, 2, 3)] == [12, 8, 4]
    there = Catalogue("list", (offer("m", 1.0, gpus=0.0, vcpus=2.0),))
    machines = Machines.of(there.columns(), per_node_of(work, there, Supply(there)))
    quoted = Candidates.of(work, machines, machines[:0], None)
    assert set(zip(quoted.machines.tolist(), quoted.at_once.tolist(), strict=True)) == {
        (1, 1),
        (1, 2),
        (2, 3),
    }
