"""`kill -9` of Trainmaster at any moment, then `resume`: nothing is lost, done twice, or left over."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from unittest.mock import ANY

import pytest

#: Leaves a mark at its start and its end; a test that reads them knows exactly what ran.
MARKED = "echo $TRAINMASTER_TASK >> $NOTES/begun; sleep {{nap}}; echo $TRAINMASTER_TASK >> $NOTES/ended"


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def kill_and_resume(tm, recipe, delays, timeout_s=60.0):
    """Start a run, kill what drives it after each delay, and resume it at last; its object."""
    call = tm.start("run", recipe, "--json")
    run = call.run_id()
    for delay in delays:
        time.sleep(delay)
        if call.over:
            break
        call.kill()
        call = tm.start("resume", run, "--json")
    return tm.summary(call.wait(0, timeout_s))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.crossings) for seed in (1, 2))])
def test_short_tasks_run_exactly_once(tm, seed):
    chance = random.Random(seed)
    recipe = tm.task(MARKED, parameters={"nap": [0.0, 0.05, 0.3], "copy": {"range": "1-10", "step": 1}})
    delays = [chance.uniform(0.0, 0.9) for _ in range(8)]
    summary = kill_and_resume(tm, recipe, delays)
    assert summary["reason"] == "SUCCEEDED"
    assert summary["experiments"]["main"]["tasks"]["succeeded"] == 30
    expected = sorted(map(str, range(30)))
    assert sorted(tm.marks("begun")) == expected
    assert sorted(tm.marks("ended")) == expected
    tm.until_quiet()


def test_killed_in_its_first_moments(tm):
    """Whatever has been written by then: `status` reads it, and each run that exists can be resumed."""
    recipe = tm.task("echo $TRAINMASTER_RUN >> $NOTES/ran; echo x > $TRAINMASTER_OUTPUT_DIR/x")
    for step in range(5):
        call = tm.start("run", recipe)
        time.sleep(0.15 + 0.12 * step)
        call.kill()
    runs = [row["run"] for row in tm.runs()]
    for run in runs:
        assert tm.resume(run)["models"], run
    assert sorted(tm.marks("ran")) == sorted(runs)
    tm.until_quiet()


def test_a_sweep_with_models_and_metrics(tm):
    chance = random.Random(11)
    recipe = tm.task(
        """
        echo $TRAINMASTER_TASK >> $NOTES/begun
        echo "{\\"x\\": $TRAINMASTER_TASK}" >> $TRAINMASTER_METRICS
        head -c 200000 /dev/urandom > $TRAINMASTER_OUTPUT_DIR/model
        """,
        parameters={"x": {"range": "1-30", "step": 1}},
    )
    summary = kill_and_resume(tm, recipe, [chance.uniform(0.0, 0.5) for _ in range(8)])
    assert [model["task"] for model in summary["models"]] == list(range(30))
    assert [model["metrics"]["x"] for model in summary["models"]] == list(range(30))
    assert sorted(map(int, tm.marks("begun"))) == list(range(30))
    tm.until_quiet()


def test_a_long_gang_is_adopted(tm):
    recipe = tm.task(
        "echo $RANK $$ >> $NOTES/pids; until [ -e $NOTES/go ]; do sleep 0.05; done",
        distributed={"strategy": "allreduce", "workers": 2},
        retries=1,
    )
    chance = random.Random(5)
    call = tm.start("run", recipe)
    run = call.run_id()
    tm.until_marks("pids", 2)
    for _ in range(8):
        call.kill()
        call = tm.start("resume", run, "--json")
        time.sleep(chance.uniform(0.0, 0.8))
        assert not call.over
    pids = [int(line.split()[1]) for line in tm.marks("pids")]
    assert all(map(alive, pids))
    (tm.notes / "go").touch()
    assert tm.summary(call.wait(0))["reason"] == "SUCCEEDED"
    assert len(tm.marks("pids")) == 2, "the very same processes"
    tm.until_quiet()


def test_what_ends_while_nobody_watches_counts(tm):
    recipe = tm.task(
        """
        echo $TRAINMASTER_TASK >> $NOTES/begun
        until [ -e $NOTES/go ]; do sleep 0.05; done
        echo "{\\"x\\": $TRAINMASTER_TASK}" >> $TRAINMASTER_METRICS
        echo x > $TRAINMASTER_OUTPUT_DIR/model
        test $TRAINMASTER_TASK = 0
        """,
        parameters={"x": [0, 1]},
    )
    call = tm.start("run", recipe)
    run = call.run_id()
    tm.until_marks("begun", 2)
    call.kill()
    (tm.notes / "go").touch()
    tm.until(lambda: not [p for p in tm.processes() if p not in tm.supervisors()], "the tasks' end")
    summary = tm.resume(run, code=1)
    assert summary["experiments"]["main"]["tasks"]["succeeded"] == 1
    assert summary["experiments"]["main"]["tasks"]["failed"] == 1
    assert [(m["task"], m["metrics"]) for m in summary["models"]] == [(0, {"x": 0})]
    assert len(tm.marks("begun")) == 2
    tm.until_quiet()


def test_the_supervisor_and_the_control_are_killed(tm):
    recipe = tm.task(
        "setsid sleep 600 & echo $TRAINMASTER_ATTEMPT $$ >> $NOTES/pids\n"
        "until [ -e $NOTES/go ]; do sleep 0.05; done"
    )
    call = tm.start("run", recipe)
    run = call.run_id()
    first = int(tm.until_marks("pids")[0].split()[1])
    call.kill()
    for pid in tm.supervisors():
        os.kill(pid, signal.SIGKILL)
    call = tm.start("resume", run, "--json")
    tm.until_marks("pids", 2)
    assert not alive(first), "what was left over is ended before its successor starts"
    (tm.notes / "go").touch()
    assert tm.summary(call.wait(0))["reason"] == "SUCCEEDED"
    assert [line.split()[0] for line in tm.marks("pids")] == ["1", "2"], "a lost attempt costs no retry"
    tm.until_quiet()


def test_only_the_supervisor_is_killed(tm):
    recipe = tm.task(
        "echo $TRAINMASTER_ATTEMPT $$ >> $NOTES/pids; until [ -e $NOTES/go ]; do sleep 0.05; done"
    )
    call = tm.start("run", recipe, "--json")
    for expected in (1, 2):
        tm.until_marks("pids", expected)
        for pid in tm.supervisors():
            os.kill(pid, signal.SIGKILL)
    tm.until_marks("pids", 3)
    (tm.notes / "go").touch()
    assert tm.summary(call.wait(0))["reason"] == "SUCCEEDED"
    pids = [int(line.split()[1]) for line in tm.marks("pids")]
    assert not any(map(alive, pids))
    tm.until_quiet()


def test_resume_on_a_live_run_attaches(tm):
    call = tm.start("run", tm.task("touch $NOTES/up; until [ -e $NOTES/go ]; do sleep 0.05; done"), "--json")
    run = call.run_id()
    tm.until((tm.notes / "up").exists)
    attached = tm.start("resume", run, "--json")
    tm.until(lambda: "attached" in attached.err or attached.over, "a word about it")
    (tm.notes / "go").touch()
    assert tm.summary(attached.wait(0)) == tm.summary(call.wait(0))
    tm.until_quiet()


def test_of_two_resumes_one_drives_and_the_other_attaches(tm):
    recipe = tm.task("echo x >> $NOTES/ran; until [ -e $NOTES/go ]; do sleep 0.05; done")
    call = tm.start("run", recipe)
    run = call.run_id()
    tm.until_marks("ran")
    call.kill()
    both = [tm.start("resume", run, "--json") for _ in range(2)]
    tm.until(lambda: any("attached" in resumed.err for resumed in both), "one attaches")
    (tm.notes / "go").touch()
    first, second = (tm.summary(resumed.wait(0)) for resumed in both)
    assert first == second
    assert tm.marks("ran") == ["x"]
    tm.until_quiet()


def test_an_attached_resume_tells_when_the_driver_dies(tm):
    call = tm.start("run", tm.task("touch $NOTES/up; sleep 600"))
    run = call.run_id()
    tm.until((tm.notes / "up").exists)
    attached = tm.start("resume", run, "--json")
    tm.until(lambda: "attached" in attached.err)
    call.kill()
    result = attached.wait(timeout_s=30)
    assert result.code == 1
    assert f"trainmaster resume {run}" in result.err
    assert tm.summary(tm.call("cancel", run, "--json"))["reason"] == "CANCELLED"
    tm.until_quiet()


#: Ten steps a second, from the last one that was saved.
STEPS = """
step=$(cat $TRAINMASTER_CHECKPOINT_DIR/step 2>/dev/null || echo 0)
while ! test -e $NOTES/go; do
    step=$((step + 1))
    echo $step > $TRAINMASTER_CHECKPOINT_DIR/new
    mv $TRAINMASTER_CHECKPOINT_DIR/new $TRAINMASTER_CHECKPOINT_DIR/step
    echo "step $step loss 0.5"
    sleep 0.1
