"""Jobs from the formulas that others fitted to their own clusters: a second opinion besides the simulator.

All-reduce: Pollux (Qiao et al., OSDI 2021, section 3.2). Parameter servers: Optimus (Peng et al., EuroSys
2018, section 3.2). The coefficients are drawn at random, wide, in proportion to the job's compute time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainmaster.advisor.model.measurement import Point
from trainmaster.spec import Strategy


def _log_normal(rng: np.random.Generator, median: float, spread: float) -> float:
    return float(np.exp(rng.normal(np.log(median), spread)))


@dataclass
class PolluxJob:
    """Step time = (gradient^g + sync^g)^(1/g); sync grows linearly with the GPUs."""

    rng: np.random.Generator
    nic_gbps: float = float("nan")
    gradient: float = float("nan")
    added_latency: bool = False

    def __post_init__(self) -> None:
        rng = self.rng
        self.gpus = int(rng.choice([1, 2, 4, 8], p=[0.12, 0.13, 0.35, 0.4]))
        self.batch = float(2 ** rng.integers(3, 9))
        step = float(np.exp(rng.uniform(np.log(0.03), np.log(1.0))))
        fixed = rng.beta(1.5, 4)
        self.per_step, self.per_sample = step * fixed, step * (1 - fixed) / self.batch
        self.local, self.remote = step * _log_normal(rng, 0.06, 0.9), step * _log_normal(rng, 0.3, 1.0)
        self.local_more = self.local * _log_normal(rng, 0.05, 0.9)
        self.remote_more = self.remote * _log_normal(rng, 0.03, 0.9)
        self.gamma = float(np.exp(rng.uniform(0, np.log(10))))
        self.noise = _log_normal(rng, 0.02, 0.6)

    def natural_batch(self) -> float:
        """The batch that the coefficients are in proportion to."""
        return self.batch

    def time(self, point: Point) -> float:
        """Measured seconds per step."""
        n, nodes = point.workers, int(point.nodes or 1)
        own = self.per_step + self.per_sample * float(point.local_batch or 1)
        more = max(n - 2, 0)
        sync = 0.0
        if n > 1:
            sync = (
                self.local + self.local_more * more if nodes == 1 else self.remote + self.remote_more * more
            )
        time = (own**self.gamma + sync**self.gamma) ** (1 / self.gamma)
        return float(time * np.exp(self.rng.standard_t(5) * self.noise * 0.8))


@dataclass
class OptimusJob:
    """Step time linear in workers per server, workers and servers."""

    rng: np.random.Generator
    sync: Strategy = Strategy.PS_ASYNC
    nic_gbps: float = float("nan")
    gradient: float = float("nan")

    def __post_init__(self) -> None:
        rng = self.rng
        self.batch = float(2 ** rng.integers(3, 9))
        self.compute = float(np.exp(rng.uniform(np.log(0.2), np.log(20))))
        self.per_sample = rng.uniform(0.5, 1.0)
        self.push = self.compute * _log_normal(rng, 0.06, 1.0)
        self.worker = self.compute * _log_normal(rng, 0.008, 1.0)
        self.server = self.compute * _log_normal(rng, 0.008, 1.0)
        self.noise = _log_normal(rng, 0.03, 0.6)

    def natural_batch(self) -> float:
        """The batch that the coefficients are in proportion to."""
        return self.batch

    def time(self, point: Point) -> float:
        """Measured seconds per (global) step."""
        n, servers = point.workers, int(point.parameter_servers or 1)
        scale = 1 - self.per_sample + self.per_sample * float(point.local_batch or 1) / self.batch
        time = self.compute * scale + self.push * n / servers + self.worker * n + self.server * servers
        if self.sync is Strategy.PS_ASYNC:
            time /= n
        return float(time * np.exp(self.rng.standard_t(5) * self.noise * 0.8))
