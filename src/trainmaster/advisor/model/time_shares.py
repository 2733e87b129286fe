"""Where the time of a measured step went, as far as the counters of kernel and devices tell."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Shares of the time of a step, 0..1; None is "unknown". They overlap: sending hides behind computing.

    Attributes:
        computing: a worker's devices, or at least one of its cores, were busy.
        waiting: neither was: for other workers, servers, the network or data.
        network: what a worker sent, or received, takes at the rate of its network card; between machines.
        server: of the busiest parameter server's processors.
    """

    computing: float | None = None
    waiting: float | None = None
    network: float | None = None
    server: float | None = None

    @classmethod
    def of(cls, cores: float | None, devices: float | None, server: float | None) -> TimeShares:
        """Of what workers and servers kept busy.

        Args:
            cores: that one worker kept busy on average.
            devices: share of the time that a worker's accelerators were busy; None without any.
            server: share of a parameter server's processors that was busy.

        >>> TimeShares.of(cores=1.7, devices=0.25, server=None)
        TimeShares(computing=0.25, waiting=0.75, network=None, server=None)
        """
        busy = devices if devices is not None else cores
        if busy is None:
            return cls(server=server)
        computing = round(min(busy, 1.0), 4)
        return cls(computing, round(1 - computing, 4), None, server)

    def over(self, nic_mbps: float, bytes_per_step: float, step_time_s: float) -> TimeShares:
        """The same with what a network card takes.

        Args:
            nic_mbps: of the card.
            bytes_per_step: that one worker sent, or received if that is more.
            step_time_s: seconds per step.

        >>> TimeShares().over(10_000, 1e8, 0.2).network
        0.4
        """
        return replace(self, network=round(min(bytes_per_step * 8 / (nic_mbps * 1e6) / step_time_s, 1.0), 4))
