"""Quotes from the user's seat: measured here and now, kept by the run that follows, refused with a reason."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys

import pytest

#: 50 steps a second, whatever else the machine does: time that a quote can be right about.
STEPS = """
    import sys, time, trainmaster
    total, each = int(sys.argv[1]), float(sys.argv[2])
    begin = time.monotonic()
    for step in range(1, total + 1):
        time.sleep(max(0.0, begin + step * each - time.monotonic()))
        trainmaster.report(step=step, loss=1 / step)
"""


COMPUTES = """
    import time
    for step in range(1, 400):
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        print(f"step={step} loss={1 / step}", flush=True)
"""


def training(tm, *, steps=600, each=0.02, command=None, top=None, **keys):
    tm.write("train.py", STEPS)
    experiment = {"command": command or f"python train.py {{{{steps}}}} {each}", "steps": steps, **keys}
    return tm.recipe({"name": "job", **(top or {}), "experiments": {"main": experiment}})


def quote(tm, recipe, *arguments, code=0):
    return tm.call("quote", recipe, "--json", *arguments, code=code)


def test_a_training_is_measured_quoted_and_the_quote_is_kept(tm):
    recipe = training(tm)
    first = quote(tm, recipe)
    found = first.json
    assert "main: measuring" in first.err
    # What else goes on on a test machine holds its processors, and makes it wider.
    held = found["experiments"]["main"]["measured"][0]["held"]
    assert 10 * (1 - held) < found["time_s"]["p5"] <= found["time_s"]["p50"] <= found["time_s"]["p95"]
    assert found["step_time_s"]["p50"] == pytest.approx(0.02, rel=0.25)
    assert found["cost_usd"] == {"p5": 0.0, "p50": 0.0, "p95": 0.0}
    assert found["cluster"]["worker"]["count"] == 1
    assert found["cluster"]["parameter_server"] is None
    assert found["experiments"]["main"]["cluster"] == found["cluster"]
    assert found["bottleneck"]
    assert found["fingerprint"]
    assert tm.runs() == []  # a measurement is no run
    again = quote(tm, recipe)
    assert "main: measuring" not in again.err
    assert again.json["measurements"] == 1
    ended = tm.run(recipe, "--yes")
    assert ended["quote"]["kind"] in ("estimate", "binding")
    assert ended["quote"]["kept"] is (ended["seconds"] <= ended["quote"]["time_s"]["p95"])
    assert ended["seconds"] > 600 * 0.02, "of the same training"
    assert tm.status(ended["run"])["quote"] == ended["quote"]
    score = tm.call("score", "--json").json[ended["quote"]["kind"]]
    assert (score["runs"], score["kept"]["n"]) == (1, int(ended["quote"]["kept"]))
    assert score["coverage"]["n"] == int(ended["quote"]["outside"] is None)
    assert [(each["provider"], each["job"]) for each in score["by"]] == [("local", "single")]
    assert "local" in tm.call("score").out
    inside = tm.call("score", "--json").json["estimate"]["coverage"]["n"]
    assert f"of 1 run here, {inside} came out inside the interval" in quote(tm, recipe).err
    word = {"binding": "quote", "estimate": "estimate"}[ended["quote"]["kind"]]
    assert f"  {word}: " in tm.call("status", ended["run"]).out


def test_what_other_work_has_disturbed_is_said_and_wider(tm):
    tm.write("busy.py", COMPUTES)
    recipe = tm.recipe(
        {
            "name": "job",
            "experiments": {"main": {"command": "python busy.py", "steps": 400, "profile": {"seconds": 4}}},
        }
    )
    loops = 2 * (
        os.cpu_count() or 1
    )  # each in a session of its own: some kernels share processors out by session
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command, start_new_session=True) for _ in range(loops)]
    try:
        found = quote(tm, recipe).json
    finally:
        for each in others:
            each.kill()
            each.wait()
    held = found["experiments"]["main"]["measured"][0]["held"]
    assert held > 0.2
    assert f"held its processors for {100 * held:.0f} % of the time" in " ".join(found["warnings"])
    assert found["time_s"]["p95"] / found["time_s"]["p5"] > 1 / (1 - held + 0.1)


STRANGERS = """
    import json, os, time
    with open(os.environ["TRAINMASTER_METRICS"], "a") as reports:
        for number in range(1, 101):
            time.sleep(0.03)
            reports.write(json.dumps({"step": number, "accuracy": number / 100}) + chr(10))
            reports.flush()
