"""A sweep of 50 ms tasks on two slots: tasks per second against ``xargs -P2`` of the same command.

Two commands: one that sleeps (what is lost is time between tasks), and one that computes (what is
lost is also the CPU that Trainmaster itself takes from the tasks, where the machine has only two cores).
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import TRAINMASTER, options, report, spread, workshop

SLOTS = 2
RECIPE = """
name: sweep
experiments:
  only:
    hardware: {{cpus: {cpus}}}
    parameters: {{lr: {{range: 1e-4-1e-1, sampling: log}}}}
    samples: {tasks}
    workers: {slots}
    command: {command}
"""
#: Until it has used so much CPU itself, the start of the interpreter included.
COMPUTE = "import time\nwhile time.process_time() < {seconds}: pass"


def commands(task_ms: int) -> dict[str, str]:
    """What the tasks do, by name."""
    code = COMPUTE.format(seconds=task_ms / 1000)
    return {
        "sleep": f"sleep {task_ms / 1000:g}",
        "compute": shlex.join([sys.executable, "-I", "-S", "-c", f"exec({code!r})"]),
    }


def run(recipe: str, env: dict[str, str], cwd: str) -> dict[str, Any]:
    """Run a recipe to its end: seconds of the whole call and of the run, CPU of the control process."""
    before = children_cpu_s()
    began = time.perf_counter()
    done = subprocess.run(
        [TRAINMASTER, "run", recipe, "--json"],
        env=env, cwd=cwd, check=True, capture_output=True, text=True,
    )  # fmt: skip
    took = time.perf_counter() - began
    summary = json.loads(done.stdout.splitlines()[-1])
    tasks = summary["experiments"]["only"]["tasks"]
    if tasks["succeeded"] != tasks["total"]:
        raise SystemExit(f"not all tasks succeeded: {summary}")
    return {"whole_s": took, "driven_s": summary["seconds"], "control_cpu_s": children_cpu_s() - before}


def children_cpu_s() -> float:
    """CPU of children that have ended; the supervisor and the tasks below it are not among them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def xargs_s(tasks: int, command: str) -> float:
    """The same with ``xargs``, which keeps no state, no logs and no limits."""
    began = time.perf_counter()
    subprocess.run(f"seq {tasks} | xargs -P{SLOTS} -I% {command}", shell=True, check=True)
    return time.perf_counter() - began


def measure(name: str, command: str, tasks: int, runs: int, env: dict[str, str], cwd: str) -> dict[str, Any]:
    """In turn, each first in every second pair."""
    ours, bare, load = [], [], []
    for number in range(runs):
        load.append(os.getloadavg()[0])
        if number % 2:
            bare.append(xargs_s(tasks, command))
        ours.append(run(f"{name}.yaml", env, cwd))
        if number % 2 == 0:
            bare.append(xargs_s(tasks, command))
    pairs = list(zip(ours, bare, strict=True))
    return {
        "command": command,
        "tasks_per_s": spread([tasks / mine["driven_s"] for mine in ours]),
        "xargs_per_s": spread([tasks / theirs for theirs in bare]),
        "ratio": spread([theirs / mine["driven_s"] for mine, theirs in pairs]),
        "whole_ratio": spread([theirs / mine["whole_s"] for mine, theirs in pairs]),
        "control_cpu_ms_per_task": spread([1000 * mine["control_cpu_s"] / tasks for mine in ours]),
        "load": spread(load),
    }


def main() -> None:
    arguments = options(__doc__ or "", runs=3, tasks=4096, task_ms=50)
    cpus = max(1, len(os.sched_getaffinity(0)) // SLOTS)
    directory, env = workshop()
    found = {}
    with directory:
        for name, command in (("warm", "true"), *commands(arguments.task_ms).items()):
            tasks = 10 if name == "warm" else arguments.tasks
            text = RECIPE.format(cpus=cpus, tasks=tasks, slots=SLOTS, command=json.dumps(command))
            Path(directory.name, f"{name}.yaml").write_text(text)
        run("warm.yaml", env, directory.name)
        for name, command in commands(arguments.task_ms).items():
            found[name] = measure(name, command, arguments.tasks, arguments.runs, env, directory.name)
    report(
        "sweep_tasks",
        {"tasks": arguments.tasks, **found, "targets": {"sleep ratio": 0.9}},
        {
            f"{name}: {who}": each[key]["median"]
            for name, each in found.items()
            for who, key in (("trainmaster (durable)", "tasks_per_s"), ("xargs (no state)", "xargs_per_s"))
        },
        "tasks per second",
    )


if __name__ == "__main__":
    main()
