"""Replays everything and prints one JSON object; writes a plot and a table beside it.

python benchmarks/replay/run.py [--jobs 150] [--seed 1] [--half report] [--out benchmarks/out]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from baselines import BASELINES, with_interval
from published import HALVES
from published import cases as published_cases
from scenarios import all_scenarios
from scores import Scores
from splits import anwar, anwar_splits, machine_splits, regular

from trainmaster.advisor.model.shapes import Columns, Shapes
from trainmaster.advisor.model.steptime import StepTimeModel
from trainmaster.spec import Strategy

OURS = "trainmaster"
SURE = "trainmaster, 80 % sure"
WITHIN = 1.02


def predict(train, times, test):
    """Our median, low and high."""
    model = StepTimeModel.fit([replace(p, step_time_s=float(t)) for p, t in zip(train, times, strict=True)])
    answer = model.predict(test)
    return answer.typical, answer.low, answer.high


def all_methods(scores: dict[str, Scores], train, times, test, truth) -> None:
    """Let every method predict one split."""
    scores.setdefault(OURS, Scores()).add(truth, *predict(train, times, test))
    for name, method in BASELINES.items():
        scores.setdefault(name, Scores()).add(truth, *with_interval(method, train, times, test))


def replay_measured() -> dict[str, dict[str, Scores]]:
    """Anwar's data and this machine's."""
    splits = {name: [pair] for name, pair in anwar_splits().items()} | machine_splits()
    results: dict[str, dict[str, Scores]] = {}
    for name, pairs in splits.items():
        scores = results.setdefault(name, {})
        for data, split in pairs:
            for train, test in split(data):
                seen, asked = data.only(train), data.only(test)
                all_methods(scores, seen.points, seen.times, asked.points, asked.times)
    return results


def replay_simulated(jobs: int, seed: int) -> dict[str, dict[str, Scores]]:
    """Simulated jobs."""
    results: dict[str, dict[str, Scores]] = {}
    for name, cases in all_scenarios(jobs, seed).items():
        scores = results.setdefault(f"simulated {name}", {})
        for train, times, test, truth in cases:
            if test:
                all_methods(scores, train, times, test, truth)
    return results


def replay_published(which: str) -> dict[str, dict[str, Scores]]:
    """Published throughput tables, one half of the jobs."""
    results: dict[str, dict[str, Scores]] = {}
    for name, found in published_cases(which).items():
        scores = results.setdefault(name, {})
        for _job, (train, times, test, truth) in found:
            all_methods(scores, train, times, test, truth)
    return results


def regret_of_size() -> dict[str, dict[str, float]]:
    """Choosing the number of workers for a held-out cell (batch x latency) of Anwar's regular rows."""
    everything = anwar()
    data = everything.only(regular(everything))
    cells = sorted({(b, lat) for b, lat in zip(data.batch, data.latency, strict=True)})
    regrets: dict[str, list[float]] = {}
    for batch, latency in cells:
        test = (data.batch == batch) & (data.latency == latency)
        if test.sum() < 2:
            continue
        seen, asked = data.only(~test), data.only(test)
        for name in (OURS, *BASELINES):
            if name == OURS:
                median = predict(seen.points, seen.times, asked.points)[0]
            else:
                median = BASELINES[name](seen.points, seen.times, asked.points)
            regrets.setdefault(name, []).append(asked.times[int(np.argmin(median))] / asked.times.min() - 1)
    return {
        name: {
            "mean_regret_%": round(100 * float(np.mean(values)), 2),
            "misses_%": round(100 * float(np.mean(np.array(values) > WITHIN - 1)), 1),
        }
        for name, values in regrets.items()
    }


def picks(train, times, test) -> dict[str, int]:
    """What each method takes for the cheapest cluster with at least 80 % of the best throughput."""
    work = np.array([(p.local_batch or 1) * (p.workers if p.sync != Strategy.PS_ASYNC else 1) for p in test])
    price = prices(test)
    chosen = {}
    for method in (OURS, *BASELINES):
        answer = (predict if method == OURS else BASELINES[method])(train, times, test)
        speed = work / (answer[0] if method == OURS else answer)
        chosen[method] = int(np.argmin(np.where(speed >= 0.8 * speed.max(), price, np.inf)))
    model = StepTimeModel.fit([replace(p, step_time_s=float(t)) for p, t in zip(train, times, strict=True)])
    speeds = work / np.exp(model.samples(Shapes.of(Columns.of(test), model.context)))
    chance = (speeds >= 0.8 * speeds.max(axis=1, keepdims=True)).mean(axis=0)
    sure = chance >= 0.8
    chosen[SURE] = int(np.argmin(np.where(sure, price, np.inf))) if sure.any() else int(np.argmax(chance))
    return chosen


