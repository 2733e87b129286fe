"""How good binding quotes of sweeps with a pruner are: real samplers and pruners on made-up curves.

`python benchmarks/sweep_quotes.py --first 9000 --seeds 5` simulates sweeps of four kinds of objectives, 8 to
64 trials on 1 to 8 slots. Of each, what a forecast says after two fifths of a whole trial is compared with
what it takes. Beside it stands the simple form: it knows only which share of all steps a pruner leaves.
`--at 0` asks before it begins.
"""

from __future__ import annotations

import heapq
import json
import math
import random
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, options, report

sys.path.append(str(ROOT / "tests" / "unit" / "advisor"))  # a market of one machine
from quote_world import knowledge, measured, own_machine, workload

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.market.workload import Length
from trainmaster.advisor.quote.forecast import ExperimentProgress, RunningTask, remaining_s
from trainmaster.advisor.quote.timing import DRAWS, Timing
from trainmaster.service.quotes.worker_counts import workload_of
from trainmaster.spec import Parameter, read_recipe
from trainmaster.spec.hardware import Hardware
from trainmaster.sweeps import Goal, SearchSpace, Trial, TrialState, pruner_class, sampler_class

STEPS, STEP_S, START_S = 81, 1.0, 5.0
KINDS = ("same curve", "curves of their own", "slow where small", "another optimum at first")
SIZES = ((8, 1), (8, 4), (16, 1), (16, 4), (24, 2), (32, 4), (48, 8), (64, 2), (64, 8))
GRIDS = {8: (2, 4), 16: (4, 4), 24: (4, 6), 32: (4, 8), 48: (6, 8), 64: (8, 8)}
#: Of the simple form: how much the share that is left differs (log).
SPREAD = 0.35


@dataclass(frozen=True)
class Case:
    """A sweep, but for its seed and the kind of its curves. at_once: slots."""

    pruner: str
    sampler: str
    trials: int
    at_once: int


@dataclass
class Played:
    """What has happened in one: when trials began and ended, and (seconds, trial, step) of each report."""

    begun: dict[int, float] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    reports: list[tuple[float, int, int]] = field(default_factory=list)


class Objective:
    """A loss by parameters between 0 and 1 and by step, with a noise that may be none."""

    def __init__(self, kind: str, names: str, rng: random.Random) -> None:
        self.kind, self.rng = kind, rng
        self.best, self.first = ({name: rng.random() for name in names} for _ in range(2))
        weights = {name: rng.lognormvariate(0, 0.7) for name in names}
        self.weights = {name: value / sum(weights.values()) for name, value in weights.items()}
        self.height, self.power = math.exp(rng.uniform(math.log(0.1), math.log(3))), rng.uniform(0.4, 1.1)
        self.noise = rng.choice((0, 0.01, 0.03))

    def curve(self, at: dict[str, float]) -> Callable[[int], float]:
        """Of one trial."""

        def far(best: dict[str, float]) -> float:
            return 3 * sum(self.weights[name] * (at[name] - best[name]) ** 2 for name in best)

        rng, end, first = self.rng, far(self.best), far(self.first)
        height, power = self.height, self.power
        if self.kind == KINDS[1]:
            height, power = height * rng.lognormvariate(0, 0.5), power * rng.lognormvariate(0, 0.3)
        slow = 0.03 * STEPS * 10 ** (1.5 * (1 - at["a"]))

        def value(step: int) -> float:
            falling = height * (math.exp(-step / slow) if self.kind == KINDS[2] else step**-power)
            bend = max(0.0, 1 - step / (0.4 * STEPS)) * (first - end) if self.kind == KINDS[3] else 0.0
            return end + falling + bend + self.noise * rng.gauss(0, 1)

        return value


