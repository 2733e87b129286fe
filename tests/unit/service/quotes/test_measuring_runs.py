"""The point that a quote names: at every door it can be measured, once its price is agreed to."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.advisor.quote.quote import ClusterShape, NextMeasurement, Rented
from trainmaster.control.task.layout import Home
from trainmaster.db import NewMeasurement
from trainmaster.service import Service
from trainmaster.service.quotes.candidate_offers import candidate_offers_of
from trainmaster.service.quotes.measuring_runs import measuring_runs, measuring_runs_offered, types_to_measure
from trainmaster.service.quotes.quote_options import QuoteOptions
from trainmaster.service.quotes.quote_service import Quoter
from trainmaster.spec import Strategy, read_recipe

RECIPE = """\
name: job
provider: aws
code: code
objective: fastest
experiments:
  train:
    command: python train.py {{steps}}
    distributed: {strategy: allreduce, workers: 1..8}
    framework: pytorch
    hardware: {instance: [m4.large, m4.xlarge]}
    batch: {global: 64}
    steps: 20000
"""
ENVIRON = {"TRAINMASTER_CATALOGUE": "fc2-2018"}


@pytest.fixture
def service(tmp_path):
    home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path}/a.db")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    found = Service(home)
    yield found
    found.close()


def quoted(service):
    """What a server says, which measures nothing itself: one worker was measured on a machine."""
    recipe = read_recipe(service.home.root / "recipe.yaml")
    key = service.measurements(recipe)["train"].fingerprint
    sends = {"bytes_out": 1e6, "bytes_in": 1e6}
    point = Point(Strategy.ALLREDUCE, 1, step_time_s=1.0, nodes=1, local_batch=64, **sends)
    data = Measurement(point, steps_done=100, offer="m4.large").to_json()
    row = NewMeasurement("1", key.exact, key.similar, "train", None, data, 1.0)
    service.database.add_measurement(row)
    offers = candidate_offers_of(recipe, service, ENVIRON, datetime.now(UTC).date())
    quoter = Quoter(service, lambda _: None, None, offers, measures=False)
    return recipe, quoter.quote(recipe, ENVIRON, QuoteOptions())


def test_the_named_point_can_be_agreed_to_also_where_nothing_is_measured_here(service):
    recipe, made = quoted(service)
    following = made.main.next_measurement
    assert following.workers > 1
    (run,) = measuring_runs(recipe, types_to_measure(made.as_dict()))
    assert (run.instance, run.workers) == (following.instance, following.workers)
    assert 0 < run.usd < run.cap_usd
    assert f"with {following.workers} workers: " in measuring_runs_offered([run])
    small = read_recipe(service.home.root / "recipe.yaml", overrides=run.overrides)
    (one,) = small.experiments.values()
    assert one.distributed.workers == following.workers
    assert (one.hardware.instance, small.budget.total_usd) == ((following.instance,), run.cap_usd)
    keys = [service.measurements(each)["train"].fingerprint.exact for each in (recipe, small)]
    assert keys[0] == keys[1], "what it measures is found by the next quote"


def test_no_point_is_named_beyond_the_budget_nor_where_machines_cost_nothing(service):
    recipe, made = quoted(service)
    types = types_to_measure(made.as_dict())
    (run,) = measuring_runs(recipe, types)
    path = service.home.root / "recipe.yaml"
    for usd, many in ((run.cap_usd, 1), (run.cap_usd / 2, 0)):
        assert len(measuring_runs(read_recipe(path, overrides=[f"budget.total=${usd}"]), types)) == many
    assert measuring_runs(recipe.model_copy(update={"provider": "hosts"}), types) == []


def test_a_point_has_the_servers_of_the_quoted_cluster_and_their_price():
    cluster = ClusterShape(
        Rented("m4.large", 4, usd_per_hour=0.1), Rented("m4.large", 2, usd_per_hour=0.1), workers=4
    )
    point = NextMeasurement(2, "m4.large", 70.0, 0.01, 2.0, 1.5)
    assert point.to_measure(cluster)["machines"] == {"m4.large": 4}
    one = point.to_measure(replace(cluster, server=Rented("t2.small", 1, usd_per_hour=0.02)))
    assert one["machines"] == {"m4.large": 2, "t2.small": 1}
    assert one["usd_per_hour"] == {"m4.large": 0.1, "t2.small": 0.02}
