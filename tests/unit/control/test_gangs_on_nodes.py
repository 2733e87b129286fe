"""What a recipe means for gangs whose members are on several nodes."""

from __future__ import annotations

import pytest

from trainmaster.control.task.environment import with_library
from trainmaster.control.task.gangs import (
    gang_of,
    gpus_of,
    node_labels,
    slots_here,
    slots_of,
    slots_on_nodes,
    tasks_here,
    tasks_on_nodes,
    workers_per_node,
)
from trainmaster.executors.base import Capacity
from trainmaster.spec import Distributed, Experiment, Hardware


def experiment(distributed: Distributed | None = None, **what):
    return Experiment(name="train", command="true", distributed=distributed, **what)


def test_members_are_where_their_addresses_say():
    found = experiment(Distributed(workers=3))
    addresses = {"worker-0": "10.0.0.1", "worker-1": "10.0.0.1", "worker-2": "10.0.0.2"}
    gang = gang_of(found, "127.0.0.1", {"worker-0": (7,)}, addresses)
    assert [member.host for member in gang.members] == list(addresses.values())
    assert gang.members[0].ports == (7,)
    assert {member.host for member in gang_of(found, "127.0.0.1", {}).members} == {"127.0.0.1"}
    assert {member.host for member in gang_of(found, "127.0.0.1", {}, {}).members} == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("distributed", "hardware", "per_node", "gpus", "slots"),
    [
        (None, {}, 0, 0, 1),
        (None, {"cpus": 4, "gpus": 2}, 0, 2, 4),
        ({"workers": 4}, {}, 1, 0, 4),
        ({"workers": 4}, {"cpus": 4}, 1, 0, 16),
        ({"workers": 4, "per_node": 2}, {"cpus": 4}, 2, 0, 8),
        ({"workers": 8}, {"gpus": 4}, 4, 1, 8),
        ({"workers": 8, "per_node": 1}, {"gpus": 4}, 1, 4, 8),
        ({"workers": 2}, {"gpu": "v100"}, 1, 1, 2),
    ],
)
def test_what_a_node_has_is_shared_by_the_workers_there(distributed, hardware, per_node, gpus, slots):
    found = experiment(Distributed(**distributed) if distributed else None, hardware=Hardware(**hardware))
    assert workers_per_node(found) == per_node
    assert gpus_of(found, "worker") == gpus
    assert gpus_of(found, "worker", is_here=True) == (0 if hardware.get("gpu") else gpus), "only a wish"
    assert slots_of(found) == slots


def test_roles_with_hardware_of_their_own_have_nodes_of_their_own():
    shared = experiment(Distributed(strategy="ps-sync", workers=2, parameter_servers=1))
    assert [node_labels(shared, role) for role in ("chief", "worker", "ps")] == [{}, {}, {}]
    own = Distributed(strategy="ps-sync", workers=2, parameter_servers=1, hardware={"ps": Hardware(gpus=0)})
    split = experiment(own, hardware=Hardware(gpus=2))
    assert [node_labels(split, role) for role in ("chief", "worker", "ps")] == [
        {"role": "worker"},
        {"role": "worker"},
        {"role": "ps"},
    ]
    assert gpus_of(split, "ps") == 0


PAIR, FOUR_ON_TWO = {"workers": 2}, {"workers": 4, "per_node": 2}
SERVED = {"strategy": "ps-sync", "workers": 2, "parameter_servers": 1}


