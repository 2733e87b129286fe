"""Searches from the user's seat: samplers, pruners, populations, and what may go wrong with them."""

from __future__ import annotations

import json
import random
import signal
import statistics
import time

import pytest

XY = {"x": {"range": "-5-5"}, "y": {"range": "-5-5"}}
#: Minimises (x - 1.3)^2 + (y + 2.1)^2; tells which task ran with which parameters.
BOWL = r"""
echo $TRAINMASTER_TASK {{x}} {{y}} >> $NOTES/ran
awk -v x={{x}} -v y={{y}} 'BEGIN { printf "{\"step\": 1, \"loss\": %.9g}\n", (x-1.3)^2 + (y+2.1)^2 }' \
  >> $TRAINMASTER_METRICS
"""


def search(**keys):
    return {"metric": "loss", "goal": "min", **keys}


def parameters(tm, run):
    """What each task ran with: one set per task, however often it ran."""
    found = {}
    for line in tm.marks("ran"):
        task, *values = line.split()
        assert found.setdefault(int(task), values) == values, f"task {task} with other parameters"
    return found


@pytest.mark.crossings  # 216 tasks; unit tests of samplers have it without any
def test_tpe_beats_random_search_on_average(tm):
    pytest.importorskip("optuna")
    best = {"tpe": [], "random": []}
    for sampler, values in best.items():
        for seed in range(3):
            recipe = tm.recipe(
                {
                    "name": sampler,
                    "seed": seed,
                    "experiments": {
                        "main": {
                            "command": BOWL,
                            "parameters": XY,
                            "samples": 36,
                            "search": search(sampler=sampler),
                        }
                    },
                }
            )
            found = tm.run(recipe)["experiments"]["main"]["best"]
            assert found.keys() == {"task", "value", "parameters"}
            values.append(found["value"])
    assert statistics.fmean(best["tpe"]) < statistics.fmean(best["random"]), best


#: Reports its last step, saves, and is ended before it is over: when it goes on, nothing is left to report.
AT_ITS_END = r"""
test ! -e $TRAINMASTER_CHECKPOINT_DIR/last || exit 0
echo '{"step": 9, "loss": 0.25}' >> $TRAINMASTER_METRICS
echo x > $TRAINMASTER_CHECKPOINT_DIR/last
echo x >> $NOTES/up
sleep 600
"""


@pytest.mark.parametrize("best", ["last", "min"])
def test_what_was_reported_before_the_last_checkpoint_counts(tm, best):
    recipe = tm.task(AT_ITS_END, parameters={"x": [1, 2]}, search=search(best=best))
    call = tm.start("run", recipe)
    run = call.run_id()
    tm.until_marks("up", 2)
    call.send(signal.SIGINT)
    call.wait(130)
    found = tm.resume(run)
    assert found["reason"] == "SUCCEEDED", found
    assert found["experiments"]["main"]["best"]["value"] == 0.25


@pytest.mark.parametrize("sampler", ["grid", "qmc", "cmaes"])
def test_other_samplers(tm, sampler):
    if sampler == "cmaes":
        pytest.importorskip("cmaes")
    recipe = tm.task(BOWL, parameters=XY, samples=12, search=search(sampler=sampler))
    summary = tm.run(recipe)
    assert summary["experiments"]["main"]["tasks"]["succeeded"] == 12
    assert len(parameters(tm, summary["run"])) == 12
    best = summary["experiments"]["main"]["best"]
    shown = tm.call("status", summary["run"]).out
    assert f"best main/{best['task']}" in shown
    assert "x=" in shown


