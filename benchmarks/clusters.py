"""How quickly clusters come, how quickly a lost machine is noticed and replaced, what DDP over them costs.

Everything in the lab, so on one machine: hosts of 2 GB and a fraction of a core. DDP is compared with
the same script started by hand over SSH on the same hosts, in turn; `--rounds 0` leaves that out.
`--engine ray` is the other engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common import TRAINMASTER, options, report

STEPS = """
import json, os, time
for step in range(1, 100000):
    time.sleep(0.05)
    with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
        file.write(json.dumps({"step": step, "at": time.time()}) + "\\n")
"""
GANG = """
name: bench
engine: {engine}
experiments:
  train:
    distributed: {{strategy: allreduce, workers: {workers}}}
    framework: {framework}
    hardware: {{instance: {instance}}}
    checkpoint: {{every: 2s}}
    grace: 2s
    command: {command}
"""
DDP = """
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(64, 512), torch.randint(0, 10, (64,))
def step():
    optimizer.zero_grad(); torch.nn.functional.cross_entropy(model(x), y).backward(); optimizer.step()
for _ in range(10): step()
dist.barrier(); began = time.perf_counter()
for _ in range(int(sys.argv[1])): step()
dist.barrier()
if dist.get_rank() == 0: print("RATE", int(sys.argv[1]) / (time.perf_counter() - began), flush=True)
os._exit(0)
"""


class Lab:
    """A lab in a home of its own."""

    def __init__(self, root: Path, engine: str) -> None:
        self.root = root
        self.engine = engine
        self.home = root / "home"
        self.work = root / "work"
        self.work.mkdir()
        (self.work / "steps.py").write_text(STEPS)
        (self.work / "ddp.py").write_text(DDP)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TRAINMASTER_", "AWS_"))}
        self.env = {**kept, "TRAINMASTER_HOME": str(self.home), "COLUMNS": "200"}

    def call(self, *arguments: object) -> str:
        """``trainmaster ...``; its output."""
        done = subprocess.run(
            [TRAINMASTER, *map(str, arguments)], env=self.env, capture_output=True, text=True, cwd=self.work
        )
        if done.returncode:
            raise SystemExit(f"{arguments}: {done.stderr}")
        return done.stdout

    def recipe(self, **values: object) -> Path:
        """A gang."""
        path = self.work / "recipe.yaml"
        wanted = {
            "engine": self.engine,
            "framework": "plain",
            "instance": "m4.xlarge",
            "command": "python3 steps.py",
            **values,
        }
        path.write_text(GANG.format(**wanted))
        return path

    def start(self, recipe: Path, *more: object, **env: str) -> tuple[subprocess.Popen[bytes], Path, float]:
        """A run in the background: process, log, when."""
        log = self.root / f"{time.time()}.log"
        command = [TRAINMASTER, "run", str(recipe), "--provider", "lab", "--yes", "--json", *map(str, more)]
        with log.open("wb") as out:
            began = time.time()
            return subprocess.Popen(command, env={**self.env, **env}, stdout=out, stderr=out), log, began

    def run_of(self, log: Path) -> str:
        """The run's id."""
        return until(lambda: re.search(r"^(bench-\w+): started", log.read_text(), re.MULTILINE)).group(1)

    def events(self, run: str) -> list[tuple[float, str, str, str]]:
        """What has happened to it."""
        with contextlib.closing(sqlite3.connect(self.home / "trainmaster.db")) as connection:
            query = "SELECT at, kind, COALESCE(after, ''), message FROM event WHERE run_id = ? ORDER BY id"
            return connection.execute(query, [run]).fetchall()

    def when(self, run: str, after: str, since: float = 0.0) -> float:
        """When a task entered a state."""
        return until(
            lambda: next(
                (at for at, kind, to, _ in self.events(run) if kind == "task" and to == after and at > since),
                None,
            )
        )

    def machines(self, run: str) -> dict[str, dict[str, Any]]:
        """Its machines by seat: in words `worker-1` is node-2."""
        with contextlib.closing(sqlite3.connect(self.home / "trainmaster.db")) as connection:
            rows = connection.execute("SELECT data FROM cluster WHERE run_id = ?", [run]).fetchall()
        machines = [machine for (data,) in rows for machine in json.loads(data)["machines"]]
        return {m["seat"]: m for m in machines if m["id"] and not m["is_over"]}

    def end(self, process: subprocess.Popen[bytes], run: str) -> None:
        """It has been looked at for long enough."""
        self.call("cancel", run)
        process.wait(120)


@contextlib.contextmanager
def lab(engine: str = "ssh") -> Iterator[Lab]:
    with tempfile.TemporaryDirectory() as root:
        made = Lab(Path(root), engine)
        made.call("lab", "up", "--cpu-scale", "0.25", "--memory-scale", "0.125", "--network-scale", "0.25")
        try:
            yield made
        finally:
            made.call("lab", "down")


