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
