"""``trainmaster ssh`` on one machine: the working directory of a run."""

from __future__ import annotations


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
