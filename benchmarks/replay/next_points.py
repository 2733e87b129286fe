"""What a second or third measured cluster is worth: the usual ones, and the one that ``predict`` proposes.

python benchmarks/replay/next_points.py [--jobs 30]

Simulated jobs, asked for at 8 and 16 nodes (all-reduce) or at 16 and 20 workers of one server; error and
interval score are means over jobs and both simulators of a kind.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
from formulas import OptimusJob, PolluxJob
from synthetic import AllReduceJob, ServerJob

from trainmaster.advisor.model.measurement import Point
from trainmaster.advisor.model.shapes import Columns, Shapes
from trainmaster.advisor.model.steptime import StepTimeModel
from trainmaster.spec import Strategy


def scored(job, seen, asked):
    """Mean error, interval score, and the model."""
    model = StepTimeModel.fit([replace(p, step_time_s=job.time(p)) for p in seen])
    answer, truth = model.predict(asked), np.array([job.time(p) for p in asked])
    y, low, high = np.log(truth), np.log(answer.low), np.log(answer.high)
    score = high - low + 20 * (np.maximum(low - y, 0) + np.maximum(y - high, 0))
    return np.mean(np.abs(answer.typical / truth - 1)), score.mean(), model


def designs(job, at, asked, named, first):
    """Error and score by what was measured; ``first`` is what the proposed point is added to."""
    found = {}
    for name, seen in named.items():
        *found[name], model = scored(job, seen, asked)
        if name == first:
            point = model.next_point(Shapes.of(Columns.of(asked), model.context))
            if point is not None:
                more = at(point.nodes, point.workers // point.nodes)
                found[f"{first}, and what is proposed"] = scored(job, [*seen, more], asked)[:2]
    return found


def main() -> None:
    """Print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=30, help="of each simulator")
    rows: dict[tuple[str, str], list] = {}
    for i in range(parser.parse_args().jobs):
        for sync in Strategy:
            for kind in (ServerJob, OptimusJob) if sync.has_servers else (AllReduceJob, PolluxJob):
                rng = np.random.default_rng((5, i))
                job = kind(rng, sync) if sync.has_servers else kind(rng)
                batch, g = job.natural_batch(), 1 if sync.has_servers else job.gpus

                def at(nodes, per=1, sync=sync, batch=batch):
                    servers = int(sync.has_servers)
                    return Point(sync, nodes * per, nodes=nodes, parameter_servers=servers, local_batch=batch)

                if sync.has_servers:
                    first, asked = "smallest", [at(16), at(20)]
                    named = {"smallest": [at(1)], "3 smallest": [at(1), at(2), at(3)]}
                    named["smallest and largest"] = [at(1), at(14)]
                else:
                    first, asked = "1 worker, whole node", [at(8, g), at(16, g)]
                    named = {first: [at(1), at(1, g)]}
                    named |= {f"{first}, {n} nodes": [*named[first], at(n, g)] for n in (2, 4)}
                for name, scores in designs(job, at, asked, named, first).items():
                    rows.setdefault((sync.value, name), []).append(scores)
    print("| sync | measured (jobs) | error % | score |\n|---|---|---|---|")
    for (sync, name), each in rows.items():
        error, score = np.mean(each, axis=0)
        print(f"| {sync} | {name} ({len(each)}) | {100 * error:.1f} | {score:.2f} |")


if __name__ == "__main__":
    main()
