"""Splits of measured data: which rows a method may see, and which it must predict."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainmaster.advisor.model.measurement import Point
from trainmaster.spec import Strategy

HERE = Path(__file__).parent
Split = tuple[np.ndarray, np.ndarray]


@dataclass
class Data:
    """Measured points of one job."""

    points: list[Point]

    def __post_init__(self) -> None:
        self.times = np.array([p.step_time_s for p in self.points])
        self.workers = np.array([p.workers for p in self.points])
        self.latency = np.array([p.latency_ms or 0 for p in self.points])
        self.local = np.array([p.local_batch for p in self.points])
        self.batch = np.round(self.local * self.workers)

    def only(self, rows: np.ndarray) -> Data:
        """Some of the rows."""
        return Data([self.points[i] for i in np.flatnonzero(rows)])


def anwar() -> Data:
    """Anwar et al. 2021: an epoch is 70 global steps, 50 with one worker at batches up to 6400."""
    points = []
    with (HERE.parents[1] / "src/trainmaster/advisor/papers/anwar.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if not row["time_per_epoch_s"]:
                continue
            n, batch, latency = int(row["workers"]), float(row["batch_size"]), float(row["latency_ms"])
            steps = 50 if n == 1 and batch <= 6400 else 70
            points.append(
                Point(
                    Strategy.ALLREDUCE,
                    n,
                    nodes=n,
                    local_batch=batch / n,
                    latency_ms=latency,
                    step_time_s=float(row["time_per_epoch_s"]) / steps,
                )
            )
    return Data(points)


def this_machine() -> dict[str, Data]:
    """What ``measure_here.py`` measured, by job."""
    jobs: dict[str, list[Point]] = {}
    with (HERE / "data" / "this_machine.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            jobs.setdefault(row["job"], []).append(
                Point(
                    Strategy(row["sync"]),
                    int(row["workers"]),
                    nodes=int(row["nodes"]),
                    parameter_servers=int(row["parameter_servers"]),
                    local_batch=float(row["local_batch"]),
                    gradient_bytes=float(row["gradient_mb"]) * 1e6,
                    step_time_s=float(row["step_time_s"]),
                )
            )
    return {job: Data(points) for job, points in jobs.items()}


def leave_one_out(data: Data) -> Iterator[Split]:
    """Each row from all others."""
    for i in range(len(data.points)):
        rest = np.ones(len(data.points), dtype=bool)
        rest[i] = False
        yield rest, ~rest


def leave_group_out(key: Callable[[Data], np.ndarray]) -> Callable[[Data], Iterator[Split]]:
    """Each value of a column from all others."""

    def split(data: Data) -> Iterator[Split]:
        values = key(data)
        for value in np.unique(values):
            yield values != value, values == value

    return split


def threshold(
    train: Callable[[Data], np.ndarray], test: Callable[[Data], np.ndarray]
) -> Callable[[Data], Iterator[Split]]:
    """One split: rows that fulfil one condition to those that fulfil another."""

    def split(data: Data) -> Iterator[Split]:
        yield train(data), test(data)

    return split


def _designed(data: Data) -> np.ndarray:
    cells = {(192, 0), (6400, 0), (192, 40)}
    return (data.workers == 2) & np.array(
        [(b, lat) in cells for b, lat in zip(data.batch, data.latency, strict=True)]
    )


def regular(data: Data) -> np.ndarray:
    """Anwar's rows without the block that no physics explains: four nodes from 60 ms."""
    return ~((data.workers == 4) & (data.latency >= 60))


def anwar_splits() -> dict[str, tuple[Data, Callable[[Data], Iterator[Split]]]]:
    """Every split of Anwar's data by name."""
    everything = anwar()
    rows = everything.only(regular(everything))
    three = rows.only(rows.workers <= 3)
    by_latency, by_batch = leave_group_out(lambda d: d.latency), leave_group_out(lambda d: d.batch)
    return {
        "anwar leave-one-out, all 113": (everything, leave_one_out),
        "anwar leave-one-out, regular": (rows, leave_one_out),
        "anwar leave-one-out, n<=3": (three, leave_one_out),
        "anwar leave-one-latency-out": (rows, by_latency),
        "anwar leave-one-batch-out": (rows, by_batch),
        "anwar latency <=40 -> 60-100": (
            rows,
            threshold(lambda d: d.latency <= 40, lambda d: d.latency >= 60),
        ),
        "anwar batch <=6400 -> 32000-64000": (
            rows,
            threshold(lambda d: d.batch <= 6400, lambda d: d.batch > 6400),
        ),
        "anwar n<=3 -> 4 (latency <=40)": (
            rows,
            threshold(lambda d: (d.workers <= 3) & (d.latency <= 40), lambda d: d.workers == 4),
        ),
        "anwar 3 profiled epochs -> n<=3": (three, threshold(_designed, lambda d: ~_designed(d))),
    }


def machine_splits() -> dict[str, list[tuple[Data, Callable[[Data], Iterator[Split]]]]]:
    """Every split of this machine's data by name; several jobs each."""
    jobs = this_machine()
    named: dict[str, list[tuple[Data, Callable[[Data], Iterator[Split]]]]] = {}
    for job, data in jobs.items():
        sync = job.split("-", 1)[1]
        named.setdefault(f"here {sync} leave-one-out", []).append((data, leave_one_out))
        by_batch = leave_group_out(lambda d: d.local)
        named.setdefault(f"here {sync} leave-one-batch-out", []).append((data, by_batch))
        small = threshold(lambda d: d.workers <= 2, lambda d: d.workers > 2)
        named.setdefault(f"here {sync} n<=2 -> 3-4", []).append((data, small))
        few = threshold(
            lambda d: (d.workers == 1) & (d.local != 64) | (d.workers == 2) & (d.local == 8),
            lambda d: ~((d.workers == 1) & (d.local != 64) | (d.workers == 2) & (d.local == 8)),
        )
        named.setdefault(f"here {sync} 3 points -> the rest", []).append((data, few))
    return named
