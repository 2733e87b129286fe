"""Time to a fixed accuracy against machines: LeNet-5 on MNIST, all-reduce, without and with latency.

One gang of four t2.large in the lab; in each phase 1, 2 and 4 of them train from the same seed until 95 % of
2,000 test images are right. In the second phase packets between them arrive 20 ms later. Jorge et al. and
Anwar et al. give times at a fixed number of steps only; what more machines give until a fixed accuracy is
the question behind both.
"""

from __future__ import annotations

import statistics
from typing import Any

from claims import Seen
from images import mnist
from laboratory import Laboratory
from tables import COLORS, Report, best, figure, keep, middle, options

FAR_MS = 20
MACHINES = (1, 2, 4)
TARGET = 0.95
#: A training is given up after so long: one machine needs 20 s.
PATIENCE_S = 30.0
CLAIMS = {
    "without latency, more machines reach the accuracy sooner": "not measured there",
    "they need fewer steps, as their batch is larger": "not measured there",
    "but never so much fewer as they are more: a speed-up below four": "not measured there",
    f"with {FAR_MS} ms a single machine is at least as quick as four": "per step: 4 s, 28 s (Anwar)",
    "no accuracy is lost by more machines": "no loss seen (Anwar, section 8)",
}
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


def measured(phases: list[int]) -> dict[Key, list[dict[str, Any]]]:
    """What rank 0 reported of each training."""
    with Laboratory(cpu=0.125, network=0.125, files=[mnist()]) as lab:

        def listen(line: str) -> None:
            if "waiting for phase" in line:
                phase = int(line.split()[-1])
                lab.delay(phases[phase])
                lab.call("ssh", lab.run_id, "worker-0", "--", "touch", f"/tmp/phase-{phase}")

        recipe = RECIPE.format(target=TARGET, phases=len(phases), patience=PATIENCE_S)
        rows = lab.run(recipe, listen=listen).reports["worker-0"]
    found: dict[Key, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((phases[row["phase"]], row["machines"]), []).append(row)
    return found


def given_up(row: dict[str, Any]) -> bool:
    """Whether it ended without having reached the accuracy, which it says in single precision."""
    return bool(row["accuracy"] < TARGET - 1e-6)


def seen(
    times: dict[Key, float], steps: dict[Key, float], found: dict[Key, list[dict[str, Any]]]
) -> dict[str, Seen]:
    """What is to be expected of it; a training that was given up takes at least so long."""
    late = {key for key, rows in found.items() if any(map(given_up, rows))}
    fastest = best({n: times[0, n] for n in MACHINES})
    speed_up = times[0, 1] / times[0, 4]
    alike = {n: min(row["accuracy"] for row in found[0, n]) for n in MACHINES}

    def took(latency: int, counts: tuple[int, ...]) -> str:
        return ", ".join(
            f"{'over ' if (latency, n) in late else ''}{times[latency, n]:.1f} s with {n}" for n in counts
        )

    def answer(holds: bool, here: str, why: str, *needed: Key) -> Seen:
        is_late = bool(late.intersection(needed))
        not_there = f"a training had not reached {TARGET:.0%} after {PATIENCE_S:.0f} s"
        return Seen(holds and not is_late, here, not_there if is_late else why)

    answers = (
        answer(
            1 not in fastest and 4 in fastest,
            took(0, MACHINES),
            "four hosts have no more than one where the machine has no core to spare",
            (0, 4),
        ),
        answer(
            steps[0, 4] < steps[0, 1],
            ", ".join(f"{steps[0, n]:.0f} steps with {n}" for n in MACHINES),
            "the seed stays long on the plateau at which LeNet begins",
            (0, 1),
            (0, 4),
        ),
        answer(speed_up < 4, f"{speed_up:.2f} times as fast", "one machine was disturbed", (0, 1)),
        answer(
            1 in best({n: times[FAR_MS, n] for n in (1, 4)}),
            took(FAR_MS, (1, 4)),
            "agreeing over the delay took less time than three more machines saved",
            (FAR_MS, 1),
        ),
        answer(
            True,
            ", ".join(f"{one:.1%} with {n}" for n, one in alike.items()) + " of the test images",
            "",
            *((0, n) for n in MACHINES),
        ),
    )
    return dict(zip(CLAIMS, answers, strict=True))


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
    found = measured([0, FAR_MS])
    times = {key: statistics.median(row["seconds"] for row in rows) for key, rows in found.items()}
    steps = {key: statistics.median(row["step"] for row in rows) for key, rows in found.items()}
    report.table(
        f"Until {TARGET:.0%} of 2,000 test images are right (>: given up before); a batch of 128 per machine",
        ["ms", "machines", "s", "each", "steps", "accuracy", "speed-up", "of the steps alone"],
        [
            [
                latency,
                n,
                ("> " if any(map(given_up, rows)) else "") + f"{times[latency, n]:.1f}",
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
    report.end(CLAIMS, seen(times, steps, found), points=points)


if __name__ == "__main__":
    main()
