"""Schedules of faults in simulated time: how many per second, what they reach, and that none fails."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from common import options, report

from trainmaster.spec.states import TRANSITIONS, EndReason
from trainmaster.testing.simulation import SimulationReport, simulate

PART = 500


def parts(schedules: int, first: int) -> Iterator[range]:
    """Seeds in portions that keep all processes busy to the end."""
    for start in range(first, first + schedules, PART):
        yield range(start, min(start + PART, first + schedules))


def coverage(seen: dict[str, int]) -> dict[str, Any]:
    """How often each transition and reason was reached, and which never were."""
    table = [f"{before}>{after}" for before, afters in TRANSITIONS.items() for after in afters]
    reasons = {reason: seen[f"DONE/{reason}"] + seen[f"rest/{reason}"] for reason in EndReason}
    return {
        "transitions": {step: seen[step] for step in sorted(table)},
        "end_reasons": {str(reason): number for reason, number in reasons.items()},
        "not_reached": sorted(step for step in table if not seen[step])
        + sorted(str(reason) for reason, number in reasons.items() if not number),
    }


def main() -> None:
    chosen = options(__doc__ or "", schedules=100_000, first=0, processes=len(os.sched_getaffinity(0)))
    total = SimulationReport()
    began = time.perf_counter()
    context = multiprocessing.get_context("fork")
    # Not a `Pool`: that one waits for ever when one of its processes is killed.
    with ProcessPoolExecutor(chosen.processes, context) as pool:
        for part in pool.map(simulate, parts(chosen.schedules, chosen.first)):
            total.schedules += part.schedules
            total.failures.update(part.failures)
            total.seen.update(part.seen)
    took = time.perf_counter() - began
    for seed, failure in sorted(total.failures.items())[:20]:
        print(f"seed {seed}: {failure}", file=sys.stderr)
    report(
        "simulation",
        {
            "schedules": total.schedules,
            "processes": chosen.processes,
            "seconds": round(took, 1),
            "schedules_per_s": round(total.schedules / took, 1),
            "schedules_per_s_and_process": round(total.schedules / took / chosen.processes, 1),
            "failures": len(total.failures),
            "failing_seeds": sorted(total.failures)[:20],
            **coverage(total.seen),
        },
    )
    sys.exit(1 if total.failures else 0)


if __name__ == "__main__":
    main()
