"""Ctrl-C, SIGTERM and `cancel`: members are asked first, nothing is left, the run can be resumed."""

from __future__ import annotations

import json
import re
import signal
import time

import pytest
from command_server import REAL_VARIABLE

TRAPPED = "trap 'echo $TRAINMASTER_TASK >> $NOTES/asked; exit 0' TERM; echo x >> $NOTES/up; sleep 600 & wait"
IN_MAIN = re.compile(r'/cli/__init__\.py", line \d+, in main')
DEAF = "trap '' TERM; echo $$ >> $NOTES/up; while true; do sleep 0.1 || true; done"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_members_are_asked_and_the_run_can_be_resumed(tm, number):
    recipe = tm.task("test ! -e $NOTES/asked || exit 0\n" + TRAPPED, parameters={"x": [1, 2]})
    call = tm.start("run", recipe, "--json")
    run = call.run_id()
    tm.until_marks("up", 2)
    call.send(number)
    result = call.wait(130)
    assert sorted(tm.marks("asked")) == ["0", "1"]
    assert f"trainmaster resume {run}" in result.err
    assert tm.summary(result) == tm.status(run)
    assert result.json["state"] == "DONE"
    assert result.json["reason"] == "CANCELLED"
    tm.until_quiet()
    assert tm.resume(run)["reason"] == "SUCCEEDED"


def test_single_tasks_are_ended_and_all_else_goes_on(tm):
    recipe = tm.task("test ! -e $NOTES/go || exit 0\n" + TRAPPED, parameters={"x": [1, 2, 3]}, workers=2)
    call = tm.start("run", recipe)
    run = call.run_id()
    tm.until_marks("up", 2)
    refused = tm.call("cancel", run, "main/0", "7", code=2)
    assert f"{run} has no task 7" in refused.err
    assert "main/0 to main/2" in refused.err
    ended = tm.call("cancel", run, "main/0")
    assert f"{run}: main/0: CANCELLED" in ended.err
    tm.until_marks("up", 3)
    assert tm.marks("asked") == ["0"]
    assert tm.status(run)["experiments"]["main"]["tasks"]["running"] == 2
    again = tm.call("cancel", run, "main/0", "1", "2", "--json")
    assert [json.loads(line)["reason"] for line in again.out.splitlines()] == ["CANCELLED"] * 3
    assert "3 of 3 tasks did not succeed, the first is task 0:" in call.wait(1).err
    tm.until_quiet()
    assert "main/1 had ended already: CANCELLED" in tm.call("cancel", run, "1").err
    (tm.notes / "go").touch()
    assert tm.resume(run)["reason"] == "SUCCEEDED", "what a person has ended is done again"


def test_a_task_that_is_to_end_ends_after_its_driver_was_killed(tm):
    command = "echo x >> $NOTES/up; test $TRAINMASTER_TASK = 1 || exec sleep 600"
    recipe = tm.task(command, parameters={"x": [1, 2, 3]}, workers=1)
    call = tm.start("run", recipe)
    run = call.run_id()
    tm.until_marks("up")
    call.kill()
    said = tm.call("cancel", run, "0", "2").err
    assert "main/0 is to end" in said or "main/0: CANCELLED" in said, said
    assert "nobody drives it" in said
    assert tm.resume(run, code=1)["reason"] == "CANCELLED"
    assert tm.status(run)["experiments"]["main"]["tasks"]["succeeded"] == 1


def test_under_nohup_a_hang_up_is_ignored(tm):
    recipe = tm.task("echo x >> $NOTES/up; until [ -e $NOTES/go ]; do sleep 0.05; done")
    call = tm.start("run", recipe, prefix="trap '' HUP;")
    tm.until_marks("up")
    call.send(signal.SIGHUP)
    time.sleep(0.5)
    (tm.notes / "go").touch()
    call.wait(0)


def test_a_second_ctrl_c_does_not_wait(tm):
    call = tm.start("run", tm.task(DEAF, grace="10m"))
    call.run_id()
    tm.until_marks("up")
    call.send(signal.SIGINT)
    tm.until(lambda: "stopping" in call.err, "a word about it")
    time.sleep(0.3)
    assert not call.over
    call.send(signal.SIGINT)
    call.wait(130, timeout_s=20)
    tm.until_quiet()


