"""``import trainmaster``: what a script or a notebook can do, in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


def start(tm, source, env=None):
    """A user's script, under way."""
    path = tm.write("script.py", source)
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(path)],
        cwd=tm.work,
        env=env or tm.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # tests that are run in the background have inherited that it is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def script(tm, source, code=0, env=None):
    """What a user's script prints."""
    process = start(tm, source, env)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    return out if code == 0 else err


def test_a_run_of_a_dictionary(tm):
    tm.write("train.sh", "echo in $(basename $PWD); echo weights > $TRAINMASTER_OUTPUT_DIR/model.bin")
    command = 'sh train.sh; echo \'{"step": 1, "loss": 0.5}\' >> $TRAINMASTER_METRICS'
    recipe = {"name": "job", "experiments": {"main": {"command": command}}}
    found = json.loads(
        script(
            tm,
            f"""
            import json
            import trainmaster

            run = trainmaster.run({recipe!r})
            (model,) = run.check().models
            place = model.download("here")
            events = [event.after for event in run.events() if event.kind == "run"]
            print(json.dumps([
                run.id, run.state, run.reason, list(run.logs()), run.metrics(), dict(run.status().json),
                run.quote, model.uri, model.metrics, sorted(path.name for path in place.iterdir()), events,
            ]))
            """,
        )
    )
    run, state, reason, logs, metrics, status, quote, uri, last, files, events = found
    assert (state, reason, quote) == ("DONE", "SUCCEEDED", None)
    assert logs == ["in code"]
    assert metrics == [{"experiment": "main", "task": 0, "attempt": 1, "step": 1, "loss": 0.5}]
    assert status == tm.status(run)
    assert uri == status["models"][0]["uri"]
    assert (last, files) == ({"step": 1, "loss": 0.5}, ["model.bin"])
    assert events == ["WAITING", "RUNNING", "DONE"]
    (kept,) = (tm.home / "recipes").iterdir()
    assert json.loads(kept.read_text()) == recipe  # JSON is YAML: it can be run again
    assert tm.run(kept, "--set", f"code={tm.work}")["reason"] == "SUCCEEDED"


def test_a_failure_is_told(tm):
    path = tm.task("echo this is why; exit 3")
    out = script(
        tm,
        f"""
        import trainmaster

        run = trainmaster.run({str(path)!r}, overrides={{"name": "other", "experiments.main.retries": 0}})
        print(run.id.startswith("other-"), run.succeeded, run.reason, *run.logs())
        try:
            run.check()
        except trainmaster.errors.RunFailedError as error:
            print(error.run == run.id, str(error).splitlines()[0].endswith("exit code 3 (this is why)"))
        """,
    )
    assert out.splitlines() == ["True False USER_ERROR this is why", "True True"]


def test_what_is_wrong_is_a_typed_error(tm):
    out = script(
        tm,
        """
        import trainmaster
        from trainmaster import errors

        def told(what, *arguments, **keys):
            try:
                what(*arguments, **keys)
            except errors.TrainmasterError as error:
                print(type(error).__name__, error.exit_code)
                return error

        good = {"experiments": {"main": {"command": "true"}}}
        bad = told(trainmaster.run, {"experiments": {"main": {"comand": "true"}}})
        print(bad.mistakes[0].key_path)
        told(trainmaster.run, "nosuch.yaml")
        told(trainmaster.run, 7)
        told(trainmaster.run, {"experiments": {"main": {"command": object()}}})
        told(trainmaster.run, good, overrides={"experiments.other.command": "true"})
        told(trainmaster.run, trainmaster.Recipe.from_dict(good), provider="local")
        told(trainmaster.run, good, keep="long")
        told(trainmaster.Client().run, "nosuch")
        """,
    )
    assert [line.split()[0] for line in out.splitlines()] == [
        "RecipeError",
        "experiments.main.comand",
        "RecipeError",
        *["UsageError"] * 5,
        "NotFoundError",
    ]
    assert tm.runs() == []


