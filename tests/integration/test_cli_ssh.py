"""``trainmaster ssh`` on one machine: the working directory of a run."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from trainmaster.spec.processes import start_ticks


def test_a_command_with_and_without_a_member(tm):
    tm.write("here.txt", "yes\n")
    run = tm.run(tm.task("true"))["run"]
    assert tm.call("ssh", run, "--", "cat", "here.txt").out == "yes\n"
    assert tm.call("ssh", run, "worker-0", "--", "cat", "here.txt").out == "yes\n"


def test_a_member_that_is_not_there(tm):
    run = tm.run(tm.task("true"))["run"]
    refused = tm.call("ssh", run, "worker-9", "--", "true", code=2)
    assert "worker-9" in refused.err
    assert "worker-0" in refused.err


def test_a_line_for_a_shell_with_the_environment_of_the_member(tm):
    call = tm.start("run", tm.task("touch $NOTES/up; until test -e $NOTES/go; do sleep 0.1; done"))
    run = call.run_id()
    tm.until((tm.notes / "up").exists)
    line = "pwd; echo $TRAINMASTER_ROLE-$TRAINMASTER_INDEX; basename $TRAINMASTER_OUTPUT_DIR"
    said = tm.call("ssh", run, "worker-0", "--", line).out.splitlines()
    assert said == [str(tm.home / "runs" / run / "code"), "worker-0", "output"]
    assert tm.call("ssh", run, "worker-0", "--", "echo", "$HOME; a").out == "$HOME; a\n"
    (tm.notes / "go").touch()
    call.wait(0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_client_that_says_it_lost_its_machine_when_ended_is_no_other_end(tm, number, code):
    run = tm.run(tm.task("true"))["run"]
    call = tm.start("exec", run, "--", "trap 'exit 255' TERM; touch $NOTES/up; sleep 60 & wait")
    tm.until((tm.notes / "up").exists)
    call.send(number)
    assert call.process.wait(60) == code, "as where what was asked to end is a program here"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_command_ends_with_what_has_asked_for_it(tm, number):
    run = tm.run(tm.task("true"))["run"]
    line = (
        "echo $$ >>$NOTES/pids; (echo $BASHPID >>$NOTES/pids; sleep 600; true) & "
        "setsid sh -c 'echo $$ >$NOTES/outlives; exec sleep 600' & "
        "wait %1; true"
    )
    call = tm.start("exec", run, "--", line)
    pids, outlives = tm.notes / "pids", tm.notes / "outlives"
    tm.until(lambda: pids.exists() and outlives.exists() and len(pids.read_text().split()) == 2)
    tm.until(lambda: outlives.read_text().strip())
    call.send(number)
    assert call.process.wait(60) == (130 if number == signal.SIGINT else 128 + signal.SIGTERM)
    tm.until(lambda: all(start_ticks(int(pid)) is None for pid in pids.read_text().split()))
    other = int(outlives.read_text())
    assert start_ticks(other) is not None, "what has a session of its own outlives it"
    with suppress(ProcessLookupError):
        os.killpg(other, signal.SIGKILL)
