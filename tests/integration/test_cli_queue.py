"""A run that waits for slots that another one holds: it says so, and its time is without that."""

from __future__ import annotations

import os

HOLD = "echo x >> $NOTES/up; until [ -e $NOTES/go ]; do sleep 0.05; done"


def test_a_run_that_waits_says_for_whom_and_counts_that_apart(tm):
    cores = len(os.sched_getaffinity(0))
    everything = tm.task(HOLD, hardware={"cpus": cores})
    holder = tm.start("run", everything, "--json")
    run = holder.run_id()
    tm.until_marks("up")
    quick = tm.task("echo hi")
    waiting = tm.start("run", quick, "--json")
    waiter = waiting.run_id()
    tm.until(lambda: "waits for 1 core" in waiting.err, "a word about it")
    assert f"waits for 1 core: {run} holds {cores}; it is next" in waiting.err
    assert "running" not in waiting.err
    shown = tm.status(waiter)
    assert shown["queued"]["held"] == {run: cores}
    assert shown["queued"]["place"] == 1
    assert f"for 1 core: {run} holds {cores}; it is next" in tm.call("status", waiter).out
    assert "QUEUED" in tm.call("status").out
    (tm.notes / "go").touch()
    assert holder.wait(0).json["reason"] == "SUCCEEDED"
    result = waiting.wait(0)
    assert "goes on after waiting" in result.err
    assert "queued" not in result.json
    assert 0 < result.json["queued_s"] < result.json["seconds"]
    assert "of them waiting" in tm.call("status", waiter).out
    assert "queued_s" not in tm.status(run)


def test_a_run_that_is_killed_while_it_waits_remembers_for_how_long(tm):
    cores = len(os.sched_getaffinity(0))
    everything = tm.task(HOLD, hardware={"cpus": cores})
    holder = tm.start("run", everything, "--json")
    holder.run_id()
    tm.until_marks("up")
    waiting = tm.start("run", tm.task("echo hi"), "--json")
    waiter = waiting.run_id()
    tm.until(lambda: "waits for" in waiting.err, "a word about it")
    waiting.kill()
    assert "queued" not in tm.status(waiter)  # nobody waits any more
    (tm.notes / "go").touch()
    holder.wait(0)
    summary = tm.resume(waiter)
    assert summary["reason"] == "SUCCEEDED"
    assert 0 <= summary.get("queued_s", 0) < summary["seconds"]
