"""What is planned has room for the gang that it was planned for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainmaster.cluster.renting.available_offers import AvailableOffers
from trainmaster.cluster.renting.plan_clusters import pinned, plan_clusters
from trainmaster.control.gangs import gpus_on_nodes, node_labels, slots_on_nodes, workers_per_node
from trainmaster.executors.ray.placement import LiveNode, lacking, plan_gang
from trainmaster.providers.inventory import InventoryHost
from trainmaster.spec import read_recipe


@pytest.mark.parametrize("nodes", [2, 3, 4])
@pytest.mark.parametrize(
    "hardware", [{}, {"worker": {"gpus": 1}}, {"ps": {"gpus": 0}}, {"worker": {"gpus": 1}, "ps": {"gpus": 0}}]
)
def test_who_has_no_machines_of_its_own_sits_with_workers(
    tmp_path: Path, hardware: dict[str, Any], nodes: int
) -> None:
    gang = {"strategy": "ps-async", "workers": 2, "hardware": hardware}
    train = {"command": "x", "framework": "tensorflow", "distributed": gang}
    (tmp_path / "recipe.yaml").write_text(json.dumps({"name": "t", "experiments": {"train": train}}))
    recipe = read_recipe(tmp_path / "recipe.yaml")
    listed = tuple(InventoryHost(name=f"h{n}", address=f"h{n}", gpus=1, slots=1) for n in range(nodes))
    (plan,) = plan_clusters(recipe, AvailableOffers("hosts", hosts=listed, source="hosts.yaml"))
    placed = pinned(recipe, [plan]).experiments["train"]
    rooms = [
        LiveNode(f"{role.role}{n}", "", "", role.rentals[0].slots, role.rentals[0].gpus, role.labels)
        for role in plan.roles
        for n in range(role.count)
    ]
    members = [
        {
            "name": f"{role.name}-{number}",
            "gpus": gpus_on_nodes(placed, role.name),
            "node_labels": node_labels(placed, role.name),
        }
        for role in placed.members()
        for number in range(role.count)
    ]
    asked = {"members": members, "slots": slots_on_nodes(placed), "per_node": workers_per_node(placed)}
    assert len(members) == 4
    assert plan_gang(asked, rooms) is not None, lacking(asked, rooms)
