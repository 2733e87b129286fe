"""Real kills by the kernel, in memory control groups of our own, told from those by somebody else."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from pathlib import Path

import pytest

LIMIT_BYTES = 64 << 20
#: Touches a quarter of a gigabyte, page by page.
HUNGRY = "python -c 'x = bytearray(1 << 28); print(len(x))'"


def memory_groups():
    """Where control groups for memory can be made, and the name of the limit there."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.partition(" ")
        point = Path(fields.split()[4])
        if kind == "cgroup" and "memory" in options.split()[-1].split(","):
            return point, "memory.limit_in_bytes"
        if kind == "cgroup2" and "memory" in (point / "cgroup.subtree_control").read_text().split():
            return point, "memory.max"
    pytest.skip("no memory control groups are mounted here")


@pytest.fixture
def group():
    """A control group with little memory."""
    top, limit = memory_groups()
    path = top / f"tm-test-{uuid.uuid4().hex[:12]}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"memory control groups cannot be made here: {error.strerror}")
    try:
        (path / limit).write_text(str(LIMIT_BYTES))
        for swap in ("memory.swap.max", "memory.memsw.limit_in_bytes"):
            with contextlib.suppress(OSError):  # a kernel without swap has neither
                (path / swap).write_text("0" if "max" in swap else str(LIMIT_BYTES))
        yield path
    finally:
        remove(path)


