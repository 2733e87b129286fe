"""What ``--json`` prints, byte by byte: programs read it. What differs between two calls is masked."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from trainmaster.advisor.quote.interval import Interval
from trainmaster.cluster.record import ClusterState, Machine, new_record
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, ActualOutcome, Database, NewQuoteRow, RunChange
from trainmaster.service.quotes.quote_record import QuoteRecord
from trainmaster.spec.states import EndReason, State

GOLDEN = Path(__file__).parent / "golden"
MASKS = (
    (r"job-[0-9a-f]{10}", "RUN"),
    (
        r'"(seconds|queued_s|silent_s|created_at|mtime_ns|cpu_share|peak_rss_bytes|pid)": [0-9.e+]+',
        r'"\1": 0',
    ),
    (r'"(bytes_sent|bytes_received)": [0-9.e+]+, ', ""),
    (r'"created_at": "[^"]*"', '"created_at": ""'),
    (r"\d+\.\d{3,}", "N"),
    (r'"(usage)": \{[^{}]*\}', r'"\1": {}'),
)
POINTS = "job,sync,nodes,workers,local_batch,step_time_s,instance\n" + "".join(
    f"main,allreduce,{n},{n},{64 // n},{step_s},p3.2xlarge\n"
    for n, step_s in ((1, 0.2), (2, 0.11), (4, 0.065))
)
OFFERS = (
    "provider,region,instance_type,vcpus,memory_gib,gpu,gpus,price_usd_per_hour,spot,as_of\n"
    "acme,eu-1,big,16,64,V100,2,4.5,no,2020-01-05\n"
    "acme,eu-1,big,16,64,V100,2,1.5,yes,2020-01-05\n"
    "acme,us-1,small,4,16,,,0.2,no,2020-01-06\n"
)


@pytest.fixture
def same(tm):
    """Compares output with a file; ``GOLDEN=write`` writes those that are not there."""

    def compare(name, text):
        for pattern, word in ((re.escape(str(tm.home)), "HOME"), (re.escape(str(tm.work)), "WORK"), *MASKS):
            text = re.sub(pattern, word, text)
        file = GOLDEN / f"{name}.json"
        if os.environ.get("GOLDEN") == "write" and not file.exists():
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        assert text == file.read_text(), name

    return compare


def test_runs_models_and_what_is_asked_of_them(tm, same):
    recipe = tm.recipe(
        {
            "name": "job",
            "experiments": {
                "main": {
                    "command": "echo '{\"loss\": 0.5}' >> $TRAINMASTER_METRICS; "
                    "echo m > $TRAINMASTER_OUTPUT_DIR/m",
                    "parameters": {"lr": [0.1, 0.2]},
                },
                "bad": {"command": "exit 3", "retries": 0},
            },
        }
    )
    ran = tm.call("run", recipe, "--json", code=1)
    same("run", ran.out)
    run = ran.json["run"]
    same("resume", tm.call("resume", run, "--json", code=1).out)
    same("status", tm.call("status", run, "--json").out)
    same("runs", tm.call("status", "--json").out)
    same("models", tm.call("models", run, "--json").out)
    same("cancel", tm.call("cancel", run, "--json").out)
    same("models-fsck", tm.call("models", "fsck", run, "--json").out)
    detached = tm.call("run", tm.task("sleep 60"), "--detach", "--json")
    shown = json.loads(detached.out)
    assert list(shown) == ["run", "state", "reason", "driver", "seconds", "cost_usd", "experiments", "models"]
    tm.call("cancel", shown["run"])


def test_offers(tm, same):
    own = tm.write("own.csv", OFFERS)
    same("offers", tm.call("offers", "--catalogue", own, "--refused", "--sort", "memory", "--json").out)
    same("no-offers", tm.call("offers", "--catalogue", own, "--gpu", "H100", "--json").out)


def test_quotes(tm, same):
    own = tm.write("own.csv", OFFERS.replace("big", "p3.2xlarge"))
    tm.env["AWS_REGION"] = "us-east-1"
    experiment = {
        "command": "python not_there.py", "steps": 36_000, "framework": "pytorch", "hardware": {"gpus": 1},
        "distributed": {"strategy": "allreduce", "workers": "1..4"}, "batch": {"global": 64},
    }  # fmt: skip
    recipe = tm.recipe({"name": "job", "provider": "aws", "experiments": {"main": experiment}})
    points = tm.write("points.csv", POINTS)
    asked = ("quote", recipe, "--measurements", points, "--catalogue", own, "--json")
    same("quote", tm.call(*asked, timeout_s=120).out)


def test_clusters(tm, same):
    same("no-clusters", tm.call("clusters", "--json").out)
    home = Home.from_environment(tm.env)
    database = Database(home.database_url)
    plan = ClusterPlan(
        "train", ("train",), "lab", (RolePlan("worker", 1, (Rental("m4", "us", "us-a", usd_per_hour=0.36),)),)
    )
    machine = Machine("worker-0", "worker", "t", plan.roles[0].rentals[0], "i-0", "us-a", started_at=1e9)
    record = replace(
        new_record("job-0123456789", plan, home.identity()), machines=(machine,), state=ClusterState.ACTIVE
    )
    recipe, rows = '{"experiments": {}}', [record.as_row()]
    new = AcceptedRun(
        "job-0123456789", "n", recipe, "/r", "lab", "/c", "file:///s", [("train", 1)], clusters=rows
    )
    database.create_run(new, 1e9)
    database.close()
    same("clusters", tm.call("clusters", "--json").out)
    assert "RUN" in (GOLDEN / "clusters.json").read_text()
    same("ended", tm.call("clusters", "end", "--all", "--json").out)


def test_scores(tm, same):
    same("no-score", tm.call("score", "--json").out)
    home = Home.from_environment(tm.env)
    database = Database(home.database_url)
    recipe = json.dumps({"experiments": {"main": {"distributed": None}}})
    for number, time_s in enumerate((60.0, 49.0, 101.0)):
        run = f"job-{number}"
        new = AcceptedRun(
            run, "job", recipe, "r.yaml", "local", "code", "file:///s", [("main", 1)], "", home.identity()
        )
        lease = database.create_run(new, 1.0)
        promise = QuoteRecord("binding", 1.0, Interval(50.0, 60.0, 100.0), Interval(0.0, 0.0, 0.0))
        quote = database.add_quote(NewQuoteRow(run, None, promise.kind, 1.0, promise.as_json()))
        database.record_outcome(quote, ActualOutcome(time_s, 0.0, promise.holds(time_s, 0.0)))
        for before, after in ((State.WAITING, State.STOPPING), (State.STOPPING, State.DONE)):
            database.commit(lease, [RunChange(before, after, EndReason.SUCCEEDED)], 2.0)
    database.close()
    same("score", tm.call("score", "--json").out)


def test_volumes(tm, same):
    same("no-volumes", tm.call("volume", "ls", "--json").out)
    (tm.work / "data" / "deep").mkdir(parents=True)
    (tm.work / "data" / "a.txt").write_text("a\n")
    (tm.work / "data" / "deep" / "b.txt").write_text("bb\n")
    (tm.work / "data" / "link").symlink_to("a.txt")
    for file in [tm.work / "data" / "a.txt", tm.work / "data" / "deep" / "b.txt", tm.work / "data" / "deep"]:
        file.chmod(0o755)
    same("volume-push", tm.call("volume", "push", tm.work / "data", "pets", "--json").out)
    (tm.work / "data" / "a.txt").write_text("aa\n")
    tm.call("volume", "push", tm.work / "data", "pets")
    same("volumes", tm.call("volume", "ls", "--json").out)
    same("volume-ls", tm.call("volume", "ls", "pets", "-r", "--json").out)
    same("volume-versions", tm.call("volume", "versions", "pets", "--json").out)
    same("volume-fsck", tm.call("volume", "fsck", "pets", "--json").out)
    same("volume-rm", tm.call("volume", "rm", "pets@1", "--yes", "--json").out)
    same("volume-gc", tm.call("volume", "gc", "pets", "--grace", "1000h", "--json").out)
    same("volume-rm-all", tm.call("volume", "rm", "pets", "--yes", "--json").out)