def test_a_search_goes_on_with_more_tasks(tm):
    """Three runs: each knows what those before it have tried."""
    discrete = {"x": {"range": "-5-5", "step": 1}, "y": [0]}
    first = tm.run(tm.task(BOWL, parameters=discrete, samples=4, search=search()))["run"]
    more = {"parameters": discrete, "samples": 4}
    second = tm.run(tm.task(BOWL, search=search(**{"from": first}), **more))["run"]
    more["samples"] = 3
    last = tm.run(tm.task(BOWL, search=search(**{"from": f"{second}/main"}), **more))["run"]
    tried = [line.split()[1] for line in tm.marks("ran")]
    assert len(tried) == len(set(tried)) == 11
    assert tm.status(last)["experiments"]["main"]["search"]["from"] == f"{second}/main@8"
    assert f"the search of main goes on from {second}/main: 8 tasks" in tm.call("status", last).out
    refused = tm.call("run", tm.task(BOWL, search=search(**{"from": last}), **more), code=2).err
    assert "search.from: all 11 combinations were tried" in refused
    more["parameters"] = {"x": {"range": "-9-5", "step": 1}, "y": [0]}
    refused = tm.call("run", tm.task(BOWL, search=search(**{"from": first}), **more), code=2).err
    assert "experiments.main.parameters.x: it is not as it was" in refused


def test_a_sampler_that_learns_knows_the_tasks_of_an_earlier_run(tm):
    pytest.importorskip("optuna")
    first = tm.run(tm.task(BOWL, parameters=XY, samples=12, search=search()))["run"]
    drawn = tm.run(tm.task(BOWL, parameters=XY, samples=1, search=search(**{"from": first})))["run"]
    learnt = search(sampler="tpe", **{"from": first})
    chosen = tm.run(tm.task(BOWL, parameters=XY, samples=1, search=learnt))["run"]
    _, by_chance, by_what_it_knows = [line.split()[1:] for line in tm.marks("ran")][-3:]
    assert by_chance != by_what_it_knows, "it would draw the same, knew it nothing"
    tm.call("rm", first, drawn, chosen, "--yes")


@pytest.mark.parametrize("sampler", ["tpe", pytest.param("cmaes", marks=pytest.mark.crossings)])
def test_killed_and_resumed_no_trial_is_lost_or_repeated_with_other_parameters(tm, sampler):
    pytest.importorskip("optuna")
    chance = random.Random(3)
    recipe = tm.task("sleep 0.1\n" + BOWL, parameters=XY, samples=30, search=search(sampler=sampler))
    call = tm.start("run", recipe, "--json")
    run = call.run_id()
    for _ in range(5):
        time.sleep(chance.uniform(0.2, 0.9))
        if call.over:
            break
        call.kill()
        call = tm.start("resume", run, "--json")
    summary = tm.summary(call.wait(0))
    assert summary["experiments"]["main"]["tasks"]["succeeded"] == 30
    assert sorted(parameters(tm, run)) == list(range(30))
    assert len(tm.marks("ran")) == 30
    tm.until_quiet()


def test_a_sampler_is_asked_when_a_gpu_is_free(tm):
    """Each choice knows all results, as where one task runs at a time: none is made for a task that waits."""
    pytest.importorskip("optuna")
    tm.env["CUDA_VISIBLE_DEVICES"] = "0"
    keys = {"parameters": XY, "samples": 8, "search": search(sampler="tpe")}
    tm.run(tm.task("sleep 0.3\n" + BOWL, workers=1, **keys))
    in_turn = tm.marks("ran")
    tm.run(tm.task("sleep 0.3\n" + BOWL, hardware={"gpus": 1}, **keys))
    assert tm.marks("ran")[8:] == in_turn


def test_a_failed_trial_is_retried_with_its_parameters(tm):
    pytest.importorskip("optuna")
    command = BOWL + "\n(( TRAINMASTER_TASK % 3 != 1 || TRAINMASTER_ATTEMPT > 1 ))"
    recipe = tm.task(command, parameters=XY, samples=15, search=search(sampler="tpe"))
    failed = tm.run(recipe, code=1)
    assert failed["experiments"]["main"]["tasks"]["failed"] == 5
    summary = tm.resume(failed["run"])
    assert summary["experiments"]["main"]["tasks"]["succeeded"] == 15
    assert len(parameters(tm, summary["run"])) == 15
    assert len(tm.marks("ran")) == 20


