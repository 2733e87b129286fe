"""Jobs from a simulator that knows more than the fitted model and shares no formula with it.

All-reduce: a backward pass that emits buckets of tensors, a serial communication channel, ring or tree
chosen per bucket, message-size dependent bandwidth, PCIe or NVLink or two sockets in a node, racks with
oversubscribed uplinks, kernels in waves, compute slowed by communication, nodes of unequal speed,
jitter with a heavy tail, an input pipeline with a page cache. Parameter servers: exact mean value
analysis (Reiser and Lavenberg, 1980) of a closed queueing network with unequal shards (asynchronous), and
bursts with incast (synchronous). Nothing here was tuned on a measured data set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainmaster.advisor.model.measurement import Point
from trainmaster.spec import Strategy

# name: (effective Tflop/s, launch s per layer, memory GB/s, NIC Gbit/s, GB/s between devices of a node)
DEVICES = {
    "k80": (2.2, 12e-6, 180, (1, 10), (5, 9)),
    "p100": (6.5, 9e-6, 550, (10, 25), (9, 35)),
    "t4": (6.0, 8e-6, 250, (10, 50), (5, 10)),
    "rtx": (9.0, 7e-6, 500, (10, 100), (6, 12)),
    "v100": (20.0, 7e-6, 750, (10, 100), (20, 120)),
    "a100": (70.0, 6e-6, 1400, (50, 400), (60, 230)),
    "h100": (180.0, 5e-6, 2500, (100, 400), (120, 350)),
    "cpu": (0.08, 40e-6, 15, (0.5, 10), (1, 6)),
}


@dataclass
class AllReduceJob:
    """One all-reduce job on one kind of cluster."""

    rng: np.random.Generator

    def __post_init__(self) -> None:
        rng = self.rng
        self.device = str(rng.choice(list(DEVICES), p=[0.08, 0.1, 0.12, 0.15, 0.2, 0.15, 0.08, 0.12]))
        flops, launch, memory, nic, inside = DEVICES[self.device]
        self.layers = int(rng.integers(8, 160))
        self.gradient = float(np.exp(rng.normal(np.log(90e6), 1.2)))
        if self.device == "cpu":
            self.gradient = float(np.exp(rng.normal(np.log(8e6), 1.6)))
        sample = (
            self.gradient / 4 * np.exp(rng.normal(np.log(300), 1.2)) * 2
        )  # flop per sample, forward and backward
        self.per_sample = sample / (flops * 1e12 * rng.uniform(0.5, 1.1))
        self.fixed = (
            self.layers * launch * rng.uniform(4, 9)
            + self.gradient * 6 / (memory * 1e9)
            + rng.uniform(0, 4e-3)
        )
        self.wave = rng.uniform(0.0, 0.07)
        self.wave_phase = rng.uniform(0, 6)
        self.half = np.exp(rng.normal(np.log(4), 1.0))  # batch at which the device is half busy
        self.nic_gbps = float(np.exp(rng.uniform(np.log(nic[0]), np.log(nic[1]))))
        self.fraction = rng.uniform(0.35, 0.92) * (0.8 if self.nic_gbps > 40 and rng.uniform() < 0.5 else 1)
        self.inside = float(np.exp(rng.uniform(np.log(inside[0]), np.log(inside[1])))) * 1e9
        self.sockets = rng.uniform() < 0.4 and self.device not in ("a100", "h100")
        self.gpus = int(rng.choice([1, 2, 4, 8], p=[0.12, 0.13, 0.35, 0.4]))
        self.hop = np.exp(rng.normal(np.log(2.5e-5), 0.6)) * (8 if self.device == "cpu" else 1)
        self.hop_inside = np.exp(rng.normal(np.log(9e-6), 0.5)) * (8 if self.device == "cpu" else 1)
        self.half_message = np.exp(rng.normal(np.log(4e5), 0.8))
        self.bucket = float(rng.choice([1e6, 5e6, 25e6, 64e6]))
        self.overlaps = rng.uniform() < 0.8
        self.skew = rng.uniform(0.3, 3.0)  # where in the backward pass the bytes come
        self.contention = rng.uniform(0, 0.12)
        self.rack = int(rng.choice([4, 8, 16, 64]))
        self.uplink = rng.uniform(0.4, 1.0)
        self.jitter = np.exp(rng.normal(np.log(0.015), 0.6))
        self.tail = rng.uniform(0, 0.02)
        self.speeds = 1 / (1 + np.abs(rng.normal(0, rng.uniform(0, 0.025), 64)))
        self.feed = self.per_sample / np.exp(rng.normal(np.log(16), 1.0)) if rng.uniform() < 0.6 else 0.0
        self.noise = np.exp(rng.normal(np.log(0.012), 0.6))
        self.flat = rng.uniform() < 0.25
        self.added_latency = rng.uniform() < 0.1
        self.launches_ahead = rng.uniform() < 0.5  # the host queues kernels while the device works

    def natural_batch(self) -> float:
        """A batch that somebody would run: the device 60-95 % busy."""
        return float(
            2
            ** np.round(
                np.log2(np.clip(self.fixed / self.per_sample * np.exp(self.rng.normal(1.2, 0.9)), 2, 2048))
            )
        )

    def is_worth_distributing(self) -> bool:
        """False for jobs that nobody runs: a step on two nodes that is over six times that of one device."""
        batch = self.natural_batch()
        alone = Point(Strategy.ALLREDUCE, 1, nodes=1, local_batch=batch)
        two = Point(Strategy.ALLREDUCE, 2 * self.gpus, nodes=2, local_batch=batch)
        return self.time(two) < 6 * self.time(alone)

    def time(self, point: Point) -> float:
        """Measured seconds per step."""
        batch, n, nodes = float(point.local_batch or 1), point.workers, int(point.nodes or 1)
        r = int(np.ceil(n / nodes))
        busy = self.per_sample * batch * (1 + self.half / (batch + self.half))
        busy *= 1 + self.wave * np.abs(((np.log2(batch) * 3 + self.wave_phase) % 2) - 1)
        if self.device == "cpu":
            busy *= 1 + 0.35 * max(0, r - 1) / max(self.gpus, 1) * r
        slow = 1 / self.speeds[:nodes].min()
        slow *= 1 + self.jitter * np.sqrt(2 * np.log(max(n, 1))) + self.tail * np.log(n)
        own = self.fixed + busy
        if self.launches_ahead:
            own = 0.2 * self.fixed + max(0.8 * self.fixed, busy)
        forward, backward = own / 3 * slow, own * 2 / 3 * slow
        step = self._communicate(forward, backward, n, nodes, r, (point.latency_ms or 0) / 1e3)
        step = max(step, self.feed * batch * r)
        return float(step * np.exp(self.rng.standard_t(5) * self.noise * 0.8))

    def _communicate(
        self, forward: float, backward: float, n: int, nodes: int, r: int, latency: float
    ) -> float:
        if n == 1:
            return forward + backward
        count = max(1, int(np.ceil(self.gradient / self.bucket)))
        sizes = np.full(count, self.gradient / count)
        ready = backward * (np.arange(1, count + 1) / count) ** (1 / self.skew)
        if not self.overlaps:
            ready[:] = backward
        else:
            backward *= 1 + self.contention
        clock = 0.0
        for size, at in zip(sizes, ready, strict=True):
            clock = max(clock, at) + self._collective(size, nodes, r, n, latency)
        return forward + max(backward, clock)

    def _collective(self, size: float, nodes: int, r: int, n: int, latency: float) -> float:
        time = 0.0
        if r > 1:
            inside = self.inside * (0.45 if self.sockets and r > self.gpus // 2 and r > 2 else 1)
            inside *= size / (size + self.half_message)
            time += 2 * (r - 1) / r * size / inside + 2 * (r - 1) * self.hop_inside
        if nodes > 1:
            outside = self.nic_gbps * 1e9 / 8 * self.fraction * size / (size + 4 * self.half_message)
            if nodes > self.rack:
                outside *= self.uplink
            ring = 2 * (nodes - 1) / nodes * size / outside + 2 * (n - 1 if self.flat else nodes - 1) * (
                self.hop + latency
            )
            tree = 2.2 * size / outside * 0.95 + 2 * np.ceil(np.log2(nodes)) * (self.hop + latency)
            time += min(ring, tree)
        return time


@dataclass
class ServerJob:
    """One job with parameter servers."""

    rng: np.random.Generator
    sync: Strategy = Strategy.PS_ASYNC

    def __post_init__(self) -> None:
        rng = self.rng
        self.gradient = float(np.exp(rng.normal(np.log(40e6), 1.3)))
        self.nic_gbps = float(np.exp(rng.uniform(np.log(0.4), np.log(25))))
        self.fraction = rng.uniform(0.4, 0.95)
        wire = self.gradient / (self.nic_gbps * 1e9 / 8 * self.fraction)
        self.compute = wire * np.exp(rng.normal(np.log(8), 1.2))  # people run what scales to a few workers
        self.fixed_part = rng.beta(1.2, 4)
        self.reference = float(2 ** rng.integers(3, 9))
        self.cpu = self.gradient * np.exp(rng.normal(np.log(0.7e-9), 0.7))
        self.imbalance = rng.uniform(0.0, 0.5)
        self.coordination = self.compute * np.exp(rng.normal(np.log(0.004), 1.0))
        self.per_server = self.compute * np.exp(rng.normal(np.log(0.004), 1.0))
        self.incast = np.exp(rng.normal(np.log(0.01), 0.7))
        self.jitter = np.exp(rng.normal(np.log(0.03), 0.7))
        self.hides = rng.uniform(0, 0.6)
        self.noise = np.exp(rng.normal(np.log(0.02), 0.6))
        self.per_host = int(rng.choice([1, 1, 1, 2, 4]))

    def natural_batch(self) -> float:
        """The batch that ``compute`` was given for."""
        return self.reference

    def time(self, point: Point) -> float:
        """Measured seconds per (global) step."""
        n, servers = point.workers, int(point.parameter_servers or 1)
        scale = self.fixed_part + (1 - self.fixed_part) * float(point.local_batch or 1) / self.reference
        compute = self.compute * scale + self.per_server * servers
        largest = 1 / servers + self.imbalance * (1 - 1 / servers) / np.sqrt(servers) * 0.5
        wire = self.gradient / (self.nic_gbps * 1e9 / 8 * self.fraction) * (1 + self.incast * n)
        own = 2 * wire * min(self.per_host, n) * (1 - self.hides)
        stations = np.array([wire * largest, wire * largest, self.cpu * largest, self.coordination])
        if self.sync is Strategy.PS_ASYNC:
            time = 1 / _throughput(compute + own, stations, n)
        else:
            slowest = compute * (1 + self.jitter * np.sqrt(2 * np.log(max(n, 1))))
            burst = n * (max(stations[0], stations[2]) + 0.5 * stations[1]) + n * self.coordination
            time = slowest + max(own, burst) - self.hides * min(slowest * 0.5, burst)
        return float(time * np.exp(self.rng.standard_t(5) * self.noise * 0.8))


def _throughput(think: float, stations: np.ndarray, customers: int) -> float:
    """Pushes per second of a closed network: exact mean value analysis."""
    queue = np.zeros(len(stations))
    throughput = 0.0
    for n in range(1, customers + 1):
        response = stations * (1 + queue)
        throughput = n / (think + response.sum())
        queue = throughput * response
    return throughput