done
"""


def steps_in(text):
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith("step ")]


def test_what_goes_on_says_from_where_and_nothing_old_again(tm):
    """Once it was killed and its task adopted, once it was interrupted and its task began again."""
    recipe = tm.task(STEPS, grace="5s")
    first = tm.start("run", recipe)
    run = first.run_id()
    tm.until(lambda: len(steps_in(first.err)) > 20)
    first.kill()
    second = tm.start("resume", run)
    tm.until(lambda: "goes on from step" in second.err)
    tm.until(lambda: len(steps_in(second.err)) > 10)
    second.send(signal.SIGINT)
    second.wait(130)
    third = tm.start("resume", run)
    tm.until(lambda: len(steps_in(third.err)) > 10)
    (tm.notes / "go").touch()
    third.wait(0)
    shown = [steps_in(each.err) for each in (first, second, third)]
    assert shown[0][-1] < shown[1][0] < shown[1][-1] < shown[2][0], "no line comes twice"
    for call in (second, third):
        assert call.err.count("goes on from step") == 1
    assert f"main/0: goes on from step {shown[2][0]}" in third.err


def test_what_a_task_did_undriven_is_shown_and_counted(tm):
    """It has no checkpoint: interrupted and resumed, it begins again."""
    command = 'for i in $(seq 30); do echo "step $i loss 0.5"; sleep 0.1; done; touch $NOTES/done; %s'
    first = tm.start("run", tm.task(command % "until [ -e $NOTES/go ]; do sleep 0.05; done", grace="5s"))
    run = first.run_id()
    tm.until(lambda: len(steps_in(first.err)) > 5)
    first.kill()
    tm.until((tm.notes / "done").exists)
    second = tm.start("resume", run)
    tm.until(lambda: 30 in steps_in(second.err))
    assert steps_in(second.err) == list(range(steps_in(second.err)[0], 31))
    assert steps_in(second.err)[0] <= steps_in(first.err)[-1] + 2, (
        "the driver may have died before it said a line"
    )
    assert tm.status(run)["seconds"] > 2.5
    second.send(signal.SIGINT)
    second.wait(130)
    third = tm.start("resume", run)
    tm.until(lambda: "begins again without a checkpoint" in third.err)
    assert "goes on from" not in third.err
    (tm.notes / "go").touch()
    third.wait(0)


def test_a_driver_that_is_stopped_is_told_of(tm):
    call = tm.start("run", tm.task("touch $NOTES/up; until [ -e $NOTES/go ]; do sleep 0.05; done"))
    run = call.run_id()
    tm.until((tm.notes / "up").exists)
    assert tm.status(run)["driver"] == {"state": "working", "pid": call.pid, "silent_s": ANY}
    attached = tm.start("resume", run)
    tm.until(lambda: "attached" in attached.err)
    call.send(signal.SIGSTOP)
    tm.until(lambda: tm.runs()[0]["driver"]["state"] == "stopped")
    for arguments in (["status"], ["status", run]):
        shown = tm.call(*arguments)
        assert f"process {call.pid}, which drives it, is stopped" in shown.out
        assert f"kill -CONT {call.pid}" in shown.out + shown.err
    tm.until(lambda: "is stopped" in attached.err)
    call.send(signal.SIGCONT)
    tm.until(lambda: tm.status(run)["driver"]["state"] == "working")
    (tm.notes / "go").touch()
    call.wait(0)
    attached.wait(0)
    assert "driver" not in tm.status(run)


def test_status_of_a_run_that_nobody_drives_says_so(tm):
    call = tm.start("run", tm.task("touch $NOTES/up; sleep 600"))
    run = call.run_id()
    tm.until((tm.notes / "up").exists)
    assert tm.runs()[0]["driven"]
    call.kill()
    assert not tm.runs()[0]["driven"]
    assert f"trainmaster resume {run}" in tm.call("status", run).out
    listed = tm.call("status")
    assert "nobody drives it" in listed.out
    assert f"trainmaster resume {run}" in listed.err
    seconds = tm.status(run)["seconds"]
    tm.until(lambda: time.sleep(0.3) or True)
    assert tm.status(run)["seconds"] == seconds, "its clock stands still"
