"""The decision: of all candidates the best that will most probably keep deadline and budget.

A candidate is drawn only if nothing proves that it cannot win. For all of them a bound is computed (no
communication, nobody lost), for those that it leaves a narrower one (the fastest network of their kind); then
they are drawn in the order of the bounds, until the next bound is worse than what was found. Candidates that
differ in price and place only take the same time in every draw, and are drawn once. The pick is that of brute
force.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.candidates import Candidates
from trainmaster.advisor.likeness import Likeness
from trainmaster.advisor.ranks import Ranks
from trainmaster.advisor.shapes import Bools, Floats

#: Within so much of the best, fewer machines win.
ALIKE: Final = 1.02
_FIRST: Final = 16
_CHUNK: Final = 64
_BOUND_CHUNK: Final = 512
#: Bounds are as exact as floating point is.
_ROUNDED: Final = 1 + 1e-9
#: Quantiles that are shown.
_MARKS: Final = (0.05, 0.5, 0.95)


class Drawing(Protocol):
    """What can draw outcomes; see `trainmaster.advisor.timing.Timing`."""

    @property
    def draws(self) -> int:
        """How many worlds there are."""

    def time_s(self, some: Candidates) -> Floats:
        """(draws, m) seconds."""

    def cost_usd(self, time_s: Floats, some: Candidates) -> Floats:
        """(S, m) dollars of (S, m) seconds; a longer time never costs less."""

    def at_best_s(self, some: Candidates, *, alone: bool) -> Floats:
        """(S, m) what no time is below; without communication too."""

    def at_least_s(self, some: Candidates) -> Floats:
        """(m,) what no time of each by itself is below, whatever is alike."""

    def typical_s(self, some: Candidates) -> Floats:
        """(m,) seconds to be expected."""

    def alike(self, some: Candidates, *, alone: bool = False) -> Likeness:
        """Which candidates take the same time in every draw; or do so without communication."""

    def rate(self, some: Candidates) -> Floats:
        """(m,) of the network; more is never slower."""


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


@dataclass(frozen=True)
class Drawn:
    """Candidates with what their draws say.

    Attributes:
        candidates: (m).
        time_s, cost_usd: (m, 3): p5, p50, p95.
        sure_time, sure_cost: (m,) seconds and dollars that hold with 90 %.
    """

    candidates: Candidates
    time_s: Floats
    cost_usd: Floats
    sure_time: Floats
    sure_cost: Floats

    def __len__(self) -> int:
        return len(self.candidates)

    @classmethod
    def of(cls, candidates: Candidates, drawing: Drawing) -> Drawn:
        """Draw some candidates."""
        return _Draws.of(candidates, drawing).at(np.arange(len(candidates)))

    @classmethod
    def priced(cls, candidates: Candidates, times: Ranks, drawing: Drawing) -> Drawn:
        """Candidates whose times are known."""
        costs = replace(times, values=drawing.cost_usd(times.values, candidates))
        marks = range(len(_MARKS))
        return cls(
            candidates,
            np.column_stack([times.quantile(mark) for mark in marks]),
            np.column_stack([costs.quantile(mark) for mark in marks]),
            times.sure,
            costs.sure,
        )

    def feasible(self, limits: Limits) -> Bools:
        """(m,) keeps both limits with 90 %."""
        kept: Bools = (self.sure_time <= limits.deadline_s) & (self.sure_cost <= limits.budget_usd)
        return kept

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
class _Draws:
    """Candidates of which those that take the same time are drawn once.

    Attributes:
        kinds: which do. values: (ranks, kinds) of `Ranks`, NaN where not drawn yet.
    """

    candidates: Candidates
    drawing: Drawing
    kinds: Likeness
    values: Floats

    @classmethod
    def of(cls, candidates: Candidates, drawing: Drawing) -> _Draws:
        """Nothing is drawn yet."""
        kinds = drawing.alike(candidates)
        return cls(candidates, drawing, kinds, np.full((2 * len(_MARKS) + 1, len(kinds)), np.nan))

    def at(self, rows: NDArray[np.int_]) -> Drawn:
        """Some of them."""
        kind = self.kinds.back[rows]
        missing = np.unique(kind[np.isnan(self.values[0, kind])])
        for start in range(0, len(missing), _CHUNK):
            some = missing[start : start + _CHUNK]
            found = Ranks.of(self.drawing.time_s(self.candidates[self.kinds.first[some]]), _MARKS)
            self.values[:, some] = found.values
        times = Ranks(_MARKS, self.drawing.draws, self.values[:, kind])
        return Drawn.priced(self.candidates[rows], times, self.drawing)

    def in_chunks(self, rows: NDArray[np.int_], bound: Floats) -> Iterator[NDArray[np.int_]]:
        """Rows, a few kinds at a time, those kinds first whose best row has the lowest bound."""
        kind = self.kinds.back[rows]
        least = np.full(len(self.kinds), np.inf)
        np.minimum.at(least, kind, bound[rows])
        turn = np.empty(len(self.kinds), dtype=int)
        turn[np.argsort(least, kind="stable")] = np.arange(len(self.kinds))
        chunk = turn[kind] // _CHUNK
        order = np.argsort(chunk, kind="stable")
        yield from np.split(rows[order], np.flatnonzero(np.diff(chunk[order])) + 1)


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
    draws = _Draws.of(candidates, drawing)
    expected = drawing.typical_s(candidates[draws.kinds.first])[draws.kinds.back]
    costs = drawing.cost_usd(expected[None], candidates)[0]
    over = _over(expected, costs, limits)
    value = limits.objective(expected, costs)
    # those that look best are drawn at once: what they are proves of most others that they cannot win
    promising = np.lexsort((value, over > 1))[:_FIRST] if (over <= 1).any() else np.argsort(over)[:_FIRST]
    parts = [draws.at(promising)]
    best = _least(parts[0], limits)
    todo = np.ones(len(candidates), dtype=bool)
    todo[promising] = False
    bound = np.full(len(candidates), -np.inf)
    for alone in (True, False):
        rows = np.flatnonzero(todo & (bound <= best * ALIKE))
        if len(rows):
            bound[rows], over = _bounds(candidates[rows], drawing, limits, alone=alone)
            todo[rows[over > _ROUNDED]] = False
    for some in draws.in_chunks(np.flatnonzero(todo & (bound <= best * _ROUNDED)), bound):
        if len(some := some[bound[some] <= best * _ROUNDED]):
            todo[some] = False
            parts.append(draws.at(some))
            best = min(best, _least(parts[-1], limits))
    # the best is known; of what comes near it only that can be preferred which has no more machines
    machines = candidates.machines + candidates.servers
    rows = np.flatnonzero(todo & (bound <= best * ALIKE))
    rows = rows[np.argsort(machines[rows], kind="stable")]
    for some in np.split(rows, range(_BOUND_CHUNK, len(rows), _BOUND_CHUNK)):
        drawn = Drawn.joined(parts)
        if (row := pick(drawn, limits)) is not None:
            some = some[machines[some] <= drawn.candidates.machines[row] + drawn.candidates.servers[row]]
        if len(some):
            parts.append(draws.at(some))
    drawn = Drawn.joined(parts)
    return Choice(drawn, pick(drawn, limits), _nearest(drawn, limits), len(candidates))


def pick(drawn: Drawn, limits: Limits) -> int | None:
    """The row to take: within 2 % of the best the fewest machines, then the best, then the cheaper."""
    good = np.flatnonzero(drawn.feasible(limits))
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


def _bounds(
    candidates: Candidates, drawing: Drawing, limits: Limits, *, alone: bool
) -> tuple[Floats, Floats]:
    """(m,) below what the objective's median can be, and what share of the limits is needed at least."""
    kinds = drawing.alike(candidates, alone=True)
    first, back = kinds.first, kinds.back
    if not alone:  # of each kind the fastest network; an unknown one is neither faster nor slower
        rate = drawing.rate(candidates)
        order = np.argsort(np.where(np.isnan(rate), 0.0, -rate), kind="stable")
        _, first, back = np.unique(
            2 * back[order] + np.isnan(rate[order]), return_index=True, return_inverse=True
        )
        first, back = order[first], back.ravel()[np.argsort(order)]
    values = [
        Ranks.of(drawing.at_best_s(candidates[first[start : start + _BOUND_CHUNK]], alone=alone), (0.5,))
        for start in range(0, len(first), _BOUND_CHUNK)
    ]
    times = replace(values[0], values=np.concatenate([part.values for part in values], axis=1))[back]
    times = replace(times, values=np.maximum(times.values, drawing.at_least_s(candidates)))
    costs = replace(times, values=drawing.cost_usd(times.values, candidates))
    return limits.objective(times.quantile(0), costs.quantile(0)), _over(times.sure, costs.sure, limits)


def _least(drawn: Drawn, limits: Limits) -> float:
    """The best objective of those that keep the limits; infinite if none does."""
    return float(_objective(drawn, limits)[drawn.feasible(limits)].min(initial=math.inf))


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
