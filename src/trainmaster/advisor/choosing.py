"""The decision: of all candidates the best that will most probably keep deadline and budget.

Best-first: a candidate is drawn only if nothing proves that it cannot win. Its bound (no communication,
nobody lost) is computed for all; in the order of the bounds candidates are drawn, until the next bound is
worse than what was found. So the pick is that of brute force.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.candidates import Candidates
from trainmaster.advisor.shapes import Floats
from trainmaster.advisor.timing import Outcomes

#: Deadline and budget must hold with this probability.
SURE: Final = 0.9
#: Within so much of the best, fewer machines win.
ALIKE: Final = 1.02
_FIRST: Final = 32
_CHUNK: Final = 256
_BOUND_CHUNK: Final = 2048


class Drawing(Protocol):
    """What can draw outcomes; see `trainmaster.advisor.timing.Timing`."""

    def outcomes(self, some: Candidates) -> Outcomes:
        """Time and cost."""

    def at_best(self, some: Candidates) -> Outcomes:
        """What no outcome is below."""

    def typical(self, some: Candidates) -> tuple[Floats, Floats]:
        """(m,) seconds and dollars to be expected."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user set.

    Attributes:
        deadline_s, budget_usd: infinite where there is none.
        usd_per_hour: of all machines at the same time.
        time_weight, cost_weight: of the objective, per second and per dollar.
    """

    deadline_s: float = math.inf
    budget_usd: float = math.inf
    usd_per_hour: float = math.inf
    time_weight: float = 0.0
    cost_weight: float = 1.0

    def objective(self, time_s: Floats, cost_usd: Floats) -> Floats:
        """What is to be small; where machines cost nothing, "cheapest" means fastest."""
        weighted: Floats = self.time_weight * time_s + self.cost_weight * cost_usd
        return weighted


def sure(draws: Floats) -> Floats:
    """What holds with 90 %: one of the draws, so that as a limit it is kept by as many as are needed.

    >>> sure(np.arange(12.0)).item()  # ten of twelve are at most 9, eleven at most 10
    10.0
    """
    return _sure(np.sort(draws, axis=0))


def _sure(ranked: Floats) -> Floats:
    held: Floats = ranked[math.ceil(SURE * len(ranked) - 1e-9) - 1]
    return held


def _quantile(ranked: Floats, share: float) -> Floats:
    """Of sorted draws, as `numpy.quantile` has it: sorting once is several times faster than that."""
    at = share * (len(ranked) - 1)
    low = min(int(at), len(ranked) - 2)
    between: Floats = ranked[low] + (at - low) * (ranked[low + 1] - ranked[low])
    return between


@dataclass(frozen=True)
class Drawn:
    """Candidates with what their draws say.

    Attributes:
        candidates: (m).
        time_s, cost_usd: (m, 3): p5, p50, p95.
        sure_time, sure_cost: (m,) seconds and dollars that hold with 90 %.
        in_time, in_budget: (m,) probability.
    """

    candidates: Candidates
    time_s: Floats
    cost_usd: Floats
    sure_time: Floats
    sure_cost: Floats
    in_time: Floats
    in_budget: Floats

    def __len__(self) -> int:
        return len(self.candidates)

    @classmethod
    def of(cls, candidates: Candidates, drawing: Drawing, limits: Limits) -> Drawn:
        """Draw some candidates."""
        drawn = drawing.outcomes(candidates)
        time_s, cost_usd = np.sort(drawn.time_s, axis=0), np.sort(drawn.cost_usd, axis=0)
        marks = (0.05, 0.5, 0.95)
        return cls(
            candidates,
            np.column_stack([_quantile(time_s, mark) for mark in marks]),
            np.column_stack([_quantile(cost_usd, mark) for mark in marks]),
            _sure(time_s),
            _sure(cost_usd),
            (drawn.time_s <= limits.deadline_s).mean(0),
            (drawn.cost_usd <= limits.budget_usd).mean(0),
        )

    def feasible(self) -> NDArray[np.bool_]:
        """(m,) keeps both limits with 90 %."""
        return (self.in_time >= SURE) & (self.in_budget >= SURE)

    def at(self, rows: NDArray[np.int_]) -> Drawn:
        """Some of them."""
        return Drawn(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})

    @classmethod
    def joined(cls, parts: list[Drawn]) -> Drawn:
        """One after the other."""
        names = [name for name in cls.__dataclass_fields__ if name != "candidates"]
        columns = {
            name: np.concatenate([getattr(part.candidates, name) for part in parts])
            for name in Candidates.__dataclass_fields__
        }
        return cls(
            Candidates(**columns), **{n: np.concatenate([getattr(part, n) for part in parts]) for n in names}
        )


@dataclass(frozen=True)
class Choice:
    """What was decided.

    Attributes:
        drawn: all candidates that were drawn. best: its row, None if none is feasible.
        nearest: where none is feasible: row of the one that exceeds the limits least.
        considered: how many candidates there were.
    """

    drawn: Drawn
    best: int | None
    nearest: int
    considered: int


def choose(candidates: Candidates, drawing: Drawing, limits: Limits) -> Choice:
    """Minimise the objective's median; deadline and budget must hold with 90 % each.

    Args:
        candidates: at least one, all within the price per hour.
        drawing: draws them.
        limits: the user's.
    """
    bound, over = _bounds(candidates, drawing, limits)
    possible = over <= 1
    if possible.any():
        order = np.argsort(bound, kind="stable")
        order = order[possible[order]]
    else:  # nothing will do: those that miss least, to say by how much
        order = np.argsort(_over(*drawing.typical(candidates), limits), kind="stable")[:_FIRST]
    parts: list[Drawn] = []
    best = math.inf
    start, size = 0, _FIRST
    while start < len(order):
        rows = order[start : start + size]
        if bound[rows[0]] > best * ALIKE:
            break
        part = Drawn.of(candidates[rows[bound[rows] <= best * ALIKE]], drawing, limits)
        parts.append(part)
        good = part.feasible()
        if good.any():
            best = min(best, float(_objective(part, limits)[good].min()))
        start, size = start + size, _CHUNK
    drawn = Drawn.joined(parts)
    return Choice(drawn, pick(drawn, limits), _nearest(drawn, limits), len(candidates))


def pick(drawn: Drawn, limits: Limits) -> int | None:
    """The row to take: within 2 % of the best the fewest machines, then the best, then the cheaper."""
    good = np.flatnonzero(drawn.feasible())
    if not len(good):
        return None
    value = _objective(drawn, limits)[good]
    alike = good[value <= value.min() * ALIKE + 1e-12]
    machines = drawn.candidates.machines[alike] + drawn.candidates.servers[alike]
    # With few draws medians tie; the price and the position keep the order of evaluation out of it.
    order = np.lexsort(
        (
            drawn.candidates.machine[alike],
            drawn.candidates.price[alike],
            _objective(drawn, limits)[alike],
            machines,
        )
    )
    return int(alike[order[0]])


def pareto(drawn: Drawn) -> NDArray[np.int_]:
    """Rows that no other beats in both median time and median cost, fastest first."""
    time, cost = drawn.time_s[:, 1], drawn.cost_usd[:, 1]
    machines = drawn.candidates.machines + drawn.candidates.servers
    order = np.lexsort((machines, cost, time))
    front, least = [], math.inf
    for row in order.tolist():
        if cost[row] < least * (1 - 1e-9):
            front.append(row)
            least = cost[row]
    return np.array(front, dtype=int)


def _bounds(candidates: Candidates, drawing: Drawing, limits: Limits) -> tuple[Floats, Floats]:
    """(m,) below what the objective's median can be, and what share of the limits is needed at least."""
    bound, over = np.empty(len(candidates)), np.empty(len(candidates))
    for start in range(0, len(candidates), _BOUND_CHUNK):
        rows = slice(start, start + _BOUND_CHUNK)
        best = drawing.at_best(candidates[rows])
        time_s, cost_usd = np.sort(best.time_s, axis=0), np.sort(best.cost_usd, axis=0)
        bound[rows] = limits.objective(_quantile(time_s, 0.5), _quantile(cost_usd, 0.5))
        over[rows] = _over(_sure(time_s), _sure(cost_usd), limits)
    return bound, over


def _objective(drawn: Drawn, limits: Limits) -> Floats:
    return limits.objective(drawn.time_s[:, 1], drawn.cost_usd[:, 1])


def _nearest(drawn: Drawn, limits: Limits) -> int:
    """The row whose worse excess, of time or of money, is smallest."""
    return int(np.argmin(_over(drawn.sure_time, drawn.sure_cost, limits)))


def _over(time_s: Floats, cost_usd: Floats, limits: Limits) -> Floats:
    """(m,) share of the deadline or of the budget that is needed, the larger; above 1 a limit is not kept."""
    worst: Floats = np.maximum(_share(time_s, limits.deadline_s), _share(cost_usd, limits.budget_usd))
    return worst


def _share(needed: Floats, limit: float) -> Floats:
    if limit > 0:
        share: Floats = needed / limit  # of an infinite one nothing
        return share
    return np.where(needed > 0, np.inf, 0.0)
