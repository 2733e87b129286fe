"""What `adapt: true` gains: a gang of the lab, one of whose machines becomes slow, with it and without.

Three faults, each at the same step: the machine of the last worker has an eighth of its processors (a quota),
its network card carries no more (`tc tbf`), or packets to it take long (`lab delay`).

    python benchmarks/adapt.py --faults quota,card,delay --steps 300
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from common import OUT, ROOT, TRAINMASTER, machine, options, report, workshop

from trainmaster.lab import LabPlace
from trainmaster.lab.cgroups import CgroupTree, HostCgroup

RING: Final = ROOT / "tests" / "integration" / "lab" / "gangs" / "ring.py"
RECIPE: Final = """
name: {name}
engine: ssh
objective: fastest
code: {{dir: .}}
experiments:
  train:
    distributed: {{strategy: allreduce, workers: 2}}
    framework: torch
    hardware: {{instance: m4.large}}
    checkpoint: {{every: 5s}}
    grace: 2s
    steps: {steps}
    adapt: {adapt}
    command: python3 ring.py {{{{steps}}}} {kib}
"""
HURT_AT: Final = 0.15


def call(env: dict[str, str], *arguments: object, must: bool = True) -> str:
    done = subprocess.run(
        [TRAINMASTER, *map(str, arguments)], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode and must:
        raise SystemExit(f"{arguments}: {done.stdout}{done.stderr}")
    return done.stdout


def hurt(fault: str, env: dict[str, str], run: str) -> str:
    """Make the machine of the last worker slow; its id."""
    home = Path(env["TRAINMASTER_HOME"])
    places = home / "runs" / run / "tasks" / "train" / "0" / "1" / "places.json"
    slow = str(json.loads(places.read_text())["worker-1"])
    mark = next(CgroupTree().roots["cpu"].glob(f"tmlab-*/{slow}")).parent.name
    place = LabPlace(home / "lab", home / "cache", mark.removeprefix("tmlab-"))
    if fault == "quota":
        HostCgroup(CgroupTree(), place.mark, slow).limit_cpu(0.5 / 8)
    elif fault == "card":
        shaped = "tc qdisc replace dev eth0 root tbf rate 1mbit burst 64kb latency 50ms"
        subprocess.run(["nsenter", f"--net={place.namespace(slow)}", *shaped.split()], check=True)
    elif fault == "delay":
        call(env, "lab", "delay", slow, "all", 100)
    return slow


def one(env: dict[str, str], work: Path, fault: str, adapt: str, steps: int, kib: int) -> dict[str, Any]:
    """One run, hurt when so much of it is done."""
    recipe = work / "recipe.yaml"
    recipe.write_text(RECIPE.format(name=f"{fault}-{adapt}", steps=steps, adapt=adapt, kib=kib))
    log = work / f"{fault}-{adapt}.log"
    began = time.time()
    with log.open("wb") as out:
        command = [TRAINMASTER, "run", str(recipe), "--provider", "lab", "--yes"]
        process = subprocess.Popen(command, env=env, cwd=work, stdout=out, stderr=out)
        run, slow = "", ""
        while process.poll() is None:
            time.sleep(0.3)
            found = re.search(rf"^({fault}-{adapt}-\w+): started", log.read_text(), re.MULTILINE)
            run = found.group(1) if found else run
            metrics = Path(env["TRAINMASTER_HOME"], f"runs/{run}/tasks/train/0/1/worker-0.metrics.jsonl")
            if run and not slow and fault != "none" and metrics.exists():
                lines = metrics.read_text().splitlines()
                if len(lines) > HURT_AT * steps:
                    slow = hurt(fault, env, run)
        code = process.wait()
    if fault == "delay":
        call(env, "lab", "delay", slow, "all", "none", must=False)
    status = json.loads(call(env, "status", run, "--json").strip().splitlines()[-1])
    return {
        "fault": fault,
        "adapt": adapt == "true",
        "code": code,
        "seconds": round(status["seconds"], 1),
        "wall_s": round(time.time() - began, 1),
        "cost_usd": status["cost_usd"],
        "adapted": status["experiments"]["train"].get("adapted", []),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    asked = options(__doc__ or "", faults="quota,card,delay", adapt="false,true", steps=300, kib=64)
    directory, env = workshop()
    env = {k: v for k, v in env.items() if not k.startswith("AWS_")} | {"COLUMNS": "200"}
    work = Path(directory.name) / "work"
    work.mkdir()
    shutil.copy(RING, work)
    env.pop("TRAINMASTER_CACHE")  # the image of the hosts is there already
    scale = ["--cpu-scale", "0.25", "--memory-scale", "0.25", "--network-scale", "0.125"]
    call(env, "lab", "up", *scale)
    rows = []
    try:
        for fault in asked.faults.split(","):
            for adapt in asked.adapt.split(",") if fault != "none" else ("true",):
                rows.append(one(env, work, fault, adapt, asked.steps, asked.kib))
                print(json.dumps(rows[-1]), flush=True)
        logs = {log.name: log.read_text() for log in work.glob("*.log")}
        OUT.mkdir(exist_ok=True)
        (OUT / "adapt_logs.json").write_text(json.dumps(logs))
    finally:
        call(env, "lab", "down", must=False)
        directory.cleanup()
    report("adapt", {"machine": machine(), "steps": asked.steps, "kib": asked.kib, "runs": rows})


if __name__ == "__main__":
    main()
