"""What a sampler costs: ask + tell per trial at 1,000 trials, and the first ask after a restart."""

from __future__ import annotations

import math
import random
import statistics
import time
from typing import Any

from common import options, report, spread

from trainmaster.spec import Parameter, Sampling
from trainmaster.sweeps import Curve, Goal, SearchSpace, Trial, TrialState, pruner_class, sampler_class

TARGET_MS = 20.0
SAMPLERS = ("random", "qmc", "tpe", "cmaes", "pbt")
PARAMETERS = {
    "lr": Parameter(range=("1e-5", "1e-1"), sampling=Sampling.LOG),
    "decay": Parameter(range=("0", "1")),
    "momentum": Parameter(range=("0.5", "0.99")),
    "depth": Parameter(range=("1", "32"), step="1"),
    "act": Parameter(values=("relu", "gelu", "tanh"), texts=("relu", "gelu", "tanh")),
}


def objective(values: Any) -> float:
    return (
        (math.log10(values["lr"]) + 3) ** 2
        + (values["decay"] - 0.3) ** 2
        + (values["momentum"] - 0.9) ** 2
        + ((values["depth"] - 8) / 8) ** 2
        + (values["act"] != "gelu")
    )


def search(name: str, trials: int, parallel: int, seed: int) -> dict[str, Any]:
    """One search, as a controller does it: each ask is told of the trial that has just ended."""
    space = SearchSpace(PARAMETERS, trials, seed)
    found = {"population": str(parallel)} if name == "pbt" else {}
    sampler = sampler_class(name)(space, Goal.MIN, found)
    history: list[Trial] = []
    wall_ms, cpu_ms = [], []
    for number in range(trials):
        ended = number - parallel
        while True:
            began, used = time.perf_counter(), time.thread_time()
            suggestion = sampler.ask(history, number)
            wall_ms.append(1000 * (time.perf_counter() - began))
            cpu_ms.append(1000 * (time.thread_time() - used))
            if suggestion is not None:
                break
            for at, trial in enumerate(history):  # a generation is over
                history[at] = Trial(at, trial.parameters, TrialState.COMPLETE, objective(trial.parameters))
        history.append(Trial(number, suggestion.parameters))
        if ended >= 0:
            values = history[ended].parameters
            history[ended] = Trial(ended, values, TrialState.COMPLETE, objective(values))
    began = time.perf_counter()
    sampler_class(name)(space, Goal.MIN, found).ask(history, trials - 1)
    restart_ms = 1000 * (time.perf_counter() - began)
    last = len(wall_ms) // 10
    return {
        "last_tenth_ms": spread(wall_ms[-last:]),
        "last_tenth_cpu_ms": spread(cpu_ms[-last:]),
        "mean_ms": round(statistics.fmean(wall_ms), 3),
        "after_restart_ms": round(restart_ms, 1),
        "best": min(trial.value for trial in history if trial.value is not None),
    }


def pruning(name: str, trials: int) -> float:
    """Milliseconds of one verdict against so many rivals of 100 steps each."""
    rng = random.Random(0)
    pruner = pruner_class(name)
    assert pruner is not None
    found = pruner(Goal.MIN, {})
    rivals = [
        Trial(n, {}, TrialState.COMPLETE, 0.0, Curve((step, rng.random() / step) for step in range(1, 101)))
        for n in range(trials)
    ]
    own = Trial(trials, {}, TrialState.RUNNING, None, Curve([(step, 0.001) for step in range(1, 51)]))
    began = time.perf_counter()
    for _ in range(20):
        found.verdict(own, rivals)
    return round(1000 * (time.perf_counter() - began) / 20, 3)


def main() -> None:
    chosen = options(__doc__ or "", trials=1000, parallel=4, seed=0)
    results = {name: search(name, chosen.trials, chosen.parallel, chosen.seed) for name in SAMPLERS}
    medians = {name: result["last_tenth_ms"]["median"] for name, result in results.items()}
    report(
        "search",
        {
            "trials": chosen.trials,
            "parallel": chosen.parallel,
            "target_ms": TARGET_MS,
            "ok": medians["tpe"] < TARGET_MS,
            "samplers": results,
            "verdict_ms": {name: pruning(name, chosen.trials) for name in ("asha", "hyperband", "median")},
        },
        {f"{name}, ask + tell": value for name, value in medians.items()},
        f"ms per trial at {chosen.trials} trials (target {TARGET_MS:g})",
    )


if __name__ == "__main__":
    main()
