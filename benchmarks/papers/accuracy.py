"""Time to a fixed accuracy against machines: LeNet-5 on MNIST, all-reduce, without and with latency.

One gang of four t2.large in the lab; in each phase 1, 2 and 4 of them train from the same seed until 95 % of
2,000 test images are right. In the middle phase packets between them arrive 20 ms later. Jorge et al. and
Anwar et al. give times at a fixed number of steps only; what more machines give until a fixed accuracy is
the question behind both.
"""

from __future__ import annotations

import statistics
from typing import Any

from images import mnist
from laboratory import Laboratory
from tables import COLORS, Report, best, figure, keep, middle, options

FAR_MS = 20
MACHINES = (1, 2, 4)
TARGET = 0.95
RECIPE = """
name: accuracy
code: code
experiments:
  train:
    framework: pytorch
    distributed: {{strategy: allreduce, workers: 4}}
    hardware: {{instance: t2.large}}
    command: >-
      python3 until_accurate.py --machines 1 2 4 --target {target} --phases {phases} --patience {patience}
"""
Key = tuple[int, int]  # latency in ms, machines


def measured(phases: list[int], patience: float) -> dict[Key, list[dict[str, Any]]]:
    """What rank 0 reported of each training."""
    with Laboratory(cpu=0.125, network=0.125, files=[mnist()]) as lab:

        def listen(line: str) -> None:
            if "waiting for phase" in line:
                phase = int(line.split()[-1])
                lab.delay(phases[phase])
                lab.call("ssh", lab.run_id, "worker-0", "--", "touch", f"/tmp/phase-{phase}")

        recipe = RECIPE.format(target=TARGET, phases=len(phases), patience=patience)
        rows = lab.run(recipe, listen=listen).reports["worker-0"]
    found: dict[Key, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((phases[row["phase"]], row["machines"]), []).append(row)
    return found


def shapes(times: dict[Key, float], steps: dict[Key, float]) -> dict[str, bool]:
    """What is to be expected of it."""
    return {
        "without latency, more machines reach the accuracy sooner": (
            1 not in best({n: times[0, n] for n in MACHINES})
            and 4 in best({n: times[0, n] for n in MACHINES})
        ),
        "they need fewer steps, as their batch is larger": steps[0, 4] < steps[0, 1],
        "but never so much fewer as they are more: a speed-up below four": times[0, 1] / times[0, 4] < 4,
        f"with {FAR_MS} ms a single machine is at least as quick as four": (
            1 in best({n: times[FAR_MS, n] for n in (1, 4)})
        ),
    }


def draw(found: dict[Key, list[dict[str, Any]]]) -> None:
    """Every training, and the medians."""
    made, (axes,) = figure(2)
    for axis, name, label in zip(
        axes, ("seconds", "step"), ("s until 95 %", "steps until 95 %"), strict=True
    ):
        for latency, color in ((0, COLORS[0]), (FAR_MS, COLORS[1])):
            rows = {n: [row[name] for row in found[latency, n]] for n in MACHINES}
            axis.plot(
                MACHINES,
                [statistics.median(rows[n]) for n in MACHINES],
                "-",
                color=color,
                label=f"{latency} ms",
            )
            axis.plot(
                [n for n in MACHINES for _ in rows[n]],
                [v for n in MACHINES for v in rows[n]],
                "o",
                color=color,
                markersize=3,
            )
        axis.set_xlabel("machines")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.set_xticks(MACHINES)
    axes[0].legend(title="latency each way", frameon=False)
    keep(made, "accuracy")


def main() -> None:
    arguments = options(__doc__ or "")
    report = Report("accuracy", arguments.quick)
    found = measured([0, FAR_MS] if arguments.quick else [0, FAR_MS, 0], 15 if arguments.quick else 30)
    times = {key: statistics.median(row["seconds"] for row in rows) for key, rows in found.items()}
    steps = {key: statistics.median(row["step"] for row in rows) for key, rows in found.items()}
    report.table(
        f"Until {TARGET:.0%} of 2,000 test images are right (>: given up before); a batch of 128 per machine",
        ["ms", "machines", "s", "each", "steps", "accuracy", "speed-up", "of the steps alone"],
        [
            [
                latency,
                n,
                ("" if all(row["accuracy"] >= TARGET for row in rows) else "> ") + f"{times[latency, n]:.1f}",
                " ".join(f"{row['seconds']:.1f}" for row in rows),
                f"{steps[latency, n]:.0f}",
                f"{min(row['accuracy'] for row in rows):.3f}",
                f"{times[latency, 1] / times[latency, n]:.2f}",
                f"{steps[latency, 1] / steps[latency, n]:.2f}",
            ]
            for (latency, n), rows in sorted(found.items())
        ],
    )
    if not arguments.no_plot:
        draw(found)
    points = [
        {
            "latency_ms": latency,
            "machines": n,
            "seconds": middle([row["seconds"] for row in rows]),
            "steps": middle([row["step"] for row in rows]),
            "accuracy": middle([row["accuracy"] for row in rows]),
        }
        for (latency, n), rows in sorted(found.items())
    ]
    report.end(shapes(times, steps), points=points)


if __name__ == "__main__":
    main()
