"""Whether a gang goes on with more or fewer workers or parameter servers (`adapt: true`), and when. Pure.

The members work on until the machines for the new size are there, so what a change costs is the way back to
the newest checkpoint, and the machines that are paid for meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from trainmaster.control.decide.adapting import WORTH, Adaptable, ChangeTiming
from trainmaster.dataclass import dataclass
from trainmaster.spec.units import counted, dollars, format_duration

#: Less than this share of what is left is not worth a change.
_LEAST: Final = 0.1


@dataclass(frozen=True, slots=True)
class SizeForecast:
    """A size that a gang may have.

    Attributes:
        workers, servers: how many.
        usual, sure: how many times as long the rest takes as with the present size: what is expected, and
            what is not exceeded with a probability of 75 %.
        machines: so many more than there are must be asked for; below 0: so many are given back.
        usd_per_hour: of all its machines.
    """

    workers: int
    servers: int
    usual: float
    sure: float
    machines: int = 0
    usd_per_hour: float = 0.0

    @property
    def words(self) -> str:
        """For people.

        >>> SizeForecast(4, 0, 0.5, 0.6).words, SizeForecast(1, 2, 1.0, 1.0).words
        ('4 workers', '1 worker and 2 parameter servers')
        """
        servers = f" and {counted(self.servers, 'parameter server')}" if self.servers else ""
        return f"{counted(self.workers, 'worker')}{servers}"

    @property
    def stays(self) -> str:
        """That nothing is changed."""
        return f"{self.words} {'stays' if (self.workers, self.servers) == (1, 0) else 'stay'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing(Adaptable):
    """One whose gang may change.

    Attributes:
        now: the size that it has. others: that it may have.
        most_usd_per_hour: that the run may spend at a time. due_s: until it is late.
    """

    now: SizeForecast
    others: tuple[SizeForecast, ...]
    most_usd_per_hour: float = math.inf
    due_s: float = math.inf

    @property
    def is_late(self) -> bool:
        """Whether the run ends too late without a change."""
        return self.left_s > self.due_s

    def wait_s(self, size: SizeForecast) -> float:
        """Until the machines of a size are there; its members work on as they are meanwhile."""
        return min(self.machine_s, self.left_s) if size.machines > 0 else 0.0

    def ends_s(self, size: SizeForecast, ratio: float) -> float:
        """When its last step is made if it goes on with a size, its steps taking so many times as long."""
        wait_s = self.wait_s(size)
        return wait_s + self.loss_s + (self.left_s - wait_s) * ratio

    def usd(self, size: SizeForecast, ratio: float) -> float:
        """What it costs until then; machines are paid for from when they are asked for."""
        wait_s = self.wait_s(size)
        dearer = max(size.usd_per_hour, self.now.usd_per_hour) * wait_s
        return (dearer + size.usd_per_hour * (self.ends_s(size, ratio) - wait_s)) / 3600

    @property
    def usd_now(self) -> float:
        """What it costs to the end without a change."""
        return self.now.usd_per_hour * self.left_s / 3600

    def gain(self, size: SizeForecast, ratio: float) -> float:
        """Of the objective, in shares of what is left, before what the change costs; below 0: a loss."""
        time, cost = (1.0, 0.0) if self.is_late else (self.time, self.cost)
        left_s = max(self.left_s, 1e-9)
        saved = (1 - self.wait_s(size) / left_s) * (1 - ratio)
        if self.usd_now <= 0:
            return (time + cost) * saved
        loss_usd = self.loss_usd(size)
        return time * saved + cost * (1 - (self.usd(size, ratio) - loss_usd) / self.usd_now)

    def loss_usd(self, size: SizeForecast) -> float:
        """What the change itself costs."""
        booting = max(size.usd_per_hour - self.now.usd_per_hour, 0.0) * self.wait_s(size)
        return (booting + size.usd_per_hour * self.loss_s) / 3600

    def loss(self, size: SizeForecast) -> float:
        """The same in shares of what is left."""
        time, cost = (1.0, 0.0) if self.is_late else (self.time, self.cost)
        share = self.loss_s / max(self.left_s, 1e-9)
        if self.usd_now <= 0:
            return (time + cost) * share
        return time * share + cost * self.loss_usd(size) / self.usd_now

    def is_worth_it(self, size: SizeForecast) -> bool:
        """Whether a change to that size pays, also if its steps take longer than is expected."""
        gain, weights = self.gain(size, size.sure), 1.0 if self.is_late else self.time + self.cost
        if not self.is_late and self.ends_s(size, size.sure) > self.due_s:
            return False
        return gain > max(WORTH * self.loss(size), _LEAST * weights)

    def why_too_dear(self, size: SizeForecast) -> str:
        """Which limit that size breaks; empty if none."""
        if size.usd_per_hour > max(self.most_usd_per_hour, self.now.usd_per_hour):
            return f"all machines may cost {dollars(self.most_usd_per_hour)} per hour at most"
        usd = self.usd(size, size.sure)
        needed_usd = self.spent_usd + usd + size.usd_per_hour * self.end_s / 3600
        is_over = needed_usd > self.most_usd and usd > self.usd_now
        return f"the run may cost {dollars(self.most_usd)} at most" if is_over else ""

    def saves(self, size: SizeForecast) -> str:
        """What is expected of a change, for people."""
        sooner_s = self.left_s - self.ends_s(size, size.usual)
        told = f"{format_duration(abs(sooner_s))} {'sooner' if sooner_s >= 0 else 'later'}"
        less = self.usd_now - self.usd(size, size.usual)
        if self.now.usd_per_hour or size.usd_per_hour:
            told += f", for {dollars(abs(less))} {'less' if less >= 0 else 'more'}"
        return f"the run ends about {told}"


def best_size(sizing: Sizing) -> tuple[SizeForecast | None, str]:
    """The size to go on with, or None for the present one; and why, in words for people.

    Where nothing is said there is nothing to choose.
    """
    worth = [size for size in sizing.others if sizing.is_worth_it(size)]
    if not worth:
        best = max(sizing.others, key=lambda size: sizing.gain(size, size.sure), default=None)
        if best is None:
            return None, ""
        late = "it is late, but " * sizing.is_late
        faster = (1 - best.usual) * 100
        pays = f"{abs(faster):.0f} % {'shorter' if faster >= 0 else 'longer'} steps"
        return None, f"{late}{sizing.now.stays}: {best.words} ({pays}) would not pay for the change"
    allowed = [size for size in worth if not sizing.why_too_dear(size)]
    too_dear = "" if allowed else f"{worth[0].words} would pay, but {sizing.why_too_dear(worth[0])}"
    if why_not := too_dear or sizing.why_not_yet("their number was"):
        return None, f"{sizing.now.stays}: {why_not}"
    in_time = [size for size in allowed if sizing.ends_s(size, size.sure) <= sizing.due_s]
    if sizing.is_late and in_time:
        best = min(in_time, key=lambda size: (sizing.usd(size, size.sure), sizing.ends_s(size, size.sure)))
    else:
        best = max(allowed, key=lambda size: sizing.gain(size, size.sure) - sizing.loss(size))
    return best, why_change(sizing, best)


def why_change(sizing: Sizing, size: SizeForecast) -> str:
    """What is changed, and what that is for."""
    where = ""
    if size.machines:
        many, word = abs(size.machines), "more" if size.machines > 0 else "fewer"
        where = f", on {counted(many, 'machine')} {word}"
    late = "it is late: " if sizing.is_late else ""
    return (
        f"{late}it is to go on with {size.words} instead of {sizing.now.words}{where}: a step takes about "
        f"{size.usual:.2f} times as long, {sizing.saves(size)}"
    )


def moment_for(sizing: Sizing, size: SizeForecast, ready_s: float) -> ChangeTiming:
    """Whether its members go on with that size now, as soon as there is a checkpoint, or not at all.

    Args:
        sizing: what is known now.
        size: its machines are there: they cost nothing more.
        ready_s: for how long they are.
    """
    there = replace(size, machines=min(size.machines, 0))
    if sizing.gain(there, size.usual) <= sizing.loss(there):
        return ChangeTiming.KEEP
    return sizing.timing(ready_s)