def remove(path):
    deadline = time.monotonic() + 60
    while path.exists():
        for pid in (path / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            path.rmdir()
        except OSError:
            assert time.monotonic() < deadline, f"{path} cannot be removed"
            time.sleep(0.02)


def moves(group):
    """Shell text that moves the shell, and what it starts, there."""
    return f"echo $$ > {group}/cgroup.procs"


@pytest.mark.parametrize("lives_s", [0, 1.5], ids=["young", "seen"])
@pytest.mark.parametrize("how", ["itself", "child"])
def test_a_member_in_a_group_of_its_own(tm, group, how, lives_s):
    command = f"{moves(group)}; sleep {lives_s}; exec {HUNGRY}" if how == "itself" else (
        f"sleep {lives_s}; bash -c '{moves(group)}; exec \"$@\"' bash {HUNGRY}; echo never"
    )  # fmt: skip
    summary = tm.run(tm.task(command), code=1)
    assert summary["reason"] == "OOM", summary
    assert "killed: out of memory" in summary["experiments"]["main"]["message"]


def test_everything_in_a_group_with_a_limit(tm, group):
    """As in a container: the supervisor and its members share the group that the kernel looks into."""
    limit = next(path for name in ("memory.max", "memory.limit_in_bytes") if (path := group / name).exists())
    with contextlib.suppress(OSError):
        (group / "memory.memsw.limit_in_bytes").write_text(str(512 << 20))
    limit.write_text(str(400 << 20))
    command = """
    sleep {{pause}}; python -c 'import sys; x = bytearray(int(sys.argv[1]) << 20)' {{mebibytes}}
    """
    recipe = tm.task(command, parameters={"pause": [0.0, 1.5], "mebibytes": [1, 500]})
    call = tm.start("run", recipe, "--json", prefix=f"{moves(group)};")
    summary = tm.summary(call.wait(1))
    tasks = summary["experiments"]["main"]["tasks"]
    assert summary["reason"] == "OOM", summary
    assert (tasks["succeeded"], tasks["failed"]) == (2, 2)


#: What comes then cannot make control groups.
NO_GROUPS = (
    "unshare --mount bash -c 'for each in /sys/fs/cgroup /sys/fs/cgroup/*; "
    'do mount -o remount,bind,ro "$each" 2>&-; done; "$@"\' bash'
)


@pytest.mark.parametrize("prefix", ["", NO_GROUPS], ids=["bounded", "watched"])
def test_a_task_that_takes_more_than_it_asked_for(tm, prefix):
    memory_groups()
    program = "import sys, time; many = int(sys.argv[1]); mine = bytearray(many << 20); time.sleep(many / 50)"
    command = f"exec python -c '{program}' {{{{mebibytes}}}}"
    recipe = tm.task(command, parameters={"mebibytes": [100, 500]}, hardware={"memory": "300MB"})
    summary = tm.summary(tm.start("run", recipe, "--json", prefix=prefix).wait(1))
    experiment = summary["experiments"]["main"]
    assert (experiment["tasks"]["succeeded"], experiment["tasks"]["failed"]) == (1, 1)
    assert "task 1: killed: out of memory (hardware.memory: 0.3 GB)" in experiment["message"], experiment
    left = [place for place in memory_groups()[0].rglob("trainmaster-*") if (place / "cgroup.procs").exists()]
    assert not [place for place in left if summary["run"] in place.name]


def test_killed_by_somebody_else(tm):
    call = tm.start("run", tm.task("echo $$ >> $NOTES/pids; sleep 600", retries=1), "--json")
    for attempt in (1, 2):
        os.kill(int(tm.until_marks("pids", attempt)[-1]), signal.SIGKILL)
    summary = tm.summary(call.wait(1))
    assert summary["reason"] == "USER_ERROR"
    assert "SIGKILL" in summary["experiments"]["main"]["message"]


@pytest.mark.parametrize("lives_s", [0, 1.5], ids=["young", "seen"])
def test_two_members_and_only_one_meets_the_kernel(tm, group, lives_s):
    """One trial runs out of memory, the other is killed by hand right after it."""
    command = """
    if test {{what}} = hungry; then
        while ! test -e $NOTES/go; do sleep 0.02; done
        echo $$ > $GROUP/cgroup.procs; sleep $LIVES_S; exec python -c 'x = bytearray(1 << 28)'
    fi
    echo $$ > $NOTES/pid; exec sleep 600
    """
    recipe = tm.task(
        command,
        parameters={"what": ["hungry", "patient"]},
        hardware={"cpus": 1},
        env={"GROUP": str(group), "LIVES_S": lives_s},
    )
    call = tm.start("run", recipe, "--json")
    run = call.run_id()
    pid = int(tm.until_marks("pid")[0])
    (tm.notes / "go").touch()
    tm.until(lambda: tm.status(run)["experiments"]["main"]["tasks"]["failed"] == 1, "the kernel")
    os.kill(pid, signal.SIGKILL)
    tm.summary(call.wait(1))
    shown = tm.call("status", run).out
    assert "main/0 (what=hungry) OOM" in shown, shown
    assert "main/1 (what=patient) USER_ERROR: killed by SIGKILL" in shown, shown


def test_a_search_goes_on_after_a_trial_that_ran_out_of_memory(tm, group):
    """The trial is retried with the same parameters, ends as OOM, and costs the search nothing else."""
    pytest.importorskip("optuna")
    command = f"""
    echo $TRAINMASTER_TASK $TRAINMASTER_ATTEMPT {{{{x}}}} >> $NOTES/ran
    if test $TRAINMASTER_TASK = 3; then {moves(group)}; exec {HUNGRY}; fi
    awk -v x={{{{x}}}} 'BEGIN {{ printf "{{\\"step\\": 1, \\"loss\\": %.9g}}\\n", x * x }}' \\
        >> $TRAINMASTER_METRICS
    """
    recipe = tm.task(
        command,
        parameters={"x": {"range": "-5-5"}},
        samples=14,
        retries=1,
        search={"metric": "loss", "goal": "min", "sampler": "tpe"},
    )
    summary = tm.run(recipe, code=1)
    experiment = summary["experiments"]["main"]
    assert experiment["reason"] == "OOM"
    assert (experiment["tasks"]["succeeded"], experiment["tasks"]["failed"]) == (13, 1)
    assert experiment["best"]["task"] != 3
    lines = [line.split() for line in tm.marks("ran")]
    trial = [(attempt, x) for task, attempt, x in lines if task == "3"]
    assert [attempt for attempt, _ in trial] == ["1", "2"]
    assert trial[0][1] == trial[1][1], "the same parameters"
    assert len({task for task, _, _ in lines}) == 14
