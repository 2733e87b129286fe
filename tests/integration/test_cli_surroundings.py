"""What surrounds a run must not break it: odd names, odd files beside the recipe, readers that go away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_output_that_nobody_reads_does_not_end_the_run(tm):
    recipe = tm.task("for i in $(seq 2000); do echo line $i; sleep 0.001; done")
    program = Path(sys.executable).with_name("trainmaster")
    command = f"{program} run {recipe} 2>&1 | head -1"
    subprocess.run(
        ["bash", "-c", command], env=tm.env, cwd=tm.work, check=True, capture_output=True, timeout=60
    )
    tm.until(lambda: tm.runs()[0]["state"] == "DONE", "the end")
    assert tm.runs()[0]["reason"] == "SUCCEEDED"


def test_detach_beside_files_named_like_modules(tm):
    for name in ("signal.py", "secrets.py", "typing.py"):
        tm.write(name, "raise SystemExit('imported from the folder of the user')")
    run = tm.call("run", tm.task("true"), "--detach", "--json").json["run"]
    assert tm.resume(run)["reason"] == "SUCCEEDED"


def test_experiments_may_be_called_like_our_own_folders(tm):
    names = ("code", "data", "tasks", "control.log")
    experiments = {name: {"command": "ls -A > $TRAINMASTER_OUTPUT_DIR/seen"} for name in names}
    experiments["last"] = {"command": "cat $TRAINMASTER_DATA_D/seen", "data": {"d": {"from": "data"}}}
    run = tm.run(tm.recipe({"experiments": experiments}))["run"]
    assert tm.logs(run, "--experiment", "last").splitlines() == ["recipe.yaml"]


def test_a_metric_that_is_called_like_a_path(tm):
    experiments = {
        "train": {
            "parameters": {"n": [1, 2]},
            "command": """
                echo '{"val/../../../x": '{{n}}'}' >> $TRAINMASTER_METRICS
                echo {{n}} > $TRAINMASTER_OUTPUT_DIR/n
            """,
        },
        "use": {
            "data": {"m": {"from": "train", "best": "val/../../../x"}},
            "command": "cat $TRAINMASTER_DATA_M/n; echo $TRAINMASTER_DATA_M",
        },
    }
    run = tm.run(tm.recipe({"experiments": experiments}))["run"]
    number, place = tm.logs(run, "--experiment", "use").splitlines()
    assert number == "2"
    assert place.startswith(str(tm.home / "runs" / run / "inputs"))
    assert ".." not in place.split("/")


def test_a_word_within_a_word_says_nothing_about_a_metric(tm):
    experiments = {
        "train": {
            "parameters": {"n": [1, 2]},
            "command": """
                echo '{"transferred": '{{n}}', "val_loss": '{{n}}'}' >> $TRAINMASTER_METRICS
                echo {{n}} > $TRAINMASTER_OUTPUT_DIR/n
            """,
        },
        "use": {
            "data": {
                "most": {"from": "train", "best": "transferred"},
                "least": {"from": "train", "best": "val_loss"},
            },
            "command": "cat $TRAINMASTER_DATA_MOST/n $TRAINMASTER_DATA_LEAST/n",
        },
    }
    run = tm.run(tm.recipe({"experiments": experiments}))["run"]
    assert tm.logs(run, "--experiment", "use").split() == ["2", "1"]


def test_setup_sees_the_environment_of_the_recipe(tm):
    tm.home.mkdir(mode=0o700)
    (tm.home / "secrets").write_text("TOKEN=from the file\n")
    (tm.home / "secrets").chmod(0o600)
    setup = 'echo "$INDEX $TOKEN" > $NOTES/seen'
    tm.run(tm.task("true", setup=setup, env={"INDEX": "private"}, secrets=["TOKEN"]))
    assert tm.marks("seen") == ["private from the file"]
