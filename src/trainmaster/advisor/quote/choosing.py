"""The decision: of all candidates the best that will most probably keep deadline and budget.

A candidate is drawn only if nothing proves that it cannot win. For all of them a bound is computed (no
communication, no node lost), for those that it leaves a narrower one (fastest network of their kind); then
they are drawn in the order of the bounds, until the next bound is worse than what was found. Candidates that
differ in price and place only take the same time in every draw, and are drawn once. The pick is that of brute
force.

Of those that cannot be told apart from the best the cheaper is taken, then the one of fewer machines; never
one that another beats in both time and money.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.model.shapes import Bools, Floats, Frame
from trainmaster.advisor.quote.equivalence import Equivalence
from trainmaster.advisor.quote.quantiles import QuantileRanks
from trainmaster.dataclass import dataclass, field

#: Medians within so much of each other cannot be told apart.
ALIKE: Final = 1.02
#: Nor, up to so much, those of which now the one and now the other is better in the same draws.
SELDOM_ALIKE: Final = 1.1
#: Of a sign test: 5 % that clusters which are equally good in truth are told apart.
_SIGN_Z: Final = 1.645
_FIRST: Final = 16
_CHUNK: Final = 64
_BOUND_CHUNK: Final = 512
#: Bounds are as exact as floating point is.
_ROUNDED: Final = 1 + 1e-9
#: Quantiles that are shown.
_MARKS: Final = (0.05, 0.5, 0.95)


class OutcomeSampler(Protocol):
    """Samples times and costs of candidates; see `trainmaster.advisor.quote.timing.Timing`."""

    @property
    def draws(self) -> int:
        """How many worlds there are."""

    def time_s(self, some: Candidates) -> Floats:
        """(draws, m) seconds."""

    def cost_usd(self, time_s: Floats, some: Candidates) -> Floats:
        """(S, m) dollars of (S, m) seconds; a longer time never costs less."""

    def needed_usd(self, time_s: Floats, some: Candidates) -> Floats:
        """(S, m) dollars that a run must be allowed for (S, m) seconds, lest its cap ends it before."""

    def at_best_s(self, some: Candidates, *, alone: bool) -> Floats:
        """(S, m) what no time is below; without communication too."""

    def at_least_s(self, some: Candidates) -> Floats:
        """(m,) lower bound of each candidate's time."""

    def typical_s(self, some: Candidates) -> Floats:
        """(m,) seconds to be expected."""

    def alike(self, some: Candidates, *, alone: bool = False) -> Equivalence:
        """Which candidates take the same time in every draw; or do so without communication."""

    def rate(self, some: Candidates) -> Floats:
        """(m,) of the network; more is never slower."""


@dataclass(frozen=True, slots=True)
class QuoteLimits:
    """What the user set.

    Attributes:
        deadline_s, budget_usd: infinite where there is none.
        usd_per_hour: of all machines at the same time.
        time_weight, cost_weight: of the objective, per second and per dollar.
        end_s: for how long a run with that budget always has money, for its end; by tasks at once.
    """

    deadline_s: float = math.inf
    budget_usd: float = math.inf
    usd_per_hour: float = math.inf
    time_weight: float = 0.0
    cost_weight: float = 1.0
    end_s: Callable[[int], float] = field(default=lambda _: 0.0, compare=False)

    def objective(self, time_s: Floats, cost_usd: Floats) -> Floats:
        """What is to be small; where machines cost nothing, "cheapest" means fastest."""
        return self.time_weight * time_s + self.cost_weight * cost_usd


@dataclass(frozen=True)
class SampledCandidates(Frame):
    """Candidates with quantiles of their sampled times and costs.

    Attributes:
        candidates: (m).
        time_s, cost_usd: (m, 3): p5, p50, p95.
        sure_time: (m,) seconds that hold with 90 %.
        sure_need: (m,) dollars that a run must be allowed, with 90 %; see `OutcomeSampler.needed_usd`.
    """

    candidates: Candidates
    time_s: Floats
    cost_usd: Floats
    sure_time: Floats
    sure_need: Floats

    @classmethod
    def of(cls, candidates: Candidates, drawing: OutcomeSampler) -> SampledCandidates:
        """Draw some candidates."""
        return _Draws.of(candidates, drawing).at(np.arange(len(candidates)))

    @classmethod
    def priced(
        cls, candidates: Candidates, times: QuantileRanks, drawing: OutcomeSampler
    ) -> SampledCandidates:
        """Candidates whose times are known."""
        costs = replace(times, values=drawing.cost_usd(times.values, candidates))
        marks = range(len(_MARKS))
        return cls(
            candidates,
            np.column_stack([times.quantile(mark) for mark in marks]),
            np.column_stack([costs.quantile(mark) for mark in marks]),
            times.sure,
            drawing.needed_usd(times.sure[None], candidates)[0],
        )

    def feasible(self, limits: QuoteLimits) -> Bools:
        """(m,) keeps both limits with 90 %."""
        return (self.sure_time <= limits.deadline_s) & (self.sure_need <= limits.budget_usd)


