"""DDP on digits: steps per second under Trainmaster against bare ``torchrun`` with the same script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import ROOT, TRAINMASTER, options, paired, report, workshop

RECIPE = """
name: ddp
experiments:
  train:
    distributed: {{strategy: allreduce, workers: 2}}
    command: python {script} --epochs {epochs} --batch 64 --lr 0.05
"""


def steps_per_s(metrics: Path) -> float:
    """Rate between the first and the last epoch that the script reported."""
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    rows = [row for row in rows if "seconds" in row]
    first, last = rows[0], rows[-1]
    return float((last["step"] - first["step"]) / (last["seconds"] - first["seconds"]))


def main() -> None:
    arguments = options(__doc__ or "", runs=5, epochs=30)
    script = ROOT / "examples" / "digits" / "train.py"
    directory, env = workshop()
    with directory:
        Path(directory.name, "recipe.yaml").write_text(RECIPE.format(script=script, epochs=arguments.epochs))

        def ours() -> float:
            done = subprocess.run(
                [TRAINMASTER, "run", "recipe.yaml", "--json"],
                env=env, cwd=directory.name, check=True, capture_output=True, text=True,
            )  # fmt: skip
            run = json.loads(done.stdout.splitlines()[-1])["run"]
            place = Path(env["TRAINMASTER_HOME"], "runs", run, "tasks", "train", "0", "1")
            return steps_per_s(place / "worker-0.metrics.jsonl")

        def bare() -> float:
            with tempfile.TemporaryDirectory() as scratch:
                metrics = Path(scratch, "metrics.jsonl")
                subprocess.run(
                    [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", "2", str(script),
                     "--epochs", str(arguments.epochs), "--batch", "64", "--lr", "0.05"],
                    env={**os.environ, "TRAINMASTER_METRICS": str(metrics), "OMP_NUM_THREADS": "1"},
                    cwd=scratch, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
                return steps_per_s(metrics)

        result = paired(arguments.runs, ours, bare)
    report(
        "ddp_rate",
        {"steps_per_s": result, "targets": {"ratio": 0.99}},
        {"trainmaster": result["ours"]["median"], "torchrun": result["bare"]["median"]},
        "steps per second",
    )


if __name__ == "__main__":
    main()
