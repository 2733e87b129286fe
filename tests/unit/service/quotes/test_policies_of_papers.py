"""The cluster that a paper's policy quotes is planned, requested and billed, by whatever door it is asked."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trainmaster.advisor.market.memory_floor import Shares
from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.advisor.papers.policies import BandwidthUnknown
from trainmaster.advisor.papers.policy_quote import traffic_mbps
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, NewMeasurement
from trainmaster.db import quote_requests as rows
from trainmaster.providers import load_catalogue
from trainmaster.service import Service
from trainmaster.service.driving.submissions import RunRequest, Submissions
from trainmaster.service.quotes.candidate_offers import (
    CandidateOffers,
    candidate_offers_of,
    measured_name,
)
from trainmaster.service.quotes.home_load import HomeLoad
from trainmaster.service.quotes.measuring_runs import measuring_runs
from trainmaster.service.quotes.quote_ask import QuoteAsk
from trainmaster.service.quotes.quote_options import QuoteOptions
from trainmaster.service.quotes.quote_requests import QUOTE, QuoteRequests
from trainmaster.service.quotes.quote_service import Quoter
from trainmaster.service.renting.plan_run import plan_run
from trainmaster.service.renting.provider_check import requests_of
from trainmaster.service.users.access import Access
from trainmaster.service.users.caller import caller
from trainmaster.spec import Recipe, Strategy, read_recipe
from trainmaster.spec.errors import UsageError
from trainmaster.spec.objective import POLICIES

RECIPE = """\
name: fc2
provider: aws
code: code
budget: {per_hour: $2}
experiments:
  train:
    command: python train.py
    framework: tensorflow
    distributed: {strategy: ps-async, workers: auto, parameter_servers: 2}
    batch: {per_worker: 64}
    steps: 1000
