"""`RunCosts`: what a run's clusters have cost, what they may cost yet, and whether its budget allows more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

from trainmaster.control.decide.budget import (
    BOOTING_S,
    LEAST_LEASE_S,
    LEAVING_S,
    RELEASING_S,
    SOON_S,
    SWITCH_OFF_S,
    Bill,
    Meter,
)
from trainmaster.spec.units import dollars

if TYPE_CHECKING:
    from trainmaster.cluster.cluster_loop import ClusterLoop
    from trainmaster.cluster.record import ClusterRecord
    from trainmaster.cluster.renting.growth import Growth

_WRITTEN_EVERY_S: Final = 5.0


class RunCosts:
    """Of all clusters of a run.

    Args:
        loops: its clusters; each asks here before it rents more.
        write: keeps what the run has cost, in dollars.
        clock: gives Unix seconds that never jump.
        earlier_usd: what the run has paid for clusters that have ended, as expected and at most.
        per_hour_usd: what all machines may cost per hour.
    """

    def __init__(
        self,
        loops: Sequence[ClusterLoop],
        write: Callable[[float], None],
        clock: Callable[[], float],
        earlier_usd: tuple[float, float],
        per_hour_usd: float,
    ) -> None:
        self._loops = loops
        for loop in loops:
            loop.affords = partial(self._affords, loop)
        self._write = write
        self._clock = clock
        self._earlier_usd, self._earlier_most_usd = earlier_usd
        self._per_hour_usd = per_hour_usd
        self._meter = Meter()
        self._written_at = 0.0

    def pay_by(self, meter: Meter, now: float) -> None:
        """Leases are no longer than the money lasts; said before `open`, which renews those that there are.

        Args:
            meter: is told what it has cost, and what is billed at most.
            now: Unix seconds.
        """
        self._meter = meter
        meter.bill, meter.spent = self._bill(now), self.spent_usd
        if not meter.usual_lease_s:
            return
        lease_s = meter.lease_s(now)
        for loop in self._loops:
            # What is given back soon lives no longer than that, whatever becomes of its driver. All clusters
            # at a provider have the same leases.
            leave = [
                each.leaves_at
                for each in self._loops
                if each.record.provider == loop.record.provider
                and not each.is_over
                and now < each.leaves_at + LEAVING_S
            ]
            left_s = min(leave, default=math.inf) + LEAVING_S - SWITCH_OFF_S - now
            loop.leases.lease_s = min(lease_s, max(left_s, LEAST_LEASE_S))

    def spent_usd(self, now: float) -> float:
        """Dollars that the run has to pay until now."""
        return self._earlier_usd + sum(loop.record.spent_usd(now) for loop in self._loops)

    def most_usd(self, now: float, until: float) -> float:
        """Dollars that the run has to pay at most, if all that it has asked for is there until then.

        Args:
            now: Unix seconds.
            until: Unix seconds, not before.
        """
        return self._earlier_most_usd + sum(self._most_of(loop, now, until) for loop in self._loops)

    def why_unpaid(self, renting: ClusterLoop, record: ClusterRecord) -> str:
        """Why the budget does not suffice for a cluster with what is to be asked for; empty if it does."""
        meter, now = self._meter, self._clock()
        if meter.cap_usd == math.inf:
            return ""
        until = now + meter.reserved_s + SOON_S
        others = sum(self._most_of(loop, now, until) for loop in self._loops if loop is not renting)
        usd = self._earlier_most_usd + others + record.most_usd(now, until)
        if usd <= meter.cap_usd:
            return ""
        return f"from their start to their end the run could come to {dollars(usd)}; {meter.limit}"

    def leave(self, loop: ClusterLoop, now: float) -> None:
        """All of it is given back in time to stay below the cap: it is billed no longer than until then.

        Said again in each look, as the cap may have become less.
        """
        loop.leaves_at = min(loop.leaves_at, self._meter.must_have_left(now))
        self.pay_by(self._meter, now)

    def grows_usd(self, loop: ClusterLoop, now: float) -> float:
        """What the bill of a cluster grows by in an hour, unless it is given back."""
        return loop.record.most_usd(now, now + 3600) - loop.record.most_usd(now, now)

    def keep_written(self, now: float) -> None:
        """Write down what it has cost, now and then."""
        if now - self._written_at >= _WRITTEN_EVERY_S:
            self.write(now)

    def write(self, now: float) -> float:
        """Write down what it has cost until now; that."""
        self._written_at = now
        cost_usd = self.spent_usd(now)
        self._write(cost_usd)
        return cost_usd

    @property
    def limit(self) -> str:
        """What bounds it, for people."""
        return "the month's budget" if self._meter.why else "budget.total"

    def keepable_s(self, keep_s: float) -> float:
        """For how long the budget lets all clusters that are to be kept be kept, at most as long as asked."""
        now = self._clock()
        records = [loop.record for loop in self._loops]

        def bill(until: float) -> float:
            kept = [record.most_usd(now, until) for record in records if record.keepable_s]
            rest = [record.most_usd(now, now + RELEASING_S) for record in records if not record.keepable_s]
            return self._earlier_most_usd + sum(kept) + sum(rest)

        return replace(self._meter, bill=bill, usual_lease_s=keep_s).lease_s(now)

    def why_not(self, cluster: ClusterLoop, wanted: Growth) -> str:
        """Why the budget does not allow a cluster larger machines; empty if it does."""
        count, way = wanted.after.count, wanted.after.rentals[0]
        mine = cluster.record.plan.usd_per_hour
        others = sum(loop.record.usd_per_hour() for loop in self._loops if loop is not cluster)
        usd = others + mine + count * (way.usd_per_hour - wanted.before.rentals[0].usd_per_hour)
        if usd > self._per_hour_usd + 1e-9:
            return f"budget.per_hour of ${self._per_hour_usd:g} does not allow ${usd:.4g}"
        cap, now = self._meter.cap_usd, self._clock()
        if cap == math.inf:
            return ""
        least = count * way.billed_usd(BOOTING_S + self._meter.reserved_s, at_most=True)
        left = cap - self.most_usd(now, now + BOOTING_S)
        if least > left:
            left_usd = dollars(max(left, 0.0))
            return f"of budget.total no more than {left_usd} is left, and they need {dollars(least)}"
        return ""

    def _bill(self, now: float) -> Bill:
        """What is billed at most, for the meter: it is asked in every turn, and machines may be many."""

        @lru_cache
        def until_second(until: int) -> float:
            return self.most_usd(now, until)

        return lambda until: until_second(math.ceil(until))

    @staticmethod
    def _most_of(loop: ClusterLoop, now: float, until: float) -> float:
        """What has begun to leave is billed no longer than its last lease, and so long until that is over.

        Nothing is renewed after it has left: if its provider cannot say when it ended, no later look at it
        finds that it has ended earlier.
        """
        left_at = min(now, loop.leaves_at)
        return loop.record.most_usd(left_at, min(until, loop.leaves_at + LEAVING_S))

    def _affords(self, renting: ClusterLoop) -> bool:
        """Whether a driver that dies after asking for more machines leaves a bill below the cap.

        Those that are there have leases from before, which are shortened first. What the cap ends at once
        with them asks for none.
        """
        if self._meter.cap_usd == math.inf:
            return True
        now = self._clock()
        if self.most_usd(now, now + self._meter.reserved_s) > self._meter.cap_usd:
            return False
        usd = self._earlier_most_usd
        for loop in self._loops:
            record, new_s = loop.record, loop.leases.lease_s if loop is renting else 0.0
            until = max(loop.leases.last_until(record), now + new_s)
            usd += record.most_usd(now, until + SWITCH_OFF_S)
        return usd <= self._meter.cap_usd
