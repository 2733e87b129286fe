"""What a task sees: variables, parameters, secrets, the right Python, working directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from learning import needs

DUMP = (
    "python -c 'import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], \"w\"))' $NOTES/env.json"
)


def environment(tm, name="env.json"):
    return json.loads((tm.notes / name).read_text())


def test_a_task_sees_the_documented_variables(tm):
    recipe = tm.recipe(
        {
            "name": "seen",
            "env": {"FROM_TOP": 1, "BOTH": "top"},
            "experiments": {
                "one": {
                    "env": {"BOTH": "experiment", "WITH_SPACE": "a  b"},
                    "parameters": {"lr": [0.25], "model_name": ["res net"]},
                    "batch": {"global": 64},
                    "steps": 10,
                    "command": [DUMP, "pwd > $NOTES/pwd", "ls > $NOTES/ls"],
                }
            },
        }
    )
    tm.write("train.py", "")
    caller = {
        "TRAINMASTER_TASK": "99",
        "TRAINMASTER_EXPERIMENT": "outer",
        "OWN": "inherited \u00e4\n2nd line",
    }
    run = tm.run(recipe, env={**tm.env, **caller})["run"]
    env = environment(tm)
    here = tm.home / "runs" / run
    assert env["TRAINMASTER_RUN"] == run
    assert env["TRAINMASTER_EXPERIMENT"] == "one"
    assert env["TRAINMASTER_TASK"] == "0"
    assert env["TRAINMASTER_ATTEMPT"] == "1"
    assert env["TRAINMASTER_ROLE"] == "worker"
    assert env["TRAINMASTER_INDEX"] == "0"
    assert env["TRAINMASTER_WORLD_SIZE"] == "1"
    for name in ("CHECKPOINT_DIR", "OUTPUT_DIR", "METRICS"):
        assert Path(env[f"TRAINMASTER_{name}"]).is_relative_to(here)
    assert env["TRAINMASTER_PARAM_LR"] == "0.25"
    assert env["TRAINMASTER_PARAM_MODEL_NAME"] == "res net"
    assert env["FROM_TOP"] == "1"
    assert env["BOTH"] == "experiment"
    assert env["WITH_SPACE"] == "a  b"
    assert env["OWN"] == caller["OWN"]
    assert env["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert "MASTER_ADDR" not in env
    assert (tm.notes / "pwd").read_text().strip() == str(here / "code")
    assert tm.marks("ls") == ["recipe.yaml", "train.py"]
    tm.until_quiet()
    assert not list(here.rglob("checkpoint")), "empty directories are cleaned up"


def test_directories_are_there_and_empty(tm):
    tm.run(
        tm.task("""
        test -d $TRAINMASTER_CHECKPOINT_DIR; test -z "$(ls -A $TRAINMASTER_CHECKPOINT_DIR)"
        test -d $TRAINMASTER_OUTPUT_DIR; test -z "$(ls -A $TRAINMASTER_OUTPUT_DIR)"
        test -d $(dirname $TRAINMASTER_METRICS)
    """)
    )


def test_values_arrive_as_variables_too(tm):
    recipe = tm.task(
        "echo {{lr}} $TRAINMASTER_PARAM_LR {{steps}} {{batch_per_worker}} {{batch_global}}",
        parameters={"lr": [1e-3, 0.5]},
        steps=7,
        batch={"global": 32},
    )
    run = tm.run(recipe)["run"]
    assert sorted(tm.logs(run).splitlines()) == [
        "main/0#1 worker-0 | 0.001 0.001 7 32 32",
        "main/1#1 worker-0 | 0.5 0.5 7 32 32",
    ]


def test_an_active_virtual_environment_wins(tm):
    venv = tm.root / "venv"
    (venv / "bin").mkdir(parents=True)
    python = venv / "bin" / "python"
    python.write_text("#!/bin/sh\necho mine\n")
    python.chmod(0o755)
    recipe = tm.task("python -V; command -v python")
    run = tm.run(recipe, env={**tm.env, "VIRTUAL_ENV": str(venv)})["run"]
    assert tm.logs(run) == f"mine\n{python}\n"


def test_python_is_the_one_that_runs_trainmaster(tm):
    run = tm.run(tm.task("python -c 'import sys, trainmaster; print(sys.executable)'"))["run"]
    assert Path(tm.logs(run).strip()).samefile(sys.executable)


def test_the_shell_is_strict(tm):
    assert tm.run(tm.task("false | true; echo never"), code=1)["reason"] == "USER_ERROR"
    assert tm.run(tm.task("echo $NO_SUCH_VARIABLE; echo never"), code=1)["reason"] == "USER_ERROR"
    assert tm.run(
        tm.recipe({"experiments": {"a": {"command": ["cd /", "test $PWD = /", "false", "true"]}}}), code=1
    )


def test_standard_input_is_empty(tm):
    run = tm.run(tm.task("cat; echo end"))["run"]
    assert tm.logs(run) == "end\n"


def test_secrets_come_from_the_caller_or_the_home_and_stay_secret(tm):
    recipe = tm.recipe(
        {
            "secrets": ["TOKEN_A"],
            "experiments": {
                "main": {
                    "secrets": ["TOKEN_B"],
                    "command": 'test "$TOKEN_A$TOKEN_B" = "$(cat $NOTES/expected)"; touch $NOTES/ok',
                }
            },
        }
    )
    (tm.notes / "expected").write_text("swordfish-aswordfish = b")
    refusal = tm.refused(recipe)
    assert "TOKEN_A" in refusal
    assert "TOKEN_B" in refusal
    secrets = tm.home / "secrets"
    secrets.write_text("# comment\nTOKEN_B = swordfish = b\nOTHER=1\n")
    secrets.chmod(0o640)
    refusal = tm.call("run", recipe, code=2, env={**tm.env, "TOKEN_A": "swordfish-a"}).err
    assert f"chmod 600 {secrets}" in refusal
    secrets.chmod(0o600)
    result = tm.call("run", recipe, "--json", env={**tm.env, "TOKEN_A": "swordfish-a"})
    assert (tm.notes / "ok").exists()
    assert "swordfish" not in result.out + result.err
    tm.until_quiet()
    secrets.unlink()
    for path in tm.home.rglob("*"):
        if path.is_file():
            assert b"swordfish" not in path.read_bytes(), path


def test_the_callers_environment_is_not_stored(tm):
    run = tm.start("run", tm.task("touch $NOTES/up; sleep 600"), env={**tm.env, "CALLER_ONLY": "xyzzy-17"})
    tm.until((tm.notes / "up").exists)
    run.kill()
    for path in tm.home.rglob("*"):
        if path.is_file():
            assert b"xyzzy-17" not in path.read_bytes(), path


def test_resume_brings_its_own_environment(tm):
    recipe = tm.task('echo ${COLOUR:-none} >> $NOTES/colours; test -n "${COLOUR:-}"')
    run = tm.run(recipe, code=1)["run"]
    tm.resume(run, env={**tm.env, "COLOUR": "blue"})
    assert tm.marks("colours") == ["none", "blue"]


def test_a_secret_may_arrive_with_resume(tm):
    recipe = tm.task("exit ${FAIL:-0}", secrets=["KEY"])
    run = tm.run(recipe, code=1, env={**tm.env, "KEY": "k", "FAIL": "1"})["run"]
    assert "KEY" in tm.call("resume", run, "--json", code=2).err
    assert tm.status(run)["reason"] == "USER_ERROR", "a refused resume changes nothing"
    tm.resume(run, env={**tm.env, "KEY": "k"})


def test_no_file_descriptor_leaks_into_a_task(tm):
    run = tm.run(tm.task("ls -l /proc/self/fd | sed -n 's/.* \\([0-9]* -> .*\\)/\\1/p'"))["run"]
    numbers = [int(line.split()[0]) for line in tm.logs(run).splitlines()]
    assert set(numbers) <= {0, 1, 2, 3}  # 3 is the directory that ls reads


def test_a_task_may_call_trainmaster_itself(tm):
    inner = tm.write("inner.yaml", "experiments: {a: {command: echo inner >> $NOTES/inner}}\n")
    run = tm.run(tm.task(f"trainmaster run {inner.name} --json >> $NOTES/json"))["run"]
    assert tm.marks("inner") == ["inner"]
    found = json.loads(tm.marks("json")[0])
    assert found["reason"] == "SUCCEEDED"
    assert {row["run"] for row in tm.runs()} == {run, found["run"]}
    tm.until_quiet()


def test_signals_and_limits_are_the_usual_ones(tm):
    # SIGPIPE must kill a pipe's writer, not annoy it; nothing is blocked or ignored
    run = tm.run(tm.task("grep -E '^Sig(Blk|Ign)' /proc/self/status; (yes; echo $? >&2) | head -1 || true"))[
        "run"
    ]
    log = tm.logs(run)
    masks = [int(line.split()[1], 16) for line in log.splitlines() if line.startswith("Sig")]
    reserved_by_libc = 0b11 << 31
    assert [mask & ~reserved_by_libc for mask in masks] == [0, 0], log
    assert os.strerror(32) not in log


def test_nothing_of_trainmasters_own_leaks_into_a_task(tm):
    tm.run(tm.task(DUMP))
    env = environment(tm)
    added = {name for name in env.keys() - tm.env.keys() if not name.startswith("TRAINMASTER_")}
    assert added <= {"PYTHONUNBUFFERED", "PWD", "OLDPWD", "SHLVL", "_"}
    assert {name for name in tm.env if name not in env} <= {"PS1"}, "which bash takes away without a terminal"
    changed = {name for name in env.keys() & tm.env.keys() if env[name] != tm.env[name]}
    assert changed <= {"PATH", "PWD", "OLDPWD", "SHLVL", "_"}


WHICH = """
import trainmaster
trainmaster.report(step=3, loss=0.25)
print(getattr(trainmaster, "WHOSE", "the driver's"))
"""


def test_a_setup_without_trainmaster_can_import_it(tm):
    """Its Python has no packages at all: `report` and the errors are there, what needs packages says so."""
    tm.write(
        "train.py",
        WHICH
        + """