"""


def test_an_estimate_borrows_from_another_version_with_doubt_and_never_from_a_strangers_code(tm):
    # Long enough for the estimate, which is thought of beside the run, to come before its end.
    recipe = training(tm, steps=100, command="python train.py 100 0.08")
    assert "estimate: " not in tm.call("run", recipe).err, "nothing is known of it"
    tm.write("train.py", f"{STEPS}    print('trained')")
    other = tm.call("run", recipe)
    assert "from 1 measurement of earlier versions of this code" in other.err + other.out
    tm.write("train.py", STRANGERS)
    assert "estimate: " not in tm.call("run", recipe).err, "of the same command, and another code"


def test_another_length_is_quoted_by_a_run_of_the_code_also_once_it_was_measured(tm):
    def of(command):
        return tm.recipe({"name": "job", "experiments": {"main": {"command": command}}})

    given = "int(sys.argv[2]) if len(sys.argv) > 2 else 300, 0.02"
    tm.write("train.py", STEPS.replace("int(sys.argv[1]), float(sys.argv[2])", given))
    tm.call("run", of("python train.py"))
    longer = of("python train.py --steps 900")
    for _ in range(2):  # measured, and by that measurement
        found = quote(tm, longer).json
        assert 15 < found["time_s"]["p50"] < 30
        assert "it was not seen to its end: other versions say how long it is" in " ".join(found["warnings"])


def test_a_job_without_checkpoints_is_quoted_as_beginning_again_when_its_machine_is_lost(tm):
    header = "provider,region,instance_type,vcpus,memory_gib,price_usd_per_hour,spot,as_of\n"
    prices = tm.write("prices.csv", header + "aws,eu-west-1,small,2,8,0.1,true,2026-11-01\n")
    recipe = training(tm, steps=3_000_000, top={"provider": "aws"}, hardware={"spot": True})
    found = [quote(tm, recipe, "--catalogue", prices).json]
    tm.write("train.py", STEPS + '    print("TRAINMASTER_CHECKPOINT_DIR")\n')
    found.append(quote(tm, recipe, "--catalogue", prices).json)
    words = "writes no checkpoint: work since the start is lost with a machine"
    told = [any(words in each for each in one["experiments"]["main"]["notes"]) for one in found]
    assert told == [True, False]
    assert found[0]["time_s"]["p95"] > 1.5 * found[1]["time_s"]["p95"]


def test_a_gang_on_hosts_that_do_not_answer_is_quoted_with_a_network_that_is_believed(tm):
    hosts = [{"name": f"h{n}", "address": "127.0.0.1", "port": n} for n in (1, 2)]
    tm.env["TRAINMASTER_HOSTS"] = str(tm.write("hosts.yaml", json.dumps({"hosts": hosts})))
    gang = {"distributed": {"strategy": "allreduce", "workers": 2}, "framework": "plain"}
    found = quote(tm, training(tm, steps=300, top={"provider": "hosts"}, **gang)).json
    (told,) = [each for each in found["experiments"]["main"]["notes"] if "hosts get from each other" in each]
    assert "is not known, 1 Gbit/s is believed: `trainmaster doctor --provider hosts`" in told


def test_own_measurements_need_neither_a_profile_nor_the_script(tm):
    tm.env["AWS_REGION"] = "us-east-1"
    experiment = {
        "command": "python not_there.py",
        "steps": 36_000,
        "framework": "pytorch",
        "hardware": {"gpus": 1},
        "distributed": {"strategy": "allreduce", "workers": "1..8"},
        "batch": {"global": 64},
    }
    recipe = tm.recipe({"name": "job", "provider": "aws", "experiments": {"main": experiment}})
    header = "job,sync,nodes,workers,local_batch,step_time_s,instance\n"
    steps = {1: 0.2, 2: 0.11, 4: 0.065}
    rows = [f"main,allreduce,{n},{n},{64 // n},{time_s},p3.2xlarge" for n, time_s in steps.items()]
    points = tm.write("points.csv", header + "\n".join(rows) + "\n")
    answer = quote(tm, recipe, "--measurements", points)
    found = answer.json
    assert "main: measuring" not in answer.err
    assert found["measurements"] == 3
    assert {each["step_time_s"] for each in found["measured"]} == set(steps.values())
    assert any("start-up" in each for each in found["warnings"])
    one = quote(
        tm, recipe, "--measurements", points, "--set", "experiments.main.hardware.instance=p3.2xlarge"
    )
    assert one.json["step_time_s"]["p50"] == pytest.approx(
        steps[one.json["cluster"]["worker"]["processes"]], rel=0.15
    )
    assert not any("does not fit now" in each for each in one.json["warnings"])
    tm.call("budget", "--monthly", "$0.01")
    warnings = " ".join(quote(tm, recipe, "--measurements", points).json["warnings"])
    assert "it does not fit now: this run may cost $" in warnings
    assert "this month's budget of the owner of the home has $0.01 left of $0.01" in warnings
    points.write_text(header + "main,allreduce,1,1,64,-3,p3.2xlarge\n")
    refused = quote(tm, recipe, "--measurements", points, code=2)
    assert "points.csv:2: step_time_s" in refused.err


def test_tasks_without_steps_are_quoted_by_how_long_they_take(tm):
    recipe = tm.task("sleep 1", parameters={"part": {"range": "1-6", "step": 1}}, hardware={"cpus": 1})
    found = quote(tm, recipe).json
    assert found["cluster"]["tasks_at_once"] >= 1
    waves = -(-6 // found["cluster"]["tasks_at_once"])
    assert waves <= found["time_s"]["p50"] < waves * 2.5
    assert found["step_time_s"] is None


def test_a_script_that_shows_no_steps_is_told_how(tm):
    recipe = tm.task("sleep 60", profile={"seconds": "1s"})
    answer = quote(tm, recipe)
    assert "metrics" in answer.err
    assert "report" in answer.err
    assert answer.json["total"]["time_s"] is None
    assert answer.json["unknown"]["starts_s"]["p5"] > 0
    tm.until_quiet()


def test_a_script_that_fails_is_shown(tm):
    answer = quote(tm, tm.task("echo boom >&2; exit 3"), code=2)
    assert "boom" in answer.err


def test_limits_that_cannot_be_kept_name_what_would_do(tm):
    recipe = training(tm, top={"budget": {"deadline": "2s"}})
    answer = quote(tm, recipe, code=2)
    assert "budget.deadline" in answer.err


def test_the_number_of_workers_is_chosen(tm):
    recipe = training(
        tm,
        steps=200,
        each=0.01,
        framework="pytorch",
        distributed={"strategy": "allreduce", "workers": "1..2"},
        batch={"global": 64},
    )
    ended = tm.run(recipe, "--yes", timeout_s=120)
    assert ended["reason"] == "SUCCEEDED"
    assert tm.logs(ended["run"]) is not None


def test_experiments_that_follow_others_are_named(tm):
    tm.write("train.py", STEPS)
    recipe = tm.recipe(
        {
            "name": "job",
            "experiments": {
                "first": {"command": "sleep 0.3"},
                "second": {"command": "python train.py {{steps}} 0.01", "steps": 50, "after": ["first"]},
            },
        }
    )
    before = quote(tm, recipe)
    assert "second" in before.json["not_quoted"]
    assert before.json["total"]["without"] == ["second"], "its time is not that of the run"
    assert "all without second: " in before.err
    assert "second" in before.err
    tm.run(recipe, "--yes")
    after = quote(tm, recipe).json
    assert after["not_quoted"] == {}
    assert "without" not in after["total"]
    assert set(after["experiments"]) == {"first", "second"}
    assert after["total"]["time_s"]["p50"] > after["experiments"]["first"]["time_s"]["p50"]


def test_another_catalogue_and_a_picture(tm):
    recipe = training(tm, steps=100_000)
    offers = tm.work / "mine.csv"
    with offers.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(
            ["provider", "region", "instance_type", "vcpus", "memory_gib", "price_usd_per_hour", "as_of"]
        )
        rows.writerow(["aws", "eu-west-1", "small", 2, 8, 0.1, "2026-11-01"])
        rows.writerow(["aws", "eu-west-1", "large", 16, 64, 0.9, "2026-11-01"])
    picture = tm.work / "front.svg"
    answer = quote(tm, recipe, "--catalogue", offers, "--plot", picture)
    found = answer.json
    assert found["cluster"]["worker"]["instance"] in ("small", "large")
    assert found["cost_usd"]["p50"] > 0
    assert found["next_measurement"] is None or found["next_measurement"]["cost_usd"] >= 0
    assert picture.read_text().startswith("<?xml")
    assert "published figures" in answer.err


FC2 = {
    "name": "fc2",
    "code": "/nowhere",
    "provider": "aws",
    "experiments": {
        "train": {
            "hardware": {"instance": ["m4.xlarge", "t2.xlarge", "c4.xlarge"]},
            "framework": "tensorflow",
            "distributed": {"strategy": "ps-async", "workers": "auto", "parameter_servers": 1},
            "batch": {"per_worker": 64},
            "steps": 1000,
            "command": "python not-there.py",
        }
    },
}
POLICY = ["--catalogue", "fc2-2018", "--parameter-server", "m4.large", "--max-workers", 6]


def test_policies_of_the_papers_need_no_script(tm):
    recipe = tm.recipe(FC2)
    bandwidth = tm.write("mbps.csv", "instance,mbps\nm4.xlarge,100\nt2.xlarge,150\nc4.xlarge,90\n")
    picks = {}
    for policy in ("cost-opt", "time-opt", "scala-opt"):
        found = quote(tm, recipe, "--policy", policy, *POLICY, "--bandwidth", bandwidth).json
        assert found["time_s"] is None
        assert found["cost_usd"] is None
        picks[policy] = (found["cluster"]["worker"]["instance"], found["cluster"]["worker"]["count"])
    assert picks == {
        "cost-opt": ("c4.xlarge", 6),
        "time-opt": ("m4.xlarge", 6),
        "scala-opt": ("t2.xlarge", 2),
    }
    assert (
        "instance,mbps"
        in quote(
            tm, recipe, "--policy", "scala-opt", *POLICY, "--bandwidth", tm.write("bad.csv", "a\n"), code=2
        ).err
    )
    assert "no such policy" in quote(tm, recipe, "--policy", "magic", code=2).err
    assert "no such file" in quote(tm, recipe, "--policy", "cost-opt", "--catalogue", "none.csv", code=2).err


def test_an_interrupted_measurement_leaves_nothing(tm):
    recipe = training(tm, steps=100_000, profile={"seconds": "60s"}, command="python train.py {{steps}} 0.3")
    call = tm.start("quote", recipe, "--json")
    tm.until(lambda: "measuring" in call.err, "steps")
    call.send(signal.SIGINT)
    call.wait(130)
    tm.until_quiet()
    assert tm.runs() == []


def test_an_interrupted_measurement_keeps_the_shapes_that_were_measured(tm):
    """And the next quote measures only the rest, and says so."""
    tm.write("train.py", STEPS)
    command = "test $TRAINMASTER_WORLD_SIZE = 2 && sleep=0.3; python train.py {{steps}} ${sleep:-0.02}"
    gang = {"strategy": "allreduce", "workers": "1..2"}
    keys = {"distributed": gang, "framework": "plain", "batch": {"global": 64}}
    recipe = training(
        tm, steps=100_000, profile={"seconds": "60s", "shapes": [1, 2]}, command=command, **keys
    )
    call = tm.start("quote", recipe, "--json")
    tm.until(lambda: "main with 2 workers: measuring" in call.err, "the second shape")
    call.send(signal.SIGINT)
    call.wait(130)
    assert "1 measurement is kept; the next quote measures the rest" in call.err
    tm.until_quiet()
    again = quote(tm, recipe, "--set", "experiments.main.profile.seconds=3s")
    said = (
        "main: 1 measurement kept from a quote that was interrupted; the rest is measured now, with 2 workers"
    )
    assert said in again.err
    assert "main with 2 workers: measuring" in again.err
    assert "main: measuring" not in again.err
    assert again.json["measurements"] == 2
    third = quote(tm, recipe)
    assert "2 measurements of earlier runs used" in third.err


def test_a_forecast_beyond_the_quote_is_told(tm):
    """The binding quote is what was promised: it is broken if the script slows down, and that is said."""
    tm.write(
        "slower.py",
        """
        import time, trainmaster
        for step in range(1, 656):
            time.sleep(0.05 if step <= 640 else 0.8)
            trainmaster.report(step=step)
    """,
    )
    ended = tm.run(tm.task("python slower.py", steps=655), "--yes")
    assert ended["quote"]["kind"] == "binding"
    assert ended["quote"]["kept"] is False
    shown = tm.status(ended["run"])
    assert shown["quote"]["kept"] is False
    assert (shown["late"]["experiment"], shown["late"]["phase"]) == ("main", "steps")
    assert [each["state"] for each in shown["phases"]["main"]] == ["done"] * len(shown["phases"]["main"])
    assert "late by" in tm.call("status", ended["run"]).out


def test_what_is_wrong_anyway_is_said_before_anything_is_measured(tm):
    shaped = {"framework": "pytorch", "batch": {"global": 12}}
    few = training(tm, **shaped, distributed={"strategy": "allreduce", "workers": "2..4"})
    answer = quote(tm, few, "--max-workers", 1, code=2)
    assert "max_workers" in answer.err
    assert "measuring" not in answer.err
    for top, arguments in ({"provider": "aws"}, ()), ({}, ("--provider", "aws")):
        nowhere = training(tm, top=top, hardware={"region": "mars"})
        answer = quote(tm, nowhere, *arguments, code=2)
        assert "hardware: builtin has nothing with region: mars" in answer.err
        assert "measuring" not in answer.err
        assert tm.call("check", nowhere, "--json", *arguments, code=2).err == answer.err


def test_the_fewest_workers_need_not_share_the_batch_evenly(tm):
    recipe = training(
        tm,
        steps=200,
        each=0.01,
        framework="pytorch",
        distributed={"strategy": "allreduce", "workers": "3..6"},
        batch={"global": 10},
        profile={"seconds": "3s"},
    )
    assert quote(tm, recipe).json["cluster"]["worker"]["processes"] == 5


def test_a_run_that_was_interrupted_says_nothing_of_its_quote(tm):
    recipe = training(tm)
    quote(tm, recipe)
    call = tm.start("run", recipe, "--yes", "--json")
    tm.until(lambda: "estimate" in call.err, "an estimate")
    call.send(signal.SIGINT)
    call.wait(130)
    run = tm.runs()[0]["run"]
    said = tm.status(run)["quote"]
    assert (said["kept"], said["outside"], said["ended_by_hand"]) == (None, None, True)
    assert "neither kept nor broken" in tm.call("status", run).out
    ended = tm.call("resume", run, "--json").json
    assert (ended["reason"], ended["quote"]["kept"], ended["quote"]["ended_by_hand"]) == (
        "SUCCEEDED",
        None,
        True,
    )
    score = tm.call("score", "--json").json["estimate"]
    assert (score["runs"], score["ended_by_hand"], score["coverage"]["of"]) == (0, 1, 0)
    assert " 1 " in tm.call("score").out


def test_a_run_measures_first_where_it_is_asked_to(tm):
    recipe = training(tm, steps=100)
    answer = tm.call("run", recipe, "--measure-first", "--json")
    assert answer.err.index("main: measuring") < answer.err.index("rests on 1 measurement")
    assert answer.json["reason"] == "SUCCEEDED"
    assert len(tm.runs()) == 1  # a measurement is no run
    broken = tm.call("run", tm.task("exit 3"), "--measure-first", code=2)
    assert "cannot be measured" in broken.err or "exit code 3" in broken.err
    assert len(tm.runs()) == 1


def test_a_script_that_prints_its_length_needs_no_steps_in_the_recipe(tm):
    script = """import sys, time