CURVE = r"""
for step in 1 2 3 4 5 6 7 8; do
  awk -v q={{q}} -v s=$step 'BEGIN { printf "{\"step\": %d, \"accuracy\": %.9g}\n", s, q * s }' \
    >> $TRAINMASTER_METRICS
  sleep 0.4
done
echo $TRAINMASTER_TASK >> $NOTES/whole
echo {{q}} > $TRAINMASTER_OUTPUT_DIR/q
"""
PRUNED = {
    "metric": "accuracy",
    "goal": "max",
    "sampler": "grid",
    "pruner": "asha",
    "options": {"min_steps": 2},
}


def test_asha_prunes_the_hopeless(tm):
    qualities = [0.9, 0.8, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05]
    summary = tm.run(tm.task(CURVE, parameters={"q": qualities}, search=PRUNED))
    assert summary["reason"] == "SUCCEEDED"
    tasks = summary["experiments"]["main"]["tasks"]
    assert tasks["pruned"] >= 5
    assert tasks["pruned"] + tasks["succeeded"] == 8
    assert summary["experiments"]["main"]["best"]["parameters"] == {"q": 0.9}
    assert [model["task"] for model in summary["models"]] == sorted(map(int, tm.marks("whole")))
    again = tm.call("resume", summary["run"], "--json").json
    assert again["experiments"] == summary["experiments"], "what was pruned stays so"


def test_after_a_kill_the_curves_are_read_again(tm):
    """The rivals' curves come from the files of tasks that ended under an earlier controller."""
    qualities = [0.9, 0.8, 0.1, 0.2]
    # A trial that began before the kill goes on alone: on a busy machine for longer than a curve takes.
    waits = CURVE.replace("echo $TRAINMASTER_TASK", "[ {{q}} = 0.9 ] || sleep 60\necho $TRAINMASTER_TASK")
    recipe = tm.task(waits, parameters={"q": qualities}, search=PRUNED, workers=1)
    call = tm.start("run", recipe, "--json")
    run = call.run_id()
    tm.until_marks("whole", 1)
    call.kill()
    summary = tm.resume(run)
    assert tm.marks("whole") == ["0"]
    assert summary["experiments"]["main"]["tasks"]["pruned"] == 3


def test_a_gang_is_pruned_whole(tm):
    command = r"""
    echo $$ >> $NOTES/pids
    if [ $TRAINMASTER_TASK = 1 ]; then
      echo '{"step": 2, "accuracy": 0.1}' >> $TRAINMASTER_METRICS
      sleep 600
    fi
    echo '{"step": 2, "accuracy": 0.9}' >> $TRAINMASTER_METRICS
    """
    recipe = tm.task(
        command, parameters={"q": [1, 2]}, workers=2, search={**PRUNED, "options": {"min_steps": 1}},
        distributed={"strategy": "allreduce", "workers": 2}, grace="1s",
    )  # fmt: skip
    summary = tm.run(recipe)
    tasks = summary["experiments"]["main"]["tasks"]
    assert (tasks["succeeded"], tasks["pruned"]) == (1, 1)
    assert len(tm.marks("pids")) == 4
    tm.until_quiet()


def test_a_metric_that_never_appears(tm):
    recipe = tm.task(
        'echo \'{"step": 1, "los": 0.5}\' >> $TRAINMASTER_METRICS; echo x > $TRAINMASTER_OUTPUT_DIR/x',
        parameters={"x": [1, 2]},
        search=search(sampler="random"),
        retries=2,
    )
    summary = tm.run(recipe, code=1)
    main = summary["experiments"]["main"]
    assert main["reason"] == "USER_ERROR"
    assert "'loss'" in main["message"]
    assert "los, step" in main["message"]
    assert main["best"] is None
    assert summary["models"] == []


