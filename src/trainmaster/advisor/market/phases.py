"""`PhaseHistory`: what a phase that is no training took before, and what that says of the next time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from trainmaster.spec.log_normal import LogNormal

#: Beliefs before any were seen, in seconds, on machines that are rented; and on machines that stay.
RENTED: Final = {
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
#: What was seen of other contents says so little (log) at least.
_OTHER_CONTENT: Final = 0.8
#: Up to so many processors a machine with more of them is there sooner: its time goes with this power.
_FAST: Final = 4.0
_BOOTS: Final = 0.5
#: Of several kinds of machines, how much they differ (log); counts as much as two of them.
_OTHER_TYPES: Final = 0.3


@dataclass(frozen=True, slots=True)
class PhaseSample:
    """A phase that was seen.

    Attributes:
        seconds: that it took. offer: on what, as in `Measurement`. content: hash of what it was.
    """

    seconds: float
    offer: str
    content: str = ""


@dataclass(frozen=True)
class PhaseHistory:
    """A phase of one experiment.

    Attributes:
        name: ``setup``, ``image``, ``data``, ``staging`` or ``saving``.
        content: hash of what it is; empty where all are alike.
        seen: of earlier runs, the newest first.
        is_there: on a machine that stays, its result is there already; None if nothing is known of that.
    """

    name: str
    content: str = ""
    seen: tuple[PhaseSample, ...] = ()
    is_there: bool | None = None

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
        others = _typical(each for each in self.seen if each.content != self.content)
        if others:
            found = LogNormal(found.median, found.spread, 2.0).learnt(others)
            found = LogNormal(found.median, max(found.spread, _OTHER_CONTENT))
        elsewhere = [each.seconds for each in same if each.offer != offer]
        if elsewhere and (self.content or not mine):
            spread = math.hypot(_ELSEWHERE, _spread(elsewhere))
            found = LogNormal(_middle(elsewhere), spread)
        return LogNormal(found.median, found.spread, 0.3 if len(mine) > 1 else 0.1).learnt(mine)


@dataclass(frozen=True, slots=True)
class Waited:
    """How long one waited for a cluster.

    Attributes:
        seconds: from asking for it until it was up. offer: its workers' machines, as in `Measurement`.
        provider: whose. vcpus: of one; 0: unknown.
        queued_s: how long they waited in a queue of the provider before.
    """

    seconds: float
    offer: str = ""
    provider: str = ""
    vcpus: float = 0.0
    queued_s: float = 0.0


def machines_belief(
    prior: LogNormal, waited: Sequence[Waited], provider: str, offer: str, vcpus: float = 0.0
) -> LogNormal:
    """How long one will wait for machines: the same kind tells most, the others what is usual there.

    >>> seen = [Waited(30.0, "small", "lab")] * 3 + [Waited(6.0, "large", "lab")] * 3
    >>> prior = LogNormal(15.0, 0.5)
    >>> [round(machines_belief(prior, seen, "lab", name).median) for name in ("small", "large", "other")]
    [28, 7, 14]

    Args:
        prior: of the provider, before any were seen.
        waited: of earlier runs; an empty provider is any.
        provider: whose machines.
        offer: which.
        vcpus: of one; 0: unknown. Small machines boot and unpack more slowly.
    """
    mine = [each for each in waited if each.provider in ("", provider)]
    types: dict[str, list[float]] = {}
    for each in mine:
        both = min(each.vcpus, _FAST) and min(vcpus, _FAST)
        slower = (min(each.vcpus, _FAST) / min(vcpus, _FAST)) ** _BOOTS if both else 1.0
        types.setdefault(each.offer, []).append(each.seconds * slower)
    if not types:
        return prior
    own = types.pop(offer, [])
    if types:
        learnt = prior.learnt([_middle(seconds) for seconds in types.values()])
        within = math.sqrt(sum(_spread(seconds) ** 2 for seconds in types.values()) / len(types))
        prior = LogNormal(learnt.median, max(learnt.spread, math.hypot(within, _OTHER_TYPES)))
    return LogNormal(prior.median, prior.spread, 0.3).learnt(own)


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
