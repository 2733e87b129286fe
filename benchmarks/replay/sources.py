"""Each source predicted by priors that were learnt without it, beside simple forms; prints Markdown.

python benchmarks/replay/sources.py [--simulated 50] [--every 1] [--shipped]

Priors are learnt as `experience.py` learns those of a home, from a start that was set by hand and from all
other sources: published tables, Anwar's data, this machine's, and simulators. One job counts by the root of
the number of its source's, a simulated one less. Every job counts the same in the answer.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from baselines import SIMPLE
from published import published
from scenarios import all_scenarios
from splits import anwar, this_machine

from trainmaster.advisor.model.measurement import Point
from trainmaster.advisor.model.shapes import KINDS, Columns
from trainmaster.spec import Strategy

#: Weight of a simulated source beside a real one, by kind.
SIMULATED = (0.5, 0.15, 0.3)
FEW = 4


@dataclass
class Case:
    """Rows of one job that are seen, and rows that are asked for."""

    split: str
    job: str
    source: str
    seen: list[Point]
    asked: list[Point]


def source_of(job: str) -> str:
    """Who measured it."""
    return job.split(" ")[0] if " " in job else job.split("-")[0]


def real_jobs() -> dict[str, list[Point]]:
    """All measured jobs."""
    jobs = dict(published())
    for latency in sorted({p.latency_ms for p in anwar().points}):
        jobs[f"anwar {latency}"] = [p for p in anwar().points if p.latency_ms == latency]
    jobs |= {f"here {name}": data.points for name, data in this_machine().items()}
    return jobs


def _size(p: Point) -> tuple[float, ...]:
    return (p.workers, p.parameter_servers or 0, p.local_batch or 0)


def real_cases(jobs: dict[str, list[Point]]) -> list[Case]:
    """What a user measures first, and what is asked for then."""
    found: list[Case] = []

    def add(split: str, job: str, seen: Sequence[Point], asked: Sequence[Point], least: int = 2) -> None:
        if len(seen) >= least and asked:
            found.append(Case(split, job, source_of(job), list(seen), list(asked)))

    for job, points in jobs.items():
        if " " in job:
            continue
        order = sorted(points, key=_size)
        if points[0].sync is not Strategy.ALLREDUCE:
            if points[0].sync is Strategy.PS_SYNC:
                add("real PS sync, 3 smallest -> larger", job, order[:3], order[3:])
            continue
        inside = [p for p in order if p.nodes == 1]
        most = max((p.workers for p in inside), default=0)
        first = [p for p in inside if p.workers <= 2]
        if {p.workers for p in first} == {1, 2}:
            add("real all-reduce, 1, 2 -> more in a node", job, first, [p for p in inside if p.workers > 2])
        fewer = [p for p in inside if p.workers < most]
        if fewer and max(p.workers for p in fewer) > 2:
            add("real all-reduce, fewer -> whole node", job, fewer, [p for p in inside if p.workers == most])
        several = [p for p in order if (p.nodes or 1) > 1]
        add("real all-reduce, one node -> several", job, inside, several)
        alone = [p for p in inside if p.workers == 1][:1]
        add("nothing rented, one worker -> several nodes", job, alone, several, 1)
        least = min((p.nodes or 1 for p in several), default=0)
        first = [p for p in several if p.nodes == least][:1]
        add(
            "real all-reduce, <= 4 points -> clusters",
            job,
            [*inside[:1], *inside[-2:], *first][-FEW:] if len(inside) > 1 else [*inside, *first],
            [p for p in several if (p.nodes or 1) > least],
        )
    return found


def simulated_cases(count: int, seed: int) -> list[Case]:
    """Of each simulator, all-reduce and servers."""
    found = []
    kinds = {
        "allreduce one-node": "1 node",
        "allreduce two-nodes": "1, 2 nodes",
        "ps-sync tenfold": "",
        "ps-async tenfold": "",
    }
    scenarios = all_scenarios(count, seed)
    for name, scenario in scenarios.items():
        simulator = name.split(" ")[0] if name.split(" ")[0] in ("pollux", "optimus") else "own"
        plain = name.removeprefix(f"{simulator} ")
        if plain not in kinds:
            continue
        for i, (train, times, test, truth) in enumerate(scenario):
            points = [
                [replace(p, step_time_s=float(t)) for p, t in zip(some, seconds, strict=True)]
                for some, seconds in ((train, times), (test, truth))
            ]
            sync = plain.split(" ")[0].replace("allreduce", "all-reduce").replace("ps-", "PS ")
            found.append(Case(f"simulated {sync}", f"sim {simulator} {i}", f"sim-{simulator}", *points))
    return found


def kind_of(points: Sequence[Point]) -> int:
    """Index into ``KINDS``."""
    return KINDS.index(points[0].sync)


def columns_of(points: Sequence[Point]):
    """As experience takes them."""
    return Columns.of(points), np.array([p.step_time_s for p in points], float)


def hand_set(kind: int):
    """Where learning starts: nothing but orders of magnitude."""
    from trainmaster.advisor.model import priors

    start = {
        "fixed": (-1.5, 1.3),
        "rho_in": (-2.8, 1.2),
        "hop_in": (-4.5, 1.3),
        "contend": (-4.0, 1.0),
        "knee": (-1.0, 1.2),
        "rho_out": (-1.2, 1.3),
        "crowd": (0.0, 0.2),
        "share": (0.1, 0.25),
        "hop_out": (-3.8, 1.4),
        "rounds": (0.0, 0.8),
        "straggle": (-4.0 if not kind else -3.5, 0.8),
        "overlap": (0.3, 0.9),
        "exposed": (-0.6, 0.9),
        "trips": (2.1, 1.3),  # from one round trip to those of a tensor each, a hundred
        "flat": (0.0, 1.0),
        "serve": (-2.5, 1.3),
        "queue": (0.4, 0.9),
        "pile": (0.0, 0.05),
        "shared": (-2.8, 1.0),
        "wire": (-2.5, 1.5),
        "fan": (-4.5, 1.3),  # as one more hop inside a node
    }
    ratios = {"fixed", "rho_in", "hop_in", "rho_out", "hop_out", "serve", "fan"}
    scarce = {"hop_in": 0.4, "contend": 0.4, "hop_out": 0.4, "crowd": 0.5, "share": 0.5} | {
        "straggle": 0.5,
        "pile": 0.5,
        "fan": 0.4,
        "shared": 0.3,
    }
    table = tuple(
        (
            name,
            *start[name],
            *((-0.3, 0.0, -1.0) if name in ratios else (0.0, 0.0, 0.0)),
            scarce.get(name, 0.0),
        )
        for name in priors.NAMES[kind][1:]
    )
    learnt = priors.Prior.of(table, priors.PEOPLE)
    return (learnt, *priors.shipped(kind)[1:])


def learnt_without(source: str, jobs: dict[str, list[Point]], simulated: list[Case]):
    """Priors by kind of job, from all other sources."""
    from trainmaster.advisor.model.experience import EmpiricalPriors
    from trainmaster.advisor.model.priors import doubted

    found = {}
    for kind in range(len(KINDS)):
        named = [(source_of(job), points) for job, points in jobs.items() if kind_of(points) == kind]
        named += [(c.source, c.seen + c.asked) for c in simulated if kind_of(c.seen) == kind]
        named = [(name, points) for name, points in named if name != source and len(points) > 2]
        counts = {name: sum(one == name for one, _ in named) for name, _ in named}
        weight = np.array(
            [(SIMULATED[kind] if name.startswith("sim") else 1.0) / counts[name] ** 0.5 for name, _ in named]
        )
        weight /= weight.mean()
        learnt = EmpiricalPriors.of(
            [columns_of(p) for _, p in named], hand_set(kind), weight, rounds=4, pseudo=8.0
        ).priors(np.ones(len(named)))
        found[kind] = tuple(replace(prior, grid=doubted(prior.grid)) for prior in learnt)
    return found


class EmpiricalPriors:
    """What `StepTimeModel.fit` asks of an experience."""

    def __init__(self, found) -> None:
        self._found = found

    def priors(self, kind: int):
        """Of that kind."""
        return self._found[kind]


def ours(case: Case, experience):
    """Typical, low, high."""
    from trainmaster.advisor.model.steptime import StepTimeModel

    model = (
        StepTimeModel.fit(case.seen, experience=experience) if experience else StepTimeModel.fit(case.seen)
    )
    answer = model.predict([replace(p, step_time_s=None) for p in case.asked])
    return answer.typical, answer.low, answer.high


def summary(rows) -> dict[str, float]:
    """Of (job, truth, typical, low, high): every job counts the same."""
    error, cover, score, width = [], [], [], []
    for truth, typical, low, high in rows:
        y, a, b = np.log(truth), np.log(low), np.log(high)
        error.append(100 * np.mean(np.abs(typical / truth - 1)))
        cover.append(np.mean((y >= a) & (y <= b)))
        score.append(np.mean(b - a + 20 * (np.maximum(a - y, 0) + np.maximum(y - b, 0))))
        width.append(np.mean(b - a))
    return {
        "jobs": len(rows),
        "mean": float(np.mean(error)),
        "median": float(np.median(error)),
        "coverage": float(np.mean(cover)),
        "width": float(np.exp(np.median(width))),
        "score": float(np.mean(score)),
    }


def doublings(case: Case) -> np.ndarray:
    """How far each asked row is from the largest that was seen."""
    most = max(p.workers for p in case.seen)
    return np.array([max(0, round(np.log2(p.workers / most))) for p in case.asked])


def main() -> None:
    """Print Markdown and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulated", type=int, default=50, help="jobs of each scenario")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--every", type=int, default=1, help="only each so many-th case")
    parser.add_argument("--shipped", action="store_true", help="the shipped priors, which know every source")
    parser.add_argument("--plain", action="store_true", help="no simple forms")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    jobs, simulated = real_jobs(), simulated_cases(options.simulated, options.seed)
    teachers = simulated_cases(25, options.seed + 1)
    cases = [*real_cases(jobs), *simulated]
    learnt: dict[str, object] = {}
    rows: dict[tuple[str, str], list] = {}
    far: dict[tuple[str, int], list] = {}
    begin = time.process_time()
    for case in cases[:: options.every]:
        if not options.shipped and case.source not in learnt:
            learnt[case.source] = EmpiricalPriors(learnt_without(case.source, jobs, teachers))
        truth = np.array([p.step_time_s for p in case.asked])
        groups = [case.split]
        if case.split.startswith("real all-reduce"):
            groups.append("all real all-reduce")
        methods = {"trainmaster": lambda c: ours(c, learnt.get(c.source))}
        if not options.plain:
            methods |= SIMPLE
        for name, method in methods.items():
            found = (
                truth,
                *(
                    method(case)
                    if name == "trainmaster"
                    else method(case.seen, np.array([p.step_time_s for p in case.seen]), case.asked)
                ),
            )
            for group in groups:
                rows.setdefault((group, name), []).append(found)
            if name == "trainmaster":
                inside = (truth >= found[2]) & (truth <= found[3])
                for at, good in zip(doublings(case), inside, strict=True):
                    far.setdefault((groups[-1].split(",")[0], int(at)), []).append(good)
    print(f"{time.process_time() - begin:.0f} s of processor time")
    print("| split (jobs) | method | mean, median % | coverage | p95/p5 | score |\n|---|---|---|---|---|---|")
    found = {}
    for (group, name), some in sorted(rows.items()):
        s = summary(some)
        found[f"{group}: {name}"] = s
        print(
            f"| {group} ({s['jobs']}) | {name} | {s['mean']:.1f}, {s['median']:.1f} | {s['coverage']:.2f} "
            f"| {s['width']:.2f} | {s['score']:.2f} |"
        )
    print("coverage by doublings beyond the largest that was seen:")
    for group in sorted({group for group, _ in far}):
        print(
            group,
            {at: (round(float(np.mean(v)), 2), len(v)) for (g, at), v in sorted(far.items()) if g == group},
        )
    if options.out:
        options.out.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
