"""The example with Ansible roles: its recipe is read, its role found, its machines are of two kinds."""

from __future__ import annotations

from pathlib import Path

from trainmaster.cluster.renting.offer_filter import AvailableOffers
from trainmaster.cluster.renting.plan_clusters import plan_clusters
from trainmaster.control.checks.role_files import require_role
from trainmaster.providers.inventory import InventoryHost
from trainmaster.spec import read_recipe

EXAMPLE = Path(__file__).parents[3] / "examples" / "tf-ps"


def test_workers_have_gpus_and_the_parameter_server_has_none() -> None:
    recipe = read_recipe(EXAMPLE / "roles.yaml")
    roles = recipe.experiments["train"].roles
    assert roles is not None
    for role in roles.everywhere:
        assert (require_role(EXAMPLE / role, role) / "tasks" / "main.yml").is_file()
    hosts = tuple(InventoryHost(name=f"h{n}", address=f"h{n}", gpus=1) for n in range(3))
    (plan,) = plan_clusters(recipe, AvailableOffers("hosts", hosts=hosts, source="hosts.yaml"))
    assert [(role.role, role.count, role.rentals[0].gpus) for role in plan.roles] == [
        ("worker", 2, 1),
        ("ps", 1, 0),
    ]
