"""What a recipe means for gangs whose members are on several nodes."""

from __future__ import annotations

import pytest

from trainmaster.control.task.environment import with_library
from trainmaster.control.task.gangs import (
    gang_of,
    gpus_of,
    node_labels,
    slots_of,
    spread_on_nodes,
    workers_per_node,
)
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


def test_how_far_an_experiment_spreads():
    nodes = (2, 8, 4)
    assert spread_on_nodes(experiment(), nodes, 14) == 14
    assert spread_on_nodes(experiment(workers=1), nodes, 14) == 8
    assert spread_on_nodes(experiment(workers=2), nodes, 14) == 12
    assert spread_on_nodes(experiment(workers=9), nodes, 14) == 14
    assert spread_on_nodes(experiment(workers=2), (), 14) == 14  # nobody knows the nodes yet
    large = experiment(Distributed(workers=20))
    assert spread_on_nodes(large, nodes, 14) == slots_of(large) == 20  # it could never start otherwise


def test_our_report_comes_last():
    assert with_library({"A": "1"}, "/lib") == {"A": "1", "PYTHONPATH": "/lib"}
    assert with_library({"PYTHONPATH": "a:b"}, "/lib") == {"PYTHONPATH": "a:b:/lib"}