@pytest.mark.parametrize(
    ("workers", "distributed", "hardware", "nodes", "slots", "tasks"),
    [
        (None, None, {}, [(2, 0), (8, 0), (4, 0)], 14, 14),
        (1, None, {}, [(2, 0), (8, 0), (4, 0)], 8, 8),
        (2, None, {}, [(2, 0), (8, 0), (4, 0)], 12, 12),
        (9, None, {}, [(2, 0), (8, 0), (4, 0)], 14, 14),
        (2, None, {}, [(64, 0), (64, 0)], 128, 128),
        (2, None, {"cpus": 3}, [(4, 0), (4, 0)], 8, 2),  # what two nodes have left does not make a third
        (2, None, {"gpus": 1}, [(8, 4), (8, 4)], 16, 8),
        (2, None, {"gpus": 3}, [(8, 4), (8, 4)], 16, 2),
        (2, None, {"cpus": 4, "gpus": 1}, [(8, 4), (8, 4)], 16, 4),
        (2, None, {"gpus": 1}, [(8, 0), (8, 0)], 16, 16),  # it does not say what GPUs it has
        (None, PAIR, {}, [(2, 0), (2, 0), (2, 0)], 6, 3),
        (2, PAIR, {"cpus": 2}, [(3, 0), (3, 0), (3, 0)], 6, 1),
        (2, PAIR, {"gpus": 4, "cpus": 8}, [(8, 4), (8, 4)], 16, 4),
        (4, FOUR_ON_TWO, {"cpus": 4}, [(4, 0)] * 4, 16, 2),
        (2, {"workers": 3, "per_node": 2}, {}, [(6, 0), (6, 0)], 12, 4),
        (2, SERVED, {}, [(4, 0), (4, 0)], 8, 2),
        (2, {"workers": 20}, {}, [(8, 0), (8, 0)], 20, 1),  # it could never start otherwise
    ],
)
def test_how_far_an_experiment_spreads_on_nodes(workers, distributed, hardware, nodes, slots, tasks):
    shape = Distributed(**distributed) if distributed else None
    found = experiment(shape, workers=workers, hardware=Hardware(**hardware))
    assert (slots_on_nodes(found, nodes), tasks_on_nodes(found, nodes)) == (slots, tasks)


@pytest.mark.parametrize(
    ("workers", "distributed", "hardware", "slots", "gpus", "taken", "tasks"),
    [
        (None, None, {}, 8, 0, 8, 8),
        (2, None, {}, 8, 0, 2, 2),
        (9, None, {}, 8, 0, 8, 8),
        (2, None, {"cpus": 3}, 8, 0, 6, 2),
        (9, None, {"cpus": 3}, 8, 0, 8, 2),
        (None, None, {"gpus": 1}, 8, 1, 8, 1),
        (3, None, {"gpus": 2}, 8, 4, 3, 2),
        (None, None, {"gpu": "v100"}, 8, 1, 8, 8),  # a model of GPUs is only a wish here
        (2, PAIR, {}, 8, 0, 2, 1),
        (5, PAIR, {}, 8, 0, 4, 2),
        (2, FOUR_ON_TWO, {}, 8, 0, 4, 1),
        (4, FOUR_ON_TWO, {"gpus": 2}, 16, 4, 8, 1),
        (4, {"workers": 3, "per_node": 2}, {}, 6, 0, 6, 2),
        (4, SERVED, {}, 8, 0, 8, 2),  # with a chief
        (1, {"workers": 20}, {}, 8, 0, 20, 1),
    ],
)
def test_how_far_an_experiment_spreads_here(workers, distributed, hardware, slots, gpus, taken, tasks):
    shape = Distributed(**distributed) if distributed else None
    found = experiment(shape, workers=workers, hardware=Hardware(**hardware))
    offered = Capacity(slots, tuple(map(str, range(gpus))))
    assert (slots_here(found, slots), tasks_here(found, offered)) == (taken, tasks)


def test_a_team_runs_no_more_tasks_than_its_cores():
    assert tasks_here(experiment(), Capacity(8, team="red", team_slots=3)) == 3
    assert tasks_here(experiment(workers=2), Capacity(8, team="red", team_slots=3)) == 2


def test_our_report_comes_last():
    assert with_library({"A": "1"}, "/lib") == {"A": "1", "PYTHONPATH": "/lib"}
    assert with_library({"PYTHONPATH": "a:b"}, "/lib") == {"PYTHONPATH": "a:b:/lib"}