@dataclass(frozen=True)
class _Draws:
    """Candidates of which those that take the same time are drawn once.

    Attributes:
        kinds: which do. values: (ranks, kinds) of `QuantileRanks`, NaN where not drawn yet.
    """

    candidates: Candidates
    drawing: OutcomeSampler
    kinds: Equivalence
    values: Floats

    @classmethod
    def of(cls, candidates: Candidates, drawing: OutcomeSampler) -> _Draws:
        """Nothing is drawn yet."""
        kinds = drawing.alike(candidates)
        return cls(candidates, drawing, kinds, np.full((2 * len(_MARKS) + 1, len(kinds)), np.nan))

    def at(self, rows: NDArray[np.int_]) -> SampledCandidates:
        """Some of them."""
        kind = self.kinds.back[rows]
        missing = np.unique(kind[np.isnan(self.values[0, kind])])
        for start in range(0, len(missing), _CHUNK):
            some = missing[start : start + _CHUNK]
            found = QuantileRanks.of(self.drawing.time_s(self.candidates[self.kinds.first[some]]), _MARKS)
            self.values[:, some] = found.values
        times = QuantileRanks(_MARKS, self.drawing.draws, self.values[:, kind])
        return SampledCandidates.priced(self.candidates[rows], times, self.drawing)

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

    drawn: SampledCandidates
    best: int | None
    nearest: int
    considered: int


def choose(candidates: Candidates, drawing: OutcomeSampler, limits: QuoteLimits) -> Choice:
    """Minimise the objective's median; deadline and budget must hold with 90 % each.

    Args:
        candidates: at least one, all within the price per hour.
        drawing: draws them.
        limits: the user's.
    """
    draws = _Draws.of(candidates, drawing)
    expected = drawing.typical_s(candidates[draws.kinds.first])[draws.kinds.back]
    costs = drawing.cost_usd(expected[None], candidates)[0]
    over = _over(expected, drawing.needed_usd(expected[None], candidates)[0], limits)
    value = limits.objective(expected, costs)
    # those that look best are drawn at once: what they are proves of most others that they cannot win
    promising = np.lexsort((value, over > 1))[:_FIRST] if (over <= 1).any() else np.argsort(over)[:_FIRST]
    parts = [draws.at(promising)]
    best = _least(parts[0], limits)
    todo = np.ones(len(candidates), dtype=bool)
    todo[promising] = False
    bound, least_usd = np.full(len(candidates), -np.inf), np.zeros(len(candidates))
    for alone in (True, False):
        rows = np.flatnonzero(todo & (bound <= best * SELDOM_ALIKE))
        if len(rows):
            bound[rows], least_usd[rows], over = _bounds(candidates[rows], drawing, limits, alone=alone)
            todo[rows[over > _ROUNDED]] = False
    for some in draws.in_chunks(np.flatnonzero(todo & (bound <= best * _ROUNDED)), bound):
        if len(some := some[bound[some] <= best * _ROUNDED]):
            todo[some] = False
            parts.append(draws.at(some))
            best = min(best, _least(parts[-1], limits))
    # The best is known; of what comes near it only what costs no more can be preferred, or beat what is.
    rows = np.flatnonzero(todo & (bound <= best * SELDOM_ALIKE * _ROUNDED))
    rows = rows[np.argsort(least_usd[rows], kind="stable")]
    cheapest = _cheapest_alike(SampledCandidates.joined(parts), limits)
    for some in np.split(rows, range(_BOUND_CHUNK, len(rows), _BOUND_CHUNK)):
        if len(some := some[least_usd[some] <= cheapest * ALIKE * _ROUNDED]):
            parts.append(draws.at(some))
            cheapest = min(cheapest, _cheapest_alike(parts[-1], limits, best))
    drawn = SampledCandidates.joined(parts)
    return Choice(drawn, pick(drawn, drawing, limits), _nearest(drawn, limits), len(candidates))


