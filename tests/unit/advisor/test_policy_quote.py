"""The papers' policies through the same door as our own quote."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from quote_world import measured, offer, workload

from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.advisor.papers.measured_table import MeasuredTable
from trainmaster.advisor.papers.policy_quote import PolicyInput, policy_quote, read_bandwidth
from trainmaster.providers import Catalogue, load_catalogue
from trainmaster.spec import Strategy
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.spec.hardware import Hardware

FC2 = json.loads((Path(__file__).parents[2] / "data" / "seed_vectors.json").read_text())["fc2"]


def servers(types, **more):
    return workload(
        sync=Strategy.PS_ASYNC, servers=1, chief=1, hardware=Hardware(instance=tuple(types)), **more
    )


def given(case, **more):
    """The paper prints no traffic: any value in the interval that its pick implies."""
    low, high = case.get("b_t_floor_mbps", (0, FC2["ps"][case["ps"]]["mbps"] * FC2["p"] / FC2["n_max"]))
    name = case["scala_opt"][0]
    mbps = {t: (low + high) / 2 if t == name else low / 2 + 1e-9 for t in case["types"]}
    facts = {"servers": (case["ps"],), "max_workers": FC2["n_max"], "bandwidth_mbps": mbps}
    return PolicyInput(load_catalogue("fc2-2018"), **{**facts, **more})


@pytest.mark.parametrize("policy", ["time-opt", "cost-opt", "scala-opt"])
@pytest.mark.parametrize("case", FC2["cases"], ids=lambda case: f"{case['sec']}-{case['batch']}")
def test_picks_are_those_of_the_paper(case, policy):
    quote = policy_quote(policy, [servers(case["types"])], given(case)).as_dict()
    worker = quote["cluster"]["worker"]
    assert [worker["instance"], worker["count"]] == case[policy.replace("-", "_")]
    assert quote["cluster"]["parameter_server"]["instance"] == case["ps"]
    assert quote["cluster"]["parameter_server"]["count"] == 1
    assert quote["time_s"] is None
    assert quote["cost_usd"] is None


def test_scala_opt_m_counts_the_named_type():
    case = FC2["cases"][0]
    quote = policy_quote("scala-opt-m", [servers(["t2.xlarge"])], given(case))
    assert quote.main.cluster.worker.count == case["scala_opt"][1]
    with pytest.raises(UsageError, match="one type"):
        policy_quote("scala-opt-m", [servers(case["types"])], given(case))


def test_experiments_without_servers_are_skipped_or_refused():
    case = FC2["cases"][0]
    both = policy_quote("cost-opt", [workload("plain"), servers(case["types"])], given(case))
    assert set(both.experiments) == {"train"}
    assert "plain" in both.not_quoted
    with pytest.raises(UsageError, match="parameter server"):
        policy_quote("cost-opt", [workload("plain")], given(case))


def test_bounds_of_the_recipe_limit_the_workers():
    case = FC2["cases"][0]
    few = servers(case["types"], most=4)
    assert policy_quote("cost-opt", [few], given(case)).main.cluster.worker.count == 4
    assert policy_quote("cost-opt", [few], given(case, max_workers=None)).main.cluster.worker.count == 4


def test_a_budget_per_hour_counts_workers():
    case = FC2["cases"][0]
    open_ended = servers(case["types"], is_bounded=False)
    found = policy_quote("cost-opt", [open_ended], given(case, max_workers=None, usd_per_hour=2.0))
    assert found.main.cluster.worker.count == int((2.0 - 0.125) / 0.231)
    with pytest.raises(UsageError, match="budget per hour"):
        policy_quote("cost-opt", [open_ended], given(case, max_workers=None))


def test_unknown_types_and_traffic_are_named():
    case = FC2["cases"][0]
    with pytest.raises(UsageError, match="has nothing with instance"):
        policy_quote("cost-opt", [servers(["nothing.like.it"])], given(case))
    with pytest.raises(UsageError, match=r"x9\.large"):
        policy_quote("cost-opt", [servers(case["types"])], given(case, servers=("x9.large",)))
    with pytest.raises(UsageError, match="traffic"):
        policy_quote("scala-opt", [servers(case["types"])], given(case, bandwidth_mbps={}))


def test_lookup_takes_the_fastest_measured_cluster():
    place = Catalogue("test", (offer("p3.2xlarge", 3.0),))
    history = {"train": [measured(n, 256 // n) for n in (1, 2, 4)]}
    found = policy_quote("lookup", [workload()], PolicyInput(place), history).main
    assert found.cluster.workers == 4
    assert found.time_s.p5 == found.time_s.p95
    with pytest.raises(NotFoundError, match="measured"):
        policy_quote("lookup", [workload()], PolicyInput(place), {})


def test_lookup_takes_only_what_was_measured_on_offers_of_the_catalogue():
    place = Catalogue("test", (offer("other", 1.0), offer("p3.2xlarge", 3.0)))
    here = [measured(n, 256 // n, offer="local") for n in (1, 2)]
    with pytest.raises(NotFoundError, match="none of the offers"):
        policy_quote("lookup", [workload()], PolicyInput(place), {"train": here})
    slow = measured(1, 256)
    slow = replace(slow, point=replace(slow.point, step_time_s=9.0))
    both = {"train": [*[measured(1, 256)] * 2, slow, *here]}
    found = policy_quote("lookup", [workload()], PolicyInput(place), both).main
    assert found.cluster.worker.instance == "p3.2xlarge"
    assert found.measurements == 3
    assert found.time_s.p50 < 9.0 * 1960  # the median, not the one that came last


def papers_rows():
    """The paper's table as what was measured of a job on t2.large."""
    return [
        Measurement(
            point
            or Point(Strategy.ALLREDUCE, row.workers, nodes=row.workers, local_batch=row.batch / row.workers),
            offer="t2.large",
            does_not_fit=None if point else True,
        )
        for row in MeasuredTable.published().rows
        for point in [row.point]
    ]