def test_a_run_outlives_its_caller(tm):
    recipe = tm.task(
        "touch $NOTES/began; until [ -e $NOTES/go ]; do sleep 0.05; done; echo done > $NOTES/end"
    )
    caller = start(
        tm,
        f"""
        import time
        import trainmaster

        print(trainmaster.run({str(recipe)!r}, wait=False).id, flush=True)
        time.sleep(600)
        """,
    )
    run = caller.stdout.readline().strip()
    tm.until(lambda: (tm.notes / "began").exists(), "the task")
    caller.send_signal(signal.SIGKILL)
    caller.communicate()
    (tm.notes / "go").touch()
    tm.until(lambda: tm.status(run)["state"] == "DONE", "the end")
    assert tm.status(run)["reason"] == "SUCCEEDED"
    assert tm.marks("end") == ["done"]
    tm.until_quiet()


def test_cancel_resume_and_the_list_of_runs(tm):
    recipe = tm.task("echo attempt; [ -e $NOTES/go ] || sleep 600")
    out = script(
        tm,
        f"""
        import os
        import trainmaster

        run = trainmaster.run({str(recipe)!r}, wait=False)
        next(run.logs(follow=True))
        try:
            run.wait(timeout_s=0.5)
        except TimeoutError as error:
            print(type(error).__name__)
        print(run.cancel().reason)
        open(os.environ["NOTES"] + "/go", "w").close()
        print(run.resume().reason)
        print(list(run.logs(tail=1, task=0)), sum("attempt" in line for line in run.logs()))
        client = trainmaster.Client()
        print([each.id == run.id for each in client.runs()], client.run("latest"))
        print(run.resume(wait=False).state)
        """,
    ).splitlines()
    assert out[:3] == ["WaitTimeoutError", "CANCELLED", "SUCCEEDED"]
    assert out[3].endswith(" 2")
    assert out[4].startswith("[True] Run('job-")
    assert out[5] == "DONE"


def test_ctrl_c_cancels_a_run_that_is_waited_for(tm):
    recipe = tm.task("touch $NOTES/began; sleep 600")
    caller = start(tm, f"import trainmaster; trainmaster.run({str(recipe)!r})")
    tm.until(lambda: (tm.notes / "began").exists(), "the task")
    caller.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in caller.communicate(timeout=60)[1]
    assert tm.runs()[0]["reason"] == "CANCELLED"


def test_a_run_whose_driver_was_killed_is_told_and_resumed(tm):
    recipe = tm.task("touch $NOTES/began; until [ -e $NOTES/go ]; do sleep 0.05; done")
    out = script(
        tm,
        f"""
        import os, signal, time
        import trainmaster

        run = trainmaster.run({str(recipe)!r}, wait=False)
        while not os.path.exists(os.environ["NOTES"] + "/began"):
            time.sleep(0.05)
        os.kill(run.status().json["driver"]["pid"], signal.SIGKILL)
        try:
            run.wait()
        except trainmaster.errors.UndrivenError as error:
            print(error.hint)
        open(os.environ["NOTES"] + "/go", "w").close()
        print(run.resume().reason)
        """,
    )
    assert out.splitlines() == ["resume() goes on with it.", "SUCCEEDED"]


def test_a_home_of_its_own(tm):
    other = tm.root / "other"
    out = script(
        tm,
        f"""
        import trainmaster

        client = trainmaster.Client({str(other)!r})
        recipe = {{"experiments": {{"main": {{"command": "echo $TRAINMASTER_HOME"}}}}}}
        print(client.start(recipe).wait().reason)
        print(*client.run("latest").logs())
        client.close()
        """,
    )
    assert out.splitlines() == ["SUCCEEDED", str(other)]
    assert tm.runs() == []


INNER = """
import os, sys
import trainmaster

trainmaster.report(step=1, outer=1)
recipe = {{"name": "inner", "experiments": {{"main": {{"command": {command!r}}}}}}}
try:
    run = {call}
except trainmaster.errors.TrainmasterError as error:
    sys.exit(type(error).__name__ + " " + str(error))
print(run.reason, *run.logs())
trainmaster.report(step=2, outer=2)
"""
COMMAND = (
    "env | grep -E '^(RANK|WORLD_SIZE|TRAINMASTER_(EXPERIMENT|PARAM_X|WORLD_SIZE))=' | sort | paste -sd ' '"
)


