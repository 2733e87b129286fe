"""Published throughput tables: which rows a method may see, and which it must predict.

``data/public_sources.md`` says where the rows are from. The jobs are in two halves, by a hash of the job's
family (same network, framework and machine): one to develop on, the other to report.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trainmaster.advisor.model.measurement import Point
from trainmaster.spec import Strategy

HERE = Path(__file__).parent
HALVES = ("develop", "report")
#: What a user measures before asking for more.
FEW = 4
Case = tuple[list[Point], np.ndarray, list[Point], np.ndarray]


def published() -> dict[str, list[Point]]:
    """The measured points of every job."""
    jobs: dict[str, list[Point]] = {}
    for name in ("public_allreduce.csv", "public_servers.csv"):
        with (HERE / "data" / name).open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                jobs.setdefault(row["job"], []).append(
                    Point(
                        Strategy(row["sync"]),
                        int(row["workers"]),
                        nodes=int(row["nodes"]),
                        parameter_servers=int(row["parameter_servers"]),
                        local_batch=float(row["local_batch"]),
                        step_time_s=float(row["step_time_s"]),
                    )
                )
    return jobs


def half(job: str, *, servers: bool) -> str:
    """``develop`` or ``report``: both precisions of a job, synthetic and real input, are in the same."""
    family = "-".join(job.split("-")[:3]).removesuffix("-synth").removesuffix("-real")
    family += "-ps" if servers else ""
    return HALVES[hashlib.sha256(family.encode()).digest()[0] % 2]


def _some(points: list[Point], rng: np.random.Generator, most: int = FEW) -> list[Point]:
    """At most ``most`` of them, the smallest and the largest cluster always."""
    if len(points) <= most:
        return points
    order = sorted(points, key=lambda p: (p.workers, p.local_batch or 0))
    middle = rng.choice(np.arange(1, len(order) - 1), most - 2, replace=False)
    return [order[i] for i in (0, *sorted(middle.tolist()), len(order) - 1)]


def _inside(points: list[Point], rng: np.random.Generator) -> Iterator[tuple[list[Point], list[Point]]]:
    """Fewer devices of one node -> all of them."""
    one = [p for p in points if p.nodes == 1]
    most = max((p.workers for p in one), default=0)
    yield _some([p for p in one if p.workers < most], rng), [p for p in one if p.workers == most]


def _outside(points: list[Point], rng: np.random.Generator) -> Iterator[tuple[list[Point], list[Point]]]:
    """One node -> several."""
    yield _some([p for p in points if p.nodes == 1], rng), [p for p in points if (p.nodes or 1) > 1]


def _two(points: list[Point], rng: np.random.Generator) -> Iterator[tuple[list[Point], list[Point]]]:
    """One node and the least that is more than one -> more nodes."""
    several = sorted({p.nodes or 1 for p in points if (p.nodes or 1) > 1})
    if not several:
        return
    least = [p for p in points if p.nodes == several[0]]
    seen = _some([p for p in points if p.nodes == 1], rng, FEW - 1)
    yield [*seen, least[int(rng.integers(len(least)))]], [p for p in points if (p.nodes or 1) > several[0]]


def _few(points: list[Point], rng: np.random.Generator) -> Iterator[tuple[list[Point], list[Point]]]:
    """Any two to four rows -> the rest."""
    size = min(int(rng.integers(2, FEW + 1)), len(points) - 1)
    order = rng.permutation(len(points))
    yield [points[i] for i in order[:size]], [points[i] for i in order[size:]]


def _batch(points: list[Point], rng: np.random.Generator) -> Iterator[tuple[list[Point], list[Point]]]:
    """All batches but one, four rows -> that one."""
    for batch in sorted({p.local_batch or 1 for p in points}):
        yield (
            _some([p for p in points if p.local_batch != batch], rng),
            [p for p in points if p.local_batch == batch],
        )


def _small(points: list[Point], rng: np.random.Generator) -> Iterator[tuple[list[Point], list[Point]]]:
    """The three smallest clusters -> up to tenfold."""
    order = sorted(points, key=lambda p: (p.workers, p.parameter_servers, p.local_batch))
    seen, most = order[:3], 10 * max(p.workers for p in order[:3])
    yield seen, [p for p in order[3:] if p.workers <= most]


def _one_out(points: list[Point], rng: np.random.Generator) -> Iterator[tuple[list[Point], list[Point]]]:
    """Each row from all others."""
    if len(points) >= FEW + 1:
        for p in points:
            yield [q for q in points if q is not p], [p]


ALLREDUCE = {
    "fewer devices -> whole node": _inside,
    "one node -> several": _outside,
    "one and two nodes -> more": _two,
    "2-4 rows -> the rest": _few,
    "batches but one -> that one": _batch,
    "leave-one-out": _one_out,
}
SERVERS = {"three smallest -> tenfold": _small, "2-4 rows -> the rest": _few, "leave-one-out": _one_out}


def cases(which: str, seed: int = 0) -> dict[str, list[tuple[str, Case]]]:
    """The cases of one half of the jobs, by split, each with its job's name.

    Args:
        which: of ``HALVES``.
        seed: of the rows that are picked.
    """
    found: dict[str, list[tuple[str, Case]]] = {}
    for job, points in published().items():
        servers = points[0].sync is not Strategy.ALLREDUCE
        if half(job, servers=servers) != which:
            continue
        for name, split in (SERVERS if servers else ALLREDUCE).items():
            digest = hashlib.sha256(f"{job} {name} {seed}".encode()).digest()
            rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
            for seen, asked in split(points, rng):
                if len(seen) >= 2 and asked:
                    times = [np.array([p.step_time_s for p in some], float) for some in (seen, asked)]
                    label = f"published {'ps-sync' if servers else 'allreduce'} {name}"
                    found.setdefault(label, []).append((job, (seen, times[0], asked, times[1])))
    return found
