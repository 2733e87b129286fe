"""From exit records to a reason and a sentence."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from control_nouns import exited, member

from trainmaster.control.decide.outcome import classify, exit_records, with_last_error
from trainmaster.spec.states import EndReason

OK = member(exit_code=0)


def judged(*members, timeout_s=None, seconds=10.0, helpers=frozenset({"ps-0"})):
    outcome = classify(exited(*members, seconds=seconds), timeout_s, helpers)
    return outcome.reason, outcome.message


@pytest.mark.parametrize(
    ("how", "reason", "message"),
    [
        ({"exit_code": 3}, EndReason.USER_ERROR, "exit code 3"),
        ({"exit_code": 126}, EndReason.USER_ERROR, "exit code 126 (not executable)"),
        ({"exit_code": 127}, EndReason.USER_ERROR, "exit code 127 (command not found)"),
        ({"exit_code": 139}, EndReason.USER_ERROR, "exit code 139 (SIGSEGV)"),
        ({"exit_code": 255}, EndReason.USER_ERROR, "exit code 255"),
        ({"signal": 9}, EndReason.USER_ERROR, "killed by SIGKILL"),
        ({"signal": 99}, EndReason.USER_ERROR, "killed by signal 99"),
        ({"signal": 9, "oom": True}, EndReason.OOM, "killed: out of memory"),
        ({"exit_code": 137, "oom": True}, EndReason.OOM, "killed: out of memory"),
        ({"error": "no such file"}, EndReason.INTERNAL, "could not be started: no such file"),
    ],
)
def test_a_single_member_that_failed(how, reason, message):
    assert judged(member(**how)) == (reason, message)


def told(how, said="KeyError: 'lr'"):
    gang = exited(member(**how))
    return with_last_error(classify(gang, None).message, gang, {"worker-0": said, "worker-1": "other"})


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"exit_code": 1}, "exit code 1 (KeyError: 'lr')"),
        ({"exit_code": 127}, "exit code 127 (command not found: KeyError: 'lr')"),
        ({"signal": 6}, "killed by SIGABRT (KeyError: 'lr')"),
        ({"signal": 9}, "killed by SIGKILL"),
        ({"exit_code": 137, "oom": True}, "killed: out of memory"),
        ({"error": "no such file"}, "could not be started: no such file"),
    ],
)
def test_an_exit_code_is_told_with_what_the_log_says(how, message):
    assert told(how) == message
    assert told({"exit_code": 3}, said="") == "exit code 3"


def test_a_full_disk_is_told_with_its_machine_and_what_to_do():
    said = "OSError: [Errno 28] No space left on device"
    assert "the disk of this machine is full, or that part of it; make room there" in told(
        {"exit_code": 1}, said
    )
    gang = replace(exited(member(exit_code=1)), addresses={"worker-0": "10.0.0.2"})
    message = with_last_error(classify(gang, None).message, gang, {"worker-0": said})
    assert message.startswith(f"exit code 1 ({said}: the disk of 10.0.0.2 is full")


def test_the_log_of_the_member_that_failed_first_counts():
    first = replace(member("worker-1", exit_code=1), ended_at=5.0)
    gang = exited(member(exit_code=1), first)
    message = classify(gang, None).message
    assert with_last_error(message, gang, {"worker-0": "reset", "worker-1": "KeyError"}) == (
        "worker-1: exit code 1 (KeyError)"
    )


def test_success_is_every_essential_member_by_itself():
    assert judged(OK) == (EndReason.SUCCEEDED, "")
    assert judged(OK, member("worker-1", exit_code=0))[0] is EndReason.SUCCEEDED


@pytest.mark.parametrize(
    "server",
    [{"exit_code": 143, "stopped": True}, {"signal": 9, "stopped": True}, {"exit_code": 1}, {"lost": True}],
)
def test_how_a_helper_ends_after_the_workers_says_nothing(server):
    assert judged(OK, member("ps-0", **server))[0] is EndReason.SUCCEEDED


def test_a_helper_that_fails_before_the_workers_is_the_reason():
    worker = member(exit_code=143, stopped=True)
    assert judged(worker, member("ps-0", exit_code=2)) == (EndReason.USER_ERROR, "ps-0: exit code 2")


def test_the_first_failure_tells_the_others_were_stopped_for_it():
    first = member("worker-1", exit_code=3)
    stopped = member("worker-0", signal=15, stopped=True)
    assert judged(stopped, first) == (EndReason.USER_ERROR, "worker-1: exit code 3")


def test_half_a_gang_is_no_success():
    stopped = member("worker-1", exit_code=0, stopped=True)
    assert judged(OK, stopped, timeout_s=5)[0] is EndReason.TIMEOUT
    assert judged(OK, stopped)[0] is EndReason.PREEMPTED


def test_a_lost_supervisor_is_a_lost_node():
    reason, message = judged(OK, member("worker-1", lost=True))
    assert reason is EndReason.NODE_LOST
    assert message.startswith("worker-1: what watched it on its machine died")


def test_stopped_after_the_timeout_and_before_it():
    stopped = member(exit_code=0, stopped=True)
    assert judged(stopped, timeout_s=10, seconds=10) == (
        EndReason.TIMEOUT,
        "stopped after 10 s (timeout: 10s)",
    )
    assert judged(stopped, timeout_s=10, seconds=9)[0] is EndReason.PREEMPTED


def test_exit_records_are_compact_json():
    (record,) = json.loads(exit_records(exited(member(exit_code=3))))
    assert (record["name"], record["exit_code"], record["stopped"]) == ("worker-0", 3, False)
