"""Anwar's recommendations as published, by the function and by the command line; tables of one's own."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_contract_home import record_run
from trainmaster.advisor import papers
from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.advisor.papers.measured_table import MeasuredTable, Row
from trainmaster.advisor.papers.recommend import RecommendQuery, by_rule, recommend
from trainmaster.cli.app import app
from trainmaster.db import NewMeasurement
from trainmaster.service import Home, Service
from trainmaster.spec import Strategy
from trainmaster.spec.errors import NotFoundError, UsageError

DATA = Path(__file__).parents[2] / "data"
ANWAR = json.loads((DATA / "seed_vectors.json").read_text())["anwar"]
PAPER = Path(papers.__file__).with_name("anwar.csv")


@pytest.fixture(scope="module")
def table():
    return MeasuredTable.of_file(PAPER)


def ask(*arguments):
    """What the command line says, as JSON."""
    done = CliRunner().invoke(app, ["recommend", *map(str, arguments), "--json"])
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout)


def test_table_4_is_in_the_data(table):
    rows = {(row.workers, row.batch, row.latency_ms): row.time_s for row in table.rows}
    assert all(rows[n, b, lat] == t for n, b, lat, t in ANWAR["table4"])
    assert (len(table.rows), len(table.measured)) == (114, 113)


@pytest.mark.parametrize("cell", ANWAR["cells"], ids=lambda c: f"{c['batch']}-{c['latency_ms']}ms")
def test_every_cell_of_the_papers_table_comes_out_by_the_command_line(cell):
    batch, latency_ms = cell["batch"], cell["latency_ms"]
    found = ask("--batch", batch, "--latency-ms", latency_ms, "--rule", "lookup", "--table", PAPER)
    assert found["machines"] == cell["winner_lookup"]
    assert found["seconds"] == cell["times"][str(found["machines"])]
    assert (found["rule"], found["is_measured"]) == ("lookup", True)


@pytest.mark.parametrize(("batch", "latency", "workers"), ANWAR["api"])
@pytest.mark.parametrize("rule", ["lookup", "carried", "model"])
def test_the_papers_figures_17_and_18_come_out_by_every_rule(batch, latency, workers, rule):
    found = ask("--batch", batch, "--latency-ms", latency, "--rule", rule)
    assert (found["machines"], found["others"]) == (workers, [])


def test_carried_takes_one_machine_for_all_latencies_and_says_so():
    found = ask("--batch", 1280, "--latency-ms", 100, "--rule", "carried", "--table", PAPER)
    assert (found["machines"], found["seconds"], found["is_measured"]) == (1, 20.0, False)
    assert "no network" in found["candidates"][0]["note"]
    assert {"rule": "lookup", "machines": 2, "seconds": 63.0, "why": ""} in found["others"]


def test_published_seconds_stand_beside_those_of_as_many_steps():
    literal, steps = (ask("--batch", 2560, "--latency-ms", 0, "--rule", r) for r in ("lookup", "carried"))
    one = {each["workers"]: each for each in literal["candidates"]}[1]
    assert one["time_s"] == 39.0
    one = {each["workers"]: each for each in steps["candidates"]}[1]
    assert one["time_s"] == pytest.approx(39 * 1.4)
    assert one["note"] == "the table says 39 s, of 50 steps: 54.6 s are 70"


@pytest.mark.parametrize("cents", [1, 3, 7, 10, 29, 57, 93])
def test_a_cap_of_exactly_n_machines_allows_n(cents):
    for n in range(1, 65):
        rows = (Row(k, 64, 0, 100.0 - k) for k in range(1, 65))
        cap = float(f"{n * cents / 100:.2f}")
        wish = RecommendQuery(64, 0, usd_per_hour=(cents / 100,), max_usd_per_hour=cap, rule="lookup")
        assert recommend_only(MeasuredTable("t", tuple(rows)), wish) == n


def recommend_only(table, wish):
    return by_rule(table, wish)[0][0].workers


def test_prices_may_differ_by_machine_and_the_dollars_of_the_run_are_capped():
    paper = ("--batch", 64000, "--latency-ms", 0, "--rule", "lookup")
    found = ask(*paper, "--usd-per-hour", 0.0928, "--max-usd", 0.04)
    assert (found["machines"], round(found["usd"], 4), found["usd_per_hour"]) == (3, 0.0389, 0.2784)
    prices = ("--usd-per-hour", 0.1, "--usd-per-hour", 0.1, "--usd-per-hour", 0.5)
    assert ask(*paper, *prices, "--max-usd-per-hour", 0.69)["machines"] == 2
    assert ask(*paper, *prices, "--max-usd-per-hour", 0.7)["machines"] == 3
    assert ask(*paper, *prices, "--epochs", 2)["usd"] == pytest.approx(2 * 419 * 1.2 / 3600)
    with pytest.raises(UsageError, match=r"the cheapest are \$0.2 per hour, and \$0.0427"):
        ask(*paper, *prices, "--max-usd", 0.01)


def test_the_price_of_a_tables_clusters_is_its_own(tmp_path):
    own = tmp_path / "t.csv"
    own.write_text(
        "workers,batch_size,latency_ms,time_per_epoch_s,usd_per_hour\n1,64,0,90,1\n2,64,0,60,1.5\n4,64,0,50,9\n"
    )
    found = ask("--batch", 64, "--table", own, "--rule", "lookup", "--max-usd-per-hour", 5)
    assert (found["machines"], found["usd_per_hour"]) == (2, 1.5)


def test_what_did_not_fit_is_never_recommended(tmp_path):
    own = tmp_path / "t.csv"
    own.write_text(
        "workers,batch_size,latency_ms,time_per_epoch_s\n1,64,0,\n2,64,0,60\n1,32,0,50\n2,256,0,70\n"
    )
    for rule in ("lookup", "carried", "model"):
        found = ask("--batch", 64, "--table", own, "--rule", rule)
        assert [each["workers"] for each in found["candidates"]] == [2]
    with pytest.raises(UsageError, match="does not fit"):  # as much on each as did not fit on one
        ask("--batch", 128, "--latency-ms", 9, "--table", own)


def test_no_match_is_an_error_and_not_zero_workers(table):
    with pytest.raises(NotFoundError, match="batch 6400 at 20 ms"):
        recommend(table, RecommendQuery(6000, 25, rule="lookup"))


def test_a_latency_that_a_probe_measured_is_the_one_that_is_meant():
    rows = (Row(2, 64, 20.08, 50.0), Row(4, 64, 19.9, 40.0), Row(4, 64, 60.2, 90.0), Row(2, 64, None, 1.0))
    found, _ = by_rule(MeasuredTable("own", rows), RecommendQuery(64, 20, rule="lookup"))
    assert [(each.workers, each.time_s) for each in found] == [(4, 40.0), (2, 50.0)]
    assert found[0].note == "measured at 19.9 ms"


def test_ties_go_to_the_smaller_cluster():
    assert (
        recommend_only(
            MeasuredTable("t", (Row(4, 8, 0, 5.0), Row(2, 8, 0, 5.0))), RecommendQuery(8, 0, rule="lookup")
        )
        == 2
    )


def test_a_price_moves_the_choice_to_fewer_workers():
    found = ask("--batch", 64000, "--latency-ms", 0, "--rule", "lookup", "--beta", 200, "--usd-per-hour", 1)
    assert found["machines"] == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--batch", 0), "batch: found 0"),
        (("--batch", "nan"), "batch: found nan"),
        (("--batch", 8, "--latency-ms", -1), "latency_ms: found -1"),
        (("--batch", 8, "--latency-ms", 1e9), "0 to 60000"),
        (("--batch", 8, "--usd-per-hour", -1), "usd_per_hour: found -1"),
        (("--batch", 8, "--max-usd", "inf"), "max_usd: found inf"),
        (("--batch", 8, "--rule", "beauty"), "Take one of lookup, carried, model"),
        (("--batch", 8, "--alpha", 0), "are 0"),
        (("--batch", 64000, "--max-workers", 10**23), "1 to 1000"),
        (("--batch", 64000, "--epochs", 1e308), "epochs: found 1e+308"),
        (("--batch", 10**9), "does not fit: the table has it as failed"),
        (("--batch", 64000, "--rule", "lookup", "--max-workers", 1), "2 machines or more"),
        (("--batch", 8, "--table", "none.csv"), "none.csv: cannot be read"),
    ],
)
def test_bad_wishes_are_refused_with_what_is_wrong(arguments, said):
    with pytest.raises((UsageError, NotFoundError)) as caught:
        ask(*arguments)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workers,batch_size\n1,2\n", ":1: no column latency_ms, time_per_epoch_s"),
        ("workers,batch_size,latency_ms,time_per_epoch_s\n", "has a header but no rows"),
        ("workers,batch_size,latency_ms,time_per_epoch_s\n,2,0,1\n", ":2: workers: is empty"),
        ("workers,batch_size,latency_ms,time_per_epoch_s\n1.5,2,0,1\n", ":2: workers: found 1.5"),
        (
            "workers,batch_size,latency_ms,time_per_epoch_s\n1,2,0,fast\n",
            ":2: time_per_epoch_s: found 'fast'",
        ),
        ("workers,batch_size,latency_ms,time_per_epoch_s\n1,2,-3,1\n", ":2: latency_ms: found '-3'"),
        ("workers,batch_size,latency_ms,time_per_epoch_s\n1,2,3,0\n", ":2: time_per_epoch_s: found 0"),
        (
            "workers,batch_size,latency_ms,time_per_epoch_s\n1,2,3,1e308\n",
            ":2: time_per_epoch_s: found '1e308'",
        ),
        (f"workers,batch_size,latency_ms,time_per_epoch_s\n1,2,3,{'9' * 140_000}\n", ": is no CSV"),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(text, said):
    with pytest.raises(UsageError) as caught:
        MeasuredTable.read(text, "t.csv")
    assert said in str(caught.value)


def test_people_are_told_in_lines():
    done = CliRunner().invoke(
        app, ["recommend", "--batch", "1280", "--latency-ms", "100", "--usd-per-hour", "0.1"]
    )
    assert "1 machine: 28 s, $0.00078 at $0.10 per hour (not measured; rule model, anwar-2021)" in done.output
    assert "lookup says 2: 63 s" in done.output


RECIPE = """
name: mnist
provider: aws
experiments:
  train:
    command: python train.py
    epochs: 1
    examples: 4480000  # 70 steps
    batch: {global: 64000}
    distributed: {strategy: allreduce, workers: 1..4}
    hardware: {instance: t2.large}
