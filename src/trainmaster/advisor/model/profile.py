"""What was measured of a job: points, and the profile that holds them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainmaster.spec import Strategy


@dataclass(frozen=True, slots=True)
class Point:
    """One shape of a cluster, with its step time if that was measured. ``None`` is "unknown".

    Attributes:
        sync: how the workers agree.
        workers: training processes in all, parameter servers not counted.
        nodes: machines the training processes sit on; more than ``workers`` counts as ``workers``.
        parameter_servers: 0 for all-reduce.
        local_batch: samples per worker and step.
        latency_ms: one-way latency between nodes, milliseconds (as set with netem, or measured).
        nic_mbps: megabits per second of one node's network card, one direction.
        gradient_bytes: bytes of one gradient as it is sent.
        step_time_s: median seconds per step; for ``ps-async`` seconds per *global* step,
            that is 1 / (global steps per second).
        step_time_p10_s, step_time_p90_s: quantiles of the single steps.
        steps: how many steps the median rests on.
        bytes_in, bytes_out: per member and step, as counted by the kernel.
        server_cpu: share of the parameter server's processors in use, 0..1.
        peak_memory_bytes: of the device.
        offer: what it was measured on, a name in the catalogue.
    """

    sync: Strategy
    workers: int
    nodes: int | None = None
    parameter_servers: int | None = None
    local_batch: float | None = None
    latency_ms: float | None = None
    nic_mbps: float | None = None
    gradient_bytes: float | None = None
    step_time_s: float | None = None
    step_time_p10_s: float | None = None
    step_time_p90_s: float | None = None
    steps: int | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None
    server_cpu: float | None = None
    peak_memory_bytes: float | None = None
    offer: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ValueError: a count below 1, or a time or a size that is not positive and finite.
        """
        for name in ("workers", "nodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; at least 1 is needed")
        if self.parameter_servers is not None and self.parameter_servers < self.sync.has_servers:
            raise ValueError(f"parameter_servers is {self.parameter_servers}; {self.sync} needs at least 1")
        for name in ("local_batch", "nic_mbps", "gradient_bytes", "step_time_s"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} is {value:g}; a positive number is needed")
        if self.latency_ms is not None and not (self.latency_ms >= 0 and math.isfinite(self.latency_ms)):
            raise ValueError(f"latency_ms is {self.latency_ms:g}; zero or more is needed")
