"""When will the metric be there: `forecast_curve` against a last value and a power law by least squares.

`python benchmarks/time_to_accuracy.py` prints JSON. Of each of the 200 curves of `learning_curves.py` a
quarter is shown, and two targets are asked for: a share, drawn, of what the rest gains, .2 to 1.25 of it.
Of 123 public curves, too, but only up to what they came to: most runs ended when they were good enough.
The prior is learnt from one half of the own families and the other half is scored, then the other way round;
public curves are scored by what all own ones teach. `--prior both` learns from public curves, too.
"""

from __future__ import annotations

import functools
import json
import math
import random
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from common import options, report
from learning_curves import FAMILIES, FILE

from trainmaster.advisor.model import learning_curve
from trainmaster.advisor.model.learning_curve import (
    LEAST_REPORTS,
    PRIOR,
    WIDE,
    CurvePrior,
    _Scale,
    forecast_curve,
    posterior_of,
)
from trainmaster.sweeps import Goal, Pruner, Trial, TrialState, pruner_class

PUBLIC = Path(__file__).parent / "replay" / "data" / "public_curves.json"
CUTS = (0.1, 0.25, 0.5)


def curves(file: Path = FILE) -> list[dict[str, Any]]:
    return json.loads(file.read_text())


def halves(some: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Every second family, so that each half has networks and trees, and of metrics each kind."""
    families = list(dict.fromkeys(curve["family"] for curve in some))
    return families[::2], families[1::2]


def more_is_better(curve: dict[str, Any]) -> bool:
    return curve["metric"] == "accuracy"


def targets(curve: dict[str, Any], shown: int, farthest: float, each: int = 2) -> list[float]:
    """That are not reached by what is shown; at most so much of what the rest gains."""
    rng = random.Random(f"{curve['family']} {curve['number']}")
    best = max if more_is_better(curve) else min
    now, end = best(curve["values"][:shown]), best(curve["values"])
    wanted = [now + rng.uniform(0.2, farthest) * (end - now) for _ in range(each)]
    return [aim for aim in wanted if best(aim, now) != now]


def truth(curve: dict[str, Any], aim: float) -> float:
    """Step at which it is reached; infinite if it is not."""
    sign = 1 if more_is_better(curve) else -1
    return next(
        (s for s, v in zip(curve["at"], curve["values"], strict=True) if sign * (v - aim) >= 0), math.inf
    )


def power_law(curve: dict[str, Any], shown: int, aim: float) -> tuple[float, float, float]:
    """p5, p50 and p95 of the step, by e = c + a s^-b; the interval from the linearised fit's covariance."""
    from scipy.optimize import curve_fit

    at, values = np.array(curve["at"][:shown], float), np.array(curve["values"][:shown])
    sign = -1 if more_is_better(curve) else 1
    unit = at[-1]

    def law(s: Any, c: float, a: float, b: float) -> Any:
        return c + sign * a * s**-b

    begin = (values[-1], abs(values[0] - values[-1]) + 1e-6, 0.5)
    try:
        found, covariance = curve_fit(
            law, at / unit, values, begin, bounds=([-np.inf, 0, 0.01], [np.inf, np.inf, 5]), maxfev=5000
        )
        drawn = np.random.default_rng(1).multivariate_normal(found, covariance, 400)
    except (RuntimeError, ValueError, np.linalg.LinAlgError):
        return (math.inf,) * 3

    def reached(c: Any, a: Any, b: Any) -> Any:
        with np.errstate(all="ignore"):
            s = (np.maximum(sign * (aim - c), 0) / np.maximum(a, 1e-12)) ** (-1 / np.clip(b, 0.01, 9))
        return unit * np.where(np.isfinite(s), np.maximum(s, 1), np.inf)

    p5, p95 = (float(q) for q in np.quantile(reached(*drawn.T), (0.05, 0.95), method="lower"))
    return p5, float(reached(*found)), p95


def learnt(some: list[dict[str, Any]], cuts: tuple[float, ...] = CUTS) -> CurvePrior:
    """The prior that whole curves teach, as they look from where a share of them is known."""
    form, theta, rises, weight = [], [], [], []
    for curve in some:
        at, values = np.array(curve["at"], float), np.array(curve["values"])
        scale = _Scale.of(values, values[-1], more_is_better=more_is_better(curve))
        found = posterior_of(at / at[-1], scale.left(values), WIDE, np.random.default_rng(3))
        some_of = np.random.default_rng(4).choice(len(found.weight), 300, p=found.weight)
        for cut in cuts:
            p = found.particles
            here = type(p)(p.form[some_of], p.theta[some_of].copy(), p.rises[some_of])
            level = here.log_shape(np.array([cut]))[:, 0]
            floor = np.exp(-np.log1p(np.exp(-here.theta[:, 2])) - level).clip(1e-4, 1 - 1e-4)
            here.theta[:, 0] -= math.log(cut)
            here.theta[:, 2] = np.log(floor / (1 - floor))
            here.theta[:, 3] += 1.5 * math.log(cut) - level
            form.append(here.form), theta.append(here.theta), rises.append(here.rises)
            weight.append(np.full(len(here.form), 1.0))
    form, theta, rises, weight = (np.concatenate(x) for x in (form, theta, rises, weight))
    means, spreads, weights = [], [], []
    for kind in range(3):
        w = weight * (form == kind)
        w_rise = w * rises
        mean = w @ theta / w.sum()
        sd = np.sqrt(w @ (theta - mean) ** 2 / w.sum())
        mean[3] = (w_rise @ theta[:, 3] + 30 * WIDE.means[kind][3]) / (w_rise.sum() + 30)
        sd[3] = math.sqrt(
            (w_rise @ (theta[:, 3] - mean[3]) ** 2 + 30 * WIDE.spreads[kind][3] ** 2) / (w_rise.sum() + 30)
        )
        weights.append(float(w.sum() / weight.sum()))
        means.append(tuple(round(float(x), 2) for x in mean))
        spreads.append(tuple(round(float(x), 2) for x in sd))
    return CurvePrior(
        (*(round(w, 2) for w in weights[:2]), round(1 - sum(round(w, 2) for w in weights[:2]), 2)),
        tuple(means),
        tuple(spreads),
        round(float(rises.mean()), 2),
    )


def scored(rows: list[dict[str, Any]], who: str) -> dict[str, Any]:
    """How one did."""
    reached = [row for row in rows if math.isfinite(row["truth"])]
    errors = [min(abs(row[who][1] / row["truth"] - 1), 9.0) for row in reached]
    left = [
        min(abs((row[who][1] - row["shown"]) / (row["truth"] - row["shown"]) - 1), 9.0) for row in reached
    ]
    inside = [row[who][0] <= row["truth"] <= row[who][2] for row in reached]
    open_ended = [row[who][2] > row["end"] for row in rows if not math.isfinite(row["truth"])]
    cap = [4 * row["end"] for row in reached]
    widths = [min(row[who][2], c) / min(row[who][0], c) for row, c in zip(reached, cap, strict=True)]
    scores = []
    for row in rows:  # interval score of log time, never is four times the curve
        most = 4 * row["end"]
        low, high = (math.log(min(row[who][n], most)) for n in (0, 2))
        true = (
            math.log(row["truth"])
            if math.isfinite(row["truth"])
            else max(min(high, math.log(most)), math.log(row["end"]))
        )
        scores.append(high - low + 20 * (max(low - true, 0) + max(true - high, 0)))
    return {
        "median_error": round(statistics.median(errors), 3),
        "median_error_of_what_is_left": round(statistics.median(left), 3),
        "within_25_percent": round(statistics.mean(e <= 0.25 for e in errors), 3),
        "coverage": round(statistics.mean([*inside, *open_ended]), 3),
        "coverage_reached": round(statistics.mean(inside), 3),
        "coverage_censored": round(statistics.mean(open_ended), 3) if open_ended else None,
        "median_p95_by_p5": round(statistics.median(widths), 2),
        "interval_score": round(statistics.mean(scores), 2),
    }


def swept(some: list[dict[str, Any]], pruner: Pruner, order: list[int]) -> tuple[float, float]:
    """Share of all reports that trials make side by side in twos, and what is missed of the best value."""
    trials, running, made = [Trial(n, {}) for n in range(len(some))], list[int](), 0
    waiting = list(order)[::-1]
    judged = [-math.inf] * len(some)
    while waiting or running:
        while waiting and len(running) < 2:
            running.append(waiting.pop())
        for n in tuple(running):
            values, curve = some[n]["values"], trials[n].curve
            step = len(curve) + 1
            curve.add(step, values[step - 1])
            made += 1
            is_over = step == len(values)
            others = trials[:n] + trials[n + 1 :]
            if is_over or pruner.verdict(trials[n], others, judged[n]):
                running.remove(n)
                state = TrialState.COMPLETE if is_over else TrialState.PRUNED
                trials[n] = Trial(n, {}, state, curve.values[-1], curve)
            judged[n] = step
    score = pruner.goal.score
    found = max(score(value) for trial in trials for value in trial.curve.values)
    best = max(score(value) for curve in some for value in curve["values"])
    worst = min(score(curve["values"][-1]) for curve in some)
    return made / sum(len(curve["values"]) for curve in some), (best - found) / (best - worst)


def sweeps(every: list[dict[str, Any]], priors: dict[str, CurvePrior], orders: int = 3) -> dict[str, Any]:
    """Pruners, each family a search of 20 trials in some orders; the prior is of the other families."""
    rows: dict[str, list[tuple[float, float]]] = {}
    asks = {
        "forecast": ("forecast", {}),
        "asha": ("asha", {}),
        "asha from 1/60": ("asha", {"min_steps": "1"}),
        **{f"halves from {n}/60": ("asha", {"min_steps": f"{n}", "reduction": "2"}) for n in (4, 8, 12)},
        "median": ("median", {}),
    }
    plain = learning_curve.forecast_curve
    for family in FAMILIES:
        some = [curve for curve in every if curve["family"] == family]
        goal = Goal.MAX if more_is_better(some[0]) else Goal.MIN
        learning_curve.forecast_curve = functools.partial(plain, prior=priors[family])
        for seed in range(orders):
            order = random.Random(seed).sample(range(len(some)), len(some))
            for label, (name, given) in asks.items():
                rows.setdefault(label, []).append(swept(some, pruner_class(name)(goal, given), order))
    learning_curve.forecast_curve = plain
    return {
        label: {
            "work": round(statistics.mean(work for work, _ in row), 3),
            "missed": round(statistics.mean(missed for _, missed in row), 4),
            "same_best": round(statistics.mean(missed < 1e-9 for _, missed in row), 2),
        }
        for label, row in rows.items()
    }


def asked(some: list[dict[str, Any]], share: int, priors: dict[str, CurvePrior]) -> list[dict[str, Any]]:
    """What each says of each target, and what came; public runs may have ended before the farthest ones."""
    rows = []
    for curve in some:
        shown = max(LEAST_REPORTS, -(-len(curve["at"]) * share // 100))
        for aim in targets(curve, shown, 1.0 if "source" in curve else 1.25):
            began = time.process_time()
            found = forecast_curve(
                curve["at"][:shown],
                curve["values"][:shown],
                aim,
                more_is_better=more_is_better(curve),
                prior=priors[curve["family"]],
            )
            rows.append(
                {
                    "family": curve["family"],
                    "truth": truth(curve, aim),
                    "shown": curve["at"][shown - 1],
                    "end": curve["at"][-1],
                    "cpu_s": time.process_time() - began,
                    "ours": tuple(found.quantile(q) for q in (0.05, 0.5, 0.95)),
                    "power law": power_law(curve, shown, aim),
                    "last value": (math.inf,) * 3,
                }
            )
    return rows


def judged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    families = dict.fromkeys(row["family"] for row in rows)
    return {
        "targets": len(rows),
        "reached": sum(math.isfinite(row["truth"]) for row in rows),
        **{who: scored(rows, who) for who in ("ours", "power law", "last value")},
        "families": {
            name: scored([row for row in rows if row["family"] == name], "ours") for name in families
        },
    }


def main() -> None:
    args = options(__doc__, share=25, prior="learnt")
    own, public = curves(), curves(PUBLIC)
    fixed = {"wide": WIDE, "shipped": PRIOR}.get(args.prior)
    is_both = args.prior == "both"
    priors = dict.fromkeys((curve["family"] for curve in public), fixed or learnt(own))
    for side in (0, 1):
        held, others = ({*halves(own)[n], *(halves(public)[n] if is_both else ())} for n in (side, 1 - side))
        teachers = [curve for curve in own + public if curve["family"] in others]
        priors |= dict.fromkeys(held, fixed or learnt(teachers))
    rows, public_rows = asked(own, args.share, priors), asked(public, args.share, priors)
    result: dict[str, Any] = {
        "curves": len(own),
        "public_curves": len(public),
        "cpu_ms_each": round(1000 * statistics.median(row["cpu_s"] for row in rows), 1),
        **judged(rows),
        "public": judged(public_rows),
        "sweeps": sweeps(own, priors),
        "prior_of_all": asdict(learnt(own + public if is_both else own)),
    }
    report("time_to_accuracy", result)


if __name__ == "__main__":
    main()
