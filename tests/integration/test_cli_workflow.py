"""The workflow: what runs after what, what a failure takes along, retries, timeouts, slots."""

from __future__ import annotations

import os
import re


def test_a_failed_experiment_skips_what_depends_on_it_and_nothing_else(tm):
    recipe = tm.recipe(
        {
            "experiments": {
                "bad": {"command": "exit 4"},
                "child": {"after": ["bad"], "command": "touch $NOTES/child"},
                "grandchild": {"data": {"x": {"from": "child"}}, "command": "touch $NOTES/grandchild"},
                "sibling": {"command": "sleep 0.5; touch $NOTES/sibling"},
                "nephew": {"after": ["sibling"], "command": "touch $NOTES/nephew"},
            }
        }
    )
    summary = tm.run(recipe, code=1)
    reasons = {name: experiment["reason"] for name, experiment in summary["experiments"].items()}
    assert reasons == {
        "bad": "USER_ERROR",
        "child": "SKIPPED",
        "grandchild": "SKIPPED",
        "sibling": "SUCCEEDED",
        "nephew": "SUCCEEDED",
    }
    assert summary["reason"] == "USER_ERROR"
    assert summary["experiments"]["child"]["tasks"]["skipped"] == 1
    assert sorted(path.name for path in tm.notes.iterdir()) == ["nephew", "sibling"]


def test_resume_runs_only_what_did_not_succeed(tm):
    recipe = tm.recipe(
        {
            "experiments": {
                "good": {"command": "echo good >> $NOTES/ran"},
                "half": {
                    "after": ["good"],
                    "parameters": {"x": [0, 1, 2]},
                    "command": "echo half{{x}} >> $NOTES/ran; test {{x}} != 1 -o -e $NOTES/fixed",
                },
                "last": {"after": ["half"], "command": "echo last >> $NOTES/ran"},
            }
        }
    )
    summary = tm.run(recipe, code=1)
    assert summary["experiments"]["half"]["tasks"]["failed"] == 1
    assert "task 1" in summary["experiments"]["half"]["message"]
    (tm.notes / "fixed").touch()
    resumed = tm.resume(summary["run"])
    assert resumed["reason"] == "SUCCEEDED"
    assert sorted(tm.marks("ran")) == ["good", "half0", "half1", "half1", "half2", "last"]
    assert resumed["seconds"] > summary["seconds"]


def test_retries(tm):
    recipe = tm.task("echo $TRAINMASTER_ATTEMPT >> $NOTES/tries; test $TRAINMASTER_ATTEMPT = 3", retries=2)
    summary = tm.run(recipe)
    assert tm.marks("tries") == ["1", "2", "3"]
    assert summary["experiments"]["main"]["tasks"]["succeeded"] == 1


def test_the_first_retry_comes_at_once_the_second_waits(tm):
    tm.run(tm.task("date +%s.%N >> $NOTES/times; exit 1", retries=2), code=1)
    first, second, third = (float(line) for line in tm.marks("times"))
    assert third - second >= 1.0
    assert second - first < third - second


def test_resume_gives_all_retries_again(tm):
    recipe = tm.task("echo $TRAINMASTER_ATTEMPT >> $NOTES/tries; exit 1", retries=1)
    run = tm.run(recipe, code=1)["run"]
    tm.resume(run, code=1)
    assert tm.marks("tries") == ["1", "2", "3", "4"]


def test_a_timeout(tm):
    recipe = tm.task(
        "echo $TRAINMASTER_ATTEMPT >> $NOTES/tries; sleep 600", timeout="1s", grace="1s", retries=1
    )
    summary = tm.run(recipe, code=1)
    assert summary["reason"] == "TIMEOUT"
    assert re.search(r"\b1s\b", summary["experiments"]["main"]["message"])
    assert tm.marks("tries") == ["1", "2"]
    tm.until_quiet()


def test_a_gang_that_shows_no_sign_of_work_leaves_its_stacks_and_is_tried_again(tm):
    wait = "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()"
    recipe = tm.task(
        f"test $TRAINMASTER_ATTEMPT = 2 || exec python -c '{wait}'",
        distributed={"strategy": "allreduce", "workers": 2},
        silence="2s",
        retries=1,
    )
    result = tm.call("run", recipe, "--json")
    assert "attempt 1 TIMEOUT: stopped after 2 s without a sign of work (silence)" in result.err
    for member in ("worker-0", "worker-1"):
        log = tm.call("logs", tm.summary(result)["run"], "--member", member).out
        assert re.search(r"most recent call first\):\n.*File .<string>., line 1 in <module>", log), log


