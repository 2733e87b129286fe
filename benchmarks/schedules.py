"""Seeded random schedules of faults in the lab: how many runs end well with nothing left over.

``python benchmarks/schedules.py [--count 50] [--first 0] [--minutes 0]``: each is a run of a gang whose
machines are terminated, interrupted, frozen and cut off, and whose driver is killed
(`tests/integration/lab/test_lab_schedules.py`). With ``--minutes``
no schedule is begun after that time. Needs root.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from common import ROOT, options, report


def run(seed: int) -> tuple[bool, str]:
    """One schedule; whether it ended well, and the last lines of what was said if not."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "crossings",
        "--reruns",
        "0",
        "tests/integration/lab/test_lab_schedules.py",
    ]
    env = {**os.environ, "TRAINMASTER_SCHEDULE": str(seed)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    return done.returncode == 0, "" if done.returncode == 0 else done.stdout[-2000:]


def main() -> None:
    chosen = options("random schedules of faults", count=50, first=0, minutes=0)
    began = time.monotonic()
    took_s: dict[int, float] = {}
    failed: dict[int, str] = {}
    for seed in range(chosen.first, chosen.first + chosen.count):
        if chosen.minutes and time.monotonic() - began > 60 * chosen.minutes:
            break
        start = time.monotonic()
        is_good, words = run(seed)
        took_s[seed] = round(time.monotonic() - start, 1)
        if not is_good:
            failed[seed] = words
        sys.stderr.write(f"schedule {seed}: {'good' if is_good else 'FAILED'} after {took_s[seed]} s\n")
    report(
        "schedules",
        {
            "count": len(took_s),
            "good": len(took_s) - len(failed),
            "failed": failed,
            "median_s": round(statistics.median(took_s.values()), 1),
            "seconds": took_s,
        },
    )
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
