"""How often a quote is kept here, and how wide it is: real runs of a training, each quoted before and during.

A naive baseline says of each run what the last one took, 25 % more or less.
"""

from __future__ import annotations

import json
import math
import subprocess
from itertools import pairwise
from statistics import median

from common import ROOT, TRAINMASTER, options, report, workshop

RECIPE = ROOT / "examples" / "digits" / "recipe.yaml"
#: Width that a binding quote aims at, p95 over p50.
TARGET_WIDTH = 1.25


def interval_score(low: float, high: float, truth: float) -> float:
    """Of the logarithm; lower is better (Gneiting and Raftery, JASA 2007), for 90 %."""
    low, high, truth = math.log(low), math.log(high), math.log(truth)
    return (high - low) + 20 * max(low - truth, 0.0) + 20 * max(truth - high, 0.0)


def call(env: dict[str, str], *arguments: str) -> dict:
    done = subprocess.run(
        [TRAINMASTER, *arguments, "--json"], env=env, capture_output=True, text=True, check=True, cwd=ROOT
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    chosen = options(__doc__ or "", runs=8, epochs=400)
    directory, env = workshop()
    change = ["--set", f"experiments.train.epochs={chosen.epochs}"]
    with directory:
        first = call(env, "quote", str(RECIPE), *change)
        runs = [call(env, "run", str(RECIPE), "--yes", *change) for _ in range(chosen.runs)]
    quoted = [run for run in runs if "quote" in run]
    binding = [run for run in quoted if run["quote"]["kind"] == "binding"]
    widths = [run["quote"]["time_s"]["p95"] / run["quote"]["time_s"]["p50"] for run in binding]
    scores = [
        interval_score(run["quote"]["time_s"]["p5"], run["quote"]["time_s"]["p95"], run["seconds"])
        for run in binding
    ]
    naive = [
        interval_score(before["seconds"] / 1.25, before["seconds"] * 1.25, run["seconds"])
        for before, run in pairwise(runs)
    ]
    seconds = [run["seconds"] for run in runs]
    report(
        "quotes_kept",
        {
            "before_any_run": first["time_s"],
            "first_run_s": round(seconds[0], 2),
            "first_inside": first["time_s"]["p5"] <= seconds[0] <= first["time_s"]["p95"],
            "runs_s": [round(value, 2) for value in seconds],
            "binding": len(binding),
            "kept": sum(bool(run["quote"]["kept"]) for run in binding),
            "width_p95_over_p50": round(median(widths), 3) if widths else None,
            "target_width": TARGET_WIDTH,
            "interval_score": round(median(scores), 3) if scores else None,
            "naive_interval_score": round(median(naive), 3) if naive else None,
        },
        {f"run {i}": value for i, value in enumerate(seconds)},
        "s",
    )


if __name__ == "__main__":
    main()