def parameters(case: Case) -> dict[str, Parameter]:
    """Two of a grid, or three of a range."""
    if case.sampler != "grid":
        return {name: Parameter(range=("0", "1")) for name in "abc"}
    sizes = zip("ab", GRIDS[case.trials], strict=True)
    return {
        name: Parameter(values=tuple(range(many)), texts=tuple(map(str, range(many)))) for name, many in sizes
    }


def play(case: Case, kind: str, seed: int) -> Played:
    """The whole sweep, with its own sampler and pruner."""
    space = SearchSpace(parameters(case), case.trials, seed)
    scale = (
        dict(zip("ab", (many - 1 for many in GRIDS[case.trials]), strict=True))
        if case.sampler == "grid"
        else {}
    )
    names = "ab" if scale else "abc"
    objective = Objective(kind, names, random.Random(f"{kind}{seed}{case.sampler}{case.trials}"))
    learns = case.sampler not in ("random", "grid")
    sampler = sampler_class(case.sampler)(space, Goal.MIN, {}) if learns else None
    pruner = pruner_class(case.pruner)(Goal.MIN, {})
    found, trials, curves, judged = Played(), list[Trial](), list[Callable[[int], float]](), list[float]()
    coming: list[tuple[float, int, int]] = []

    def begin(now: float) -> None:
        if (number := len(trials)) == case.trials:
            return
        drawn: Any = sampler.ask(trials, number).parameters if sampler else space.draw(number)
        trials.append(Trial(number, drawn))
        curves.append(objective.curve({name: drawn[name] / scale.get(name, 1) for name in names}))
        judged.append(-math.inf)
        found.begun[number] = now
        heapq.heappush(coming, (now + START_S + STEP_S, number, 1))

    for _ in range(case.at_once):
        begin(0.0)
    while coming:
        now, number, step = heapq.heappop(coming)
        trial = trials[number]
        trial.curve.add(step, curves[number](step))
        found.reports.append((now, number, step))
        state = TrialState.COMPLETE
        if step < STEPS:
            others = trials[:number] + trials[number + 1 :]
            state = TrialState.PRUNED if pruner.verdict(trial, others, judged[number]) else TrialState.RUNNING
        judged[number] = step
        if state is TrialState.RUNNING:
            heapq.heappush(coming, (now + STEP_S, number, step + 1))
            continue
        trials[number] = Trial(number, trial.parameters, state, trial.curve.values[-1], trial.curve)
        found.ended[number] = now
        begin(now)
    return found


def timings(case: Case) -> tuple[Candidates, dict[str, Timing]]:
    """The cluster of a quote, and its times by play and by the simple form."""
    search = {"metric": "loss", "goal": "min", "sampler": case.sampler, "pruner": case.pruner}
    experiment: dict[str, Any] = {"command": "true", "steps": STEPS, "search": search}
    if case.sampler == "grid":
        sizes = zip("ab", GRIDS[case.trials], strict=True)
        experiment["parameters"] = {name: list(range(many)) for name, many in sizes}
    else:
        experiment |= {"parameters": {name: {"range": "0-1"} for name in "abc"}, "samples": case.trials}
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder, "recipe.yaml")).write_text(
            json.dumps({"name": "sweep", "experiments": {"main": experiment}})
        )
        known = workload_of(read_recipe(path).experiments["main"], 0, at_once=case.at_once)
    one = replace(
        workload(most=1, tasks=case.trials, hardware=Hardware()),
        trained=known.trained,
        simulated_shares=known.simulated_shares,
    )
    one.lengths[1] = Length(STEPS, 1, 256)
    share = statistics.mean(map(statistics.mean, known.simulated_shares)) if known.simulated_shares else 1.0
    doubts = [math.exp(SPREAD * statistics.NormalDist().inv_cdf((i + 0.5) / 33)) for i in range(33)]
    simple = replace(one, trained=lambda *_: [min(share * each, 1.0) for each in doubts], simulated_shares=())
    market = own_machine(case.at_once)
    machines = Machines.of(market.catalogue.columns(), np.full(1, float(case.at_once)))
    exact = {"step_spread": 0.03, "warmup_s": 0.0, "rare_share": 0.0, "pause_s": 0.0}
    seen = measured(1, 256, offer="local", tail_s=0.01)
    seen = replace(seen, point=replace(seen.point, step_time_s=STEP_S), startup_s=START_S, **exact)
    of = (knowledge(seen), machines, machines[:0], market.catalogue.offers)
    candidates = Candidates.of(one, machines, machines[:0], case.at_once)
    cluster = candidates[np.array([int(candidates.at_once.argmax())])]
    return cluster, {
        name: Timing(each, *of, own_machine=True) for name, each in (("ours", one), ("simple", simple))
    }