@pytest.mark.parametrize("sampler", [pytest.param("random", marks=pytest.mark.crossings), "tpe"])
def test_nan_is_the_worst_there_is(tm, sampler):
    pytest.importorskip("optuna")
    command = r"""
    if (( TRAINMASTER_TASK % 2 )); then value=NaN; else value=$TRAINMASTER_TASK; fi
    echo "{\"step\": 1, \"loss\": $value}" >> $TRAINMASTER_METRICS
    """
    summary = tm.run(tm.task(command, parameters=XY, samples=16, search=search(sampler=sampler)))
    assert summary["experiments"]["main"]["tasks"]["succeeded"] == 16
    best = summary["experiments"]["main"]["best"]
    assert (best["task"], best["value"]) == (0, 0)


@pytest.mark.parametrize(("best", "task", "value"), [("last", 1, 3), ("min", 0, 1), ("mean of last 3", 2, 4)])
def test_which_value_of_a_task_counts(tm, best, task, value):
    """Over its attempts: the best of task 0 is in its first one."""
    command = r"""
    losses=({{losses}})
    if [ $TRAINMASTER_TASK = 0 ] && [ $TRAINMASTER_ATTEMPT = 1 ]; then losses=(1); fi
    for loss in ${losses[@]}; do echo "{\"loss\": $loss}" >> $TRAINMASTER_METRICS; done
    [ ${losses[0]} != 1 ]
    """.replace("({{losses}})", "($TRAINMASTER_PARAM_LOSSES)")
    losses = ["9 9 9 9", "9 9 9 3", "9 3 4 5"]
    searched = search(**({} if best == "last" else {"best": best}))
    ended = tm.call("run", tm.task(command, parameters={"losses": losses}, search=searched, retries=1))
    assert f"best main/{task}  loss={value}" in ended.err.replace(f"loss={value}.0", f"loss={value}")
    main = tm.call("status", "latest", "--json").json["experiments"]["main"]
    assert main["best"] == {"task": task, "value": value, "parameters": {"losses": losses[task]}}
    assert main["search"] == {"metric": "loss", "goal": "min", "best": best}


def test_of_equal_tasks_the_lower_number_is_best(tm):
    command = 'echo "{\\"loss\\": $(( TRAINMASTER_TASK == 0 ))}" >> $TRAINMASTER_METRICS'
    summary = tm.run(tm.task(command, parameters={"x": [1, 2, 3, 4]}, search=search()))
    assert summary["experiments"]["main"]["best"] == {"task": 1, "value": 0, "parameters": {"x": 2}}


def test_the_best_five_are_shown_and_status_watches(tm):
    command = """
    x=$TRAINMASTER_PARAM_X
    echo "{\\"step\\": 1, \\"loss\\": $(( (x - 4) * (x - 4) ))}" >> $TRAINMASTER_METRICS
    if [ {{x}} = 8 ]; then until [ -e $NOTES/go ]; do sleep 0.05; done; fi
    """
    parameters = {"x": {"range": "1-8", "step": 1}}
    call = tm.start("run", tm.task(command, parameters=parameters, search=search()))
    run = call.run_id()
    tm.until(lambda: tm.status(run)["experiments"]["main"]["tasks"]["succeeded"] == 7)
    watch = tm.start("status", run, "--watch")
    tm.until(lambda: watch.out.count("7 succeeded") >= 2)
    (tm.notes / "go").touch()
    call.wait(0)
    shown = watch.wait(0).out
    assert "8 succeeded" in shown.rpartition("experiment")[2], "the last one is of its end"
    found = tm.status(run)["experiments"]["main"]
    assert [each["parameters"]["x"] for each in found["top"]] == [4, 3, 5, 2, 6]
    assert found["best"] == found["top"][0]
    lines = [line.split()[:2] for line in tm.call("status", run).out.splitlines()]
    assert [line for line in lines if line[0] in ("best", "2.", "3.")] == [
        ["best", "main/3"],
        ["2.", "main/2"],
        ["3.", "main/4"],
    ]
    assert "--watch" in tm.call("status", run, "--watch", "--json", code=2).err


TRAIN = r"""
old=$(cat $TRAINMASTER_CHECKPOINT_DIR/weight 2>/dev/null || echo 0)
new=$(awk -v w=$old -v lr={{lr}} 'BEGIN { print w + lr }')
echo $new > $TRAINMASTER_CHECKPOINT_DIR/weight
echo "$TRAINMASTER_TASK $old $new" >> $NOTES/trained
echo "{\"step\": 1, \"weight\": $new}" >> $TRAINMASTER_METRICS
"""


