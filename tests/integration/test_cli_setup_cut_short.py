"""A `setup:` that is cut short leaves no processes, and nothing half made that a later run would use."""

from __future__ import annotations

import signal

import pytest

SLOW = """
    echo $$ >> $NOTES/setups
    if [ ! -e $NOTES/go ]; then sleep 600 & setsid sleep 600 & wait; fi
    echo whole > $VIRTUAL_ENV/made
"""


def begin(tm):
    call = tm.start("run", tm.task("cat $VIRTUAL_ENV/made", setup=SLOW), "--json")
    run = call.run_id()
    tm.until_marks("setups")
    return call, run


def test_killed_and_then_interrupted_while_setup_runs(tm):
    call, run = begin(tm)
    call.kill()
    again = tm.start("resume", run, "--json")
    tm.until_marks("setups", 2)
    again.send(signal.SIGINT)
    again.wait(130)
    tm.until_quiet()
    (tm.notes / "go").touch()
    tm.resume(run)
    assert "whole\n" in tm.logs(run)
    tm.until_quiet()


def test_killed_and_then_cancelled_while_setup_runs(tm):
    call, run = begin(tm)
    call.kill()
    assert tm.call("cancel", run, "--json").json["reason"] == "CANCELLED"
    tm.until_quiet()


@pytest.mark.crossings  # to be interrupted, above, ends a setup in the same way
def test_cancel_while_setup_runs(tm):
    call, run = begin(tm)
    assert tm.call("cancel", run, "--json").json["reason"] == "CANCELLED"
    call.wait(1)
    tm.until_quiet()


def test_a_setup_that_writes_a_file_it_names_is_found_again(tm):
    script = "$VIRTUAL_ENV/bin/made"
    setup = f"printf '#!/bin/sh\\necho made\\n' > made.sh; cp made.sh {script}; chmod +x {script}"
    ended = tm.run(tm.task("made > $NOTES/said", setup=setup, parameters={"part": [1, 2]}))
    assert ended["reason"] == "SUCCEEDED"
    assert tm.marks("said") == ["made"]
