"""What the global batch changes of the steps to a target: `target_belief` against trainings with 32 to 1,024.

`python benchmarks/batch_steps.py` makes what is missing of `data/batch_steps.json` (ten minutes of one core)
and prints JSON: per job and rule the critical batch that its steps have, the noise scale of its gradients,
and how far steps at other batches are foretold from some.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import learning_curves
import numpy as np
from common import report
from learning_curves import digits, mnist, network, training

from trainmaster.advisor.model.measurement import ObservedCurve
from trainmaster.advisor.model.target_steps import target_belief

FILE = Path(__file__).resolve().parent / "data" / "batch_steps.json"
BATCHES = (32, 64, 128, 256, 512, 1024)
#: Data, network, metric, the value to come to, and the most steps.
JOBS = {
    "digits-linear": (digits, "linear", "accuracy", 0.94, 3000),
    "digits-mlp": (digits, "mlp", "accuracy", 0.96, 3000),
    "mnist-linear": (mnist, "linear", "accuracy", 0.88, 3000),
}
#: The rate at a batch of 32, and what it is with another: as it was, in proportion, with its root by Adam.
RULES = {"kept": ("momentum", 0.1, 0.0), "scaled": ("momentum", 0.1, 1.0), "adam": ("adam", 0.1, 0.5)}
#: And the best of these: what McCandlish's law is of.
RATES = (0.1, 0.3, 1.0, 3.0)
SEEDS = 3


def steps_to(job: str, optimizer: str, rate: float, batch: int, seed: int) -> tuple[float, list[list[float]]]:
    """Steps until it has come to its target, infinite if it does not; and its reports until then."""
    data, kind, metric, aim, most = JOBS[job]
    chosen = {"lr": rate, "batch": batch, "width": 16, "optimizer": optimizer, "steps": most}
    points: list[list[float]] = []
    for step, value in training(data(), kind, metric, chosen, seed):
        points.append([step, round(value, 4)])
        if value >= aim:
            return float(step), points
    return math.inf, points


def noise_scale(job: str) -> float:
    """``tr(Sigma) / |G|^2`` of the gradients on the way, by batches of 16 and 512 (McCandlish, A.1)."""
    import torch
    from torch.nn import functional

    data, kind, _, _, _ = JOBS[job]
    torch.manual_seed(1)
    images, labels, *_ = (torch.from_numpy(np.ascontiguousarray(a)) for a in data())
    model = network(kind, images.shape[1], 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def gradient(batch: int) -> Any:
        at = torch.randint(len(images), (batch,))
        optimizer.zero_grad()
        functional.cross_entropy(model(images[at]), labels[at].long()).backward()
        return torch.cat([each.grad.ravel() for each in model.parameters()])

    noise, signal = 0.0, 0.0
    for step in range(300):
        if step % 20 == 10:
            for _ in range(10):
                small, big = (float((gradient(size) ** 2).sum()) for size in (16, 512))
                signal += (512 * big - 16 * small) / (512 - 16)
                noise += (small - big) / (1 / 16 - 1 / 512)
        gradient(64)
        optimizer.step()
    return noise / signal


def made() -> dict[str, Any]:
    """All trainings; those that are missing are made."""
    learning_curves.REPORTS = 300
    known: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    rows = [(job, rule, *RULES[rule]) for job, rule in itertools.product(JOBS, RULES)]
    rows += [(job, f"best {rate}", "momentum", rate, 0.0) for job, rate in itertools.product(JOBS, RATES)]
    for (job, rule, optimizer, rate, power), batch in itertools.product(rows, BATCHES):
        for seed in range(SEEDS):
            key = f"{job}, {rule}, {batch}, {seed}"
            if key not in known:
                steps, points = steps_to(job, optimizer, rate * (batch / 32) ** power, batch, seed)
                shown = points if rule in RULES and batch <= 128 else []
                known[key] = {"steps": steps if steps < math.inf else None, "points": shown}
                FILE.write_text(json.dumps(known, separators=(",", ":")))
    for job in JOBS:
        if f"{job}, noise" not in known:
            known[f"{job}, noise"] = noise_scale(job)
            FILE.write_text(json.dumps(known, separators=(",", ":")))
    return known


def table(known: dict[str, Any], job: str, rule: str) -> dict[int, list[float]]:
    """Steps of each batch, by seed; of the best rate, where that is asked for."""

    def of(name: str, batch: int) -> list[float]:
        found = [known[f"{job}, {name}, {batch}, {seed}"]["steps"] for seed in range(SEEDS)]
        return [math.inf if each is None else each for each in found]

    if rule != "best":
        return {batch: of(rule, batch) for batch in BATCHES}
    return {b: min((of(f"best {rate}", b) for rate in RATES), key=statistics.median) for b in BATCHES}


def fitted(steps: dict[int, list[float]]) -> tuple[float, float]:
    """Critical batch of what was seen, by least squares of logarithms, and how far it is off (log)."""
    logs = {b: [math.log(s) for s in some if s < math.inf] for b, some in steps.items()}
    best = (math.inf, 0.0)
    for critical in (0.0, *np.exp(np.linspace(math.log(4), math.log(60000), 200))):
        rest = np.array([each - math.log1p(critical / b) for b, some in logs.items() for each in some])
        best = min(best, (float(np.std(rest)), float(critical)))
    return best[1], best[0]


def scored(
    steps: dict[int, list[float]], seen: tuple[int, ...], noise: float | None = None
) -> Iterator[tuple[float, bool, float]]:
    """Error, whether the interval of 90 % has it, and its width (p95 / p5), of each batch not seen.

    Args:
        steps: of each batch, by seed.
        seen: batches that are known.
        noise: noise scale of the gradients; None: not measured.
    """
    curves = [
        ObservedCurve(
            "accuracy", ((steps[b][n] * 0.98, 0.0), (steps[b][n], 1.0)), float(b), noise=noise and noise / b
        )
        for b in seen
        for n in range(len(steps[b]))
        if steps[b][n] < math.inf
    ]
    found = target_belief(curves, "accuracy", 1.0, more_is_better=True, batch=float(seen[-1]))
    for batch in (b for b in steps if b not in seen):
        truth = [s for s in steps[batch] if s < math.inf]
        if found is None or not truth:
            continue
        p5, p50, p95 = np.quantile(found.steps(np.array([float(batch)])), (0.05, 0.5, 0.95), method="lower")
        for each in truth:
            yield float(p50) / each - 1, bool(p5 <= each <= p95), float(p95 / p5)


def main() -> None:
    known = made()
    rows, scores = {}, {}
    for job, rule in itertools.product(JOBS, (*RULES, "best")):
        steps = table(known, job, rule)
        critical, off = fitted(steps)
        rows[f"{job}, {rule}"] = {
            "steps": {
                b: round(statistics.median(s)) if statistics.median(s) < math.inf else None
                for b, s in steps.items()
            },
            "critical": round(critical),
            "off": round(off, 3),
            "noise": round(known[f"{job}, noise"]),
            "spread of seeds": round(
                statistics.mean(
                    statistics.pstdev(map(math.log, s)) for s in steps.values() if max(s) < math.inf
                ),
                3,
            ),
        }
    for seen, has_noise in (
        ((64,), False),
        ((64,), True),
        ((32, 64), False),
        ((64, 256), False),
        ((32, 128, 512), False),
    ):
        all_of = [
            each
            for job, rule in itertools.product(JOBS, RULES)
            for each in scored(table(known, job, rule), seen, known[f"{job}, noise"] if has_noise else None)
        ]
        scores[f"{seen}{' and noise' if has_noise else ''}"] = {
            "median error": round(statistics.median(abs(e) for e, _, _ in all_of), 3),
            "coverage": round(statistics.mean(held for _, held, _ in all_of), 3),
            "median p95/p5": round(statistics.median(w for *_, w in all_of), 2),
            "asked": len(all_of),
        }
    report("batch_steps", {"jobs": rows, "scores": scores})


if __name__ == "__main__":
    main()