def test_a_population_hands_its_checkpoints_on(tm):
    recipe = tm.task(
        TRAIN,
        parameters={"lr": {"range": "0.1-1"}},
        search={"metric": "weight", "goal": "max", "sampler": "pbt", "population": 4, "generations": 4},
    )
    assert tm.call("check", recipe, "--json").json["experiments"]["main"]["tasks"] == 16
    call = tm.start("run", recipe, "--json")
    run = call.run_id()
    tm.until_marks("trained", 6)
    call.kill()
    summary = tm.resume(run)
    assert summary["experiments"]["main"]["tasks"]["succeeded"] == 16
    rows = {int(task): (float(old), float(new)) for task, old, new in map(str.split, tm.marks("trained"))}
    assert len(tm.marks("trained")) == 16
    copied = 0
    for generation in range(1, 4):
        before = [rows[4 * (generation - 1) + member][1] for member in range(4)]
        for member in range(4):
            old = rows[4 * generation + member][0]
            assert old in before, "it goes on from a checkpoint of the generation before"
            copied += old != before[member]
    assert copied == 3, "one in four, once per generation"
    assert summary["experiments"]["main"]["best"]["value"] > 1.5


def test_a_population_without_checkpoints_is_told_so(tm):
    recipe = tm.task(
        "echo '{\"weight\": 1}' >> $TRAINMASTER_METRICS",
        parameters={"lr": {"range": "0.1-1"}},
        search={"metric": "weight", "goal": "max", "sampler": "pbt", "population": 2, "generations": 2},
    )
    summary = tm.run(recipe, code=1)
    assert "TRAINMASTER_CHECKPOINT_DIR" in summary["experiments"]["main"]["message"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (search(sampler="tpf"), ["'tpf'", "tpe", "cmaes, grid, pbt, qmc, random, tpe"]),
        (search(sampler="random", pruner="ascha"), ["'ascha'", "asha, forecast, hyperband, median, none"]),
        (search(sampler="tpe", options={"startupp": 3}), ["'startupp'", "'startup'"]),
        (search(sampler="random", pruner="asha", options={"reduction": 1}), ["reduction", "at least 2"]),
        ({**search(), "goal": "least"}, ["goal", "max", "min"]),
        (search(sampler="pbt"), ["population"]),
        (search(sampler="pbt", population=4), ["generations"]),
        (search(sampler="pbt", population=4, generations=3, **{"from": "r-1"}), ["from", "leave it out"]),
        (search(sampler="pbt", population=4, generations=2), ["2 generations", "samples"]),
        (search(sampler="pbt", population=5, generations=2, pruner="asha"), ["pruner"]),
        (search(sampler="tpe", generations=2), ["generations"]),
    ],
)
def test_a_bad_search_is_refused_with_what_would_be_right(tm, keys, words):
    message = tm.refused(tm.task("true", parameters=XY, samples=10, search=keys))
    for word in words:
        assert word in message, message


def test_a_picture_of_a_search(tm):
    pytest.importorskip("matplotlib")
    recipe = tm.task(BOWL, parameters={**XY, "k": ["a", "b"]}, samples=12, search=search(sampler="qmc"))
    run = tm.run(recipe)["run"]
    for name in ("out.svg", "out.png"):
        tm.call("status", run, "--plot", tm.root / name)
        assert (tm.root / name).stat().st_size > 5000
    assert "<svg" in (tm.root / "out.svg").read_text()[:2000]
    assert ".svg" in tm.call("status", run, "--plot", tm.root / "out.xyz", code=2).err
    plain = tm.run(tm.task("true"))["run"]
    assert "search" in tm.call("status", plain, "--plot", tm.root / "o.svg", code=2).err
    status = json.loads(tm.call("status", run, "--json", "--plot", tm.root / "p.svg").out)
    assert status["experiments"]["main"]["best"]