for step in range(1, int(sys.argv[1]) + 1):
    time.sleep(0.02)
    print(f"step {step}/{sys.argv[1]} loss {1 / step:.3f}", flush=True)
"""
    tm.write("train.py", script)
    recipe = tm.recipe({"name": "said", "experiments": {"main": {"command": "python train.py 400"}}})
    told = quote(tm, recipe)
    assert told.json["time_s"]["p5"] > 7, "it was stopped long before its end"
    assert "main makes 400 steps, as its script or its command says" in told.json["warnings"]
    ran = tm.call("run", recipe, "--yes")
    assert "estimate: " in ran.err + ran.out or "quote: " in ran.err + ran.out
    assert tm.call("status", "latest", "--json").json["quote"]["time_s"]["p5"] > 7
    longer = tm.recipe(
        {"name": "longer", "experiments": {"main": {"command": "python train.py 700"}}}, "longer.yaml"
    )
    ran = tm.call("run", longer, "--yes")
    assert "has passed" not in ran.err + ran.out, "it says that it makes more"
    found = tm.call("status", "latest", "--json").json["quote"]
    assert found["kind"] == "binding"
    assert found["time_s"]["p50"] > 13


def test_versions_that_count_in_other_units_lend_each_other_how_long_they_took(tm):
    script = """import sys, time
