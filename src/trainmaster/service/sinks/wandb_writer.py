"""Run by a Python that has `wandb`: writes offline runs of Weights & Biases from what is in files.

Standard input names directories, a line each. Each has ``run.json`` and ``reports.jsonl``, and gets a
directory ``wandb/offline-run-...``. Nothing of Trainmaster can be imported here.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path


def write(place: Path) -> None:
    """Write the run of one directory."""
    wandb = import_module("wandb")
    said = json.loads((place / "run.json").read_text())
    settings = wandb.Settings(
        console="off", silent=True, save_code=False, disable_code=True, disable_git=True,
        x_disable_meta=True, x_disable_stats=True, x_save_requirements=False,
    )  # fmt: skip
    run = wandb.init(**said["init"], dir=str(place), mode="offline", settings=settings)
    run.define_metric("step", hidden=True)
    run.define_metric("attempt", hidden=True)
    run.define_metric("*", step_metric="step")
    with (place / "reports.jsonl").open() as file:
        for line in file:
            run.log(json.loads(line))
    run.finish(exit_code=said["exit_code"])


def main() -> None:
    """Write all that are named."""
    for line in sys.stdin:
        write(Path(line.rstrip("\n")))


if __name__ == "__main__":
    main()