def test_a_script_that_ends_well_when_it_times_out_has_still_timed_out(tm):
    recipe = tm.task("trap 'touch $NOTES/saved; exit 0' TERM; sleep 600 & wait", timeout="1s")
    assert tm.run(recipe, code=1)["reason"] == "TIMEOUT"
    assert (tm.notes / "saved").exists()


#: Each task holds a lock file; how many there are at once is written down.
COUNT = """
    mkdir -p $NOTES/now
    touch $NOTES/now/$TRAINMASTER_RUN.$TRAINMASTER_EXPERIMENT.$TRAINMASTER_TASK
    ls $NOTES/now | wc -l >> $NOTES/most
    sleep 0.15
    rm $NOTES/now/$TRAINMASTER_RUN.$TRAINMASTER_EXPERIMENT.$TRAINMASTER_TASK
"""
CORES = len(os.sched_getaffinity(0))


def most(tm):
    return max(int(line) for line in tm.marks("most"))


def test_workers_caps_how_many_run_at_once(tm):
    tm.run(tm.task(COUNT, workers=1, parameters={"x": {"range": "1-6", "step": 1}}))
    assert most(tm) == 1
    assert len(tm.marks("most")) == 6


def test_more_workers_than_slots_are_capped_with_a_note(tm):
    recipe = tm.task(COUNT, workers=100, parameters={"x": {"range": "1-16", "step": 1}})
    result = tm.call("run", recipe, "--json")
    assert "capped" in result.err
    assert most(tm) <= CORES
    assert tm.summary(result)["experiments"]["main"]["tasks"]["succeeded"] == 16


def test_cpus_take_slots(tm):
    recipe = tm.task(COUNT, hardware={"cpus": CORES}, parameters={"x": [1, 2, 3]})
    tm.run(recipe)
    assert most(tm) == 1


def test_two_runs_share_the_slots(tm):
    recipe = tm.task(COUNT, parameters={"x": {"range": "1-16", "step": 1}})
    calls = [tm.start("run", recipe, "--json") for _ in range(2)]
    summaries = [tm.summary(call.wait(0)) for call in calls]
    assert summaries[0]["run"] != summaries[1]["run"]
    assert len(tm.marks("most")) == 32
    assert most(tm) <= CORES
    tm.until_quiet()


def test_more_than_the_machine_has_is_refused(tm):
    for hardware in ({"cpus": 4096}, {"memory": "900TB"}, {"gpus": 64}):
        refusal = tm.refused(tm.task("true", hardware=hardware))
        assert f"hardware.{next(iter(hardware))}" in refusal


def test_wishes_are_only_noted(tm):
    result = tm.call("run", tm.task("true", hardware={"gpu": "k80", "instance": ["p2.xlarge"], "spot": True}))
    for key in ("gpu", "instance", "spot"):
        assert f"hardware.{key}" in result.err


def test_what_cannot_be_run_there_is_refused_before_anything_starts(tm):
    refusal = tm.refused(tm.recipe({"provider": "nowhere", "experiments": {"main": {"command": "true"}}}))
    assert "nowhere" in refusal
    assert "local" in refusal, "what there is instead"


def test_figure_1_of_hyper_runs_in_both_readings(tm):
    inside = tm.recipe(
        """
        experiments:
          mnist:
            framework: pytorch
            parameters:
              lr: {range: 0.1-0.3, sampling: uniform}
              samples: 12
            workers: 100
            hardware: {gpu: k80}
            command:
              - echo {{lr}} >> $NOTES/lr
    """,
        "inside.yaml",
    )
    outside = tm.write("outside.yaml", inside.read_text().replace("  samples: 12", "samples: 12"))
    found = []
    for recipe in (inside, outside):
        assert tm.run(recipe)["experiments"]["mnist"]["tasks"]["succeeded"] == 12
        found.append(sorted(float(line) for line in tm.marks("lr")))
        (tm.notes / "lr").unlink()
    assert found[0] == found[1], "the same seed gives the same draws"
    assert len(set(found[0])) == 12
    assert 0.1 <= found[0][0] <= found[0][-1] <= 0.3


def test_many_short_tasks(tm):
    recipe = tm.task("echo {{x}} >> $NOTES/x", parameters={"x": {"range": "1-120", "step": 1}})
    tasks = tm.run(recipe)["experiments"]["main"]["tasks"]
    assert tasks["succeeded"] == tasks["total"] == 120
    assert sorted(map(int, tm.marks("x"))) == list(range(1, 121))
    tm.until_quiet()