"""


@pytest.mark.parametrize(("latency_ms", "workers", "seconds"), [(0, 4, 419), (20, 3, 524)])
def test_a_quote_looks_the_papers_table_up_by_the_command_line(
    tmp_path, monkeypatch, table, latency_ms, workers, seconds
):
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "home"))
    (tmp_path / "r.yaml").write_text(RECIPE)
    lines = ["job,sync,nodes,workers,local_batch,latency_ms,step_time_s"]
    for row in table.rows:
        step_s = "" if row.time_s is None else row.time_s / row.steps
        each = row.batch / row.workers
        lines.append(f"train,allreduce,{row.workers},{row.workers},{each},{row.latency_ms},{step_s}")
    (tmp_path / "points.csv").write_text("\n".join(lines))
    asked = ["--policy", "lookup", "--measurements", tmp_path / "points.csv", "--latency-ms", latency_ms]
    rest = ["--catalogue", "builtin", "--allow-stale", "--json"]
    done = CliRunner().invoke(app, ["quote", *map(str, [tmp_path / "r.yaml", *asked, *rest])])
    assert done.exit_code == 0, done.output
    quote = json.loads(done.stdout)
    assert (quote["cluster"]["worker"]["count"], round(quote["time_s"]["p50"])) == (workers, seconds)


def test_ones_own_runs_are_a_table_by_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path))
    monkeypatch.delenv("TRAINMASTER_STORE", raising=False)
    service = Service(Home.from_environment())
    record_run(service, "mnist-aaaa000001", 1000.0)
    seen = {(1, 0.0): 0.153, (2, 0.0087): 0.097, (3, 0.0065): 0.084, (2, 20.1): 0.174, (3, 20.06): 0.26}
    for (workers, latency_ms), step_s in seen.items():
        point = Point(Strategy.ALLREDUCE, workers, nodes=workers, local_batch=240 / workers)
        data = Measurement(replace(point, latency_ms=latency_ms, step_time_s=step_s), offer="lab:t2.large")
        row = (f"{workers}-{latency_ms}", "f", "s", "main", "mnist-aaaa000001", data.to_json(), 1.0)
        service.database.add_measurement(NewMeasurement(*row))
    service.close()

    def machines(latency_ms, rule):
        found = ask("--batch", 240, "--profile", "mnist", "--latency-ms", latency_ms, "--rule", rule)
        return found["machines"], round(found["seconds"] / 70, 3), found["is_measured"]

    assert machines(0, "lookup") == (3, 0.084, True)
    assert machines(20, "lookup") == (2, 0.174, True)
    assert machines(20, "carried") == (1, 0.153, False)
    with pytest.raises(NotFoundError, match="60 ms was not measured"):
        machines(60, "lookup")
