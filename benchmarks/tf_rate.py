"""TensorFlow on digits: steps per second under Trainmaster against the same script started by hand.

A kind with 0 steps is left out: ``--mirrored_steps 0``.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import ROOT, TRAINMASTER, options, report, spread, workshop
from ddp_rate import steps_per_s

RECIPE = """
name: tf
experiments:
  train:
    framework: tensorflow
    distributed: {distributed}
    command: python {script} --steps {steps}
"""
DISTRIBUTED = {
    "ps": "{strategy: ps-async, workers: 2, parameter_servers: 1}",
    "mirrored": "{strategy: allreduce, workers: 2}",
}
SCRIPTS = {
    "ps": ROOT / "examples" / "tf-ps" / "train.py",
    "mirrored": ROOT / "benchmarks" / "tf_mirrored.py",
}
CLUSTERS = {"ps": {"chief": 1, "ps": 1, "worker": 2}, "mirrored": {"worker": 2}}


def configs(cluster: dict[str, int]) -> list[str]:
    """``TF_CONFIG`` for each process of a cluster on this machine, as one writes it by hand."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(sum(cluster.values()))]
    ports = iter([one.getsockname()[1] for one in held])
    for one in held:
        one.close()
    addresses = {role: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for role, n in cluster.items()}
    return [
        json.dumps({"cluster": addresses, "task": {"type": role, "index": index}})
        for role, members in addresses.items()
        for index in range(len(members))
    ]


def by_hand(kind: str, steps: int) -> float:
    """One process per member; the first one's end is the end."""
    with tempfile.TemporaryDirectory() as scratch:
        processes = []
        for index, config in enumerate(configs(CLUSTERS[kind])):
            env = {
                **os.environ,
                "TF_CONFIG": config,
                "TRAINMASTER_METRICS": f"{scratch}/{index}",
                "TRAINMASTER_CHECKPOINT_DIR": f"{scratch}/checkpoint",
            }
            processes.append(
                subprocess.Popen(
                    [sys.executable, SCRIPTS[kind], "--steps", str(steps)],
                    env=env, cwd=scratch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip
        try:
            if processes[0].wait(600):
                sys.exit(f"{kind} failed by hand")
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return steps_per_s(Path(scratch, "0"))


def alternating(runs: int, ours: Callable[[], float], bare: Callable[[], float]) -> dict[str, Any]:
    """Pairs, each side first in every second one: what drifts then drifts for both."""
    pairs = []
    for number in range(runs):
        load = os.getloadavg()[0]
        if number % 2:
            theirs, mine = bare(), ours()
        else:
            mine, theirs = ours(), bare()
        pairs.append({"ours": mine, "bare": theirs, "load": load})
    return {
        "ours": spread([pair["ours"] for pair in pairs]),
        "bare": spread([pair["bare"] for pair in pairs]),
        "ratio": spread([pair["ours"] / pair["bare"] for pair in pairs]),
        "pairs": [{key: round(value, 2) for key, value in pair.items()} for pair in pairs],
    }


def main() -> None:
    arguments = options(__doc__ or "", runs=8, ps_steps=2000, mirrored_steps=2000)
    steps = {"ps": arguments.ps_steps, "mirrored": arguments.mirrored_steps}
    kinds = [kind for kind in SCRIPTS if steps[kind]]
    directory, env = workshop()
    with directory:
        for kind, script in SCRIPTS.items():
            recipe = RECIPE.format(distributed=DISTRIBUTED[kind], script=script, steps=steps[kind])
            Path(directory.name, f"{kind}.yaml").write_text(recipe)

        def ours(kind: str) -> Callable[[], float]:
            def run() -> float:
                done = subprocess.run(
                    [TRAINMASTER, "run", f"{kind}.yaml", "--json"],
                    env=env, cwd=directory.name, check=True, capture_output=True, text=True,
                )  # fmt: skip
                run_id = json.loads(done.stdout.splitlines()[-1])["run"]
                first = "chief-0" if kind == "ps" else "worker-0"
                place = Path(env["TRAINMASTER_HOME"], "runs", run_id, "tasks", "train", "0", "1")
                return steps_per_s(place / f"{first}.metrics.jsonl")

            return run

        def bare(kind: str) -> Callable[[], float]:
            return lambda: by_hand(kind, steps[kind])

        results = {kind: alternating(arguments.runs, ours(kind), bare(kind)) for kind in kinds}
    report(
        "tf_rate",
        {**{f"{kind}_steps_per_s": found for kind, found in results.items()}, "targets": {"ratio": 0.98}},
        {
            f"{kind} {who}": results[kind][key]["median"]
            for kind in kinds
            for who, key in (("trainmaster", "ours"), ("by hand", "bare"))
        },
        "steps per second",
    )


if __name__ == "__main__":
    main()