"""
ENVIRON = {"TRAINMASTER_CATALOGUE": "fc2-2018"}
MBPS = {"c4.xlarge": 200.0, "t2.xlarge": 100.0, "m4.xlarge": 120.0}


@pytest.fixture
def service(tmp_path):
    home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path}/a.db")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    found = Service(home)
    yield found
    found.close()


def path_of(service) -> Path:
    return service.home.root / "recipe.yaml"


def seen(instance, mbps, *, workers=1, at=1.0):
    step = 8e-6 / mbps * 1e6
    traffic = {"bytes_in": 1e6, "bytes_out": 2e5, "step_time_s": step}
    point = Point(Strategy.PS_ASYNC, workers, nodes=workers, parameter_servers=1, latency_ms=0.0, **traffic)
    return Measurement(point, steps_done=100, offer=instance, measured_at=at)


def measure(service, mbps):
    key = service.measurements(read_recipe(path_of(service)))["train"].fingerprint
    for name, each in mbps.items():
        data = seen(name, each).to_json()
        service.database.add_measurement(
            NewMeasurement(name, key.exact, key.similar, "train", None, data, 1.0)
        )


def rented(service, recipe):
    """What would be asked of the provider, and what its meter counts."""

    def quoter(offers):
        return Quoter(service, lambda _: None, None, offers)

    plans = plan_run(service, recipe, ENVIRON, quoter).plans
    machines = {each.role: (each.instance_type, each.count) for plan in plans for each in requests_of(plan)}
    return machines, sum(role.count * role.rentals[0].usd_per_hour for plan in plans for role in plan.roles)


def quoted(cluster):
    worker, server = cluster["worker"], cluster["parameter_server"]
    machines = {"worker": (worker["instance"], worker["count"])}
    return machines | ({"ps": (server["instance"], server["count"])} if server else {})


def by_rest(service, text, **asked):
    """The answer to a request, worked on by a server."""
    submissions = Submissions(service, Access(service.database), ENVIRON, is_private=True)
    quotes, me = QuoteRequests(service, submissions, ENVIRON), caller("me", None, ["read", "run"])
    name = quotes.send(me, QUOTE, QuoteAsk(text, **asked))["id"]
    worker = secrets.token_hex(4)
    quotes.work(worker, rows.claim(service.database, worker, service.database.clock_s(), 30.0))
    return quotes.show(me, QUOTE, name)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_quoted_is_rented_and_billed(service, policy):
    from trainmaster.web.recipe_form import with_cluster

    measure(service, MBPS)
    types = "c4.xlarge" if policy == "scala-opt-m" else "[c4.xlarge, t2.xlarge, m4.xlarge]"
    text = RECIPE.replace("    steps:", f"    hardware: {{instance: {types}}}\n    steps:")
    path_of(service).write_text(text)
    recipe = read_recipe(path_of(service), overrides=[f"objective={policy}"])  # as `run --policy` reads it
    offers = candidate_offers_of(recipe, service, ENVIRON, datetime.now(UTC).date())
    told = Quoter(service, lambda _: None, None, offers).quote(
        read_recipe(path_of(service)), ENVIRON, QuoteOptions(policy=policy)
    )
    cluster = told.main.cluster.as_dict()
    assert cluster["usd_per_hour"] <= 2.0
    assert (cluster["parameter_server"] is None) == (policy == "lookup")
    chosen = Recipe.from_text(with_cluster(text, "train", cluster), directory=service.home.root)
    for each in (recipe, chosen):
        machines, usd_per_hour = rented(service, each)
        assert machines == quoted(cluster)
        assert usd_per_hour == pytest.approx(cluster["usd_per_hour"])


def test_what_runs_in_a_lab_have_measured_is_looked_up_by_latency(service):
    """A lab's machines are called after others, and are smaller: measurements call them ``lab:TYPE``."""
    gang = "{strategy: allreduce, workers: 1..4}"
    text = RECIPE.replace("provider: aws", "provider: lab").replace("{per_worker: 64}", "{global: 240}")
    text = re.sub(r"\{strategy: ps-async.*\}", gang, text)
    path_of(service).write_text(text.replace("tensorflow", "pytorch"))
    recipe = read_recipe(path_of(service))
    key = service.measurements(recipe)["train"].fingerprint
    times = {(1, 0.0): 0.153, (2, 0.0087): 0.097, (3, 0.0065): 0.084, (2, 20.1): 0.174, (3, 20.06): 0.260}
    for (workers, latency_ms), step_s in times.items():
        shape = {"nodes": workers, "local_batch": 240 / workers, "latency_ms": latency_ms}
        point = Point(Strategy.ALLREDUCE, workers, step_time_s=step_s, **shape)
        data = Measurement(point, offer=measured_name("lab", "m4.large")).to_json()
        name = f"{workers} at {latency_ms}"
        service.database.add_measurement(
            NewMeasurement(name, key.exact, key.similar, "train", None, data, 1.0)
        )
    catalogue = load_catalogue("fc2-2018")
    catalogue = catalogue.with_offers(replace(offer, provider="lab") for offer in catalogue)
    quoter = Quoter(service, lambda _: None, None, CandidateOffers("lab", catalogue))
    found = [
        quoter.quote(recipe, {}, QuoteOptions(policy="lookup", latency_ms=latency_ms)).main
        for latency_ms in (0, 20)
    ]
    assert [(one.cluster.workers, one.cluster.worker.instance) for one in found] == [
        (3, "m4.large"),
        (2, "m4.large"),
    ]
    assert [one.time_s.p50 for one in found] == pytest.approx([84.0, 174.0])


