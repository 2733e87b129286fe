"""Which rows are measured and which are asked for, of simulated jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from formulas import OptimusJob, PolluxJob
from synthetic import AllReduceJob, ServerJob

from trainmaster.advisor.model.measurement import Point
from trainmaster.spec import Strategy

Case = tuple[list[Point], np.ndarray, list[Point], np.ndarray]


def _case(job, train, test, rng, reveal) -> Case:
    """Measure both, then hide what the user does not know."""
    shown = {}
    if reveal:
        shown = {"nic_mbps": job.nic_gbps * 1e3, "gradient_bytes": job.gradient}
    times = [np.array([job.time(p) for p in points]) for points in (train, test)]
    train, test = ([replace(p, **shown) for p in points] for points in (train, test))
    return train, times[0], test, times[1]


def allreduce(kind: str, count: int, seed: int, pollux: bool = False) -> Iterator[Case]:
    """All-reduce jobs.

    ``one-node``: measured in one node, asked for up to 64 GPUs. ``two-nodes``: measured on up to two.
    ``same-regime``: 1 and 2 workers -> 4 and 8, across nodes or inside one. ``eightfold``: up to two nodes
    -> 8 and 16. ``few``: 2 to 4 random rows of a grid -> the rest. ``grid``: half of the rows, at most 20.
    """
    for i in range(count):
        rng = np.random.default_rng((seed, i))
        job: AllReduceJob | PolluxJob = PolluxJob(rng) if pollux else AllReduceJob(rng)
        while isinstance(job, AllReduceJob) and not job.is_worth_distributing():
            job = AllReduceJob(rng)
        g, b = job.gpus, job.natural_batch()
        lat = float(rng.choice([5, 20, 50])) if job.added_latency else None

        def at(nodes: int, per: int, factor: float = 1.0, b: float = b, lat: float | None = lat) -> Point:
            return Point(
                Strategy.ALLREDUCE,
                nodes * per,
                nodes=nodes,
                parameter_servers=0,
                local_batch=max(1, b * factor),
                latency_ms=lat,
            )

        inside = [p for p in (1, 2, 4, 8) if p <= g]
        grid = [at(1, p, f) for p in inside for f in (0.5, 1, 2)]
        grid += [
            at(m, p, f)
            for m in (2, 4, 8, 16)
            for p in {g, max(1, g // 2)}
            if m * p <= 64
            for f in (0.5, 1, 2)
        ]
        if kind == "one-node":
            pool = [p for p in grid if p.nodes == 1]
            train = [pool[j] for j in rng.permutation(len(pool))[: int(rng.integers(2, 5))]]
            test = [p for p in grid if p not in train]
        elif kind == "two-nodes":
            train = [at(1, 1), at(1, g, 0.5), at(2, g), at(2, g, 2)][: int(rng.integers(3, 5))]
            if rng.uniform() < 0.5:
                train = [at(1, 1), at(1, 1, 2), at(2, max(1, g // 2))]
            test = [p for p in grid if p not in train]
        elif kind == "same-regime":
            if rng.uniform() < 0.5 or g < 8:
                train, test = [at(1, 1), at(2, 1)], [at(4, 1), at(8, 1)]
            else:
                train, test = [at(1, 1), at(1, 2)], [at(1, 4), at(1, 8)]
        elif kind == "eightfold":
            train = [at(1, 1), at(1, 1, 2), at(2, g), at(2, g, 0.5)]
            test = [at(m, g, f) for m in (8, 16) if m * g <= 128 for f in (0.5, 1, 2)]
        else:
            size = int(rng.integers(2, 5)) if kind == "few" else min(20, len(grid) // 2)
            order = rng.permutation(len(grid))
            train, test = [grid[j] for j in order[:size]], [grid[j] for j in order[size:]]
        yield _case(job, train, test, rng, reveal=rng.uniform() < 0.3 and np.isfinite(job.gradient))


def servers(sync: Strategy, kind: str, count: int, seed: int, optimus: bool = False) -> Iterator[Case]:
    """Jobs with parameter servers.

    ``tenfold``: three small clusters -> up to ten times the workers. ``diagonal``: servers in proportion to
    the workers. ``grid``: 4 to 8 random rows of a grid -> the rest.
    """
    for i in range(count):
        rng = np.random.default_rng((seed, i))
        job = OptimusJob(rng, sync) if optimus else ServerJob(rng, sync)
        b = job.natural_batch()
        total = rng.uniform() < 0.4  # the global batch is held

        def at(n: int, p: int, b: float = b, total: bool = total) -> Point:
            batch = max(1.0, b * 8 / n) if total else b
            return Point(sync, n, nodes=n, parameter_servers=p, local_batch=batch)

        sizes = [(n, p) for n in (1, 2, 3, 4, 6, 8, 10, 14, 20) for p in (1, 2, 4, 8) if p <= max(2, n)]
        if kind == "tenfold":
            pick = [
                [(1, 1), (2, 1), (2, 2)],
                [(1, 1), (2, 1), (4, 1)],
                [(1, 1), (2, 2), (3, 1)],
                [(1, 1), (2, 1)],
            ]
            train = pick[int(rng.integers(0, 4))]
        elif kind == "diagonal":
            sizes = [
                (n, p) for n in (1, 2, 3, 4, 6, 8, 10, 14, 20) for p in {n, max(1, n // 2), max(1, n // 4)}
            ]
            train = [[(1, 1), (2, 2)], [(1, 1), (2, 1), (2, 2)], [(1, 1), (2, 2), (4, 4)]][
                int(rng.integers(0, 3))
            ]
        else:
            train = [sizes[j] for j in rng.permutation(len(sizes))[: int(rng.integers(4, 9))]]
        test = [s for s in sizes if s not in train]
        if not any(p > 1 for _, p in train):
            test = [s for s in test if s[1] <= 2]
        test = [test[j] for j in rng.permutation(len(test))[:12]]
        reveal = rng.uniform() < 0.3 and np.isfinite(job.gradient)
        yield _case(job, [at(*s) for s in train], [at(*s) for s in test], rng, reveal)


def all_scenarios(count: int, seed: int) -> dict[str, Iterator[Case]]:
    """Every scenario by name."""
    named = {}
    for pollux in (False, True):
        for kind in ("one-node", "two-nodes", "same-regime", "eightfold", "few", "grid"):
            named[f"{'pollux ' if pollux else ''}allreduce {kind}"] = allreduce(kind, count, seed, pollux)
    for optimus in (False, True):
        for sync in (Strategy.PS_SYNC, Strategy.PS_ASYNC):
            for kind in ("tenfold", "diagonal", "grid"):
                named[f"{'optimus ' if optimus else ''}{sync} {kind}"] = servers(
                    sync, kind, count, seed, optimus
                )
    return named
