"""Lists in ``hardware``: of several GPUs and regions any will do."""

from __future__ import annotations

import json

import pytest
from test_plan_clusters import offer, offered, only, worker

from trainmaster.cluster.renting.plan_clusters import plan_clusters
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError


def recipe(hardware: object) -> Recipe:
    """A recipe of one experiment."""
    experiment = {"command": "x", "hardware": hardware}
    return Recipe.from_text(json.dumps({"provider": "aws", "experiments": {"a": experiment}}))


@pytest.mark.parametrize(
    ("hardware", "kinds"),
    [
        ({"gpu": ["L4", "A10G"]}, ["l4-west", "a10g-west"]),  # A100s are not asked for, L4s are cheaper
        ({"gpu": ["A10G", "A100"]}, ["a10g-east", "a100-east"]),
        ({"gpu": ["L4", "A10G"], "region": "east"}, ["a10g-east"]),
        ({"gpu": ["A100", "A10G"], "region": ["east", "north"]}, ["a10g-east", "a100-east"]),
        ({"gpu": "A10G", "region": ["west", "east"]}, ["a10g-east"]),  # all machines are in one region
        ({"gpu": ["L4"], "gpus": 1}, ["l4-west"]),
    ],
)
def test_of_several_gpus_and_regions_any_will_do_and_the_cheapest_is_taken(hardware, kinds):
    prices = {"l4": {"west": 0.5}, "a10g": {"west": 0.9, "east": 0.8}, "a100": {"west": 1.0, "east": 1.1}}
    offers = [
        offer(f"{gpu}-{region}", price, 8.0, 61.0, gpu=gpu.upper(), gpus=1.0, region=region)
        for gpu, places in prices.items()
        for region, price in places.items()
    ]
    plan = only(plan_clusters(recipe(hardware), offered(*offers)))
    assert [rental.instance_type for rental in worker(plan).rentals] == kinds


def test_of_several_gpus_that_are_not_there_all_are_named():
    found = recipe({"gpu": ["H200", "MI300X"], "region": ["r1", "r2"]})
    with pytest.raises(UsageError, match=r"gpu: \[H200, MI300X\]") as refused:
        plan_clusters(found, offered())
    assert "Its GPUs are V100" in str(refused.value)