from trainmaster.errors import RecipeError
assert issubclass(RecipeError, trainmaster.errors.TrainmasterError)
try:
    trainmaster.VolumeLoader
except ImportError as error:
    print(error)
""",
    )
    result = tm.run(tm.task("python train.py; touch $TRAINMASTER_OUTPUT_DIR/model", setup="true"))
    said = tm.logs(result["run"]).splitlines()
    assert said[0] == "the driver's"
    assert "Let the experiment's `setup` install trainmaster" in said[1]
    assert result["models"][0]["metrics"] == {"step": 3, "loss": 0.25}


def test_a_setup_with_the_packages_can_read_volumes(tm):
    needs("torch")
    packages = Path(pytest.__file__).parents[1]
    tm.write("train.py", "import trainmaster\nprint(trainmaster.VolumeLoader.__name__, trainmaster.__file__)")
    setup = f'echo {packages} > "$(python -c "import site; print(site.getsitepackages()[0])")/all.pth"'
    name, file = tm.logs(tm.run(tm.task("python train.py", setup=setup))["run"]).split()
    assert name == "VolumeLoader"
    assert file.endswith("/trainmaster/__init__.py")
    assert "library" not in file


def test_the_trainmaster_of_a_setup_wins(tm):
    tm.write("train.py", WHICH)
    tm.write("mine.py", "WHOSE = 'mine'\ndef report(**values): pass\n")
    setup = 'cp mine.py "$(python -c "import site; print(site.getsitepackages()[0])")/trainmaster.py"'
    run = tm.run(tm.task("python train.py", setup=setup, env={"PYTHONPATH": "own"}))["run"]
    assert tm.logs(run) == "mine\n"


def test_an_active_environment_without_trainmaster_can_import_it(tm):
    venv = tm.root / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    tm.write("train.py", WHICH)
    run = tm.run(tm.task("python train.py"), env={**tm.env, "VIRTUAL_ENV": str(venv)})["run"]
    assert tm.logs(run) == "the driver's\n"