def test_what_is_looked_up_follows_the_load_of_the_named_catalogues_machines(service, monkeypatch):
    """A recipe for machines elsewhere, quoted for this one: the catalogue says where, not the recipe."""
    text = re.sub(r"\{strategy: ps-async.*\}", "{strategy: allreduce, workers: 2}", RECIPE)
    text = text.replace("{per_worker: 64}", "{global: 64}").replace("tensorflow", "pytorch")
    path_of(service).write_text(text)
    recipe = read_recipe(path_of(service))
    key = service.measurements(recipe)["train"].fingerprint
    run = AcceptedRun("calm", "fc2", "{}", "/recipe.yaml", "local", "/code", "file:///store", [("train", 1)])
    service.database.create_run(run, 1.0)
    service.database.put_forecast("calm", json.dumps({"load": 0.0}))
    point = Point(Strategy.ALLREDUCE, 2, step_time_s=0.1, nodes=1, local_batch=32)
    data = Measurement(point, offer="local").to_json()
    service.database.add_measurement(NewMeasurement("1", key.exact, key.similar, "train", "calm", data, 1.0))

    def looked_up_s(load):
        monkeypatch.setattr(HomeLoad, "now", lambda: HomeLoad(load))
        asked = QuoteOptions(policy="lookup", catalogue="local")
        return Quoter(service, lambda _: None).quote(recipe, {}, asked).main.time_s.p50

    assert looked_up_s(99.0) > 1.5 * looked_up_s(0.0)


def test_scala_opt_compares_a_labs_traffic_with_what_its_cards_really_carry(service):
    path_of(service).write_text(RECIPE.replace("provider: aws", "provider: lab").replace("$2", "$9"))
    measure(service, {measured_name("lab", "c4.xlarge"): 10.0})
    catalogue = load_catalogue("fc2-2018")
    catalogue = catalogue.with_offers(replace(offer, provider="lab") for offer in catalogue)
    for network, workers in ((1.0, int((9 - 2 * 0.125) / 0.231)), (0.125, int(0.95 * 2 * 450 * 0.125 / 10))):
        offers = CandidateOffers("lab", catalogue, shares=Shares(0.25, 0.5, network))
        asked = QuoteOptions(policy="scala-opt", worker_types="c4.xlarge", parameter_server="m4.large")
        quoter = Quoter(service, lambda _: None, None, offers)
        found = quoter.quote(read_recipe(path_of(service)), {}, asked).main
        assert found.cluster.worker.count == workers


def test_a_server_answers_as_the_command_does(service):
    asked = {"policy": "cost-opt", "catalogue": "fc2-2018", "usd_per_hour": 3.0, "worker_types": "p2.*"}
    text = RECIPE.replace("code: code\n", "")
    found = by_rest(service, text, parameter_server="m4.large, m4.2xlarge", **asked)["answer"]
    assert quoted(found["cluster"]) == {"worker": ("p2.xlarge", 1), "ps": ("m4.2xlarge", 2)}
    lower = by_rest(
        service,
        text,
        p=0.5,
        bandwidth="instance,mbps\nc4.xlarge,100\n",
        policy="scala-opt",
        catalogue="fc2-2018",
        parameter_server="m4.large",
        usd_per_hour=9.0,
    )["answer"]
    assert quoted(lower["cluster"])["worker"] == ("c4.xlarge", int(0.5 * 900 / 100))
    by_recipe = text.replace("budget:", "objective: {policy: time-opt}\nbudget:")
    assert by_rest(service, by_recipe, catalogue="fc2-2018")["error"]["title"].startswith(
        "time-opt: no cluster"
    )
    for wrong in ({"p": 0.0}, {"p": 2.0}, {"usd_per_hour": -1.0}, {"policy": "mine"}):
        with pytest.raises(UsageError):
            by_rest(service, text, **wrong)


def test_unknown_traffic_is_measured_with_the_smallest_clusters(service):
    path_of(service).write_text(
        RECIPE.replace("    steps:", "    hardware: {instance: ['?4.xlarge']}\n    steps:")
    )
    recipe = read_recipe(path_of(service), overrides=["objective=scala-opt"])
    offers = candidate_offers_of(recipe, service, ENVIRON, datetime.now(UTC).date())

    def quote():
        return Quoter(service, lambda _: None, None, offers).quote(recipe, ENVIRON, QuoteOptions())

    with pytest.raises(BandwidthUnknown, match=r"m4\.xlarge") as caught:
        quote()
    runs = measuring_runs(recipe, caught.value.types)
    assert {run.instance for run in runs} == {"c4.xlarge", "m4.xlarge"}
    small = read_recipe(path_of(service), overrides=["objective=scala-opt", *runs[0].overrides])
    machines, usd_per_hour = rented(service, small)
    assert machines == {"worker": (runs[0].instance, 1), "ps": ("m4.10xlarge", 1)}
    assert runs[0].usd == pytest.approx(usd_per_hour * 180 / 3600, rel=0.05)
    assert small.budget.total_usd == runs[0].cap_usd < 3.0
    keys = [service.measurements(each)["train"].fingerprint.exact for each in (recipe, small)]
    assert keys[0] == keys[1]  # what it measures is found by the quote
    measure(service, {"c4.xlarge": 200.0})
    found = quote().main
    assert found.types.traffic_mbps == {"c4.xlarge": pytest.approx(200.0)}
    assert [run.instance for run in measuring_runs(recipe, {"train": found.types.as_dict()})] == ["m4.xlarge"]


