"""`logs`: every member and attempt, byte for byte, while it runs and long after."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PAIR = {"strategy": "allreduce", "workers": 2}


def raw(tm, *arguments):
    command = [str(Path(sys.executable).with_name("trainmaster")), "logs", *arguments]
    return subprocess.run(command, env=tm.env, capture_output=True, timeout=60, check=True).stdout


def test_bytes_come_as_they_were_written(tm):
    tm.write(
        "out.py",
        r"""
        import sys
        sys.stdout.buffer.write(b"latin \xe4\xff\n\x00nul\r\n\x1b[31mred\x1b[0m\n")
        sys.stdout.buffer.write(b"wide " + b"x" * 5000 + b"\nno newline")
    """,
    )
    run = tm.run(tm.task("python out.py"))["run"]
    expected = b"latin \xe4\xff\n\x00nul\r\n\x1b[31mred\x1b[0m\nwide " + b"x" * 5000 + b"\nno newline"
    assert raw(tm, run).removesuffix(b"\n") == expected


def test_standard_output_and_error_in_their_order(tm):
    run = tm.run(tm.task("for i in 1 2 3; do echo out $i; echo err $i >&2; done"))["run"]
    assert tm.logs(run).splitlines() == [f"{s} {i}" for i in (1, 2, 3) for s in ("out", "err")]


def test_every_member_and_attempt_and_the_filters(tm):
    recipe = tm.task(
        "a=$TRAINMASTER_ATTEMPT; echo attempt $a rank $RANK task $TRAINMASTER_TASK; sleep 0.1; test $a = 2",
        distributed=PAIR,
        retries=1,
        parameters={"x": [1, 2]},
    )
    run = tm.run(recipe)["run"]
    lines = tm.logs(run).splitlines()
    assert len(lines) == 8
    for task in range(2):
        for attempt in (1, 2):
            for rank in range(2):
                expected = f"main/{task}#{attempt} worker-{rank} | attempt {attempt} rank {rank} task {task}"
                assert lines.count(expected) == 1
    assert len(tm.logs(run, "--task", 1).splitlines()) == 4
    assert len(tm.logs(run, "--member", "worker-1").splitlines()) == 4
    assert len(tm.logs(run, "--experiment", "main", "--task", 0, "--member", "worker-0").splitlines()) == 2
    for arguments in (["--experiment", "mian"], ["--task", "7"], ["--member", "worker-9"]):
        result = tm.call("logs", run, *arguments, code=None)
        assert result.code == 2, (arguments, result)
        assert result.out == ""


def test_a_member_that_has_not_begun_has_said_nothing(tm):
    first, later = {"command": "false"}, {"command": "true", "after": "first", "distributed": PAIR}
    recipe = tm.recipe({"name": "job", "experiments": {"first": first, "later": later}})
    run = tm.run(recipe, code=1)["run"]
    for follow in ([], ["--follow"]):
        assert tm.logs(run, "--experiment", "later", "--member", "worker-1", *follow) == ""
        refused = tm.call("logs", run, "--experiment", "later", "--member", "worker-2", *follow, code=2)
        assert "has no member 'worker-2'" in refused.err
        assert "There are worker-0, worker-1." in refused.err


def test_the_last_lines_and_those_with_a_pattern(tm):
    run = tm.run(
        tm.task("for i in $(seq 1 30); do echo line $i of $RANK; done; printf end", distributed=PAIR)
    )["run"]
    both = [f"main/0#1 worker-{rank} | " for rank in range(2)]
    shown = tm.logs(run, "--tail", 2).splitlines()
    assert sorted(shown) == sorted(
        label + text for rank, label in enumerate(both) for text in (f"line 30 of {rank}", "end")
    )
    one = ("--member", "worker-1")
    assert tm.logs(run, *one, "--tail", 3, "--grep", "line 1[0-9]").splitlines() == [
        f"line {i} of 1" for i in (17, 18, 19)
    ]
    assert tm.logs(run, *one, "--grep", "^end$").splitlines() == ["end"]
    assert tm.logs(run, "--tail", 0) == tm.logs(run, "--grep", "nowhere") == ""
    result = tm.call("logs", run, "--grep", "(", code=2)
    assert "--grep (" in result.err


def test_what_was_written_since(tm):
    script = (
        "for i in $(seq 1 80); do echo line $i; sleep 0.1; done; until [ -e $NOTES/go ]; do sleep 0.05; done"
    )
    call = tm.start("run", tm.task(script, parameters={"task": [0, 1]}))
    run = call.run_id()
    tm.until(lambda: call.err.count("line 80") == 2)
    one = ("--experiment", "main", "--task", 1)
    whole = [f"line {i}" for i in range(1, 81)]
    late = tm.logs(run, *one, "--since", "3s").splitlines()
    assert late == whole[len(whole) - len(late) :]
    assert len(late) < 80, "as exact as a second, on a machine that is not too busy"
    assert tm.logs(run, *one, "--since", "1h").splitlines() == whole
    assert tm.logs(run, *one, "--since", "1h", "--tail", 2, "--grep", "line [1-5]$").split("\n")[:2] == [
        "line 4",
        "line 5",
    ]
    (tm.notes / "go").touch()
    call.wait(0)
    tm.until(lambda: tm.logs(run, "--since", "2s") == "", "it ended before")
    assert "--since: 'soon'" in tm.call("logs", run, "--since", "soon", code=2).err


def test_follow_from_the_last_lines_on(tm):
    call = tm.start(
        "run",
        tm.task("seq 1 20; touch $NOTES/ready; while ! test -e $NOTES/go; do sleep 0.05; done; echo more"),
    )
    tm.until(lambda: (tm.notes / "ready").exists(), "its lines")
    follow = tm.start("logs", call.run_id(), "-f", "--tail", 2)
    tm.until(lambda: "20" in follow.out, "the last lines")
    (tm.notes / "go").touch()
    assert follow.wait(0).out.split() == ["19", "20", "more"]
    call.wait(0)


def test_follow_shows_lines_as_they_come_and_ends_with_the_run(tm):
    call = tm.start(
        "run", tm.task("echo one; until [ -e $NOTES/go ]; do sleep 0.05; done; echo two; exit 1", retries=1)
    )
    run = call.run_id()
    follower = tm.start("logs", run, "--follow")
    tm.until(lambda: "one" in follower.out, "the first line")
    assert not follower.over
    (tm.notes / "go").touch()
    call.wait(1)
    text = follower.wait(0).out
    assert text.count("one") == text.count("two") == 2, "both attempts"
    assert not list(Path(tm.root).glob("*.nothing"))


def test_follow_a_finished_run_ends_at_once(tm):
    run = tm.run(tm.task("echo done"))["run"]
    assert tm.logs(run, "-f") == "done\n"


def test_a_reader_that_goes_away_is_no_error(tm):
    run = tm.run(tm.task("seq 200000"))["run"]
    script = f"{Path(sys.executable).with_name('trainmaster')} logs {run} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], env=tm.env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "1\n0\n"
    assert done.stderr == ""


def test_a_log_of_which_most_is_dropped(tm):
    recipe = tm.task(
        "echo first line; head -c 300000000 /dev/zero | tr '\\0' x | fold -w 99; echo; echo last line"
    )
    run = tm.run(recipe, timeout_s=120)["run"]
    used = sum(path.stat().st_blocks * 512 for path in tm.home.rglob("*") if path.is_file())
    assert used < 200_000_000
    program = Path(sys.executable).with_name("trainmaster")
    script = f"{program} logs {run} | tee >(wc -c >&2) | sed -n '1p;/dropped/p;$p'"
    done = subprocess.run(["bash", "-c", script], env=tm.env, capture_output=True, timeout=120, check=True)
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "first line"
    assert lines[-1] == "last line"
    assert "dropped" in lines[1]
    assert int(done.stderr) < 200_000_000


def test_a_task_that_closes_its_output(tm):
    run = tm.run(tm.task("echo before; exec >&- 2>&-; sleep 0.3; touch $NOTES/after"))["run"]
    assert tm.logs(run) == "before\n"
    assert (tm.notes / "after").exists()


def test_output_of_children_that_outlive_the_script(tm):
    call = tm.start("run", tm.task("(sleep 600; echo never) & echo started"))
    result = call.wait(0, timeout_s=50)
    assert "started" in result.err
    tm.until_quiet()


def test_a_log_that_another_user_cannot_read(tm):
    tm.run(tm.task("echo x"))
    assert tm.home.stat().st_mode & 0o077 == 0


def test_what_the_operating_system_said_and_a_text_in_all_runs(tm):
    dmesg = tm.write("bin/dmesg", "#!/bin/sh\necho 'Out of memory: Killed process 7'\n", 0o755)
    path = f"{dmesg.parent}:{tm.env['PATH']}"
    call = tm.start(
        "run", tm.task("""python -c 'raise MemoryError("Too Much")'"""), env={**tm.env, "PATH": path}
    )
    first = call.run_id()
    ended = call.wait(1)
    assert f"`trainmaster logs {first} --system` shows it" in ended.err
    shown = tm.logs(first, "--system")
    assert "==> dmesg -T" in shown
    assert "Out of memory: Killed process 7" in shown
    assert "Killed process 7" not in tm.logs(first)
    second = tm.run(tm.task("echo it is too much | tee -a $NOTES/said"))["run"]
    assert "nothing is kept" in tm.call("logs", second, "--system", code=2).err
    assert "==> dmesg -T" in tm.logs(second, "--system", "--now")
    assert "==> dmesg -T" in tm.logs(second, "--system")
    lines = tm.logs("--all", "--text", "too MUCH").splitlines()
    assert lines == [
        f"{second} main/0#1 worker-0 | it is too much",
        f"{first} main/0#1 worker-0 | MemoryError: Too Much",
    ]
    one = tm.call("logs", "--all", "--text", "too much", "--limit", 1)
    assert "`trainmaster logs --all --text 'too much' --after " in one.err
    assert one.out.splitlines() == lines[:1]
    assert f"--after {second}" in one.err
    assert tm.logs("--all", "--text", "too much", "--after", second).splitlines() == lines[1:]
    assert tm.logs(first, "--text", "too much") == "MemoryError: Too Much\n"
    for wrong in (["--all"], ["--all", "--text", "a", "-f"], [first, "--now"], [first, "--system", "-f"]):
        assert tm.call("logs", *wrong, code=2).out == ""
