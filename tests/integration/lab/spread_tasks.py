"""A search and a sweep whose `workers` are two machines: how many tasks ran at a time, and where."""

from __future__ import annotations

import re
from collections import Counter

from renter import Renter

#: Says when it begins, where, and when it ends, also when it is pruned.
SCRIPT = """
import json, os, signal, sys, time

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
where = f"{os.environ.get('SLURM_JOB_ID', '')}{os.uname().nodename}"
print("begins", sys.argv[1], where, time.time(), flush=True)
try:
    for step in range(1, 13):
        time.sleep(0.5)
        with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
            file.write(json.dumps({"step": step, "loss": float(sys.argv[2]) + 1 / step}) + "\\n")
finally:
    print("ends", sys.argv[1], time.time(), flush=True)
"""
RECIPE = """
name: steps
experiments:
  search:
    workers: 2
    hardware: {{instance: {machine}}}
    grace: 5s
    parameters: {{x: {{range: 0-1}}}}
    samples: 8
    search: {{metric: loss, goal: min, sampler: tpe, pruner: asha, options: {{min_steps: 3, reduction: 2}}}}
    command: python3 task.py search {{{{x}}}}
  sweep:
    after: search
    workers: 2
    hardware: {{instance: {machine}}}
    parameters: {{x: [1, 2, 3, 4, 5, 6, 7, 8]}}
    command: python3 task.py sweep {{{{x}}}}
"""


def spread(user: Renter, provider: str, machine: str, at_once: int, *options: str, **env: str) -> None:
    """Both run as many tasks at a time as two machines take, and neither machine is idle.

    Args:
        user: who runs them.
        provider, machine: where.
        at_once: tasks that both machines take.
        options: of `run`. env: of the commands.
    """
    (user.work / "task.py").write_text(SCRIPT)
    going = user.run(user.recipe(RECIPE.format(machine=machine)), *options, provider=provider, **env)
    log = user.call("logs", going.end()["run"], **env).stdout
    for name in ("search", "sweep"):
        begun = [(float(at), where) for where, at in re.findall(rf"begins {name} (\S+) (\S+)", log)]
        ended = [float(at) for at in re.findall(rf"ends {name} (\S+)", log)]
        assert len(begun) == len(ended) == 8, log
        beside = [sum(one <= at for one, _ in begun) - sum(one <= at for one in ended) for at, _ in begun]
        assert max(beside) == at_once, (name, sorted(begun), sorted(ended))
        tasks = Counter(where for _, where in begun)
        assert len(tasks) == 2, tasks
        assert min(tasks.values()) >= 3, tasks
