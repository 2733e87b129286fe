"""Lists in ``hardware``: of several GPUs and regions any will do."""

from __future__ import annotations

import json

import pytest
from test_plan_clusters import offer, offered, only, worker

from trainmaster.cluster.renting.plan_clusters import pinned, plan_clusters
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
        ({"any_of": [{"gpu": "A100"}, {"gpu": "A10G", "region": "west"}]}, ["a10g-west", "a100-west"]),
        (
            {"any_of": [{"region": "east"}, {"instance": "a100-*"}], "gpu": ["A10G", "A100"]},
            ["a10g-east", "a100-east"],
        ),
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


@pytest.mark.parametrize(
    ("hardware", "kind"),
    [
        ({"gpu_memory": "24GB"}, "a10g"),
        ({"gpu": {"memory": "40GB+"}}, "a100"),
        ({"gpu": {"type": ["T4", "A100"], "memory": "16GB"}}, "t4"),
        ({"gpu_memory": "16GB", "gpus": 2}, "v100"),
    ],
)
def test_gpus_by_their_memory(hardware, kind):
    facts = {"t4": (0.5, 16, 1), "a10g": (1.0, 22.36, 1), "a100": (4.0, 40, 1), "v100": (2.0, 16, 2)}
    offers = [
        offer(
            name,
            price,
            8.0,
            61.0,
            gpu=name.upper(),
            gpus=float(count),
            accelerator_memory_bytes=int(gib * 2**30),
        )
        for name, (price, gib, count) in facts.items()
    ]
    plan = only(plan_clusters(recipe(hardware), offered(*offers)))
    assert worker(plan).rentals[0].instance_type == kind


def test_a_memory_that_no_gpu_has_is_told_with_the_most_that_there_is():
    with pytest.raises(UsageError, match=r"gpu_memory: 93\.13 GiB") as refused:
        plan_clusters(
            recipe({"gpu_memory": "100GB"}), offered(offer("a", 1.0, 8.0, 61.0, gpu="T4", gpus=1.0))
        )
    assert "Change gpu_memory" in str(refused.value)


def test_of_alternatives_that_are_not_there_all_are_named():
    wanted = [{"gpu": "H200", "region": "r1"}, {"gpu_memory": "192GB"}]
    with pytest.raises(UsageError, match=r"any_of: \[\{gpu: H200, region: r1\}, \{gpu_memory: 178.8 GiB\}\]"):
        plan_clusters(recipe({"any_of": wanted, "gpus": 1}), offered())


@pytest.mark.parametrize(
    ("hardware", "kind", "gpus"),
    [
        ({"gpus": "2..4"}, "four", 4),  # the machine with one has too few, that with eight too many
        ({"gpus": 2}, "eight", 2),
        ({"gpu": {"type": "V100", "count": "1..2"}}, "one", 1),
        ({"gpus": "1..8", "memory": "64GiB..128GiB"}, "four", 4),
    ],
)
def test_of_a_range_of_gpus_a_task_has_all_of_its_machine(hardware, kind, gpus):
    offers = [
        offer("one", 1.0, 8.0, 32.0, gpu="V100", gpus=1.0),
        offer("four", 4.0, 32.0, 128.0, gpu="V100", gpus=4.0),
        offer("eight", 3.0, 64.0, 256.0, gpu="V100", gpus=8.0),
    ]
    found = recipe(hardware)
    plan = only(plan_clusters(found, offered(*offers)))
    assert worker(plan).rentals[0].instance_type == kind
    shown = pinned(found, [plan]).experiments["a"].hardware
    assert (shown.gpus, shown.fixed_gpus) == (gpus, gpus)


def test_a_range_that_nothing_is_in_is_named():
    found = recipe({"gpus": "3..5", "gpu": "V100"})
    with pytest.raises(UsageError, match=r"gpus: 3, most: \{gpus: 5\}") as refused:
        plan_clusters(found, offered(offer("big", 9.0, 64.0, 256.0, gpu="V100", gpus=8.0)))
    assert "Change most." in refused.value.hint