def test_ctrl_c_at_any_moment(tm, monkeypatch):
    monkeypatch.setenv(REAL_VARIABLE, "1")  # while it imports, too
    recipe = tm.task("echo {{x}} >> $NOTES/ran; sleep 0.05", parameters={"x": {"range": "1-40", "step": 1}})
    for step in range(4):
        call = tm.start("run", recipe, "--json")
        time.sleep(0.1 + 0.25 * step)
        call.send(signal.SIGINT)
        call.process.wait(60)
        # until `main` the answer is the system's, or Python's with a traceback
        if not IN_MAIN.search(call.err) and call.process.returncode in (1, -signal.SIGINT):
            assert "started" not in call.err
            assert not call.err or "KeyboardInterrupt" in call.err, call.err
        else:  # at the very end it may have succeeded
            assert call.wait().code in (0, 130)
        tm.until_quiet()
    for row in tm.runs():
        assert tm.resume(row["run"])["reason"] == "SUCCEEDED"


def test_killed_while_it_stops_then_resumed(tm):
    recipe = tm.task("test ! -e $NOTES/go || exit 0\n" + DEAF, grace="2s")
    call = tm.start("run", recipe)
    run = call.run_id()
    tm.until_marks("up")
    call.send(signal.SIGINT)
    tm.until(lambda: "stopping" in call.err)
    time.sleep(0.3)
    call.kill()
    (tm.notes / "go").touch()
    assert tm.resume(run)["reason"] == "SUCCEEDED"
    tm.until_quiet()


def test_cancel_from_another_terminal(tm):
    recipe = tm.recipe(
        {
            "experiments": {
                "first": {"command": TRAPPED, "parameters": {"x": {"range": "1-9", "step": 1}}, "workers": 1},
                "second": {"after": ["first"], "command": "touch $NOTES/second"},
            }
        }
    )
    call = tm.start("run", recipe, "--json")
    run = call.run_id()
    tm.until_marks("up")
    cancelled = tm.summary(tm.call("cancel", run, "--json"))
    summary = tm.summary(call.wait(1))
    assert summary == cancelled
    assert summary["reason"] == "CANCELLED"
    assert summary["experiments"]["first"]["tasks"]["cancelled"] == 9
    assert summary["experiments"]["second"]["reason"] == "CANCELLED"
    assert tm.marks("asked") == ["0"]
    assert not (tm.notes / "second").exists()
    tm.until_quiet()


def test_cancel_of_a_run_whose_driver_was_killed(tm):
    call = tm.start("run", tm.task(TRAPPED))
    run = call.run_id()
    tm.until_marks("up")
    call.kill()
    assert tm.summary(tm.call("cancel", run, "--json"))["reason"] == "CANCELLED"
    assert tm.marks("asked") == ["0"]
    tm.until_quiet()


def test_cancel_of_a_run_that_is_over_changes_nothing(tm):
    summary = tm.run(tm.task("true"))
    assert tm.summary(tm.call("cancel", summary["run"], "--json")) == summary
    assert tm.status(summary["run"]) == summary


def test_a_cancelled_run_can_be_resumed(tm):
    call = tm.start("run", tm.task("test ! -e $NOTES/asked || exit 0\n" + TRAPPED))
    run = call.run_id()
    tm.until_marks("up")
    tm.call("cancel", run)
    call.wait(1)
    assert tm.resume(run)["reason"] == "SUCCEEDED"


def test_cancel_while_a_retry_waits(tm):
    call = tm.start("run", tm.task("echo x >> $NOTES/ran; exit 1", retries=10), "--json")
    run = call.run_id()
    tm.until_marks("ran", 4)
    tm.call("cancel", run)
    assert tm.summary(call.wait(1))["reason"] == "CANCELLED"
    tm.until_quiet()


def test_ctrl_c_only_detaches_an_attached_resume(tm):
    call = tm.start("run", tm.task("echo x >> $NOTES/up; until [ -e $NOTES/go ]; do sleep 0.05; done"))
    run = call.run_id()
    tm.until_marks("up")
    attached = tm.start("resume", run)
    tm.until(lambda: "attached" in attached.err)
    attached.send(signal.SIGINT)
    attached.wait(130)
    assert not call.over
    (tm.notes / "go").touch()
    call.wait(0)


def test_what_ended_well_before_the_stop_is_kept(tm):
    recipe = tm.task(
        "if [ {{x}} = 1 ]; then echo m > $TRAINMASTER_OUTPUT_DIR/m; exit 0; fi\n" + TRAPPED,
        parameters={"x": [1, 2]},
    )
    call = tm.start("run", recipe, "--json")
    run = call.run_id()
    tm.until_marks("up")
    tm.until(lambda: tm.status(run)["models"], "the first task's model")
    call.send(signal.SIGINT)
    tasks = tm.summary(call.wait(130))["experiments"]["main"]["tasks"]
    assert (tasks["succeeded"], tasks["cancelled"]) == (1, 1)
