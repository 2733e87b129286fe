"""Anwar et al. (2021): batch size x latency x machines, all-reduce on MNIST.

One gang of four t2.large in the lab; the latency between them is changed while it runs, and in each phase
every batch size is trained by 1, 2, 3 and 4 of them in turn. Steady seconds per step are measured, not whole
epochs; an epoch of the paper's table is 70 steps.
"""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from claims import Seen
from images import ROOT, mnist
from laboratory import Laboratory
from tables import COLORS, Report, best, falls, figure, keep, middle, options

STEPS_PER_EPOCH = 70
MACHINES = (1, 2, 3, 4)
#: Ours, and the paper's of the same work: about as many seconds per step on one machine.
BATCHES = {192: None, 1280: 192, 6400: 1280, 25600: 6400}
LATENCIES_MS = (0, 20, 60, 100)
RECIPE = """
name: anwar
code: code
experiments:
  train:
    framework: pytorch
    distributed: {{strategy: allreduce, workers: {workers}}}
    hardware: {{instance: t2.large}}
    command: python3 allreduce.py --batches {batches} --phases {phases} --steps {steps}
"""
CLAIMS = {
    "without latency and with the largest batch, four machines win": "769 s with 2, 419 s with 4 (64,000)",
    "with the smallest batch a single machine wins at any latency": "4 s with 1, 51 s with 2 at 100 ms (192)",
    "the more latency, the fewer machines win (each batch)": "4 at 0 ms, 3 from 20 ms on (64,000)",
    "the larger the batch, the more machines win (each latency)": "1, 3, 4 with 192, 1,280, 6,400 at 0 ms",
    "with small batches and the most latency, four machines are slower than two": "385 s with 4, 51 s with 2",
}
Key = tuple[int, int, int]  # batch, latency in ms, machines


