"""`data:`: directories, and the models of other experiments."""

from __future__ import annotations

SWEEP = {
    "parameters": {"size": [3, 1, 2]},
    "command": [
        "echo {{size}} > $TRAINMASTER_OUTPUT_DIR/size",
        "n=$TRAINMASTER_PARAM_SIZE",
        'echo "{\\"accuracy\\": $n, \\"loss\\": $n, \\"error_rate\\": $n}" >> $TRAINMASTER_METRICS',
    ],
}


def test_a_directory(tm):
    tm.write("images/one.txt", "1\n")
    outside = tm.root / "outside"
    outside.mkdir()
    (outside / "two.txt").write_text("2\n")
    recipe = tm.task(
        "cat $TRAINMASTER_DATA_NEAR/one.txt $TRAINMASTER_DATA_FAR_AWAY/two.txt input/deep/two.txt",
        data={"near": {"dir": "images"}, "far_away": {"dir": str(outside), "at": "input/deep"}},
    )
    run = tm.run(recipe)["run"]
    assert tm.logs(run) == "1\n2\n2\n"
    assert sorted(p.name for p in outside.iterdir()) == ["two.txt"]


def test_a_directory_that_is_not_there(tm):
    refusal = tm.refused(tm.task("true", data={"x": {"dir": "nowhere"}}))
    assert "experiments.main.data.x.dir" in refusal
    assert str(tm.work / "nowhere") in refusal


def test_at_may_not_leave_the_code_nor_hide_it(tm):
    tm.write("images/one.txt", "1\n")
    for at in ("../../escape", "/etc/escape", "images"):
        recipe = tm.task("touch $NOTES/ran", data={"x": {"dir": "images", "at": at}})
        result = tm.call("run", recipe, "--json", code=None)
        assert result.code in (1, 2)
        assert "at" in result.err
        assert not (tm.notes / "ran").exists()


def test_data_beside_the_code_as_scripts_expect_them(tm):
    tm.write("images/one.txt", "1\n")
    data = {"x": {"dir": "images", "at": "../data"}, "y": {"dir": "images", "at": "../more/deep"}}
    run = tm.run(tm.task("cat ../data/one.txt ../more/deep/one.txt", data=data))["run"]
    assert tm.logs(run) == "1\n1\n"
    for at in ("../../data", "..", "../code/x", "../tasks", "../inputs/x", "x/../../y"):
        refusal = tm.call("run", tm.task("true", data={"x": {"dir": "images", "at": at}}), code=2).err
        assert "data.x.at: a path with '..'" in refusal


def test_all_models_of_an_experiment(tm):
    recipe = tm.recipe(
        {
            "experiments": {
                "sweep": SWEEP,
                "use": {
                    "data": {"models": {"from": "sweep", "at": "in"}},
                    "command": "cd $TRAINMASTER_DATA_MODELS; cat */size; ls -d *; cat ../../code/in/0/size",
                },
            }
        }
    )
    run = tm.run(recipe)["run"]
    assert tm.logs(run, "--experiment", "use").split() == ["3", "1", "2", "0", "1", "2", "3"]


def test_the_best_model(tm):
    recipe = tm.recipe(
        {
            "experiments": {
                "sweep": SWEEP,
                "use": {
                    "data": {
                        "good": {"from": "sweep", "best": "accuracy"},
                        "low": {"from": "sweep", "best": "loss"},
                        "rate": {"from": "sweep", "best": "error_rate"},
                    },
                    "command": [f"cat $TRAINMASTER_DATA_{name}/size" for name in ("GOOD", "LOW", "RATE")],
                },
            }
        }
    )
    run = tm.run(recipe)["run"]
    assert tm.logs(run, "--experiment", "use").split() == ["3", "1", "1"]


def test_a_metric_that_no_model_has(tm):
    use = {"data": {"x": {"from": "sweep", "best": "acuracy"}}, "command": "true"}
    result = tm.call("run", tm.recipe({"experiments": {"sweep": SWEEP, "use": use}}), "--json", code=1)
    assert "acuracy" in result.err
    assert "accuracy" in result.err
    summary = tm.summary(result)
    assert summary["experiments"]["sweep"]["reason"] == "SUCCEEDED"
    assert summary["experiments"]["use"]["reason"] == "USER_ERROR"
    assert summary["state"] == "DONE"


def test_an_experiment_that_left_no_model(tm):
    recipe = tm.recipe(
        {"experiments": {"a": {"command": "true"}, "b": {"data": {"x": {"from": "a"}}, "command": "true"}}}
    )
    result = tm.call("run", recipe, "--json", code=1)
    assert "left no model" in result.err
    tm.until_quiet()


def test_of_tasks_that_left_no_model_none_is_the_best(tm):
    """Where runs are listed only a line of it is shown, which tells of what."""
    told = """echo '{"step": 1, "loss": 0.5}' >> $TRAINMASTER_METRICS"""
    use = {"data": {"x": {"from": "a", "best": "loss"}}, "command": "true"}
    recipe = tm.recipe({"experiments": {"a": {"command": told}, "b": use}})
    run = tm.summary(tm.call("run", recipe, "--json", code=1))["run"]
    assert "'a' has left no model" in (message := tm.status(run)["experiments"]["b"]["message"])
    assert "SIGTERM" in message
    (line,) = [each for each in tm.call("status").out.splitlines() if each.startswith(f"needs you: {run}")]
    assert "'a' has left no model" in line
    assert "Metrics seen" not in line


def test_data_implies_the_order(tm):
    recipe = tm.recipe(
        {
            "experiments": {
                "b": {"data": {"x": {"from": "a"}}, "command": "cat $TRAINMASTER_DATA_X/f"},
                "a": {"command": "sleep 0.3; echo made > $TRAINMASTER_OUTPUT_DIR/f"},
            }
        }
    )
    assert tm.logs(tm.run(recipe)["run"]) == "b/0#1 worker-0 | made\n"


def test_what_another_task_has_made_beside_the_code_is_no_place_for_data(tm):
    prepare = {"command": "mkdir shards; echo 1 > shards/1; cp -r shards $TRAINMASTER_OUTPUT_DIR"}
    train = {"command": "ls shards", "data": {"made": {"from": "prepare", "at": "shards"}}}
    result = tm.call("run", tm.recipe({"experiments": {"prepare": prepare, "train": train}}), code=1)
    assert "data.made.at: shards is in the run's working directory already" in result.err
    assert "below TRAINMASTER_OUTPUT_DIR, or moved there by `mv`" in result.err
