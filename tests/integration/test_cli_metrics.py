"""Metrics: through the file, through `trainmaster.report`, and from what a script prints."""

from __future__ import annotations

import subprocess
import sys


def metrics(tm, command, **keys):
    command = "touch $TRAINMASTER_OUTPUT_DIR/model\n" + command
    return tm.run(tm.task(command, **keys))["models"][0]["metrics"]


def test_the_last_value_per_key_counts(tm):
    tm.write(
        "lines.jsonl",
        '{"step": 1, "loss": 2.0, "lr": 0.1}\nnot json\n\n[1]\n{"step": 2, "loss": 1.5}\n{"step": 3',
    )
    found = metrics(tm, "cat lines.jsonl >> $TRAINMASTER_METRICS")
    assert found == {"step": 2, "loss": 1.5, "lr": 0.1}


def test_report_from_python(tm):
    tm.write(
        "train.py",
        """
        import trainmaster
        for step in range(1, 4):
            trainmaster.report(step=step, loss=1 / step, examples=step * 32)
    """,
    )
    assert metrics(tm, "python train.py") == {"step": 3, "loss": 1 / 3, "examples": 96}


def test_report_outside_of_a_run_does_nothing(tm):
    env = {k: v for k, v in tm.env.items() if not k.startswith("TRAINMASTER_")}

    subprocess.run([sys.executable, "-c", "import trainmaster; trainmaster.report(a=1)"], env=env, check=True)


def test_a_pattern_reads_printed_lines(tm):
    found = metrics(
        tm,
        r"for i in 1 2 3; do echo it $i error 0.$i; done; echo noise",
        metrics={"pattern": r"it (?P<step>\d+) error (?P<error>\S+)"},
    )
    assert found == {"step": 3, "error": 0.3}


def test_common_patterns_are_tried(tm):
    found = metrics(tm, "echo 'Epoch 3/3'; echo '10/10 - 1s - loss: 0.2500 - accuracy: 0.9000'")
    assert found["loss"] == 0.25
    assert found["accuracy"] == 0.9


def test_options_are_no_metrics_and_a_result_that_is_lost_is_told(tm):
    tm.write(
        "train.py",
        """
        print({'num_workers': 4, 'max_steps': 1000, 'seed': 3407, 'top_k': -1, 'learning_rate': 0.0005})
        for step, bound in enumerate((-3.5, -2.5, "nan", "nan")):
            print(f"Iteration {step} lower bound {bound}")
    """,
    )
    ended = tm.call("run", tm.task("python train.py; touch $TRAINMASTER_OUTPUT_DIR/model"))
    assert "main/0: lower_bound is nan since step 2\n" in ended.err
    assert "model main/0  step=3 lower_bound=nan  " in ended.err
    (model,) = tm.call("models", "latest", "--json").json["models"]
    assert model["metrics"] == {"step": 3, "lower_bound": None}


def test_strange_numbers_stay_json(tm):
    tm.write(
        "train.py",
        """
        import trainmaster
        trainmaster.report(loss=float("nan"), top=float("inf"), accuracy=0.5, name="x" * 10)
    """,
    )
    found = metrics(tm, "python train.py")  # the object itself was parsed, so it is JSON
    assert found["accuracy"] == 0.5


def test_only_rank_0_counts(tm):
    command = """
        echo "{\\"who\\": $RANK}" >> $TRAINMASTER_METRICS
        echo $RANK > $TRAINMASTER_OUTPUT_DIR/rank
    """
    summary = tm.run(tm.task(command, distributed={"strategy": "allreduce", "workers": 2}))
    assert summary["models"][0]["metrics"] == {"who": 0}


def test_metrics_show_while_the_task_runs(tm):
    call = tm.start(
        "run",
        tm.task("""
        echo '{"step": 5, "loss": 0.5}' >> $TRAINMASTER_METRICS
        until [ -e $NOTES/go ]; do sleep 0.05; done
    """),
    )
    run = call.run_id()
    tm.until(lambda: "loss=0.5" in tm.call("status", run).out, "the metric in `status`")
    (tm.notes / "go").touch()
    call.wait(0)


def test_a_flood_of_metrics(tm):
    tm.write(
        "flood.py",
        """
        import os
        with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
            for step in range(200_000):
                file.write('{"step": %d, "loss": %f}\\n' % (step, 1 / (step + 1)))
    """,
    )
    assert metrics(tm, "python flood.py")["step"] == 199_999


def test_what_was_reported_is_exported(tm, tmp_path):
    report = """printf '{"step": %s, "loss": %s}\\n' 1 0.5 2 NaN >> $TRAINMASTER_METRICS"""
    run = tm.run(tm.task(report))["run"]
    table = tm.call("metrics", "export", run, "--csv", "-").out
    assert table == "experiment,task,attempt,step,loss\nmain,0,1,1,0.5\nmain,0,1,2,nan\n"
    swept = tm.run(tm.task("echo loss $TRAINMASTER_PARAM_LR", parameters={"lr": [0.1, 0.2]}))["run"]
    table = tm.call("metrics", "export", swept, "--csv", "-").out
    assert table == "experiment,task,attempt,param:lr,loss\nmain,0,1,0.1,0.1\nmain,1,1,0.2,0.2\n"
    told = tm.call("metrics", "export", run, "--json").json
    assert told == {
        "run": run,
        "reports": [
            {"experiment": "main", "task": 0, "attempt": 1, "step": 1, "loss": 0.5},
            {"experiment": "main", "task": 0, "attempt": 1, "step": 2, "loss": None},
        ],
    }
    both = tm.call("metrics", "export", run, "--json", "--csv", "-", code=2)
    assert "give one of --csv, --tensorboard and --json" in both.err
    tm.call("metrics", "export", run, "--tensorboard", str(tmp_path / "events"))
    assert [path.name for path in (tmp_path / "events/main/0").iterdir()] == [
        "events.out.tfevents.0000000001.trainmaster"
    ]
    again = tm.call("metrics", "export", run, "--tensorboard", str(tmp_path / "events"), code=2)
    assert "not empty" in again.err
