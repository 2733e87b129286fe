"""From needs and offers to clusters: what is planned can do the job, and is the cheapest that can."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.cluster.record import ClusterRecord, new_record
from trainmaster.cluster.renting.offer_filter import AvailableOffers
from trainmaster.cluster.renting.plan import capped, dearest_usd_per_hour, most_at_once, words
from trainmaster.cluster.renting.plan_clusters import MOST_RENTALS, pinned, plan_clusters
from trainmaster.cluster.renting.requirements import Needs, QuotedChoice
from trainmaster.control.task.gangs import node_labels, slots_of, workers_per_node
from trainmaster.providers import Offer
from trainmaster.providers.inventory import InventoryHost
from trainmaster.spec import read_recipe
from trainmaster.spec.errors import UsageError

GIB = 2**30


def offer(name, price, vcpus=4.0, memory_gib=16.0, *, gpu="", gpus=0.0, spot=False, region="r1", **more):
    facts = {
        "provider": "aws",
        "region": region,
        "zone": "",
        "instance_type": name,
        "vcpus": vcpus,
        "memory_bytes": int(memory_gib * GIB),
        "accelerator": gpu,
        "accelerators": gpus,
        "accelerator_memory_bytes": None,
        "nic_gbps": 1.0,
        "nic_burst_gbps": None,
        "cpu_credits": "",
        "price_usd_per_hour": price,
        "spot": spot,
        "billing_quantum_s": 1.0,
        "billing_minimum_s": 60.0,
        "currency": "USD",
        "as_of": date(2026, 11, 1),
        "source": "made up",
    }
    return Offer(**{**facts, **more})


TINY = offer("tiny", 0.01, 1.0, 1.0)
SMALL = offer("small", 0.1, 2.0, 8.0)
LARGE = offer("large", 0.2, 4.0, 16.0)
GPU = offer("gpu", 1.0, 8.0, 61.0, gpu="V100", gpus=1.0)
GPU4 = offer("gpu4", 4.4, 32.0, 244.0, gpu="V100", gpus=4.0)
SPOT = offer("small", 0.03, 2.0, 8.0, spot=True)
ALL = (TINY, SMALL, LARGE, GPU, GPU4, SPOT)


@pytest.fixture
def recipe(tmp_path):
    def make(experiments, **top):
        path = tmp_path / "recipe.yaml"
        named = {name: {"command": "true", **keys} for name, keys in experiments.items()}
        path.write_text(json.dumps({"name": "job", "provider": "aws", "experiments": named, **top}))
        return read_recipe(path)

    return make


def offered(*offers, **more):
    return AvailableOffers("aws", offers or ALL, source="the list", **more)


def only(plans):
    (plan,) = plans
    return plan


def worker(plan):
    return plan.roles[0]


def placed(found, plan):
    """Workers on each node, for placing them."""
    return workers_per_node(pinned(found, [plan]).experiments[plan.name])


# --- what is taken -------------------------------------------------------------------------------------


def test_nothing_asked_is_the_cheapest_machine_that_a_framework_fits_in(recipe):
    plan = only(plan_clusters(recipe({"a": {}}), offered()))
    best = worker(plan).rentals[0]
    assert (plan.name, plan.experiments, plan.provider, plan.nodes) == ("a", ("a",), "aws", 1)
    assert (best.instance_type, best.usd_per_hour, best.slots, best.as_of) == ("small", 0.1, 2, "2026-11-01")
    assert (best.quantum_s, best.minimum_s) == (1.0, 60.0)
    assert plan.usd_per_hour == 0.1


@pytest.mark.parametrize("hardware", [{"instance": "tiny"}, {"memory": "1GiB"}])
def test_the_smallest_are_taken_if_they_are_asked_for(recipe, hardware):
    plan = only(plan_clusters(recipe({"a": {"hardware": hardware}}), offered()))
    assert worker(plan).rentals[0].instance_type == "tiny"


@pytest.mark.parametrize(
    ("workers", "per_node", "nodes"), [(1, None, 1), (3, None, 3), (4, 2, 2), (5, 2, 3), (8, 4, 2)]
)
def test_nodes_of_a_gang(recipe, workers, per_node, nodes):
    keys = {"workers": workers} | ({"per_node": per_node} if per_node else {})
    found = recipe({"a": {"distributed": keys}})
    plan = only(plan_clusters(found, offered(LARGE)))
    assert plan.nodes == nodes
    assert worker(plan).rentals[0].slots == max(4, min(per_node or 1, workers))
    assert placed(found, plan) == (per_node or 1)


def test_more_workers_on_a_node_than_it_has_cores_get_slots(recipe):
    found = recipe({"a": {"distributed": {"workers": 12, "per_node": 6}}})
    assert worker(only(plan_clusters(found, offered(SMALL)))).rentals[0].slots == 6


def test_a_worker_per_gpu_where_the_recipe_does_not_say(recipe):
    found = recipe({"a": {"hardware": {"gpu": "v100"}, "distributed": {"workers": 8}}})
    plan = only(plan_clusters(found, offered()))
    assert (worker(plan).rentals[0].instance_type, plan.nodes) == ("gpu", 8)  # 8.0 is less than 2 x 4.4
    cheap = offer("gpu4", 3.9, 32.0, 244.0, gpu="V100", gpus=4.0)
    plan = only(plan_clusters(found, offered(GPU, cheap)))
    assert (worker(plan).rentals[0].instance_type, plan.nodes) == ("gpu4", 2)
    assert [rental.instance_type for rental in worker(plan).rentals] == [
        "gpu4"
    ]  # two of the other are no help


def test_gpus_per_node_as_the_recipe_says(recipe):
    found = recipe({"a": {"hardware": {"gpu": "v100", "gpus": 2}, "distributed": {"workers": 4}}})
    plan = only(plan_clusters(found, offered()))
    assert (worker(plan).rentals[0].instance_type, plan.nodes) == ("gpu4", 2)


def test_tasks_share_one_machine_unless_the_recipe_says_more(recipe):
    parameters = {"x": {"range": "1-8", "step": 1}}
    alone = only(plan_clusters(recipe({"a": {"parameters": parameters}}), offered()))
    assert alone.nodes == 1
    assert "workers" in alone.notes[0]
    assert only(plan_clusters(recipe({"a": {"parameters": parameters, "workers": 3}}), offered())).nodes == 3
    assert only(plan_clusters(recipe({"a": {"parameters": parameters, "workers": 30}}), offered())).nodes == 8
    gangs = {"parameters": parameters, "distributed": {"workers": 2}, "workers": 5}
    plan = only(plan_clusters(recipe({"a": gangs}), offered()))
    assert plan.nodes == 4  # two gangs of two nodes; a fifth would be alone
    assert plan.notes == ()


def test_servers_sit_with_workers_unless_they_have_hardware_of_their_own(recipe):
    keys = {"framework": "tensorflow", "distributed": {"strategy": "ps-async", "workers": 2}}
    plan = only(plan_clusters(recipe({"a": keys}), offered(SMALL)))
    assert [(role.role, role.count) for role in plan.roles] == [("worker", 2)]
    assert worker(plan).rentals[0].slots == 3  # a worker, the chief and the server
    keys["distributed"] |= {"parameter_servers": 2, "hardware": {"ps": {"instance": "large"}}}
    plan = only(plan_clusters(recipe({"a": keys}), offered()))
    assert [(role.role, role.count) for role in plan.roles] == [("worker", 2), ("ps", 2)]
    assert [role.rentals[0].instance_type for role in plan.roles] == ["small", "large"]
    assert [dict(role.labels) for role in plan.roles] == [{"role": "worker"}, {"role": "ps"}]
    assert plan.usd_per_hour == pytest.approx(2 * 0.1 + 2 * 0.2)


def test_servers_need_no_gpus_and_may_be_on_demand_beside_spot_workers(recipe):
    lent = offer("gpu", 0.3, 8.0, 61.0, gpu="V100", gpus=1.0, spot=True)
    keys = {
        "hardware": {"gpu": "v100", "spot": True},
        "framework": "tensorflow",
        "distributed": {
            "strategy": "ps-sync",
            "workers": 2,
            "hardware": {"ps": {"cpus": 4, "spot": False}},
        },
    }
    plan = only(plan_clusters(recipe({"a": keys}), offered(lent, *ALL)))
    assert [(r.role, r.rentals[0].instance_type, r.rentals[0].spot) for r in plan.roles] == [
        ("worker", "gpu", True),
        ("ps", "large", False),
    ]


def test_spot_is_spot_only_and_on_demand_where_there_is_none(recipe):
    plan = only(plan_clusters(recipe({"a": {"hardware": {"spot": True}}}), offered()))
    assert {rental.spot for rental in worker(plan).rentals} == {True}
    assert plan.notes == ()
    plan = only(plan_clusters(recipe({"a": {"hardware": {"spot": True}}}), offered(SMALL, LARGE)))
    assert {rental.spot for rental in worker(plan).rentals} == {False}
    assert "on demand" in plan.notes[0]
    plan = only(plan_clusters(recipe({"a": {}}), offered()))
    assert {rental.spot for rental in worker(plan).rentals} == {False}


def test_equal_prices_go_to_the_better_machine(recipe):
    twins = (offer("a", 0.1, 2.0, 8.0), offer("b", 0.1, 4.0, 8.0), offer("c", 0.1, 4.0, 16.0))
    plan = only(plan_clusters(recipe({"a": {}}), offered(*twins)))
    assert [rental.instance_type for rental in worker(plan).rentals] == ["c", "b", "a"]


def test_other_processors_only_by_name_or_if_there_are_no_others(recipe):
    arm = offer("arm", 0.05, arch="arm64")
    asked = offered(arm, SMALL, arch="x86_64")
    assert worker(only(plan_clusters(recipe({"a": {}}), asked))).rentals[0].instance_type == "small"
    named = recipe({"a": {"hardware": {"instance": "arm"}}})
    assert worker(only(plan_clusters(named, asked))).rentals[0].instance_type == "arm"
    alone = only(plan_clusters(recipe({"a": {}}), offered(arm, arch="x86_64")))
    assert worker(alone).rentals[0].instance_type == "arm"


# --- where, and what else ------------------------------------------------------------------------------


def test_zones_are_tried_one_by_one_in_one_region_only(recipe):
    offers = (SMALL, LARGE, offer("small", 0.11, 2.0, 8.0, region="r2"))
    plan = only(
        plan_clusters(recipe({"a": {}}), offered(*offers, zones={"r1": ("r1a", "r1b"), "r2": ("r2a",)}))
    )
    assert [(rental.instance_type, rental.zone) for rental in worker(plan).rentals] == [
        ("small", "r1a"),
        ("small", "r1b"),
        ("large", "r1a"),
        ("large", "r1b"),
    ]


def test_a_cluster_of_two_roles_is_where_both_are_cheapest_together(recipe):
    keys = {
        "hardware": {"instance": "w"},
        "framework": "tensorflow",
        "distributed": {"strategy": "ps-async", "workers": 2, "hardware": {"ps": {"instance": "s"}}},
    }
    offers = (
        offer("w", 0.1, region="r1"),
        offer("s", 0.9, region="r1"),
        offer("w", 0.2, region="r2"),
        offer("s", 0.1, region="r2"),
        offer("w", 0.01, region="r3"),
    )
    plan = only(plan_clusters(recipe({"a": keys}), offered(*offers)))
    assert {rental.region for role in plan.roles for rental in role.rentals} == {"r2"}
    with pytest.raises(UsageError, match="no region has both"):
        plan_clusters(recipe({"a": keys}), offered(offers[0], offers[3]))


def test_much_dearer_machines_are_no_way_out_unless_they_are_named(recipe):
    offers = [offer(f"m{n}", 0.1 * n) for n in range(1, 40)]
    plan = only(plan_clusters(recipe({"a": {}}), offered(*offers)))
    assert [rental.instance_type for rental in worker(plan).rentals] == ["m1", "m2"]
    assert dearest_usd_per_hour(plan) == pytest.approx(0.2)
    named = recipe({"a": {"hardware": {"instance": ["m*"]}}})
    assert len(worker(only(plan_clusters(named, offered(*offers)))).rentals) == MOST_RENTALS


def test_disks_are_passed_on(recipe):
    plan = only(plan_clusters(recipe({"a": {"hardware": {"disk": "100GB"}}}), offered()))
    assert worker(plan).disk_bytes == 100_000_000_000


@pytest.mark.parametrize(
    ("hardware", "said"),
    [
        ({"instance": "smal"}, ["instance: [smal]", "The nearest types are small"]),
        ({"gpu": "h100"}, ["gpu: h100", "Its GPUs are V100"]),
        ({"gpu": "v100-32gb"}, ["gpu: v100-32gb", "`gpu: v100` is there"]),
        ({"gpu": "v100", "gpus": 8}, ["gpus: 8", "gpu4: 4"]),
        ({"cpus": 64}, ["cpus: 64", "gpu4: 32"]),
        ({"memory": "1TiB"}, ["memory: 1024 GiB", "gpu4: 244 GiB"]),
        ({"region": "mars"}, ["region: mars", "Its regions are r1"]),
    ],
)
def test_what_is_not_there_is_named_with_the_nearest(recipe, hardware, said):
    with pytest.raises(UsageError) as error:
        plan_clusters(recipe({"a": {"hardware": hardware}}), offered())
    assert "experiments.a.hardware" in str(error.value)
    for words_ in said:
        assert words_ in str(error.value)


def test_what_was_planned_is_put_into_the_recipe(recipe):
    keys = {
        "hardware": {"gpu": "v100"},
        "framework": "tensorflow",
        "distributed": {"strategy": "ps-async", "workers": 8, "hardware": {"chief": {"cpus": 2}}},
    }
    found = recipe({"a": keys, "b": {"after": ["a"]}})
    cheap = offer("gpu4", 3.9, 32.0, 244.0, gpu="V100", gpus=4.0)
    plans = plan_clusters(found, offered(cheap, SMALL))
    assert "chief" in plans[0].notes[0]
    shown = pinned(found, plans).experiments
    assert (shown["a"].distributed.per_node, shown["a"].hardware.gpus) == (4, 4)
    assert shown["a"].distributed.hardware == {}  # nobody waits for a machine of the chief's own
    assert shown["b"] == found.experiments["b"]


# --- sharing -------------------------------------------------------------------------------------------


def test_equal_needs_share_a_cluster_that_is_large_enough_for_each(recipe):
    found = recipe(
        {
            "a": {"distributed": {"workers": 2}},
            "b": {"distributed": {"workers": 5, "per_node": 1}},
            "c": {"hardware": {"cpus": 4}},
            "d": {"hardware": {"spot": False}},
        }
    )
    plans = plan_clusters(found, offered())
    assert [(plan.name, plan.experiments, plan.nodes) for plan in plans] == [
        ("a", ("a", "b", "d"), 5),
        ("c", ("c",), 1),
    ]


def test_a_quote_decides_what_the_recipe_leaves_open(recipe):
    found = recipe({"a": {"distributed": {"workers": 2}}, "b": {"distributed": {"workers": 2}}})
    picks = {"a": QuotedChoice("large", "r1", nodes=2), "b": QuotedChoice("small", "r1", nodes=2)}
    plans = plan_clusters(found, offered(), picks)
    assert [plan.roles[0].rentals[0].instance_type for plan in plans] == ["large", "small"]
    again = plan_clusters(found, offered(), dict.fromkeys(picks, picks["a"]))
    assert [(plan.experiments, plan.nodes) for plan in again] == [(("a", "b"), 2)]
    gang = {"strategy": "ps-async", "workers": 2, "hardware": {"ps": {"cpus": 1}}}
    servers = recipe({"a": {"framework": "tensorflow", "distributed": gang}})
    choice = QuotedChoice("small", "r1", nodes=2, server="large", servers=1)
    plan = only(plan_clusters(servers, offered(), {"a": choice}))
    assert words(plan) == "2 x small + 1 x large (ps)"
    assert plan.roles[0].rentals[0].slots == 2  # the chief has room beside a worker, the server is elsewhere


def test_a_plan_survives_its_row(recipe):
    keys = {
        "framework": "tensorflow",
        "distributed": {"strategy": "ps-async", "workers": 2, "hardware": {"ps": {"instance": "large"}}},
    }
    plan = only(plan_clusters(recipe({"a": keys}), offered()))
    assert ClusterRecord.of_row(asdict(new_record("r", plan, "h").as_row())).plan == plan


@st.composite
def jobs(draw):
    distributed = draw(st.booleans())
    keys = {}
    if distributed:
        strategy = draw(st.sampled_from(["allreduce", "ps-async"]))
        keys["distributed"] = {"strategy": strategy, "workers": draw(st.integers(1, 9))}
        if draw(st.booleans()):
            keys["distributed"]["per_node"] = draw(st.integers(1, 4))
        if strategy == "ps-async":
            keys["framework"] = draw(st.sampled_from(["tensorflow", "plain"]))
            keys["distributed"]["parameter_servers"] = draw(st.integers(1, 3))
            if draw(st.booleans()):
                keys["distributed"]["hardware"] = {"ps": {"cpus": draw(st.integers(1, 4))}}
    hardware = draw(st.sampled_from([{}, {"cpus": 2}, {"gpu": "v100"}, {"gpu": "v100", "gpus": 2}]))
    if hardware:
        keys["hardware"] = hardware
    if draw(st.booleans()):
        keys["parameters"] = {"x": {"range": f"1-{draw(st.integers(2, 6))}", "step": 1}}
    if draw(st.booleans()):
        keys["workers"] = draw(st.integers(1, 9))
    return keys


@given(some=st.lists(jobs(), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_every_plan_has_room_for_the_largest_gang_and_is_the_same_whatever_the_order(
    tmp_path_factory, some, seed
):
    path = tmp_path_factory.getbasetemp() / "jobs.yaml"
    experiments = {f"e{n}": {"command": "true", **keys} for n, keys in enumerate(some)}
    path.write_text(json.dumps({"name": "job", "provider": "aws", "experiments": experiments}))
    found = read_recipe(path)
    plans = plan_clusters(found, offered())
    assert sorted(name for plan in plans for name in plan.experiments) == sorted(experiments)
    for plan in plans:
        assert len({rental.region for role in plan.roles for rental in role.rentals}) == 1
        for name in plan.experiments:
            experiment = found.experiments[name]
            needs = Needs.of(experiment, found.seed)
            roles = {role.role: role for role in plan.roles}
            for rental in roles["worker"].rentals:  # whichever way the machines are had
                per_node = needs.per_node(rental.gpus)
                assert roles["worker"].count >= math.ceil(needs.workers / per_node)
                share = max(1, needs.node_slots // per_node)
                assert rental.slots >= (min(per_node, needs.workers) + needs.helpers) * share
                assert rental.gpus >= experiment.hardware.gpu_count
            servers = roles["ps"].count if "ps" in roles else 0
            assert servers >= needs.servers
            room = sum(role.count * min(r.slots for r in role.rentals) for role in plan.roles)
            shown = pinned(found, plans).experiments[name]
            assert room >= slots_of(shown)
            if experiment.distributed is not None:
                assert roles["worker"].count * workers_per_node(shown) >= needs.workers
                assert {
                    label for role in ("worker", "ps") for label in node_labels(shown, role).values()
                } <= {*roles}
            if needs.spread is not None:
                assert roles["worker"].count <= max(
                    max(Needs.of(e, 0).spread or 0, Needs.of(e, 0).gang_nodes(1))
                    for e in (found.experiments[other] for other in plan.experiments)
                )
    shuffled = list(ALL)
    random.Random(seed).shuffle(shuffled)
    assert plan_clusters(found, offered(*shuffled)) == plans


# --- hosts of one's own ----------------------------------------------------------------------------------


def hosts(*facts):
    listed = tuple(InventoryHost(name=f"h{n}", address=f"h{n}", **each) for n, each in enumerate(facts))
    return AvailableOffers("hosts", hosts=listed, source="hosts.yaml")


def test_hosts_cost_nothing_and_are_all_used_by_tasks(recipe):
    found = recipe({"a": {"parameters": {"x": {"range": "1-8", "step": 1}}}})
    plan = only(plan_clusters(found, hosts({"slots": 4}, {"slots": 2}, {"slots": 8})))
    assert (plan.nodes, plan.usd_per_hour, worker(plan).rentals[0].slots) == (3, 0.0, 2)
    assert worker(plan).rentals[0].instance_type == ""
    found = recipe({"a": {"parameters": {"x": [1, 2]}, "workers": 5}})
    assert only(plan_clusters(found, hosts({}, {}, {}))).nodes == 2


def test_wishes_mean_nothing_on_hosts(recipe):
    wishes = {"instance": "m4.large", "gpu": "v100", "spot": True, "region": "r1"}
    plan = only(plan_clusters(recipe({"a": {"hardware": wishes}}), hosts({"gpus": 1}, {"gpus": 0})))
    assert plan.nodes == 1
    assert worker(plan).host_gpus == 1
    assert len(plan.notes) == 4


def test_hosts_that_have_not_what_is_asked_for_are_left_out(recipe):
    found = recipe({"a": {"hardware": {"cpus": 4}, "distributed": {"workers": 2}}})
    plan = only(plan_clusters(found, hosts({"slots": 2}, {"slots": 4}, {})))
    assert (plan.nodes, worker(plan).rentals[0].slots) == (2, 4)
    with pytest.raises(UsageError, match=r"no host of .* has 4 slots"):
        plan_clusters(found, hosts({"slots": 2}))
    with pytest.raises(UsageError, match="2 GPUs"):
        plan_clusters(recipe({"a": {"hardware": {"gpus": 2}}}), hosts({"gpus": 1}))


def test_few_hosts_are_shared_unless_the_recipe_says_how(recipe):
    found = recipe({"a": {"distributed": {"workers": 5}}})
    plan = only(plan_clusters(found, hosts({"slots": 1}, {"slots": 1})))
    assert (plan.nodes, worker(plan).rentals[0].slots) == (2, 3)
    assert placed(found, plan) == 3
    assert "3 on each" in plan.notes[0]
    strict = recipe({"a": {"distributed": {"workers": 5, "per_node": 2}}})
    with pytest.raises(UsageError, match="need 3 hosts"):
        plan_clusters(strict, hosts({}, {}))
    assert only(plan_clusters(strict, hosts({}, {}, {}))).nodes == 3


def test_servers_of_their_own_need_spare_hosts(recipe):
    keys = {
        "framework": "plain",
        "distributed": {"strategy": "ps-async", "workers": 2, "hardware": {"ps": {"instance": "large"}}},
    }
    found = recipe({"a": keys})
    apart = only(plan_clusters(found, hosts({}, {}, {})))
    assert [(role.role, role.count) for role in apart.roles] == [("worker", 2), ("ps", 1)]
    together = only(plan_clusters(found, hosts({}, {})))
    assert [(role.role, role.count) for role in together.roles] == [("worker", 2)]
    assert worker(together).rentals[0].slots == 2
    assert node_labels(pinned(found, [together]).experiments["a"], "ps") == {}
    assert node_labels(pinned(found, [apart]).experiments["a"], "ps") == {"role": "ps"}
    assert any("sit with workers" in note for note in together.notes)


# --- per hour ----------------------------------------------------------------------------------------------


def workflow(recipe, per_hour=None, **after):
    """a and b on small machines of their own, c on a large one."""
    experiments = {
        "a": {"hardware": {"instance": "small"}},
        "b": {"hardware": {"instance": ["small", "small*"]}},
        "c": {"hardware": {"instance": "large"}},
    }
    for name, before in after.items():
        experiments[name]["after"] = before
    found = recipe(experiments, **({"budget": {"per_hour": per_hour}} if per_hour else {}))
    return found, plan_clusters(found, offered())


def test_clusters_that_follow_each_other_do_not_add_up(recipe):
    def most(**after):
        found, plans = workflow(recipe, **after)
        assert len(plans) == 3
        return most_at_once(found, {plan.name: plan.usd_per_hour for plan in plans}, plans)

    assert most() == pytest.approx(0.4)
    assert most(b=["a"]) == pytest.approx(0.3)
    assert most(c=["a"], b=["a"]) == pytest.approx(0.3)
    assert most(b=["a"], c=["b"]) == pytest.approx(0.2)


def test_a_cap_per_hour_names_what_would_do(recipe):
    with pytest.raises(UsageError) as error:
        capped(*workflow(recipe, "$0.39"))
    assert "$0.39" in str(error.value)
    assert "Raise budget.per_hour to $0.4" in str(error.value)
    assert capped(*workflow(recipe, "$0.40"))
    assert capped(*workflow(recipe, "$0.2", b=["a"], c=["b"]))


@settings(max_examples=60, deadline=None)
@given(
    cap=st.floats(0.1, 3.0),
    prices=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12),
    count=st.integers(1, 4),
)
def test_ways_out_stay_below_the_cap(tmp_path_factory, cap, prices, count):
    path = tmp_path_factory.getbasetemp() / "cap.yaml"
    gang = {"command": "true", "distributed": {"workers": count}, "hardware": {"instance": "m*"}}
    other = {"command": "true", "hardware": {"instance": ["m*", "x"]}}
    budget = {"per_hour": f"${cap:.6f}"}
    path.write_text(
        json.dumps({"name": "j", "provider": "aws", "budget": budget, "experiments": {"a": gang, "b": other}})
    )
    found = read_recipe(path)
    plans = plan_clusters(found, offered(*(offer(f"m{n}", price) for n, price in enumerate(prices))))
    cheapest = min(prices) * (count + 1)
    try:
        kept = capped(found, plans)
    except UsageError:
        assert cheapest > found.budget.usd_per_hour
        return
    assert cheapest <= found.budget.usd_per_hour + 1e-6
    assert sum(dearest_usd_per_hour(plan) for plan in kept) <= found.budget.usd_per_hour + 1e-6
    assert [plan.usd_per_hour for plan in kept] == [plan.usd_per_hour for plan in plans]


# --- how many are enough ---------------------------------------------------------------------------------


def test_single_processes_do_with_fewer_hosts_and_gangs_with_all_of_one(recipe):
    sweep = recipe({"a": {"parameters": {"x": {"range": "0-7", "step": 1}}}})
    assert only(plan_clusters(sweep, hosts({}, {}, {}))).roles[0].least == 1
    spread = recipe({"a": {"parameters": {"x": {"range": "0-7", "step": 1}}, "workers": 4}})
    assert only(plan_clusters(spread, offered())).roles[0].least == 1
    gang = recipe({"a": {"distributed": {"strategy": "allreduce", "workers": 2}}})
    role = only(plan_clusters(gang, hosts({}, {}, {}))).roles[0]
    assert (role.count, role.least, role.needed) == (2, 0, 2)
    gangs = recipe(
        {
            "a": {
                "distributed": {"strategy": "allreduce", "workers": 2},
                "parameters": {"x": {"range": "0-7", "step": 1}},
                "workers": 4,
            }
        }
    )
    role = only(plan_clusters(gangs, offered())).roles[0]
    assert (role.count, role.least) == (4, 2), "room for one gang is enough"


def test_who_shares_a_cluster_with_a_gang_needs_what_the_gang_needs(recipe):
    found = recipe({"a": {}, "b": {"distributed": {"strategy": "allreduce", "workers": 3}}})
    role = only(plan_clusters(found, hosts({}, {}, {}))).roles[0]
    assert (role.count, role.needed) == (3, 3)


# --- more memory for the attempt after one that ran out of it -----------------------------------------------

FOUR = offer("four", 0.05, 2.0, 4.0)
FIVE = offer("five", 0.3, 2.0, 4.5)
HUGE = offer("huge", 1.5, 16.0, 64.0)


def test_each_retry_has_its_next_larger_machine_and_that_is_told_beforehand(recipe):
    plan = only(plan_clusters(recipe({"a": {"retries": 2}}), offered(FOUR, FIVE, SMALL, LARGE, HUGE)))
    (role,) = plan.roles
    assert role.rentals[0].instance_type == "four"
    assert role.rentals[0].memory_bytes == 4 * GIB
    assert [way.instance_type for way in role.larger] == ["small", "large"], "half a GiB more is not enough"
    assert any("small at $0.1" in note and "then large at $0.2" in note for note in plan.notes)


@pytest.mark.parametrize(
    "keys", [{}, {"retries": 2, "hardware": {"instance": "four"}}], ids=["no retries", "a type is named"]
)
def test_no_larger_machine_without_retries_or_where_the_recipe_names_one(recipe, keys):
    plan = only(plan_clusters(recipe({"a": keys}), offered(FOUR, SMALL, LARGE)))
    assert plan.roles[0].larger == ()


def test_larger_machines_are_in_the_same_region_and_as_spot_as_was_asked(recipe):
    there = offer("other", 0.06, 2.0, 64.0, region="r2")
    spot = (offer("large", 0.07, 4.0, 16.0, spot=True), offer("four", 0.01, 2.0, 4.0, spot=True))
    wish = {"retries": 3, "hardware": {"spot": True, "region": "r1"}}
    plan = only(plan_clusters(recipe({"a": wish}), offered(FOUR, SMALL, SPOT, there, *spot)))
    assert [(way.instance_type, way.spot) for way in plan.roles[0].larger] == [
        ("small", True),
        ("large", True),
    ]
