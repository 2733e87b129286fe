"""Batch shapes told from the same job on another machine: published pairs (V100 and A100, P100 and K80).

    python benchmarks/replay/lent_shapes.py [--every 3] [--doubts 0.45]

Of the second machine one worker with one batch is seen, and rows of one node with other batches are asked.
The first one lends what it has of one node, and once more with times 0.3 and 3 times as long.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
from published import published
from sources import summary

from trainmaster.advisor.model.device_transfer import TRANSFER_SPREAD, transferred_points
from trainmaster.advisor.model.devices import Device, speed_ratio
from trainmaster.advisor.model.measurement import Point
from trainmaster.advisor.model.steptime import StepTimeModel
from trainmaster.spec import Strategy
from trainmaster.spec.log_normal import LogNormal

#: GPU of a machine, by its part of a job's name; of names that begin alike the longest first.
MACHINES = {
    "dgx1-32g": "V100",
    "dgx1-16g": "V100",
    "p100-dgx1": "P100",
    "k80-gce": "K80",
    "k80-ec2": "K80",
} | {
    "dgx1": "V100",
    "dgx2": "V100",
    "a100": "A100",
}
SCALES = (0.3, 1.0, 3.0)
#: What is known beforehand of how much slower the other machine is (log): published figures, or nothing.
KNOWN, UNKNOWN = "published", "unknown"


def same_jobs() -> list[dict[str, list[Point]]]:
    """Rows of one node of each job that several machines ran, by machine."""
    found: dict[str, dict[str, list[Point]]] = defaultdict(dict)
    for name, points in published().items():
        machine = next((each for each in MACHINES if f"-{each}-" in name), None)
        inside = [p for p in points if p.nodes == 1 and p.sync is Strategy.ALLREDUCE]
        if machine and inside:
            found[name.replace(f"-{machine}-", "-*-")][machine] = inside
    return list(found.values())


def main() -> None:
    """Print one line for each way of lending."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only each so many-th case")
    parser.add_argument("--doubts", type=float, nargs="+", default=[TRANSFER_SPREAD])
    parser.add_argument("--alone", action="store_true", help="only rows of one worker are lent")
    chosen = parser.parse_args()
    rows: dict[tuple[object, ...], list[tuple[np.ndarray, ...]]] = defaultdict(list)
    pairs = [
        (some[a], some[b], MACHINES[a], MACHINES[b])
        for some in same_jobs()
        for a in some
        for b in some
        if MACHINES[a] != MACHINES[b]
    ]
    cases = [
        (*pair, batch)
        for pair in pairs
        for sizes in (sorted({p.local_batch or 0.0 for p in pair[1]}),)
        if len(sizes) > 1
        for batch in (sizes[0], sizes[-1])
    ]
    for lender, mine, one, other, batch in cases[:: chosen.every]:
        own = [p for p in mine if p.local_batch == batch and p.workers == 1]
        asked = [p for p in mine if p.local_batch != batch]
        if not own:
            continue
        truth = np.array([p.step_time_s for p in asked])
        ways = {("alone",): ([], 0.0)}
        ratio = speed_ratio(Device(other, 8.0, "other"), Device(one, 8.0, "one"))
        for scale in SCALES:
            there = [replace(p, step_time_s=(p.step_time_s or 0.0) * scale) for p in lender]
            model = StepTimeModel.fit(there)
            for known, spread in ((KNOWN, ratio.spread), (UNKNOWN, 3.0)):
                told = transferred_points(model, there, own, LogNormal(math.exp(-ratio.log), spread), None)
                told = [p for p in told if p.local_batch != batch and (p.workers == 1 or not chosen.alone)]
                ways |= {(known, doubt, scale): (told, doubt) for doubt in chosen.doubts}
        for way, (told, doubt) in ways.items():
            model = StepTimeModel.fit([*own, *told], doubts=[0.0] * len(own) + [doubt] * len(told))
            found = model.predict([replace(p, step_time_s=None) for p in asked])
            rows[way].append((truth, found.typical, found.low, found.high))
    for way, some in rows.items():
        print(*way, {name: round(value, 2) for name, value in summary(some).items()})


if __name__ == "__main__":
    main()