def test_a_server_that_lacks_traffic_says_what_to_measure(service):
    text = RECIPE.replace("code: code\n", "").replace("budget:", "objective: scala-opt\nbudget:")
    types = by_rest(service, text, catalogue="fc2-2018")["error"]["types"]
    assert types["train"]["servers"][0] == "m4.10xlarge"
    submissions = Submissions(service, Access(service.database), ENVIRON, is_private=True)
    recipe = submissions.read(caller("me", None, ["read", "run"]), RunRequest(text))
    assert len(measuring_runs(recipe, types)) == len(types["train"]["workers"]) == 6
    on_own = recipe.model_copy(update={"provider": "local"})
    assert measuring_runs(on_own, types) == []


SWEEP = """
    search: {metric: accuracy, goal: max, sampler: random}
    parameters: {lr: {range: 0.001-0.1, sampling: log}, samples: 20}
  more:
    after: train
    approval: required
    command: python more.py
    distributed: {strategy: ps-async, workers: auto}
    batch: {per_worker: 64}
    parameters: {lr: [1, 2, 3]}
    hardware: {instance: c4.xlarge}
    steps: 10
"""


def test_every_experiment_that_lacks_traffic_is_measured_with_one_task(service):
    path_of(service).write_text(RECIPE + SWEEP.lstrip("\n"))
    recipe = read_recipe(path_of(service), overrides=["objective=scala-opt"])
    offers = candidate_offers_of(recipe, service, ENVIRON, datetime.now(UTC).date())
    asked = recipe, ENVIRON, QuoteOptions(worker_types="c4.xlarge")
    with pytest.raises(BandwidthUnknown) as caught:
        Quoter(service, lambda _: None, None, offers).quote(*asked)
    runs = measuring_runs(recipe, caught.value.types)
    assert [(run.experiment, run.instance) for run in runs] == [("train", "c4.xlarge"), ("more", "c4.xlarge")]
    before = service.measurements(recipe)
    for run in runs:
        small = read_recipe(path_of(service), overrides=["objective=scala-opt", *run.overrides])
        (one,) = small.experiments.values()
        assert (one.name, len(one.tasks(0)), one.approval) == (run.experiment, 1, None)
        assert service.measurements(small)[one.name].fingerprint == before[one.name].fingerprint


def test_the_traffic_of_equal_experiments_is_measured_once(service):
    path_of(service).write_text(RECIPE + "  more:" + RECIPE.partition("  train:")[2])
    recipe = read_recipe(path_of(service), overrides=["objective=scala-opt"])
    offers = candidate_offers_of(recipe, service, ENVIRON, datetime.now(UTC).date())
    asked = recipe, ENVIRON, QuoteOptions(worker_types="c4.xlarge")
    with pytest.raises(BandwidthUnknown) as caught:
        Quoter(service, lambda _: None, None, offers).quote(*asked)
    assert [run.experiment for run in measuring_runs(recipe, caught.value.types)] == ["train"]


def test_the_newest_measurement_with_the_fewest_workers_is_the_traffic_of_a_type():
    many = [seen("a", 50.0, workers=4, at=9.0), seen("a", 100.0), seen("A", 80.0, at=2.0), seen("local", 1.0)]
    assert traffic_mbps(many) == {"a": pytest.approx(80.0)}
