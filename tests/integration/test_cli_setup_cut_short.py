"""A `setup:` that is cut short leaves no processes, and nothing half made that a later run would use."""

from __future__ import annotations

import signal

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


def test_ctrl_c_while_setup_runs(tm):
    call, run = begin(tm)
    call.send(signal.SIGINT)
    call.wait(130)
    tm.until_quiet()
    (tm.notes / "go").touch()
    tm.resume(run)
    assert "whole" in tm.logs(run)


def test_killed_while_setup_runs(tm):
    call, run = begin(tm)
    call.kill()
    (tm.notes / "go").touch()
    tm.resume(run)
    assert tm.logs(run) == "whole\n"
    tm.until_quiet()


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
