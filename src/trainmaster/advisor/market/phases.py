"""`PhaseHistory`: what a phase that is no training took before, and what that says of the next time."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from trainmaster.advisor.market.load import LoadCorrection, mean_doubt, slope_within
from trainmaster.dataclass import dataclass
from trainmaster.providers.capabilities import on_this_machine
from trainmaster.spec.log_normal import LogNormal

#: Beliefs before any were seen, in seconds, on machines that are rented; and on machines that stay.
RENTED: Final = {
    "machines": LogNormal(1.5, 0.6),  # only of those that an earlier run has kept: until it has them again
    "setup": LogNormal(20.0, 1.0),
    "image": LogNormal(40.0, 1.0),
    "data": LogNormal(2.0, 1.2),
    "staging": LogNormal(1.0, 0.7),
    "saving": LogNormal(0.5, 0.8),
}
STAYING: Final = RENTED | {"staging": LogNormal(0.05, 0.7), "saving": LogNormal(0.03, 0.8)}
NOTHING: Final = LogNormal(0.0, 0.0)
#: Phases whose result stays on a machine that stays.
_LASTING: Final = frozenset({"setup", "image"})
#: How much a phase of the same content differs between kinds of machines (log), before both were seen.
_ELSEWHERE: Final = 0.5
#: How far a phase is from what other contents say of it (log), before any were compared; counts as so many.
_OTHER_CONTENT: Final = (0.8, 4)
#: Up to so many processors a machine with more of them is there sooner: its time goes with this power.
_FAST: Final = 4.0
_BOOTS: Final = 0.5
#: Of several kinds of machines, how much they differ (log); counts as much as two of them.
_OTHER_TYPES: Final = 0.3
#: The last of n machines is there after the usual time of one, times n to a power like this, with a doubt:
#: the greatest of n times with the spread of one wait. How much more they hinder each other is learnt.
_TOGETHER: Final = (0.2, 0.2)
_WAIT_SPREAD: Final = 0.3
_IDLE: Final = LoadCorrection()
#: How much wider its 95 % are than the normal distribution's, times the degrees of freedom.
_STUDENT: Final = 0.93


@dataclass(frozen=True, slots=True)
class PhaseSample:
    """A phase that was seen.

    Attributes:
        seconds: that it took. offer: on what, as in `Measurement`. content: hash of what it was.
        doubt: about the seconds, where they were seen at another load; see `LoadCorrection`.
    """

    seconds: float
    offer: str
    content: str = ""
    doubt: float = 0.0


@dataclass(frozen=True)
class PhaseHistory:
    """A phase of one experiment.

    Attributes:
        name: ``setup``, ``image``, ``data``, ``staging``, ``saving``; of warm machines ``machines``, too.
        content: hash of what it is; empty where all are alike.
        seen: of earlier runs, the newest first.
        is_there: on a machine that stays, its result is there already; None if nothing is known of that.
        busy: what the load of this machine makes of a time without any.
    """

    name: str
    content: str = ""
    seen: tuple[PhaseSample, ...] = ()
    is_there: bool | None = None
    busy: LoadCorrection = _IDLE

    def belief(self, offer: str, *, stays: bool) -> LogNormal:
        """What it will take on a kind of machine.

        >>> seen = (PhaseSample(60.0, "m4.large", "a"), PhaseSample(3.0, "m4.large", "b"))
        >>> history = PhaseHistory("setup", "a", seen)
        >>> round(history.belief("m4.large", stays=False).median)
        51
        >>> history.belief("host", stays=True).median > history.belief("m4.large", stays=False).median / 2
        True

        Args:
            offer: its name, as in `Measurement`.
            stays: it is the user's: what was brought there once is there.
        """
        same = [each for each in self.seen if each.content == self.content]
        mine = [each.seconds for each in same if each.offer == offer]
        if stays and self.name in _LASTING and (self.is_there or (self.is_there is None and mine)):
            return NOTHING
        found = (STAYING if stays else RENTED)[self.name]
        if on_this_machine(offer):
            spread = math.hypot(found.spread, self.busy.doubt)
            found = LogNormal(found.median * self.busy.factor, spread, found.weight)
        unlike = [each for each in self.seen if each.content != self.content]
        # another kind of machine may be much slower
        others = _typical([each for each in unlike if each.offer == offer] or unlike)
        if others:
            found = _of_others(LogNormal(found.median, found.spread, 2.0), others)
        elsewhere = [each.seconds for each in same if each.offer != offer]
        if elsewhere and (self.content or not mine):
            spread = math.hypot(_ELSEWHERE, _spread(elsewhere))
            found = LogNormal(_middle(elsewhere), spread)
        found = LogNormal(found.median, found.spread, 0.3 if len(mine) > 1 else 0.1).learnt(mine)
        like = [each for each in same if each.offer == offer] or same or self.seen
        return found.doubted(mean_doubt([each.doubt for each in like]))


@dataclass(frozen=True, slots=True)
class ClusterWait:
    """How long a run waited until its cluster was up.

    Attributes:
        seconds: from asking for it until it was up. offer: its workers' machines, as in `Measurement`.
        provider: whose. vcpus: of one; 0: unknown.
        queued_s: how long they waited in a queue of the provider before.
        machines: how many came together.
        doubt: about the seconds, where they were seen at another load; see `LoadCorrection`.
        spot: they were spot machines. used_s: for how long each was there, all together. lost: how many of
            them were taken back or lost while they were needed.
    """

    seconds: float
    offer: str = ""
    provider: str = ""
    vcpus: float = 0.0
    queued_s: float = 0.0
    machines: int = 1
    doubt: float = 0.0
    spot: bool = False
    used_s: float = 0.0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class MachineCountEffect:
    """How much longer many machines take to come than one does.

    Attributes:
        power: of their number. doubt: about it (log). usual: how many came before (log, the mean).
    """

    power: float
    doubt: float
    usual: float

    @classmethod
    def learnt(cls, waited: Sequence[ClusterWait], provider: str) -> MachineCountEffect:
        """From earlier waits: how these differ within each kind of machines, as their number does.

        >>> few = [ClusterWait(10.0, machines=1), ClusterWait(20.0, machines=4)] * 9
        >>> [round(MachineCountEffect.learnt(seen, "lab").power, 2) for seen in (few, [])]
        [0.48, 0.2]
        """
        kinds: dict[Hashable, list[tuple[float, float]]] = {}
        for each in waited:
            if each.provider in ("", provider) and each.seconds > 0:
                point = (math.log(max(each.machines, 1)), math.log(each.seconds))
                kinds.setdefault(each.offer, []).append(point)
        numbers = [a for points in kinds.values() for a, _ in points]
        usual = sum(numbers) / len(numbers) if numbers else 0.0
        power, doubt = slope_within(kinds, _TOGETHER, _WAIT_SPREAD)
        return cls(max(power, 0.0), doubt, usual)

    def factor(self, machines: float) -> float:
        """By which so many take longer than one."""
        return float(max(machines, 1.0) ** self.power)

    def spread(self, machines: float) -> float:
        """Doubt (log) about that of so many."""
        return self.doubt * abs(math.log(max(machines, 1.0)) - self.usual)


def machines_belief(
    prior: LogNormal,
    waited: Sequence[ClusterWait],
    provider: str,
    offer: str,
    vcpus: float = 0.0,
    machines: int = 1,
) -> LogNormal:
    """How long one will wait for machines: the same kind tells most, the others what is usual there.

    >>> seen = [ClusterWait(30.0, "small", "lab")] * 3 + [ClusterWait(6.0, "large", "lab")] * 3
    >>> prior = LogNormal(15.0, 0.5)
    >>> [round(machines_belief(prior, seen, "lab", name).median) for name in ("small", "large", "other")]
    [28, 7, 14]

    Args:
        prior: of the provider, before any were seen.
        waited: of earlier runs; an empty provider is any.
        provider: whose machines.
        offer: which.
        vcpus: of one; 0: unknown. Small machines boot and unpack more slowly.
        machines: how many are to come together.
    """
    effect = MachineCountEffect.learnt(waited, provider)
    one = _one_machine(prior, waited, provider, offer, vcpus, effect)
    one = LogNormal(one.median * effect.factor(machines), one.spread, one.weight)
    there = [each for each in waited if each.provider in ("", provider)]
    like = [each for each in there if each.offer == offer] or there
    return one.doubted(effect.spread(machines), mean_doubt([each.doubt for each in like]))


def _one_machine(
    prior: LogNormal,
    waited: Sequence[ClusterWait],
    provider: str,
    offer: str,
    vcpus: float,
    effect: MachineCountEffect,
) -> LogNormal:
    """`machines_belief` of one alone."""
    mine = [each for each in waited if each.provider in ("", provider)]
    types: dict[str, list[float]] = {}
    for each in mine:
        both = min(each.vcpus, _FAST) and min(vcpus, _FAST)
        slower = (min(each.vcpus, _FAST) / min(vcpus, _FAST)) ** _BOOTS if both else 1.0
        types.setdefault(each.offer, []).append(each.seconds * slower / effect.factor(each.machines))
    if not types:
        return prior
    own = types.pop(offer, [])
    if types:
        learnt = prior.learnt([_middle(seconds) for seconds in types.values()])
        within = math.sqrt(sum(_spread(seconds) ** 2 for seconds in types.values()) / len(types))
        prior = LogNormal(learnt.median, max(learnt.spread, math.hypot(within, _OTHER_TYPES)))
    # of few waits neither the mean nor their spread is known: Student's t for the next one, by 5 and 95 %
    found = LogNormal(prior.median, prior.spread, 0.3).learnt(own)
    few = math.sqrt(1 + 1 / len(own)) * (1 + _STUDENT / len(own)) if own else 1.0
    return LogNormal(found.median, min(found.spread * few, max(prior.spread, found.spread)), found.weight)


def _of_others(prior: LogNormal, others: Sequence[float]) -> LogNormal:
    """What other contents say of a new one: as far from it as each was from what the rest says.

    >>> [round(_of_others(LogNormal(20.0, 1.0, 2.0), [9.0] * n).spread, 2) for n in (1, 4, 16)]
    [0.8, 0.61, 0.37]
    """
    spread, many = _OTHER_CONTENT
    rests = (prior.learnt([*others[:at], *others[at + 1 :]]) for at in range(len(others)))
    apart = (math.log(max(each, 1e-3) / rest.median) for each, rest in zip(others, rests, strict=True))
    squares = many * spread**2 + sum(each**2 for each in apart)
    return LogNormal(prior.learnt(others).median, math.sqrt(squares / (many + len(others))))


def _typical(seen: Iterable[PhaseSample]) -> list[float]:
    """Of each content the usual time."""
    contents: dict[str, list[float]] = {}
    for each in seen:
        contents.setdefault(each.content, []).append(each.seconds)
    return [_middle(seconds) for seconds in contents.values()]


def _middle(seconds: Sequence[float]) -> float:
    return math.exp(sum(math.log(max(each, 1e-3)) for each in seconds) / len(seconds))


def _spread(seconds: Sequence[float]) -> float:
    middle = math.log(_middle(seconds))
    return math.sqrt(sum((math.log(max(each, 1e-3)) - middle) ** 2 for each in seconds) / len(seconds))