@pytest.mark.parametrize(
    "call",
    ["trainmaster.run(recipe)", "trainmaster.Client(os.environ['NOTES'] + '/h').start(recipe).wait()"],
    ids=["the same home", "a home of its own"],
)
def test_a_task_may_run_a_recipe(tm, call):
    tm.write("train.py", textwrap.dedent(INNER).format(command=COMMAND, call=call))
    experiment = {
        "command": "python train.py",
        "parameters": {"x": [7]},
        "framework": "torchrun",
    }
    outer = tm.run(tm.recipe({"name": "outer", "experiments": {"train": experiment}}))
    assert outer["reason"] == "SUCCEEDED"
    said = tm.logs(outer["run"]).splitlines()
    assert said == ["SUCCEEDED TRAINMASTER_EXPERIMENT=main TRAINMASTER_WORLD_SIZE=1"]
    tm.until_quiet()


def test_a_task_that_holds_all_cores_is_not_waited_for_for_ever(tm):
    tm.write("train.py", textwrap.dedent(INNER).format(command="true", call="trainmaster.run(recipe)"))
    workers = os.cpu_count()
    experiment = {"command": '[ "$TRAINMASTER_INDEX" = 0 ] && python train.py || exit 0'}
    experiment |= {"distributed": {"workers": workers}}
    outer = tm.run(tm.recipe({"name": "outer", "experiments": {"train": experiment}}))
    logs = tm.logs(outer["run"], "--member", "worker-0")
    assert "RunError" in logs
    assert "a home of its own" in logs
    assert {row["run"].split("-")[0]: row["reason"] for row in tm.runs()}["inner"] == "CANCELLED"


def test_renting_needs_consent(tm):
    pytest.importorskip("boto3")
    recipe = tm.task("true", hardware={"cores": 1})
    err = script(
        tm, f"import trainmaster; trainmaster.run({str(recipe)!r}, provider='aws', allow_stale=True)", code=1
    )
    assert "trainmaster.spec.errors" in err
    assert tm.runs() == []


def test_a_quote(tm):
    tm.write(
        "train.py",
        """
        import time
        import trainmaster

        for step in range(1, 41):
            time.sleep(0.05)
            trainmaster.report(step=step, examples=step * 8)
        """,
    )
    tm.recipe({"name": "job", "experiments": {"main": {"command": "python train.py", "steps": 40}}})
    out = script(
        tm,
        """
        import json
        import trainmaster

        quote = trainmaster.quote("recipe.yaml", overrides={"experiments.main.profile.seconds": "5s"})
        assert quote.to_json() == json.dumps(quote.as_dict())
        print(quote.to_json(), quote.time_s.p5 <= quote.time_s.p50 <= quote.time_s.p95, sep="\\n")
        """,
    ).splitlines()
    found = json.loads(out[0])
    assert out[1] == "True"
    again = tm.call("quote", tm.work / "recipe.yaml", "--json").json
    assert again["total"]["cost_usd"] == found["total"]["cost_usd"] == {"p5": 0.0, "p50": 0.0, "p95": 0.0}
    assert again.keys() == found.keys()


def test_the_page_for_people_is_true(tm):
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    tm.write(
        "train.py",
        """
        import os
        import time
        import trainmaster

        for step in range(1, 31):
            time.sleep(0.02)
            trainmaster.report(step=step, loss=1 / step)
        print("trained")
        with open(os.environ["TRAINMASTER_OUTPUT_DIR"] + "/model", "w") as file:
            file.write("weights")
        """,
    )
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    out = script(tm, "\n".join(block for block in blocks if "https://" not in block))  # no server is there
    assert "DONE SUCCEEDED" in out
    assert out.count("trained") == 3
    assert "main 0 1.0" in out
    assert "experiments.main.comand unknown key 'comand'; did you mean 'command'?" in out


def test_a_type_checker_accepts_the_page_for_people(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    (tmp_path / "page.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)))
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "page.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