@pytest.mark.parametrize(
    ("latency_ms", "limits", "workers", "seconds"),
    [
        (0.0, {}, 4, 419),
        (20.0, {}, 3, 524),
        (0.0, {"usd_per_hour": 0.2}, 2, 769),
        (0.0, {"usd": 0.04}, 3, 503),
        (0.0, {"max_workers": 3}, 3, 503),
        (0.0, {"cost_weight": 2000.0}, 3, 503),
        (None, {}, 4, 419),
    ],
)
def test_lookup_is_by_batch_and_latency_and_below_the_caps(latency_ms, limits, workers, seconds):
    place = Catalogue("test", (offer("t2.large", 0.0928, gpus=0.0),))
    job = workload(total_batch=64000, epochs=1, examples=64000 * 70, most=64, latency_ms=latency_ms)
    assert 3 not in job.lengths
    found = policy_quote("lookup", [job], PolicyInput(place, **limits), {"train": papers_rows()}).main
    assert found.cluster.workers == workers
    assert found.time_s.p50 == pytest.approx(seconds)
    assert found.cost_usd.p50 == pytest.approx(seconds * workers * 0.0928 / 3600)
    assert any("cannot be shared evenly by 3" in note for note in found.notes) is (workers == 3)
    assert any("0 ms is taken" in note for note in found.notes) is (latency_ms is None)


def test_lookup_names_the_nearest_row_and_the_caps_that_nothing_keeps():
    place = Catalogue("test", (offer("t2.large", 0.0928, gpus=0.0),))
    job = workload(total_batch=6000, epochs=1, examples=6000, most=64, latency_ms=25.0)
    with pytest.raises(NotFoundError, match="batch 6400 at 20 ms"):
        policy_quote("lookup", [job], PolicyInput(place), {"train": papers_rows()})
    job = workload(total_batch=64000, epochs=1, examples=64000, most=64, latency_ms=0.0)
    with pytest.raises(UsageError, match=r"budget\.per_hour"):
        policy_quote("lookup", [job], PolicyInput(place, usd_per_hour=0.1), {"train": papers_rows()})


def test_the_recipe_can_name_the_server_and_a_type_can_be_both():
    case = FC2["cases"][0]
    named = replace(servers(case["types"]), server_hardware=Hardware(instance=("m4.xlarge",)))
    found = policy_quote("cost-opt", [named], given(case, servers=())).main.cluster
    assert found.server.instance == "m4.xlarge"
    spot = offer("both", 0.1, gpus=0.0, spot=True)
    place = Catalogue("test", (spot, offer("both", 1.0, gpus=0.0)))
    work = workload(sync=Strategy.PS_ASYNC, servers=1, hardware=Hardware(spot=True))
    cluster = policy_quote("cost-opt", [work], PolicyInput(place, max_workers=2)).main.cluster
    assert cluster.worker.spot
    assert not cluster.server.spot
    assert cluster.usd_per_hour == pytest.approx(cluster.worker.count * 0.1 + 1.0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ":1:"),
        ("type,mbps\nt2,1\n", ":1:"),
        ("instance,mbps\nt2.xlarge,fast\n", ":2:"),
        ("instance,mbps\nt2.xlarge,-1\n", ":2:"),
        ("instance,mbps\nt2.xlarge,nan\n", ":2:"),
        ("instance,mbps\nt2.xlarge\n", ":2:"),
        ("instance,mbps\na,1\nA,2\n", ":3:"),
        ("instance,mbps\na,1,2\n", ":2:"),
    ],
)
def test_a_wrong_bandwidth_file_is_refused_with_its_line(tmp_path, text, found):
    path = tmp_path / "b.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=found):
        read_bandwidth(path)


def test_a_bandwidth_file_is_read(tmp_path):
    path = tmp_path / "b.csv"
    path.write_text("instance,mbps\n\n T2.xlarge , 142.5\nm4.xlarge,9e1\n")
    assert read_bandwidth(path) == {"t2.xlarge": 142.5, "m4.xlarge": 90.0}
    with pytest.raises(UsageError, match="cannot be read"):
        read_bandwidth(tmp_path / "none.csv")


