"""`run`, `status`, `check`: the main path and the objects that programs read."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

DIAMOND = {
    "name": "diamond",
    "experiments": {
        "prepare": {"parameters": {"part": {"range": "0-2", "step": 1}}, "command": "echo part {{part}}"},
        "left": {"after": ["prepare"], "command": "echo $TRAINMASTER_EXPERIMENT >> $NOTES/order"},
        "right": {"after": ["prepare"], "command": "echo $TRAINMASTER_EXPERIMENT >> $NOTES/order"},
        "join": {"after": ["left", "right"], "command": "echo $TRAINMASTER_EXPERIMENT >> $NOTES/order"},
    },
}


def test_a_run_prints_one_json_object(tm):
    recipe = tm.task("""
        echo training
        echo '{"step": 1, "accuracy": 0.5}' >> $TRAINMASTER_METRICS
        echo '{"step": 2, "accuracy": 0.97}' >> $TRAINMASTER_METRICS
        echo weights > $TRAINMASTER_OUTPUT_DIR/model.bin
    """)
    result = tm.call("run", recipe, "--json")
    summary = tm.summary(result)
    run = summary["run"]
    assert run.startswith("job-")
    assert summary["state"] == "DONE"
    assert summary["reason"] == "SUCCEEDED"
    assert summary["cost_usd"] == 0.0
    assert summary["seconds"] > 0
    assert summary["experiments"] == {
        "main": {
            "state": "DONE",
            "reason": "SUCCEEDED",
            "tasks": {"total": 1, "succeeded": 1}
            | dict.fromkeys(("failed", "running", "waiting", "pruned", "skipped", "cancelled"), 0),
        }
    }
    uri = f"file://{tm.home}/store/models/{run}/main/0"
    model = {"experiment": "main", "task": 0, "uri": uri, "metrics": {"step": 2, "accuracy": 0.97}}
    assert summary["models"] == [{**model, "parameters": {}}]
    assert "training" in result.err  # what people read
    assert tm.status(run) == summary
    assert tm.status("latest") == summary
    assert tm.resume(run) == summary  # nothing is left to do
    tm.until_quiet()


def test_what_gitignore_leaves_out_is_told_and_can_be_included(tm):
    recipe = tm.recipe({"name": "job", "experiments": {"main": {"command": "cat data/input.txt"}}})
    (recipe.parent / "data").mkdir()
    (recipe.parent / "data/input.txt").write_text("to be\n")
    (recipe.parent / ".gitignore").write_text("input.txt\n")
    told = "note: not sent, as .gitignore says: 1 file, 6 bytes: data/input.txt (6 bytes) (`code: {include: "
    checked = tm.call("check", recipe, "--json")
    assert told in checked.err
    left_out = {"path": "data/input.txt", "size_bytes": 6, "files": 1}
    assert json.loads(checked.out)["not_sent"] == [left_out]
    assert told in tm.call("run", recipe, code=1).err
    sent = tm.call("run", recipe, "--set", "code.include=[data/*.txt]")
    assert "to be" in sent.err
    assert "not sent" not in sent.err


def test_what_run_tells_is_no_result(tm):
    result = tm.call("run", tm.task("echo visible"))
    assert result.out == ""
    assert "visible" in result.err


def test_status_lists_the_newest_run_first(tm):
    assert tm.call("status", "--json").json == {"runs": []}
    recipe = tm.task("true")
    ids = [tm.run(recipe)["run"] for _ in range(3)]
    assert [row["run"] for row in tm.runs()] == ids[::-1]
    human = tm.call("status").out
    assert human.index(ids[2]) < human.index(ids[1]) < human.index(ids[0])

    page = tm.call("status", "--limit", "2", "--json").json
    assert ([row["run"] for row in page["runs"]], page["older"]) == (ids[:0:-1], 1)
    shown = tm.call("status", "--limit", "2")
    assert ids[0] not in shown.out
    assert "1 older ones" in shown.err


def test_unknown_runs_are_named(tm):
    for verb in ("status", "logs", "cancel", "resume"):
        result = tm.call(verb, "nosuch-1234", code=2)
        assert "nosuch-1234" in result.err
        assert result.out == ""


def test_a_failed_run_exits_with_1(tm):
    summary = tm.run(tm.task("exit 3"), code=1)
    assert summary["reason"] == "USER_ERROR"
    assert summary["experiments"]["main"]["tasks"]["failed"] == 1
    assert "exit code 3" in summary["experiments"]["main"]["message"]


def test_the_workflow_is_kept(tm):
    recipe = tm.recipe(DIAMOND)
    summary = tm.run(recipe)
    assert list(summary["experiments"]) == ["prepare", "left", "right", "join"]
    assert summary["experiments"]["prepare"]["tasks"]["total"] == 3
    assert all(e["reason"] == "SUCCEEDED" for e in summary["experiments"].values())
    order = tm.marks("order")
    assert sorted(order[:2]) == ["left", "right"]
    assert order[2:] == ["join"]


def test_check_shows_the_dag_and_starts_nothing(tm):
    recipe = tm.recipe(DIAMOND)
    found = tm.call("check", recipe, "--json").json["experiments"]
    assert [found[name]["after"] for name in found] == [[], ["prepare"], ["prepare"], ["left", "right"]]
    assert [found[name]["tasks"] for name in found] == [3, 1, 1, 1]
    assert {"workers", "hardware"} <= found["join"].keys()
    lines = [json.loads(line) for line in tm.call("check", recipe, "--tasks").out.splitlines()]
    assert len(lines) == 6
    assert lines[1] == {
        "experiment": "prepare",
        "task": 1,
        "parameters": {"part": 1},
        "command": "echo part 1",
    }
    assert not tm.home.exists()
    assert not tm.processes()


def test_set_changes_keys(tm):
    recipe = tm.task("echo retries $TRAINMASTER_ATTEMPT; exit 1")
    tm.run(recipe, "--set", "experiments.main.retries=2", "--set", "name=other", code=1)
    row = tm.runs()[0]
    assert row["run"].startswith("other-")
    assert [line[-1] for line in tm.logs(row["run"]).splitlines()] == ["1", "2", "3"]
    tm.call("run", recipe, "--set", "experiments.main.retires=2", code=2)
    tm.call("run", recipe, "--set", "nonsense", code=2)
    assert len(tm.runs()) == 1


def test_the_provider_can_be_named(tm):
    tm.run(tm.task("true"), "--provider", "local")
    result = tm.call("run", tm.task("true"), "--provider", "aws", code=2)
    assert "aws" in result.err
    assert "provider" in result.err


def test_help_names_every_verb(tm):
    text = tm.call("--help").out
    for verb in ("run", "check", "status", "logs", "cancel", "resume", "models", "doctor"):
        assert f" {verb} " in text
    assert tm.call("--version").out.strip()
    assert not tm.home.exists()


def test_doctor_looks_at_home(tm):
    found = tm.call("doctor", "--json", code=None)
    assert found.code in (0, 1)
    assert isinstance(found.json["ok"], bool)
    assert tm.call("doctor", code=None).out


def test_detach_gives_the_prompt_back(tm):
    recipe = tm.task("echo begun; until [ -e $NOTES/go ]; do sleep 0.05; done; echo ended")
    result = tm.call("run", recipe, "--detach", "--json")
    run = result.json["run"]
    follower = tm.start("logs", run, "-f")
    tm.until(lambda: "begun" in follower.out, "the first line")
    assert tm.status(run)["state"] == "RUNNING"
    assert [row["run"] for row in tm.runs()] == [run]
    (tm.notes / "go").touch()
    assert follower.wait(0).out == "begun\nended\n"
    assert tm.resume(run)["reason"] == "SUCCEEDED"
    tm.until_quiet()


def test_a_detached_run_can_be_cancelled(tm):
    run = tm.call("run", tm.task("touch $NOTES/up; sleep 600"), "--detach", "--json").json["run"]
    tm.until((tm.notes / "up").exists)
    assert tm.summary(tm.call("cancel", run, "--json"))["reason"] == "CANCELLED"
    tm.until_quiet()


def test_a_detached_run_is_not_tied_to_the_callers_streams(tm):
    # the pipe would stay open, and the shell's $(...) hang, if anything in the background held it
    command = [
        str(Path(sys.executable).with_name("trainmaster")),
        "run",
        str(tm.task("sleep 600")),
        "--detach",
    ]
    done = subprocess.run(command, env=tm.env, cwd=tm.work, capture_output=True, timeout=60, check=True)
    assert done.stdout == b""
    tm.call("cancel", "latest")


def test_a_terminal_gets_a_live_view(tm):
    recipe = tm.task(
        """
        for step in 1 2 3 4 5 6; do
          echo "{\\"step\\": $step, \\"loss\\": 0.5}" >> $TRAINMASTER_METRICS; sleep 0.2
        done
        echo '[bold]not markup[/bold]'
    """,
        steps=6,
    )
    ours, theirs = pty.openpty()
    command = [str(Path(sys.executable).with_name("trainmaster")), "run", str(recipe), "--json"]
    with subprocess.Popen(
        command, env={**tm.env, "TERM": "xterm"}, stdout=subprocess.PIPE, stderr=theirs, cwd=tm.work
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the terminal's other end is closed
                break
            if not piece:
                break
            shown += piece
        out = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0
    assert json.loads(out)["reason"] == "SUCCEEDED"
    assert b"[bold]not markup[/bold]" in shown
    assert b"Traceback" not in shown


def test_check_shows_where_a_sampler_will_choose(tm):
    recipe = tm.task(
        "echo {{lr}}",
        parameters={"lr": {"range": "0.1-0.3"}},
        samples=2,
        search={"metric": "loss", "goal": "min", "sampler": "tpe"},
    )
    lines = [json.loads(line) for line in tm.call("check", recipe, "--tasks").out.splitlines()]
    assert lines == [
        {
            "experiment": "main",
            "tasks": 2,
            "parameters": None,
            "why": "tpe chooses them as it goes",
            "command": "echo {{lr}}",
        }
    ]


def test_a_small_run_loads_nothing_for_machines_elsewhere_nor_for_data(tm):
    call = f"sys.argv = ['trainmaster', 'run', {str(tm.task('echo hi'))!r}]; main()"
    code = f"import sys; from trainmaster.cli import main; {call}"
    command = [sys.executable, "-X", "importtime", "-c", code]
    done = subprocess.run(command, env=tm.env, cwd=tm.work, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time")]
    loaded = {line.split("|")[-1].strip() for line in lines}
    assert "trainmaster.control.loop.controller" in loaded
    heavy = {"configparser", "http.client", "tarfile", "statistics", "numpy", "boto3"}
    ours = {
        *(
            "providers.catalogue",
            "providers.inventory",
            "control.attempt.data_sources",
            "cluster.cluster_executor",
        ),
        *("objects.delegated_credentials", "objects.obstore_backend", "objects.amazon"),
    }
    assert sorted(loaded & (heavy | {f"trainmaster.{name}" for name in ours})) == []


def test_to_keep_machines_that_are_not_rented_warm_is_told_to_mean_nothing(tm):
    said = tm.call("run", tm.task("true"), "--keep", "5m").err
    assert "note: nothing is kept warm afterwards: local rents nothing" in said