def paper() -> dict[Key, float]:
    """Seconds per 70 steps. One machine was measured at 0 ms only, over 50 steps up to a batch of 6400."""
    found = {}
    with Path(ROOT, "src/trainmaster/advisor/papers/anwar.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if not row["time_per_epoch_s"]:
                continue
            batch, latency, machines = (int(row[name]) for name in ("batch_size", "latency_ms", "workers"))
            seconds = float(row["time_per_epoch_s"])
            if machines > 1:
                found[batch, latency, machines] = seconds
            else:
                for any_latency in (0, 20, 40, 60, 80, 100):
                    found[batch, any_latency, 1] = seconds * (1.4 if batch <= 6400 else 1)
    return found


def measured(batches: list[int], phases: list[int], steps: int) -> dict[Key, list[float]]:
    """Seconds of each step."""
    numbers = " ".join(map(str, batches))
    recipe = RECIPE.format(workers=len(MACHINES), batches=numbers, phases=len(phases), steps=steps)
    with Laboratory(cpu=0.125, network=0.125, files=[mnist()]) as lab:

        def listen(line: str) -> None:
            if "waiting for phase" in line:
                phase = int(line.split()[-1])
                lab.delay(phases[phase])
                lab.call("ssh", lab.run_id, "worker-0", "--", "touch", f"/tmp/phase-{phase}")

        done = lab.run(recipe, listen=listen)
    found: dict[Key, list[float]] = {}
    for row in done.reports["worker-0"]:
        key = row["batch"], phases[row["phase"]], row["machines"]
        found.setdefault(key, []).extend(json.loads(row["all_s"]))
    return found


def winners(epochs: dict[Key, float], batch: int, latency: int) -> list[int]:
    """Numbers of machines that are fastest, or cannot be told from the fastest."""
    return best({n: epochs[batch, latency, n] for n in MACHINES if (batch, latency, n) in epochs})


def seen(epochs: dict[Key, float], batches: list[int], latencies: list[int]) -> dict[str, Seen]:
    """What the paper concludes, tried on ours."""
    least, most = min(batches), max(batches)
    near, far = min(latencies), max(latencies)
    won = {(b, ms): winners(epochs, b, ms) for b in batches for ms in latencies}

    def winning(cells: list[tuple[int, int]]) -> str:
        return ", ".join(" or ".join(map(str, won[cell])) for cell in cells)

    def seconds(batch: int, latency: int, counts: Sequence[int]) -> str:
        return ", ".join(f"{epochs[batch, latency, n]:.0f} s with {n}" for n in counts)

    # The optimum moves: no number of machines is the best at the least and at the most latency.
    moving = [b for b in batches if not set(won[b, near]) & set(won[b, far])]
    at_once = [(b, near) for b in sorted(batches)]
    found = (
        Seen(
            4 in won[most, near],
            seconds(most, near, (1, 2, 4)) + f" ({most:,} images)",
            f"{winning([(most, near)])} won: four hosts need more cores than the machine has left",
        ),
        Seen(
            all(1 in won[least, ms] for ms in latencies),
            seconds(least, far, (1, 2)) + f" at {far} ms ({least})",
            "a step took one machine longer than two need to agree on it",
        ),
        Seen(
            bool(moving) and all(falls([won[b, ms] for ms in sorted(latencies)]) for b in batches),
            "; ".join(f"{winning([(b, ms) for ms in sorted(latencies)])} ({b:,})" for b in moving)
            + f" at {', '.join(map(str, sorted(latencies)))} ms",
            "at one latency more machines won than at a lower one, or with no batch fewer did",
        ),
        Seen(
            all(falls([won[b, ms] for b in sorted(batches, reverse=True)]) for ms in latencies),
            f"{winning(at_once)} with {', '.join(f'{b:,}' for b, _ in at_once)} images at {near} ms",
            "with one batch fewer machines won than with a smaller one: some were disturbed",
        ),
        Seen(
            epochs[least, far, 4] > epochs[least, far, 2],
            seconds(least, far, (2, 4)),
            "the delay did not come to the packets",
        ),
    )
    return dict(zip(CLAIMS, found, strict=True))


def draw(
    epochs: dict[Key, float], theirs: dict[Key, float], batches: list[int], latencies: list[int]
) -> None:
    """Ours above, the paper's of the same work below."""
    made, axes = figure(len(batches), 2)
    for column, batch in enumerate(batches):
        other = BATCHES[batch]
        for axis, times, which, whose in (
            (axes[0][column], epochs, batch, "lab"),
            (axes[1][column], theirs, other, "paper"),
        ):
            if which is None:
                axis.axis("off")
                continue
            for n, color in zip(MACHINES, COLORS, strict=False):
                points = sorted((ms, t) for (b, ms, m), t in times.items() if b == which and m == n)
                if whose == "paper" and n == 4:
                    points = [point for point in points if point[0] < 60]  # their fourth machine broke down
                axis.plot(*zip(*points, strict=True), "o-", color=color, markersize=3, label=f"{n}")
            axis.set_title(f"{whose}: batch {which}")
            axis.set_xlim(-5, max(LATENCIES_MS) + 5)
            axis.set_ylim(bottom=0)
            axis.set_xlabel("latency, ms each way")
    axes[0][0].set_ylabel(f"s per {STEPS_PER_EPOCH} steps")
    axes[1][1 if len(batches) > 2 else 0].set_ylabel(f"s per {STEPS_PER_EPOCH} steps")
    axes[0][0].legend(title="machines", frameon=False)
    keep(made, "anwar")


def main() -> None:
    arguments = options(__doc__ or "")
    report = Report("anwar", arguments.quick)
    # Quick: without the batch whose steps take seconds. Where the optimum moves at 20 ms is among the others.
    batches = list(BATCHES)[:-1] if arguments.quick else list(BATCHES)
    latencies = list(LATENCIES_MS[:-1] if arguments.quick else LATENCIES_MS)
    steps = measured(batches, latencies, steps=3 if arguments.quick else 4)
    epochs = {key: STEPS_PER_EPOCH * statistics.median(taken) for key, taken in steps.items()}
    theirs = paper()
    rows = []
    for batch in batches:
        for latency in latencies:
            other = BATCHES[batch]
            at = min((0, 20, 40, 60, 80, 100), key=lambda ms: abs(ms - latency))
            rows.append(
                [
                    batch,
                    latency,
                    *(f"{epochs[batch, latency, n]:.1f}" for n in MACHINES),
                    " ".join(map(str, winners(epochs, batch, latency))),
                    other or "",
                    *(f"{theirs[other, at, n]:.0f}" if other else "" for n in MACHINES),
                    " ".join(map(str, winners(theirs, other, at))) if other else "",
                ]
            )
    head = ["batch", "ms"] + [f"{n}" for n in MACHINES] + ["best"]
    report.table(
        "Seconds per 70 steps on 1 to 4 machines, and the paper's (p1 to p4; p4 is broken from 60 ms on)",
        [*head, "paper's batch", *(f"p{n}" for n in MACHINES), "p best"],
        rows,
    )
    if not arguments.no_plot:
        draw(epochs, theirs, batches, latencies)
    points = [
        {
            "batch": b,
            "latency_ms": ms,
            "machines": n,
            "step_s": middle(taken),
            "epoch_s": round(epochs[b, ms, n], 2),
        }
        for (b, ms, n), taken in sorted(steps.items())
    ]
    report.end(CLAIMS, seen(epochs, batches, latencies), points=points)


if __name__ == "__main__":
    main()