def test_types_without_a_bandwidth_are_one_note():
    mbps = {"m4.large": 100.0}
    types = [each.instance_type for each in load_catalogue("fc2-2018")]
    asked = PolicyInput(load_catalogue("fc2-2018"), mbps, ("m4.large",), max_workers=6)
    (note,) = (n for n in policy_quote("scala-opt", [servers(types)], asked).main.notes if "left out" in n)
    assert note.startswith(f"{len(types) - 1} types are left out")
    assert note.endswith(", ...")
    with pytest.raises(UsageError) as caught:
        policy_quote("scala-opt", [servers(types)], replace(asked, bandwidth_mbps={}))
    assert f"{len(types)} types" in str(caught.value)


@pytest.mark.parametrize(("lengths", "word"), [((1, 2, 4, 8), "batch"), ((8, 9), "at least 8"), ((5, 6), "")])
def test_a_pick_that_the_recipe_cannot_run_says_why(lengths, word):
    some = servers(["m4.large"], most=8)
    length = some.lengths[1]
    asked = PolicyInput(load_catalogue("fc2-2018"), servers=("m4.large",), max_workers=6)
    job = replace(some, lengths=dict.fromkeys(lengths, length))
    notes = " ".join(policy_quote("cost-opt", [job], asked).main.notes)
    assert (word in notes) if word else ("batch" not in notes and "at least" not in notes)


def test_all_servers_are_charged_to_the_budget_and_carry_the_traffic():
    two = replace(servers(["c4.xlarge"], is_bounded=False), servers=2)
    mbps = {"c4.xlarge": 200.0}
    asked = PolicyInput(
        load_catalogue("fc2-2018"), mbps, servers=("m4.large",), usd_per_hour=2.0, max_workers=64
    )
    cost = policy_quote("cost-opt", [two], asked).main.cluster
    assert (cost.worker.count, cost.server.count) == (int((2.0 - 2 * 0.125) / 0.231), 2)
    assert cost.usd_per_hour <= 2.0
    scala = policy_quote("scala-opt", [two], asked).main.cluster
    assert scala.worker.count == int(0.95 * 2 * 450 / 200)
    lower = policy_quote("scala-opt", [two], replace(asked, p=0.8)).main.cluster
    assert lower.worker.count == int(0.8 * 2 * 450 / 200)
    with pytest.raises(UsageError, match="p is 2"):
        policy_quote("scala-opt", [two], replace(asked, p=2.0))


def test_without_types_the_lists_are_those_of_the_papers_tables():
    anything = workload(sync=Strategy.PS_ASYNC, servers=1, chief=1, hardware=Hardware())
    found = policy_quote("cost-opt", [anything], PolicyInput(load_catalogue("fc2-2018"), max_workers=6)).main
    assert set(found.types.servers) == set(FC2["ps"])
    assert set(found.types.workers) == set(FC2["workers"])
    assert found.cluster.worker.instance == "c4.xlarge"
    assert found.cluster.server.instance == "m4.10xlarge"  # the largest bandwidth
    few = replace(PolicyInput(load_catalogue("fc2-2018"), max_workers=6), workers=("m4.x*", "p2.*"))
    assert policy_quote("time-opt", [anything], few).main.cluster.worker.instance == "p2.xlarge"
    assert set(found.as_dict()["types"]) == {"workers", "servers", "traffic_mbps", "usd_per_hour"}


def test_workers_and_servers_are_in_one_region():
    def at(name, price, region):
        return replace(offer(name, price, gpus=0.0), region=region)

    place = Catalogue("test", (at("w", 0.2, "a"), at("w", 0.1, "b"), at("s", 0.1, "a"), at("v", 9.0, "c")))
    named = replace(servers(["w", "v"]), server_hardware=Hardware(instance=("s",)), own_servers=True)
    found = policy_quote("cost-opt", [named], PolicyInput(place, max_workers=2)).main.cluster
    assert (found.worker.region, found.server.region, found.worker.usd_per_hour) == ("a", "a", 0.2)
    with pytest.raises(UsageError, match="no region has both"):
        policy_quote("cost-opt", [servers(["v"])], PolicyInput(place, servers=("s",), max_workers=2))


def test_a_worker_of_several_gpus_is_as_many_processes_as_a_run_places_there():
    place = Catalogue("test", (offer("four", 4.0, gpus=4.0), offer("server", 0.1, gpus=0.0)))
    job = workload(sync=Strategy.PS_ASYNC, servers=1, hardware=Hardware(gpu="v100"), is_bounded=False)
    cluster = policy_quote("cost-opt", [job], PolicyInput(place, usd_per_hour=9.0, servers=("server",)))
    shape = cluster.main.cluster
    assert (shape.worker.count, shape.workers) == (2, 8)


def test_machines_that_cost_nothing_are_not_for_these_policies():
    place = Catalogue("test", (offer("own", 0.0, provider="local"),))
    with pytest.raises(UsageError, match="have none"):
        policy_quote("cost-opt", [servers(["own"])], PolicyInput(place, servers=("own",), max_workers=2))
