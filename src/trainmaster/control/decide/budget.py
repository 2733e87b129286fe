"""The hard cap of a run: what its provider bills at most, and when it must end to stay below it.

Three things are paid for after the last step of training, and are set aside from the beginning: members stop,
what they leave is published, machines are given back. If the driver is killed instead, its machines live on
until their leases end; so leases get shorter as the money runs out. Nothing here looks at a clock.

`SavingMoney`: what machines cost that only wait for something to be saved, and when that is enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from trainmaster.control.loop.run_state import Task
from trainmaster.dataclass import dataclass, field
from trainmaster.spec import Budget
from trainmaster.spec.states import State
from trainmaster.spec.units import dollars

#: Set aside for waiting where the recipe's ``budget.saving`` says nothing: a day's rent, or so much if less.
USUAL_USD: Final = 20.0
USUAL_HOURS: Final = 24.0

#: Of a task that uses its machines, or is about to.
_AT_WORK: Final = (State.ACQUIRING, State.STAGING, State.RUNNING)
_ENDED: Final = (State.RECOVERING, State.SAVING)


def cost_words(spent_usd: float, most_usd: float) -> str:
    """What a run has cost by what is known, and what it may have: machines may be there that were not seen.

    Args:
        spent_usd: by what was seen.
        most_usd: that may be billed until now.

    >>> cost_words(0.0, 0.0028), cost_words(0.81, 0.8101)
    ('is known to have cost $0, and may have cost up to $0.0028', 'has cost $0.81')
    """
    known, most = dollars(spent_usd), dollars(most_usd)
    if known == most:
        return f"has cost {known}"
    return f"is known to have cost {known}, and may have cost up to {most}"


def saving_limit_usd(given_usd: float | None, usd_per_hour: float) -> float:
    """How much waiting for something to be saved may cost.

    Args:
        given_usd: the recipe's ``budget.saving``.
        usd_per_hour: price of the machines.

    >>> saving_limit_usd(None, 0.5), saving_limit_usd(None, 40.0), saving_limit_usd(3.0, 40.0)
    (12.0, 20.0, 3.0)
    """
    return min(USUAL_USD, USUAL_HOURS * usd_per_hour) if given_usd is None else given_usd


@dataclass(slots=True)
class SavingMoney:
    """Counts while nothing else is done on the machines of the run. On one's own, waiting costs nothing.

    Attributes:
        given_usd: see `saving_limit_usd`.
        spent_usd: so far.
        usd_per_hour: price of the machines, when it was looked at last.
    """

    given_usd: float | None = None
    spent_usd: float = 0.0
    usd_per_hour: float = 0.0
    _counted_at: float | None = None

    @property
    def limit_usd(self) -> float:
        """See `saving_limit_usd`."""
        return saving_limit_usd(self.given_usd, self.usd_per_hour)

    @property
    def is_used(self) -> bool:
        """True if what waits has waited for long enough."""
        return self.usd_per_hour > 0 and self.spent_usd >= self.limit_usd

    def left_s(self) -> float | None:
        """Seconds until it is used, if all else is over; None if that is never."""
        if not self.usd_per_hour:
            return None
        return max(self.limit_usd - self.spent_usd, 0.0) / self.usd_per_hour * 3600

    def look(self, tasks: Iterable[Task], usd_per_hour: float, now: float) -> None:
        """Count what has passed since the last look.

        Args:
            tasks: of the run that are not DONE.
            usd_per_hour: price of what is rented.
            now: in seconds, of a clock that is not set.
        """
        self.usd_per_hour = usd_per_hour
        waiting, is_at_work = [], False
        for task in tasks:
            if task.tries and task.state in _ENDED:
                waiting.append(task)
            is_at_work = is_at_work or task.state in _AT_WORK
        if not waiting:
            self.spent_usd, self._counted_at = 0.0, None
            return
        # An earlier driver may have waited already.
        self.spent_usd = max([self.spent_usd, *(task.saving_usd for task in waiting)])
        if not is_at_work and self._counted_at is not None:
            # While this machine slept the others ended with their leases.
            passed_s = min(max(now - self._counted_at, 0.0), USUAL_LEASE_S + SWITCH_OFF_S)
            self.spent_usd += usd_per_hour * passed_s / 3600
        self._counted_at = now


#: A machine that was just asked for is billed so long before its switch begins to count, at most.
BOOTING_S: Final = 120.0
#: Seconds that rented machines live when their lease is not renewed, in a run that has money enough.
USUAL_LEASE_S: Final = 900.0
#: A lease that is shorter cannot be renewed reliably: a run that cannot pay for it ends.
LEAST_LEASE_S: Final = 90.0
#: From the end of a lease to the end of the bill, at most: a renewal that was slow to arrive, the switch that
#: looks now and then, and a machine that is switched off by force because it does not go down when asked.
SWITCH_OFF_S: Final = 110.0
#: Seconds before the cap in which machines are given back. If the driver dies instead, their last lease ends
#: in it, and they are switched off.
RELEASING_S: Final = 15.0 + SWITCH_OFF_S
#: The same for machines that are given back while their run goes on: their last lease is a whole one.
LEAVING_S: Final = LEAST_LEASE_S + SWITCH_OFF_S
#: So long before its money would end it a run gives back what it may go on without: it has longer leases
#: then, and some seconds pass between looks.
SOON_S: Final = LEAVING_S - RELEASING_S + 10.0
#: Bytes per second at which something is published that has never been measured; cautious.
_UNMEASURED_BYTES_PER_S: Final = 5e6
#: Seconds for publishing, whatever was measured: a model may be larger than any checkpoint was.
_LEAST_SAVING_S: Final = 60.0
#: The last publishing may be slower than any before: all tasks save at the same time.
_SLOWER: Final = 1.5
#: To which fraction of a second moments are looked for.
_PRECISION_S: Final = 0.5

#: Unix seconds -> what the provider bills at most, in dollars, if all that is rented is there until then.
#: It never falls.
Bill = Callable[[float], float]


@dataclass(slots=True)
class Publishing:
    """How long publishing takes in this run, from what was published so far.

    Attributes:
        longest_s: that one checkpoint or model took.
        bytes_per_s: of the slowest of which the size is known; 0 before any.
        most_bytes: of the largest that is to be published at the end, if known; else 0.
        rounds: how often one has to wait for another, as not all are published at the same time.
    """

    longest_s: float = 0.0
    bytes_per_s: float = 0.0
    most_bytes: float = 0.0
    rounds: int = 1

    def learn(self, seconds: float, size_bytes: float = 0.0) -> None:
        """Something was published.

        Args:
            seconds: that it took.
            size_bytes: of it; 0 if unknown.
        """
        self.longest_s = max(self.longest_s, seconds)
        self.most_bytes = max(self.most_bytes, size_bytes)
        if size_bytes > 0 and seconds > 1:  # of less a round trip tells more than the line
            speed = size_bytes / seconds
            self.bytes_per_s = min(self.bytes_per_s or speed, speed)

    @property
    def expected_s(self) -> float:
        """Seconds to set aside for publishing at the end.

        >>> Publishing().expected_s
        60.0
        >>> Publishing(longest_s=100.0).expected_s
        150.0
        """
        by_size = self.most_bytes / (self.bytes_per_s or _UNMEASURED_BYTES_PER_S)
        known = max(self.longest_s, by_size)
        return max(self.rounds * _SLOWER * known, _LEAST_SAVING_S)


@dataclass(slots=True)
class Meter:
    """The billing clock of a run.

    Attributes:
        cap_usd: ``budget.total``; infinite where there is none. Less where others draw on the same money.
        bill: what the provider bills at most; nothing on the user's own machines.
        spent: Unix seconds -> what it has cost until then by what was seen, in dollars.
        stopping_s: how long members may take to stop.
        publishing: how long saving takes.
        releasing_s: how long machines are billed that were asked to end.
        usual_lease_s: of machines whose run has money enough; 0 where they have none.
        why: whose cap it is, for people, if it is not that of the recipe.
        saves_nothing: an end of the run would save nothing: all that costs is given back already.
    """

    cap_usd: float = math.inf
    bill: Bill = field(default=lambda _: 0.0)
    spent: Bill = field(default=lambda _: 0.0)
    stopping_s: float = 0.0
    publishing: Publishing = field(default_factory=Publishing)
    releasing_s: float = RELEASING_S
    usual_lease_s: float = 0.0
    why: str = ""
    saves_nothing: bool = False

    @classmethod
    def of(cls, budget: Budget | None) -> Meter:
        """With a recipe's cap."""
        total = budget.total_usd if budget else None
        return cls(cap_usd=math.inf if total is None else total)

    @property
    def ending_s(self) -> float:
        """How long the end of the run may take, in which the clock goes on."""
        return self.stopping_s + self.publishing.expected_s + self.releasing_s

    @property
    def reserved_s(self) -> float:
        """For how long there must always be money: for an end in order, and for a driver that is killed."""
        lease_s = min(self.usual_lease_s, LEAST_LEASE_S)
        return max(self.ending_s, lease_s + SWITCH_OFF_S if lease_s else 0.0)

    def must_end(self, now: float) -> bool:
        """True if the run would cost more than the cap unless it begins to end now.

        Either because it could not stop, save and give back in time, or because its machines could not be
        left with a lease that a driver can renew.

        >>> meter = Meter(2.0, lambda until: until / 1000, stopping_s=20.0)
        >>> meter.ending_s, meter.must_end(1794.0), meter.must_end(1796.0)
        (205.0, False, True)
        """
        is_over = self.cap_usd < math.inf and self.bill(now + self.reserved_s) > self.cap_usd
        return is_over and not self.saves_nothing

    @property
    def limit(self) -> str:
        """The cap, for people."""
        return self.why or f"it may cost {dollars(self.cap_usd)}"

    def why_over(self, now: float) -> str:
        """Why it `must_end`, in numbers: what it may cost, has cost, could with its end; what an hour costs.

        >>> Meter(0.1, bill := lambda until: until / 1000, bill, usual_lease_s=900.0).why_over(30.0)
        'it may cost $0.10; it has cost $0.03, and with 200 s more, for a lease and an end in order, \
it could be $0.23; an hour of its machines costs up to $3.60'
        """
        least_s = self.reserved_s
        needs_usd = self.bill(now + least_s)
        hour_usd = self.bill(now + least_s + 3600) - needs_usd
        return (
            f"{self.limit}; it {cost_words(self.spent(now), self.bill(now))}, and with {least_s:.0f} s more, "
            f"for a lease and an end in order, it could be {dollars(needs_usd)}; an hour of its machines "
            f"costs up to {dollars(hour_usd)}"
        )

    def must_be_over(self, now: float) -> float:
        """Unix seconds at which machines must be given back, whatever is still being saved.

        Infinite without a cap, and where nothing is paid.

        >>> round(Meter(2.0, lambda until: until / 1000).must_be_over(1000.0))
        1875
        """
        return now + self._affordable_s(now, self.releasing_s)

    def must_have_left(self, now: float) -> float:
        """Unix seconds at which what the run goes on without is given back; as late as it may still save."""
        return now + self._affordable_s(now, LEAVING_S, self.reserved_s - self.releasing_s)

    def lease_s(self, now: float) -> float:
        """How long machines may live from now on without anybody: as usual, or until the money is used up.

        >>> meter = Meter(2.0, lambda until: until / 1000, usual_lease_s=900.0)
        >>> meter.lease_s(900.0), round(meter.lease_s(1690.0)), meter.lease_s(2000.0)
        (900.0, 200, 0.0)
        """
        return self._affordable_s(now, SWITCH_OFF_S, self.usual_lease_s)

    def _affordable_s(self, now: float, after_s: float, most_s: float = math.inf) -> float:
        """For how long all can be there, and ``after_s`` more, below the cap; at most ``most_s``."""
        if self.cap_usd == math.inf:
            return most_s
        if self.bill(now + after_s) > self.cap_usd:
            return 0.0
        low, high = 0.0, min(most_s, 3600.0)
        while self.bill(now + high + after_s) <= self.cap_usd:
            if high >= most_s or high > _ENDLESS_S:
                return most_s
            low, high = high, min(2 * high, most_s)
        while high - low > _PRECISION_S:
            middle = (low + high) / 2
            if self.bill(now + middle + after_s) <= self.cap_usd:
                low = middle
            else:
                high = middle
        return low


#: The longest wait: what costs so little never reaches its cap.
_ENDLESS_S: Final = 100 * 365 * 86_400.0


def end_reserve_s(grace_s: Iterable[float], most_bytes: float = 0.0, rounds: int = 1) -> float:
    """For how long a run with a cap always has money, for its end, before anything was published.

    Args:
        grace_s: that tasks of its experiments have to stop.
        most_bytes: see `Publishing`.
        rounds: see `Publishing`.
    """
    publishing = Publishing(most_bytes=most_bytes, rounds=rounds)
    return Meter(stopping_s=max(grace_s), publishing=publishing, usual_lease_s=USUAL_LEASE_S).reserved_s