epochs, unit = int(sys.argv[1]), sys.argv[2]
for step in range(1, epochs * 20 + 1):
    time.sleep(0.03)
    if unit == "step":
        print(f"step {step}/{epochs * 20} loss {1 / step:.3f}", flush=True)
    elif step % 20 == 0:
        print(f"epoch {step // 20} loss {1 / step:.3f}", flush=True)
"""
    tm.write("train.py", script)

    def version(unit):
        command = f"python train.py 5 {unit}"
        return tm.recipe({"name": "units", "experiments": {"main": {"command": command}}}, f"{unit}.yaml")

    for unit in ("step", "epoch"):
        tm.call("run", version(unit), "--yes")
    told = quote(tm, version("epochs"), "--no-measure").json["time_s"]
    assert 2 < told["p50"] < 9
    assert told["p95"] / told["p5"] < 8, "a step is a twentieth of an epoch: by both it was a hundred"


def test_a_job_without_a_length_is_told_as_that_and_by_a_run_to_its_end_in_numbers(tm):
    tm.write("train.py", STEPS)
    of = {"command": "python train.py 3000 0.02", "profile": {"seconds": "3s"}}
    alone = tm.recipe({"name": "alone", "experiments": {"main": of}})
    found = quote(tm, alone).json
    assert found["time_s"] is None
    assert "no length: set `steps`" in found["unknown"]["words"]
    assert "(a step takes 0.0" in found["unknown"]["why"], "it was measured"
    assert "like your other jobs" not in found["unknown"]["words"], "there are none"
    gang = {"command": "python train.py 50 0.02", "distributed": {"workers": 2, "strategy": "allreduce"}}
    both = tm.recipe({"name": "both", "experiments": {"main": gang}}, "both.yaml")
    told = quote(tm, both, "--no-measure")
    assert told.json["time_s"] is None
    assert "how long it runs is not known" in told.json["unknown"]["words"], "a measurement may show it"
    assert "`trainmaster quote` measures it" in told.json["experiments"]["main"]["notes"][0]
    assert "length" not in tm.call("run", both).err, "a run needs none"
    found = quote(tm, both, "--no-measure").json
    assert 1 < found["time_s"]["p50"] < 30
    unknown = quote(tm, alone, "--no-measure").json["unknown"]
    wide = unknown["like_others_s"]
    assert wide["p95"] > 20 * wide["p5"], "one other job says little"
    assert "like your other jobs it would be" in unknown["words"]
