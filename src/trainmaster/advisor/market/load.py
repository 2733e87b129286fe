"""`LoadEffect`: how much longer what runs on this machine takes while its load is high. Pure."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final

from trainmaster.dataclass import dataclass

#: Times grow with 1 + load / cores to a power like this, before any were seen: what computes follows the
#: load, what waits does not.
_POWER: Final = (0.3, 0.3)
#: The same of steps whose share of computing is known: the power of those that do nothing else, how sure that
#: is, and how sure it is of those that only wait.
_COMPUTES, _WAITS = (0.5, 0.3), 0.1
#: Above, something else was at work. Times below so many seconds are noise.
_MOST, _LEAST_S = 2.0, 0.01
#: How much times of the same thing differ at the same load (log), before any were seen; counts as so many.
_NOISE, _BELIEF = 0.3, 4


@dataclass(frozen=True, slots=True)
class LoadCorrection:
    """What another load makes of a time.

    Attributes:
        factor: by which it would have been longer.
        doubt: about that (log); of times seen at higher loads it is negative, so that the doubt of several
            is that of their mean.
    """

    factor: float = 1.0
    doubt: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadEffect:
    """Of one phase of one place, or of one job.

    Attributes:
        power: of 1 + load / cores, to which times grow. doubt: about it.
    """

    power: float = _POWER[0]
    doubt: float = _POWER[1]

    @classmethod
    def learnt(
        cls, seen: Iterable[tuple[Hashable, float | None, float]], cores: float, busy: float | None = None
    ) -> LoadEffect:
        """From times that were seen at different loads.

        >>> few = [("a", 0.0, 10.0), ("a", 6.0, 20.0), ("b", 0.0, 1.0), ("b", 6.0, 2.0)] * 99
        >>> [round(LoadEffect.learnt(each, 2.0).power, 2) for each in (few, [])]
        [0.5, 0.3]

        Args:
            seen: what was done (like is held against like), the load then (None: unknown), and seconds.
            cores: of this machine.
            busy: share of the time for which it wants a core; None if unknown.
        """
        belief = _POWER
        if busy is not None:
            belief = _COMPUTES[0] * busy, _WAITS + (_COMPUTES[1] - _WAITS) * busy
        kinds: dict[Hashable, list[tuple[float, float]]] = {}
        for kind, load, seconds in seen:
            if load is not None and seconds > 0:
                point = (_crowding(load, cores), math.log(max(seconds, _LEAST_S)))
                kinds.setdefault(kind, []).append(point)
        power, doubt = slope_within(kinds, belief, _NOISE)
        return cls(min(max(power, 0.0), _MOST), doubt)

    def shift(self, then: float | None, now: float, cores: float) -> LoadCorrection:
        """What a time that was seen at one load is at another.

        >>> LoadEffect(0.5, 0.1).shift(0.0, 6.0, 2.0)
        LoadCorrection(factor=2.0, doubt=0.13862943611198905)

        Args:
            then: the load when it was seen; None if unknown: nothing is changed.
            now: the load.
            cores: of this machine.
        """
        if then is None:
            return LoadCorrection()
        more = _crowding(now, cores) - _crowding(then, cores)
        return LoadCorrection(math.exp(self.power * more), self.doubt * more)


def _crowding(load: float, cores: float) -> float:
    return math.log1p(max(load, 0.0) / max(cores, 1.0))


def mean_doubt(doubts: Sequence[float]) -> float:
    """Of the mean of some times; see `LoadCorrection`."""
    return abs(sum(doubts)) / len(doubts) if doubts else 0.0


def slope_within(
    kinds: Mapping[Hashable, Sequence[tuple[float, float]]], belief: tuple[float, float], noise: float
) -> tuple[float, float]:
    """How y follows x within each kind, and the doubt about it.

    What repeats well shows that sooner than what does not.

    >>> def seen(apart):
    ...     return {"a": [(0.0, 0.0), (0.0, apart), (1.0, 0.0), (1.0, apart)] * 4}
    >>> [round(slope_within(seen(apart), (0.5, 0.3), 0.3)[1], 2) for apart in (0.0, 0.2, 2.0)]
    [0.07, 0.08, 0.25]

    Args:
        kinds: points of each kind, x and y; kinds may differ by any constant.
        belief: before any were seen: mean and standard deviation of the slope.
        noise: standard deviation of y beside that, before any were seen.
    """
    apart = []
    for points in kinds.values():
        x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
        apart += [(a - x, b - y) for a, b in points]
    many = len(apart) - len(kinds)
    for _ in range(2):  # how far they are from the first slope says how much they differ beside it
        weight = belief[1] ** -2 + sum(a * a for a, _ in apart) / noise**2
        slope = (belief[0] * belief[1] ** -2 + sum(a * b for a, b in apart) / noise**2) / weight
        squares = _BELIEF * noise**2 + sum((b - slope * a) ** 2 for a, b in apart)
        noise = math.sqrt(squares / (_BELIEF + many))
    return slope, float(weight**-0.5)