def until(condition: Any, timeout_s: float = 180.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {timeout_s:.0f} s")
        time.sleep(0.02)
    return value


def formed(lab: Lab, workers: int) -> dict[str, float]:
    """From `run` to nodes that are one cluster, and to the first member."""
    process, log, began = lab.start(lab.recipe(workers=workers))
    run = lab.run_of(log)
    asked = until(lambda: next((at for at, _, _, text in lab.events(run) if " for node-1" in text), None))
    granted = lab.when(run, "STAGING")
    running = lab.when(run, "RUNNING")
    lab.end(process, run)
    return {"submit_to_first_member_s": running - began, "rent_to_formed_s": granted - asked}


def lost(lab: Lab, how: str) -> dict[str, float]:
    """From a fault to the gang's end, and from there to the next attempt."""
    process, log, _ = lab.start(lab.recipe(workers=2), TRAINMASTER_NODE_PATIENCE="20s")
    run = lab.run_of(log)
    running = lab.when(run, "RUNNING")
    time.sleep(4)
    machine = lab.machines(run)["worker-1"]["id"]
    began = time.time()
    lab.call("lab", how, machine)
    noticed = lab.when(run, "RECOVERING", since=running)
    again = lab.when(run, "RUNNING", since=noticed)
    successor = lab.machines(run)["worker-1"]
    lab.end(process, run)
    return {
        "fault_to_noticed_s": noticed - began,
        "fault_to_training_again_s": again - began,
        "successor_started_to_training_s": again - successor["started_at"],
    }


def warm(lab: Lab) -> dict[str, float]:
    """A second run on a cluster that was kept: from submit to its first member."""
    recipe = lab.recipe(workers=2, command="date +%s.%N")
    process, _, _ = lab.start(recipe, "--keep", "5m")
    process.wait()
    times = []
    for _ in range(3):
        process, log, began = lab.start(recipe, "--keep", "5m")
        process.wait()
        run = lab.run_of(log)
        line = lab.call("logs", run, "--member", "worker-0").strip().splitlines()[0]
        times.append(float(line) - began)
    process, _, _ = lab.start(recipe)  # gives it back
    process.wait()
    return {"submit_to_first_line_s": statistics.median(times)}


def ddp(lab: Lab, steps: int, rounds: int) -> dict[str, Any]:
    """Steps per second of DDP on three hosts, through a run and by hand, in turn."""
    recipe = lab.recipe(
        workers=3, framework="torchrun", instance="m4.xlarge", command=f"python3 ddp.py {steps}"
    )
    ours, by_hand = [], []
    for number in range(rounds):
        process, log, _ = lab.start(recipe, "--keep", "10m")
        process.wait()
        run = lab.run_of(log)
        ours.append(rate(lab.call("logs", run)))
        nodes = lab.machines(run)
        by_hand.append(rate(ssh_gang(lab, run, sorted(nodes), steps, 29500 + number)))
    pairs = [a / b for a, b in zip(ours, by_hand, strict=True)]
    return {"ours": ours, "by_hand": by_hand, "ratio": statistics.median(pairs), "pairs": pairs}


def ssh_gang(lab: Lab, run: str, seats: list[str], steps: int, port: int) -> str:
    """The same script on the same hosts, started by hand."""
    address = lab.call("ssh", run, seats[0], "--", "hostname", "-I").split()[0]
    processes = []
    for rank, seat in enumerate(seats):
        env = {
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "RANK": rank,
            "WORLD_SIZE": len(seats),
            "OMP_NUM_THREADS": 1,
        }
        words = " ".join(f"{name}={value}" for name, value in env.items())
        command = f"cd && {words} python3 ddp.py {steps}"
        lab.call("ssh", run, seat, "--", "sh", "-c", f"cat > ~/ddp.py <<'END'\n{DDP}\nEND")
        call = [TRAINMASTER, "ssh", run, seat, "--", "sh", "-c", command]
        processes.append(subprocess.Popen(call, env=lab.env, stdout=subprocess.PIPE, text=True))
    return "".join(process.communicate()[0] for process in processes)


def rate(text: str) -> float:
    found = re.search(r"RATE ([\d.]+)", text)
    if found is None:
        raise SystemExit(f"no rate in {text!r}")
    return float(found.group(1))


def main() -> None:
    wanted = options(__doc__ or "", nodes=8, steps=60, rounds=3, engine="ssh")
    if os.geteuid() != 0:
        sys.exit("a lab needs root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("it was to end"))  # not before its lab is down
    results: dict[str, Any] = {"engine": wanted.engine}
    with lab(wanted.engine) as made:
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "formed": lambda: {"nodes": wanted.nodes, **formed(made, wanted.nodes)},
            "terminate": lambda: lost(made, "terminate"),
            "cut": lambda: lost(made, "cut"),
            "warm": lambda: warm(made),
            "ddp": lambda: ddp(made, wanted.steps, wanted.rounds) if wanted.rounds else {},
        }
        for name, part in parts.items():
            results[name] = part()
            print(name, results[name], file=sys.stderr, flush=True)
    report(f"clusters-{wanted.engine}", results)


if __name__ == "__main__":
    main()
