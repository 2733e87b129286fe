"""`until` and `target`: a training ends in order as soon as its metric is good enough."""

from __future__ import annotations

SCRIPT = """
    import pathlib, signal, sys, time
    import trainmaster
    def leave(*_):
        pathlib.Path("@OUTPUT@", "model").write_text("weights")
        sys.exit(0)
    signal.signal(signal.SIGTERM, leave)
    for step in range(1, 600):
        trainmaster.report(step=step, accuracy=0.99)
        print("step", step, flush=True)
        time.sleep(0.1)
"""
RECIPE = """\
name: job
experiments:
  main:
    steps: 600
    until: accuracy >= 0.5
    command: python train.py
"""


def test_it_ends_early_keeps_its_model_and_is_a_success(tm):
    script = SCRIPT.replace('"@OUTPUT@"', '__import__("os").environ["TRAINMASTER_OUTPUT_DIR"]')
    tm.write("train.py", script)
    found = tm.run(tm.recipe(RECIPE))
    main = found["experiments"]["main"]
    assert (found["reason"], main["reason"]) == ("SUCCEEDED", "SUCCEEDED")
    assert main["until"] == {"condition": "accuracy >= 0.5", "reached": 1}
    assert main["message"] == "until accuracy >= 0.5: accuracy is 0.99 at step 1"
    assert len(found["models"]) == 1
    assert found["models"][0]["metrics"]["step"] < 500
    assert main["message"] in tm.call("status", found["run"]).out


def test_a_metric_that_never_comes_is_told_by_check_and_at_the_end(tm):
    tm.write("train.py", "import trainmaster\ntrainmaster.report(step=1, accuracy=0.99)\n")
    recipe = tm.recipe(RECIPE.replace("until: accuracy", "until: acuracy"))
    assert "neither the command nor the code names acuracy" in tm.call("check", recipe).err
    (main,) = tm.run(recipe)["experiments"].values()
    assert main["message"].endswith("acuracy is not reported; reported are accuracy, step")


def test_a_wrong_expression_is_refused_before_anything_begins(tm):
    message = tm.refused(tm.recipe(RECIPE.replace(">= 0.5", "=> 0.5")))
    assert "recipe.yaml:5:21: experiments.main.until" in message
    assert "'=>' is no comparison" in message


def test_a_target_ends_it_too_and_is_foretold(tm):
    script = """
        import pathlib, time
        import trainmaster
        for step in range(1, 600):
            trainmaster.report(step=step, accuracy=1 - 0.8 * step**-0.5)
            if step >= 20:
                pathlib.Path("@NOTES@").write_text("there")
                while not pathlib.Path("@GO@").exists():
                    time.sleep(0.05)
            time.sleep(0 if step < 20 else 0.02)
    """
    there, go = tm.work / "there", tm.work / "go"
    tm.write("train.py", script.replace("@NOTES@", str(there)).replace("@GO@", str(go)))
    recipe = tm.recipe(RECIPE.replace("until: accuracy >= 0.5", "target: {metric: accuracy, at_least: 0.9}"))
    run = tm.start("run", recipe, "--json")
    run.until(there.exists, "20 reports")
    run.until(lambda: "to accuracy >= 0.9: at step " in tm.call("status", "latest").out, "a forecast")
    picture = tm.work / "fan.svg"
    tm.call("status", "latest", "--plot", picture)
    assert picture.stat().st_size > 1000
    go.touch()
    found = run.wait(code=0).json
    main = found["experiments"]["main"]
    assert (found["reason"], main["until"]["reached"]) == ("SUCCEEDED", 1)
    assert main["message"].startswith("target accuracy >= 0.9: accuracy is 0.9 at step 6")


def test_a_quote_says_before_a_run_when_its_target_is_reached(tm):
    tm.write(
        "train.py",
        """
        import sys, time
        import trainmaster
        for step in range(1, int(sys.argv[1]) + 1):
            time.sleep(0.02)
            trainmaster.report(step=step, accuracy=1 - 0.8 * step**-0.5)
        """,
    )
    end = "target: {metric: accuracy, at_least: 0.93}\n    profile: {seconds: 2}"
    text = RECIPE.replace("until: accuracy >= 0.5", end)
    recipe = tm.recipe(text.replace("train.py", "train.py {{steps}}"))

    def target(*changes):
        call = tm.call("quote", recipe, "--json", "--explain", *changes)
        assert "main to accuracy >= " in call.err
        return call, call.json["target"]

    call, measured = target()
    assert (measured["is_measured"], measured["curves"], measured["most"]) == (True, 1, 600.0)
    assert measured["steps"]["p5"] < 131 < (measured["steps"]["p95"] or 1e9)
    assert "learning curve" in call.err
    assert "learning curve" in [each["phase"] for each in call.json["phases"]]
    tm.run(recipe)
    call, known = target()
    assert (known["is_measured"], known["curves"], known["reached"]) == (False, 1, 1)
    assert known["steps"]["p5"] < 131 < known["steps"]["p95"]
    quoted_s = call.json["time_s"]["p50"]
    call, never = target("--set", "experiments.main.target.at_least=0.995")
    assert never["steps"]["p50"] is None
    assert "never by this curve within 600 steps" in call.err
    assert quoted_s < call.json["time_s"]["p50"], "the quote ends where the target is reached"


def test_a_sweep_with_a_target_goes_on_after_its_driver_was_killed_and_what_comes_after_it_begins(tm):
    tm.write(
        "train.py",
        """
        import pathlib, sys, time
        import trainmaster
        for step in range(1, 600):
            trainmaster.report(step=step, accuracy=1 - float(sys.argv[1]) * step**-0.5)
            if step == 20:
                pathlib.Path("@NOTES@", f"there-{sys.argv[1]}").touch()
            while step == 20 and not pathlib.Path("@NOTES@", "go").exists():
                time.sleep(0.05)
            time.sleep(0.02)
        """.replace("@NOTES@", str(tm.notes)),
    )
    recipe = tm.recipe(
        """\
        name: job
        experiments:
          main:
            steps: 600
            parameters: {a: [0.4, 0.5]}
            target: {metric: accuracy, at_least: 0.93}
            command: python train.py {{a}}
          later:
            after: main
            command: echo later
        """
    )
    run = tm.start("run", recipe, "--json")
    name = run.run_id()
    run.until(lambda: all((tm.notes / f"there-{a}").exists() for a in ("0.4", "0.5")), "20 reports of both")
    run.kill()
    (tm.notes / "go").touch()
    found = tm.call("resume", name, "--json").json
    main = found["experiments"]["main"]
    assert (found["reason"], main["reason"], main["until"]["reached"]) == ("SUCCEEDED", "SUCCEEDED", 2)
    assert main["message"] == "`target` ended 2 of 2 tasks early"
    assert found["experiments"]["later"]["reason"] == "SUCCEEDED"
    target = tm.call("quote", recipe, "--json").json["experiments"]["main"]["target"]
    assert (target["is_measured"], target["curves"], target["reached"]) == (False, 2, 2)
    assert target["steps"]["p5"] < 33 < 52 < target["steps"]["p95"]
