"""Hosts of one's own: each role gets hosts that suit it, and what can never be had is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.cluster.renting.offer_filter import AvailableOffers
from trainmaster.cluster.renting.plan import ClusterPlan
from trainmaster.cluster.renting.plan_clusters import pinned, plan_clusters
from trainmaster.control.task.gangs import gpus_of, node_labels, slots_of, workers_per_node
from trainmaster.executors.gangs.placement import LiveNode, lacking, plan_gang
from trainmaster.providers.inventory import InventoryHost
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError

HOSTS = st.lists(
    st.fixed_dictionaries({"slots": st.sampled_from([0, 2, 8]), "gpus": st.integers(0, 2)}),
    min_size=1,
    max_size=6,
)
WISH = st.fixed_dictionaries(
    {}, optional={"gpus": st.sampled_from([0, 1, 2, "1..2"]), "cpus": st.sampled_from([1, 4, 8])}
)


def recipe(workers: int, hardware: dict[str, Any], servers: dict[str, Any]) -> Recipe:
    train = {
        "command": "x",
        "framework": "tensorflow",
        "hardware": hardware,
        "distributed": {"strategy": "ps-async", "workers": workers, "hardware": {"ps": servers}},
    }
    return Recipe.from_text(str({"name": "t", "experiments": {"train": train}}))


def planned(found: Recipe, *hosts: dict[str, int]) -> ClusterPlan:
    listed = tuple(InventoryHost(name=f"h{n}", address=f"h{n}", **each) for n, each in enumerate(hosts))
    (plan,) = plan_clusters(found, AvailableOffers("hosts", hosts=listed, source="hosts.yaml"))
    return plan


def test_servers_go_where_workers_could_not() -> None:
    plan = planned(recipe(2, {"gpus": 1, "cpus": 4}, {"cpus": 1}), {"gpus": 1}, {"gpus": 1}, {"slots": 2})
    worker, server = plan.roles
    assert [(role.role, role.count, role.host_gpus, role.cpus) for role in (worker, server)] == [
        ("worker", 2, 1, 4), ("ps", 1, 0, 1),
    ]  # fmt: skip
    assert not any("sit with workers" in note for note in plan.notes)


def test_servers_that_want_gpus_get_hosts_that_have_some() -> None:
    plan = planned(recipe(1, {}, {"gpus": 2}), {"gpus": 1}, {"gpus": 2})
    worker, server = plan.roles
    assert (worker.host_gpus, server.host_gpus, server.rentals[0].gpus) == (0, 2, 2)
    with pytest.raises(UsageError, match=r"distributed\.hardware\.ps: no host of hosts\.yaml has 2 GPUs"):
        planned(recipe(1, {}, {"gpus": 2}), {"gpus": 1}, {"gpus": 1})
    with pytest.raises(UsageError, match="1 parameter servers with GPUs need hosts of their own"):
        planned(recipe(1, {}, {"gpus": 2}), {"gpus": 2})


def test_hosts_that_say_no_slots_are_named_where_they_keep_tasks_waiting() -> None:
    """One of them has all others take one task at a time, too: nothing told that."""
    sweep = {"command": "x {{a}}", "parameters": {"a": [1, 2, 3]}}
    found = Recipe.from_text(str({"name": "t", "experiments": {"train": sweep}}))
    said = "train: each host takes one task at a time, as `slots` is not said of h0 in hosts.yaml"
    plan = planned(found, {}, {"slots": 8})
    assert (said in plan.notes, plan.slots) == (True, 2)
    assert not any("slots" in note for note in planned(found, {"slots": 8}, {"slots": 8}).notes)
    assert not any("slots" in note for note in planned(found, {}, {"slots": 8}, {}).notes), "none waits"


def test_memory_is_asked_of_the_hosts() -> None:
    """Only they know how much they have: the provider refuses those that have less."""
    plan = planned(recipe(1, {"memory": "6GB"}, {"memory": "3GB"}), {}, {})
    assert [role.memory_bytes for role in plan.roles] == [6_000_000_000, 3_000_000_000]


def asked_of_nodes(found: Recipe, plan: ClusterPlan) -> tuple[dict[str, Any], list[LiveNode]]:
    """What the gang of the experiment `train` asks for, and the nodes that were planned for it."""
    placed = pinned(found, [plan]).experiments["train"]
    live = [
        LiveNode(f"{role.role}{n}", "", "", role.rentals[0].slots, role.rentals[0].gpus, role.labels)
        for role in plan.roles
        for n in range(role.count)
    ]
    members = [
        {
            "name": f"{role.name}-{number}",
            "gpus": gpus_of(placed, role.name),
            "node_labels": node_labels(placed, role.name),
        }
        for role in placed.members()
        for number in range(role.count)
    ]
    return {"members": members, "slots": slots_of(placed), "per_node": workers_per_node(placed)}, live


@given(HOSTS, st.integers(1, 4), WISH, WISH)
def test_what_is_planned_fits(
    hosts: list[dict[str, int]], workers: int, hardware: dict[str, int], servers: dict[str, int]
) -> None:
    found = recipe(workers, hardware, servers)
    try:
        plan = planned(found, *hosts)
    except UsageError:
        return
    assert plan.nodes <= len(hosts)
    for role in plan.roles:
        suited = [
            each
            for each in hosts
            if each["gpus"] >= role.host_gpus and (not each["slots"] or each["slots"] >= role.cpus)
        ]
        assert len(suited) >= role.count
    assert not lacking(*asked_of_nodes(found, plan))


@pytest.mark.parametrize("nodes", [2, 3, 4])
@pytest.mark.parametrize(
    "hardware", [{}, {"worker": {"gpus": 1}}, {"ps": {"gpus": 0}}, {"worker": {"gpus": 1}, "ps": {"gpus": 0}}]
)
def test_servers_without_machines_of_their_own_sit_with_workers(hardware: dict[str, Any], nodes: int) -> None:
    gang = {"strategy": "ps-async", "workers": 2, "hardware": hardware}
    train = {"command": "x", "framework": "tensorflow", "distributed": gang}
    found = Recipe.from_text(str({"name": "t", "experiments": {"train": train}}))
    asked, live = asked_of_nodes(found, planned(found, *[{"gpus": 1, "slots": 1}] * nodes))
    assert len(asked["members"]) == 4
    assert plan_gang(asked, live) is not None, lacking(asked, live)
