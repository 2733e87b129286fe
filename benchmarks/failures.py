"""Schedules of everything that acts on time and all that may go wrong with it: that none fails.

With ``--sabotage NAME`` (or ``all``) a mistake that was once in the code is put back: after how many
schedules is it found?
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from common import options, report

from trainmaster.testing.failures import simulate
from trainmaster.testing.sabotages import SABOTAGES, found_after
from trainmaster.testing.simulation import SimulationReport

PART = 250
#: A mistake that is not found after so many schedules is not found.
MOST = 2_000


def main() -> None:
    chosen = options(
        __doc__ or "", schedules=100_000, first=0, processes=len(os.sched_getaffinity(0)), sabotage=""
    )
    # Not a `Pool`: that one waits for ever when one of its processes is killed.
    with ProcessPoolExecutor(chosen.processes, multiprocessing.get_context("fork")) as pool:
        if chosen.sabotage:
            names = list(SABOTAGES) if chosen.sabotage == "all" else [chosen.sabotage]
            after = dict(zip(names, pool.map(found_after, names, [MOST] * len(names)), strict=True))
            report(
                "failures", {"found_after_schedules": after, "what": {n: SABOTAGES[n].words for n in names}}
            )
            sys.exit(0 if all(after.values()) else 1)
        total, began = SimulationReport(), time.perf_counter()
        ends = chosen.first + chosen.schedules
        parts = (range(first, min(first + PART, ends)) for first in range(chosen.first, ends, PART))
        for part in pool.map(simulate, parts):
            total.schedules += part.schedules
            total.failures.update(part.failures)
            total.seen.update(part.seen)
    took = time.perf_counter() - began
    for seed, failure in sorted(total.failures.items())[:20]:
        print(f"seed {seed}: {failure}", file=sys.stderr)
    report(
        "failures",
        {
            "schedules": total.schedules,
            "processes": chosen.processes,
            "seconds": round(took, 1),
            "schedules_per_s": round(total.schedules / took, 1),
            "failures": len(total.failures),
            "failing_seeds": sorted(total.failures)[:20],
            "seen": dict(sorted(total.seen.items())),
        },
    )
    sys.exit(1 if total.failures else 0)


if __name__ == "__main__":
    main()
