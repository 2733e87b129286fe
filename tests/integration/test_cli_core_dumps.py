"""A process that holds secrets leaves no core dump; members may leave what the user's processes may."""

from __future__ import annotations

from pathlib import Path


def limit(pid: int) -> str:
    (line,) = (each for each in Path(f"/proc/{pid}/limits").read_text().splitlines() if "core" in each)
    return line.split()[4]


def test_limits_of_driver_supervisor_and_members(tm):
    recipe = tm.task(
        "ulimit -Sc > $NOTES/member; touch $NOTES/up; until [ -e $NOTES/go ]; do sleep 0.1; done"
    )
    run = tm.start("run", recipe, prefix="ulimit -Sc 7;")
    tm.until((tm.notes / "up").exists)
    supervisors = tm.supervisors()
    assert supervisors
    assert [limit(pid) for pid in (run.process.pid, *supervisors)] == ["1"] * (1 + len(supervisors))
    (tm.notes / "go").touch()
    run.wait(0)
    assert tm.marks("member") == ["7"]