def pick(drawn: SampledCandidates, drawing: OutcomeSampler, limits: QuoteLimits) -> int | None:
    """The row to take; None if none keeps the limits.

    Of those that cannot be told apart from the best (`ALIKE`; or `SELDOM_ALIKE`, and a sign test of the same
    draws does not tell them apart either) the cheaper. Where costs cannot be told apart, the fewest machines,
    then the best. None that another one beats: cheaper, and no slower.
    """
    good = np.flatnonzero(drawn.feasible(limits))
    if not len(good):
        return None
    value, cost = _objective(drawn, limits), drawn.cost_usd[:, 1]
    best = good[np.argmin(value[good])]
    some = good[value[good] <= value[best] * SELDOM_ALIKE + 1e-12]
    is_alike = value[some] <= value[best] * ALIKE + 1e-12
    matters = ~is_alike & (cost[some] <= cost[some[is_alike]].min() * ALIKE + 1e-12)
    is_alike[matters] = _is_a_draw(drawn.candidates, some[matters], best, drawing, limits)
    alike = some[is_alike & ~_is_beaten(drawn.time_s[some, 1], cost[some])]
    alike = alike[cost[alike] <= cost[alike].min() * ALIKE + 1e-12]
    candidates = drawn.candidates
    machines = candidates.machines[alike] + candidates.servers[alike]
    # What is billed at least makes objectives tie: a run starts as many tasks as its machines have room for.
    # With few draws medians tie; the price and the position keep the order of evaluation out of it.
    ties = (candidates.machine[alike], -candidates.at_once[alike], candidates.price[alike])
    order = np.lexsort((*ties, value[alike], machines))
    return int(alike[order[0]])


def _cheapest_alike(drawn: SampledCandidates, limits: QuoteLimits, best: float = math.inf) -> float:
    """Dollars of the cheapest that is as good as the best: the given one, or that of these rows."""
    good = drawn.feasible(limits)
    value = np.where(good, _objective(drawn, limits), math.inf)
    alike = good & (value <= min(best, value.min(initial=math.inf)) * ALIKE)
    return float(drawn.cost_usd[alike, 1].min(initial=math.inf))


def _is_a_draw(
    candidates: Candidates,
    rows: NDArray[np.int_],
    best: np.int_,
    drawing: OutcomeSampler,
    limits: QuoteLimits,
) -> Bools:
    """(m,) in about half of the worlds better than the best: a sign test finds no difference."""
    found = np.zeros(len(rows), dtype=bool)
    least = drawing.draws / 2 - _SIGN_Z * math.sqrt(drawing.draws) / 2
    for start in range(0, len(rows), _CHUNK):
        some = candidates[np.concatenate([[best], rows[start : start + _CHUNK]])]
        time_s = drawing.time_s(some)
        value = limits.objective(time_s, drawing.cost_usd(time_s, some))
        better = (value[:, 1:] < value[:, :1]) + 0.5 * (value[:, 1:] == value[:, :1])
        wins = better.sum(axis=0)
        found[start : start + _CHUNK] = (wins >= least) & (wins > 0)  # a single draw tells everything apart
    return found


def _is_beaten(time_s: Floats, cost_usd: Floats) -> Bools:
    """(m,) another one is cheaper, and no slower."""
    order = np.lexsort((cost_usd, time_s))
    cheapest = np.minimum.accumulate(cost_usd[order])
    beaten = np.empty(len(order), dtype=bool)
    beaten[order] = cost_usd[order] > cheapest * _ROUNDED
    return beaten


def pareto(drawn: SampledCandidates) -> NDArray[np.int_]:
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
    candidates: Candidates, drawing: OutcomeSampler, limits: QuoteLimits, *, alone: bool
) -> tuple[Floats, Floats, Floats]:
    """(m,) of objective and dollars what no median is below; what share of the limits is needed at least."""
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
        QuantileRanks.of(
            drawing.at_best_s(candidates[first[start : start + _BOUND_CHUNK]], alone=alone), (0.5,)
        )
        for start in range(0, len(first), _BOUND_CHUNK)
    ]
    times = replace(values[0], values=np.concatenate([part.values for part in values], axis=1))[back]
    times = replace(times, values=np.maximum(times.values, drawing.at_least_s(candidates)))
    costs = replace(times, values=drawing.cost_usd(times.values, candidates))
    usd, needed = costs.quantile(0), drawing.needed_usd(times.sure[None], candidates)[0]
    return limits.objective(times.quantile(0), usd), usd, _over(times.sure, needed, limits)


def _least(drawn: SampledCandidates, limits: QuoteLimits) -> float:
    """The best objective of those that keep the limits; infinite if none does."""
    return float(_objective(drawn, limits)[drawn.feasible(limits)].min(initial=math.inf))


def _objective(drawn: SampledCandidates, limits: QuoteLimits) -> Floats:
    return limits.objective(drawn.time_s[:, 1], drawn.cost_usd[:, 1])


def _nearest(drawn: SampledCandidates, limits: QuoteLimits) -> int:
    """The row whose worse excess, of time or of money, is smallest."""
    return int(np.argmin(_over(drawn.sure_time, drawn.sure_need, limits)))


def _over(time_s: Floats, needed_usd: Floats, limits: QuoteLimits) -> Floats:
    """(m,) share of the deadline or of the budget that is needed, the larger; above 1 a limit is not kept."""
    return np.maximum(_share(time_s, limits.deadline_s), _share(needed_usd, limits.budget_usd))


def _share(needed: Floats, limit: float) -> Floats:
    if limit > 0:
        return needed / limit  # of an infinite one nothing
    return np.where(needed > 0, np.inf, 0.0)