def doing_at(seen_s: float, played: Played) -> ExperimentProgress:
    """What a driver knows then."""
    last = {number: step for at, number, step in played.reports if at <= seen_s}
    begun = {number: at for number, at in played.begun.items() if at <= seen_s}
    over = {number for number in begun if played.ended[number] <= seen_s}
    running = (
        RunningTask(seen_s - at, last.get(number, 0) / STEPS or None, number=number)
        for number, at in begun.items()
        if number not in over
    )
    return ExperimentProgress(len(over), tuple(running))


def judged(
    pruner: str, sampler: str, seeds: range, at: float
) -> Iterator[tuple[str, bool, bool, float, float]]:
    """By sweep and form: whether it is kept and inside, p95/p50, and the interval score of logarithms."""
    seen_s = at and START_S + at * STEPS * STEP_S
    doubt = np.exp(0.06 * np.random.default_rng(6).standard_normal(DRAWS))
    for trials, at_once in SIZES:
        case = Case(pruner, sampler, trials, at_once)
        cluster, forms = timings(case)
        for kind, seed in product(KINDS, seeds):
            played = play(case, kind, seed)
            speed = random.Random(f"{case}{kind}{seed}").lognormvariate(
                0, 0.06
            )  # it differs from what was measured
            truth_s = seen_s + (max(played.ended.values()) - seen_s) * speed
            doing = doing_at(seen_s, played) if at else ExperimentProgress()
            for form, timing in forms.items():
                left = remaining_s(timing, cluster, doing) * doubt
                low, middle, high = np.log(np.quantile(left + seen_s, (0.05, 0.5, 0.95)))
                truth = math.log(truth_s)
                score = high - low + 20 * max(low - truth, 0) + 20 * max(truth - high, 0)
                yield (
                    form,
                    bool(truth <= high),
                    bool(low <= truth <= high),
                    math.exp(high - middle),
                    float(score),
                )


def main() -> None:
    """Print one line of JSON: by pruner and sampler, and of all."""
    asked = options(
        __doc__ or "",
        first=0,
        seeds=5,
        at=0.4,
        pruners="median,asha,hyperband",
        samplers="random,grid,tpe,cmaes",
    )
    rows = defaultdict[str, defaultdict[str, list[tuple[bool, bool, float, float]]]](
        lambda: defaultdict(list)
    )
    for pruner, sampler in product(asked.pruners.split(","), asked.samplers.split(",")):
        for form, *row in judged(pruner, sampler, range(asked.first, asked.first + asked.seeds), asked.at):
            for name in (f"{pruner} {sampler}", "all"):
                rows[name][form].append(tuple(row))
        print(f"{pruner} {sampler}", file=sys.stderr, flush=True)
    by = {
        name: {
            form: {
                "sweeps": len(found),
                "kept": round(statistics.mean(each[0] for each in found), 3),
                "inside": round(statistics.mean(each[1] for each in found), 3),
                "p95_over_p50": round(statistics.median(each[2] for each in found), 2),
                "score": round(statistics.mean(each[3] for each in found), 3),
            }
            for form, found in forms.items()
        }
        for name, forms in rows.items()
    }
    report("sweep_quotes", {"first": asked.first, "at": asked.at, "by": by})


if __name__ == "__main__":
    main()
