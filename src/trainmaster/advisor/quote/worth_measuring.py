"""What is worth measuring: what a minute of the job, or another size of it, would make of a quote."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.advisor.quote.quote import ClusterShape, Interval


@dataclass(frozen=True, slots=True)
class MoreMeasuring:
    """What a minute of the job on one machine would make of the interval.

    Attributes:
        instance: the machine. seconds: with what comes before the minute. cost_usd: of that.
        now_s, then_s: the time as it is known, and as it would be if the median stays.
    """

    instance: str
    seconds: float
    cost_usd: float
    now_s: Interval
    then_s: Interval

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "instance": self.instance,
            "seconds": round(self.seconds, 1),
            "cost_usd": round(self.cost_usd, 6),
            "now_s": self.now_s.as_dict(),
            "then_s": self.then_s.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class NextMeasurement:
    """The measurement that would narrow the quote most.

    Attributes:
        workers: processes of the shape to measure. instance: on what.
        seconds: it would take. cost_usd: it would cost.
        width_now, width_then: p95 over p50 of the step time, now and as expected after it.
        time_s: the experiment's time as it would then be known, if the median stays.
    """

    workers: int
    instance: str
    seconds: float
    cost_usd: float
    width_now: float
    width_then: float
    time_s: Interval | None = None

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        names = [name for name in self.__slots__ if name != "time_s"]
        plain = {name: round(v, 6) if isinstance(v := getattr(self, name), float) else v for name in names}
        return {**plain, "time_s": self.time_s.as_dict() if self.time_s else None}

    def to_measure(self, cluster: ClusterShape) -> dict[str, Any]:
        """Its machines, for `Quote.to_measure`: those of the quoted cluster, for one task of so many workers.

        >>> from trainmaster.advisor.quote.quote import ClusterShape, Rented
        >>> quoted = ClusterShape(Rented("m4.large", 3), Rented("t2.small", 1), workers=6)
        >>> point = NextMeasurement(2, "m4.large", 70.0, 0.01, 2.0, 1.5).to_measure(quoted)
        >>> point["processes"], point["machines"]
        (2, {'m4.large': 1, 't2.small': 1})
        >>> sweep = ClusterShape(Rented("m4.large", 8), workers=1, at_once=8)
        >>> NextMeasurement(1, "m4.large", 70.0, 0.01, 2.0, 1.5).to_measure(sweep)["machines"]
        {'m4.large': 1}
        """
        worker, server = cluster.worker, cluster.server
        of_all = cluster.workers * cluster.at_once
        machines = {worker.instance: math.ceil(self.workers * worker.count / of_all)}
        usd = {worker.instance: worker.usd_per_hour}
        if server is not None:
            of_one = math.ceil(server.count / cluster.at_once)
            machines[server.instance] = machines.get(server.instance, 0) + of_one
            usd[server.instance] = server.usd_per_hour
        return {
            "workers": [worker.instance],
            "servers": [server.instance] if server is not None else [],
            "processes": self.workers,
            "machines": machines,
            "seconds": round(self.seconds, 1),
            "usd_per_hour": usd,
            "traffic_mbps": {},
            "traffic": False,
        }