def prices(points) -> np.ndarray:
    """Machines, as many as there are workers and parameter servers."""
    return np.array([p.workers + (p.parameter_servers or 0) for p in points], float)


def regret_of_cost(jobs: int, seed: int, which: str) -> dict[str, dict[str, dict[str, float]]]:
    """The cheapest cluster with at least 80 % of the best throughput: simulated servers, published jobs."""
    named = {
        f"simulated {name}": list(found)
        for name, found in all_scenarios(jobs, seed).items()
        if "ps-" in name and "tenfold" in name
    } | {
        name: [case for _job, case in found]
        for name, found in published_cases(which).items()
        if "tenfold" in name or "several" in name or "2-4 rows" in name
    }
    out: dict[str, dict[str, dict[str, float]]] = {}
    for name, cases in named.items():
        regrets: dict[str, list[float]] = {}
        misses: dict[str, list[float]] = {}
        for train, times, test, truth in cases:
            price = prices(test)
            if len(set(price)) < 2:
                continue
            work = np.array(
                [(p.local_batch or 1) * (p.workers if p.sync != Strategy.PS_ASYNC else 1) for p in test]
            )
            enough = work / truth >= 0.8 * (work / truth).max()
            for method, pick in picks(train, times, test).items():
                misses.setdefault(method, []).append(float(not enough[pick]))
                if enough[pick]:
                    regrets.setdefault(method, []).append(price[pick] / price[enough].min() - 1)
        out[name] = {
            method: {
                "decisions": len(misses[method]),
                "mean_regret_of_hits_%": round(100 * float(np.mean(regrets.get(method, [np.nan]))), 2),
                "misses_%": round(100 * float(np.mean(misses[method])), 1),
            }
            for method in misses
        }
    return out


def fit_times() -> dict[str, float]:
    """Milliseconds of processor time per fit, best of 7."""
    data = anwar()
    out = {}
    for size in (4, 20, 113, 250):
        pick = np.random.default_rng(0).choice(len(data.points), size, replace=size > len(data.points))
        points = [data.points[i] for i in pick]
        seconds = []
        for _ in range(7):
            begin = time.thread_time()
            model = StepTimeModel.fit(points)
            fitted = time.thread_time()
            _ = model.draws
            seconds.append((fitted - begin, time.thread_time() - fitted))
        fit, draw = np.min(np.array(seconds), axis=0) * 1e3
        out[f"{size} points"] = {"fit_ms": round(float(fit), 1), "posterior_ms": round(float(draw), 1)}
    return out


def plot(splits: dict[str, dict[str, dict[str, float]]], path: Path) -> None:
    """Coverage against width, and the median errors, of each split: ours and the baselines."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "trainmaster", "svg.fonttype": "none"}
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 7.5), layout="constrained")
    marks = {OURS: ("o", "C0"), "nearest": ("v", "C1"), "ernest": ("s", "C2"), "forest": ("^", "C3")}
    rows = np.arange(len(splits))
    for offset, (method, (mark, colour)) in enumerate(marks.items()):
        found = [methods[method] for methods in splits.values()]
        style = {"marker": mark, "color": colour, "alpha": 0.75, "linestyle": "", "label": method}
        left.plot([s["p95/p50"] for s in found], [s["coverage"] for s in found], **style)
        right.plot([s["median"] for s in found], rows + 0.12 * offset, **style)
    left.axhspan(88, 92, color="C0", alpha=0.15)
    left.set(
        xscale="log", xlabel="width: p95 / p50", ylabel="coverage of the 90 % interval, %", ylim=(0, 102)
    )
    left.legend()
    right.set(xscale="log", xlabel="median error, %", yticks=rows, yticklabels=list(splits))
    right.tick_params(axis="y", labelsize=7)
    right.invert_yaxis()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Run all and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=150, help="simulated jobs per scenario")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--half", choices=HALVES, default="report", help="of the published jobs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results = (
        replay_measured() | replay_published(options.half) | replay_simulated(options.jobs, options.seed)
    )
    splits = {name: {m: s.summary() for m, s in scores.items()} for name, scores in results.items()}
    plot(splits, options.out / "replay.svg")
    answer = {
        "splits": splits,
        "regret_anwar_size": regret_of_size(),
        "regret_cost": regret_of_cost(options.jobs, options.seed, options.half),
        "fit": fit_times(),
    }
    text = json.dumps(answer, indent=1)
    (options.out / "replay.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
