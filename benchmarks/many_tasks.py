"""Many tiny tasks on all slots, every transition durable: tasks per second, and the memory it takes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from common import TRAINMASTER, options, report, spread, workshop

RECIPE = """
name: many
experiments:
  only:
    parameters: {{n: {{range: 1-{tasks}, step: 1}}}}
    command: 'true'
"""


def run(tasks: int, env: dict[str, str], cwd: str) -> dict[str, Any]:
    """Run so many tasks; seconds and the control process's memory when 10 % were done and at its peak."""
    recipe = Path(cwd, f"many-{tasks}.yaml")
    recipe.write_text(RECIPE.format(tasks=tasks))
    began = time.perf_counter()
    process = subprocess.Popen(
        [TRAINMASTER, "run", recipe.name, "--json"],
        env=env,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    memory = []
    while process.poll() is None:
        memory.append(rss_mb(process.pid))
        time.sleep(0.05)
    took = time.perf_counter() - began
    assert process.stdout is not None
    summary = json.loads(process.stdout.read().splitlines()[-1])
    if summary["experiments"]["only"]["tasks"]["succeeded"] != tasks:
        raise SystemExit(f"not all tasks succeeded: {summary}")
    early = memory[max(0, len(memory) // 10)]
    return {
        "seconds": took,
        "driven_s": summary["seconds"],
        "rss_early_mb": early,
        "rss_peak_mb": max(memory),
    }


def rss_mb(pid: int) -> float:
    """Resident memory of a process."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except (FileNotFoundError, IndexError):
        return 0.0


def xargs_s(tasks: int) -> float:
    """The same with ``xargs``, which keeps no state at all."""
    slots = len(os.sched_getaffinity(0))
    began = time.perf_counter()
    subprocess.run(f"seq {tasks} | xargs -P{slots} -I_ true", shell=True, check=True)
    return time.perf_counter() - began


def main() -> None:
    arguments = options(__doc__ or "", runs=3, tasks=1000, large=4096)
    directory, env = workshop()
    with directory:
        run(10, env, directory.name)
        ours, bare = [], []
        for _ in range(arguments.runs):
            ours.append(arguments.tasks / run(arguments.tasks, env, directory.name)["driven_s"])
            bare.append(arguments.tasks / xargs_s(arguments.tasks))
        large = run(arguments.large, env, directory.name)
    result = {
        "tasks": arguments.tasks,
        "tasks_per_s": spread(ours),
        "xargs_per_s": spread(bare),
        "large": {"tasks": arguments.large, **{key: round(value, 1) for key, value in large.items()}},
        "memory_growth_mb": round(large["rss_peak_mb"] - large["rss_early_mb"], 1),
        "targets": {"tasks_per_s": 300, "memory_growth_mb": 50},
    }
    report(
        "many_tasks",
        result,
        {
            "trainmaster (durable)": result["tasks_per_s"]["median"],
            "xargs (no state)": result["xargs_per_s"]["median"],
        },
        "tasks per second",
    )


if __name__ == "__main__":
    main()
