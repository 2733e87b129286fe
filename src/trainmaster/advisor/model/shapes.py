"""Cluster shapes as columns: what the step-time model computes with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.model.measurement import Point
from trainmaster.dataclass import dataclass
from trainmaster.spec import Strategy

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

KINDS = (Strategy.ALLREDUCE, Strategy.PS_SYNC, Strategy.PS_ASYNC)
SYNCHRONOUS, ASYNCHRONOUS = 1, 2


@dataclass(frozen=True)
class Frame:
    """Columns of one length: the fields of a dataclass, which are arrays or frames themselves."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def __getitem__(self, rows: object) -> Self:
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """One after the other."""
        columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(cls)}
        return cls(
            **{
                name: each[0].joined(each) if isinstance(each[0], Frame) else np.concatenate(each)
                for name, each in columns.items()
            }
        )


@dataclass(frozen=True)
class Columns(Frame):
    """Shapes as they were given, one array of length m per column; NaN is "unknown".

    Attributes:
        kind: index into ``KINDS``.
        workers, nodes, servers: counts. ``batch``: samples per worker and step.
        latency: one-way, ms. ``nic``: Mbit/s. ``gradient``: bytes.
    """

    kind: NDArray[np.int_]
    workers: Floats
    nodes: Floats
    servers: Floats
    batch: Floats
    latency: Floats
    nic: Floats
    gradient: Floats

    @classmethod
    def of(cls, points: Sequence[Point]) -> Columns:
        """The columns of some points."""

        def column(name: str) -> Floats:
            values = (getattr(point, name) for point in points)
            return np.array([np.nan if v is None else v for v in values], dtype=float)

        return cls(
            kind=np.array([KINDS.index(point.sync) for point in points], dtype=int),
            workers=column("workers"),
            nodes=column("nodes"),
            servers=column("parameter_servers"),
            batch=column("local_batch"),
            latency=column("latency_ms"),
            nic=column("nic_mbps"),
            gradient=column("gradient_bytes"),
        )


@dataclass(frozen=True)
class MeasuredContext:
    """What the measured rows of a job say about the columns that other rows leave empty.

    Attributes:
        batch: median of the measured local batches, samples; NaN if none is known.
        per_node: most workers per node that was measured; 1 if no nodes are known.
        nodes_known: True if any measured row names its nodes.
        latency: median of the known latencies, ms; 0 if none is known.
        nic: median NIC rate, Mbit/s; NaN if unknown.
        gradient: median gradient, bytes; NaN if unknown.
        servers: median count of parameter servers; 1 if unknown.
    """

    batch: float
    per_node: float
    nodes_known: bool
    latency: float
    nic: float
    gradient: float
    servers: float

    @classmethod
    def of(cls, columns: Columns) -> MeasuredContext:
        """Read it off the measured rows."""
        known = ~np.isnan(columns.nodes)
        per_node = np.ceil(columns.workers[known] / np.minimum(columns.nodes, columns.workers)[known])
        return cls(
            batch=float(np.exp(_median(np.log(columns.batch)))),
            per_node=float(per_node.max()) if known.any() else 1.0,
            nodes_known=bool(known.any()),
            latency=_median(columns.latency, 0.0),
            nic=_median(columns.nic),
            gradient=_median(columns.gradient),
            servers=_median(columns.servers[columns.kind > 0], 1.0),
        )


@dataclass(frozen=True)
class Shapes(Frame):
    """Shapes with nothing left unknown, one array of length m per column.

    Attributes:
        kind: index into ``KINDS``.
        workers, nodes, servers: counts; ``per_node`` = most workers on one node.
        batch: local batch relative to the context's; 1 where unknown.
        latency: one-way, seconds.
        nic, gradient: relative to the context's; 1 where unknown.
        guess: standard deviation (log seconds) to add because a column was guessed.
    """

    kind: NDArray[np.int_]
    workers: Floats
    nodes: Floats
    per_node: Floats
    servers: Floats
    batch: Floats
    latency: Floats
    nic: Floats
    gradient: Floats
    guess: Floats

    @classmethod
    def of(cls, columns: Columns, context: MeasuredContext) -> Shapes:
        """Fill in what is unknown, and note in ``guess`` what that costs.

        Unknown nodes: as densely packed as the densest measured row, or one worker per node
        if no row names its nodes. An unknown batch, latency, NIC, gradient or server count
        is the measured rows' typical one.
        """
        per_node = np.minimum(columns.workers, context.per_node)
        blind = np.isnan(columns.nodes)
        nodes = np.where(
            blind, np.ceil(columns.workers / per_node), np.minimum(columns.nodes, columns.workers)
        )
        batch = columns.batch / context.batch if np.isfinite(context.batch) else np.full(len(columns), np.nan)
        servers = np.where(
            np.isnan(columns.servers) | (columns.servers < 1), context.servers, columns.servers
        )
        variance = np.zeros(len(columns))
        if context.nodes_known:
            variance += np.where(blind & (columns.workers > 1) & (columns.kind == 0), 0.3**2, 0.0)
        if np.isfinite(context.batch):
            variance += np.where(np.isnan(batch), 0.3**2, 0.0)
        return cls(
            kind=columns.kind,
            workers=columns.workers,
            nodes=nodes,
            per_node=np.ceil(columns.workers / nodes),
            servers=servers,
            batch=np.where(np.isnan(batch), 1.0, batch),
            latency=np.where(np.isnan(columns.latency), context.latency, columns.latency) / 1e3,
            nic=_relative(columns.nic, context.nic),
            gradient=_relative(columns.gradient, context.gradient),
            guess=np.sqrt(variance),
        )

    @cached_property
    def upright(self) -> Self:
        """With columns (m, 1)."""
        return self[:, None]

    @cached_property
    def batches(self) -> tuple[Floats, NDArray[np.int_]]:
        """Logarithms of the different batches, and (m,) which of them each shape has."""
        sizes, which = np.unique(np.log(self.batch), return_inverse=True)
        return sizes, which.ravel()

    @cached_property
    def loads(self) -> tuple[Floats, NDArray[np.int_]]:
        """(k, 2) relative seconds of a card for a gradient, servers; and (m,) which each shape has."""
        pairs = np.column_stack([(self.gradient / self.nic).ravel(), self.servers.ravel()])
        loads, which = np.unique(pairs, axis=0, return_inverse=True)
        return loads, which.ravel()


def _median(values: Floats, default: float = float("nan")) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else default


def _relative(values: Floats, typical: float) -> Floats:
    return np.where(np.isnan(values) | np.isnan(typical), 1.0, values / typical)
