"""Several experiments under one deadline and one budget: which of their clusters to take together."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.market.hourly_cost import ancestors, most_at_once
from trainmaster.advisor.model.shapes import Floats
from trainmaster.advisor.quote.choosing import QuoteLimits
from trainmaster.advisor.quote.quantiles import SURE
from trainmaster.advisor.quote.turns import (
    JointCourse,
    Option,
    RentedGroup,
    latest,
    on_shared_machines,
    schedule,
    together,
)
from trainmaster.dataclass import dataclass, field
from trainmaster.spec.processor_limit import check_processor_limit

#: Experiments whose times were reckoned, in all plans: from so many on no more changes are looked at. A plan
#: of 100 experiments that share machines takes 4 ms.
_LOOKS_AT_MOST: Final = 200_000
#: A plan of experiments that were reckoned before takes this share of the time.
_JOINS: Final = 0.1
#: What a run must be allowed takes so much more, for each pair of experiments.
_NEEDS: Final = 0.1
#: Of many options so many of all experiments are changed to, from the fastest to the slowest of each; of each
#: experiment so many at least.
_SPACED: Final = 200
_SPACED_OF_EACH: Final = 5
#: Of many prices per hour so many are looked at.
_PRICES: Final = 64
#: A change that gains so much of what it did once is made.
_STILL: Final = 0.7
#: The middle of the draws, where it changes the median.
_MIDDLE: Final = slice(45, 55)
#: Prices per hour are as exact as floating point is. What gains less, in seconds or dollars, gains nothing.
_ROUNDED: Final = 1 + 1e-9
_LEAST: Final = 1e-9


class Aim(Enum):
    """A limit that a plan does not keep yet; in this order."""

    PER_HOUR = auto()
    TIME = auto()
    COST = auto()


@dataclass(frozen=True)
class JointPlan:
    """One option for each experiment, and what they are together; what few plans need is reckoned then.

    Attributes:
        taken: position of the option by experiment.
        time_s: (DRAWS,) of the run.
        parts: experiments that have nothing to do with those of other parts.
        of: what it is a plan of.
    """

    taken: Mapping[str, int]
    time_s: Floats
    parts: Sequence[PlanPart] = field(repr=False)
    of: PlanChoices = field(repr=False)

    @cached_property
    def cost_usd(self) -> Floats:
        """(DRAWS,) of the run."""
        return np.sum([part.cost_usd for part in self.parts], axis=0)

    @cached_property
    def least_usd(self) -> Floats:
        """(DRAWS,) that it must be allowed at least, as the last of it ends."""
        end_usd: Floats | float = 0.0
        for part in self.parts:
            end_usd = np.where(part.time_s == self.time_s, part.end_usd, end_usd)
        return self.cost_usd + end_usd

    @cached_property
    def needed_usd(self) -> Floats:
        """(DRAWS,) that it must be allowed, lest its cap ends it before."""
        return self.of.needed_usd(self)

    @cached_property
    def usd_per_hour(self) -> float:
        """Of all machines that may be there at the same time."""
        return self.of.usd_per_hour(self.taken)

    @cached_property
    def typical_s(self) -> float:
        """The median of the time."""
        return float(np.median(self.time_s))

    @cached_property
    def typical_usd(self) -> float:
        """The median of the cost."""
        return float(np.median(self.cost_usd))

    @cached_property
    def typical_needed_usd(self) -> float:
        """The median of what it must be allowed."""
        return float(np.median(self.needed_usd))

    @property
    def is_cut(self) -> bool:
        """No more was looked at, as that takes too long: another plan may keep what this one does not."""
        return self.of.gives_up and not self.feasible and not self.of.is_too_soon

    @cached_property
    def feasible(self) -> bool:
        """Both limits hold with 90 %, and the price per hour is allowed."""
        return not any(self.breaks(aim) for aim in Aim)

    def breaks(self, aim: Aim) -> bool:
        """Whether it does not keep a limit."""
        limits = self.of.limits
        match aim:
            case Aim.PER_HOUR:
                is_free = limits.usd_per_hour == math.inf
                return not is_free and self.usd_per_hour > limits.usd_per_hour * _ROUNDED
            case Aim.TIME:
                return float((self.time_s <= limits.deadline_s).mean()) < SURE
            case Aim.COST:
                is_free = limits.budget_usd == math.inf
                return not is_free and float((self.needed_usd <= limits.budget_usd).mean()) < SURE

    def gain(self, then: JointPlan, aim: Aim, *, at_most: bool = False) -> tuple[float, float]:
        """What a change gains, and what it takes: seconds for dollars; dollars (per hour) for seconds.

        Args:
            then: the plan after it.
            aim: what it is to gain.
            at_most: no less than it gains will do, where that is known sooner.
        """
        match aim:
            case Aim.PER_HOUR:
                return self.usd_per_hour - then.usd_per_hour, then.typical_s - self.typical_s
            case Aim.TIME:
                faster_s = self.typical_s - then.typical_s
                return faster_s, then.typical_usd - self.typical_usd if faster_s > 0 else 0.0
            case Aim.COST:
                usd = float(np.median(then.least_usd)) if at_most else then.typical_needed_usd
                return self.typical_needed_usd - usd, then.typical_s - self.typical_s


@dataclass(frozen=True)
class PlanPart:
    """Experiments that have nothing to do with the others: none waits for them, or has their machines.

    Attributes:
        time_s: (DRAWS,) of all of them.
        end_usd: (DRAWS,) what a run keeps as the last of them ends.
        chosen: their options. groups: which of them share machines.
        course: of several.
    """

    time_s: Floats
    end_usd: Floats | float
    chosen: Mapping[str, Option]
    groups: Sequence[RentedGroup] = ()
    course: JointCourse | None = None

    @classmethod
    def of(cls, chosen: Mapping[str, Option], after: Mapping[str, Sequence[str]]) -> PlanPart:
        """With all that waits for each other, and shares machines."""
        if len(chosen) == 1:
            (option,) = chosen.values()
            return cls(option.time_s, option.end_usd, chosen)
        course = JointCourse.of(chosen, after)
        time_s = latest([*course.ends.values()])
        end_usd = course.last(time_s, {name: option.end_usd for name, option in chosen.items()})
        return cls(time_s, end_usd, chosen, course.groups, course)

    def deciding(self, time_s: Floats, draws: NDArray[np.int_]) -> set[str]:
        """Experiments without which the run would end sooner in one of some draws."""
        if self.course is not None:
            return self.course.deciding(time_s, draws)
        return {*self.chosen} if (self.time_s * _ROUNDED >= time_s)[draws].any() else set()

    @cached_property
    def cost_usd(self) -> Floats:
        """(DRAWS,) of all of them."""
        shared = {name for group in self.groups for name in group.names}
        rows = [option.cost_usd[None] for name, option in self.chosen.items() if name not in shared]
        rows += [group.costs_usd(self.chosen) for group in self.groups]
        usd: Floats = np.concatenate(rows).sum(axis=0)
        return usd


@dataclass
class PlanChoices:
    """The options of all experiments of a run, and what some of them are together; see `plan`.

    What a change does not touch is reckoned once: parts of the plans that were looked at last are kept.

    Attributes:
        reckoned: experiments in all that was reckoned, see `_LOOKS_AT_MOST`.
    """

    options: Mapping[str, Sequence[Option]]
    after: Mapping[str, Sequence[str]]
    limits: QuoteLimits
    shares_machine: bool
    reckoned: float = field(default=0.0, init=False)
    _parts: dict[tuple[tuple[str, int], ...], PlanPart] = field(default_factory=dict, init=False)
    _earlier_parts: dict[tuple[tuple[str, int], ...], PlanPart] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Which experiments wait for each other, or for the same ones."""
        self.before = ancestors({name: self.after.get(name, ()) for name in self.options})
        self._root = {name: name for name in self.options}
        for name, earlier in self.before.items():
            joined = {self._root[each] for each in (name, *earlier)}
            if len(joined) > 1:
                self._root |= {each: name for each, of in self._root.items() if of in joined}

    def spaced(self, name: str) -> Sequence[int]:
        """The options of an experiment that it is changed to, evenly from the fastest to the slowest."""
        number, most = len(self.options[name]), max(_SPACED // len(self.options), _SPACED_OF_EACH)
        return [int(each) for each in np.unique(np.linspace(0, number - 1, min(number, most)).astype(int))]

    @property
    def gives_up(self) -> bool:
        """Whether more would take too long."""
        return self.reckoned >= _LOOKS_AT_MOST

    def forget(self) -> None:
        """Keep only the parts of the plans that were looked at since this was last called."""
        self._earlier_parts, self._parts = self._parts, {}

    def whole(self, taken: Mapping[str, int]) -> JointPlan:
        """What one option of each is together."""
        check_processor_limit()
        self.reckoned += len(taken) * (1.0 if self.shares_machine else _JOINS)
        if not self.shares_machine:
            parts = [self._part(names, taken) for names in self._apart(taken)]
            return JointPlan(taken, latest([part.time_s for part in parts]), parts, self)
        chosen = self._chosen(taken)
        load = {name: option.load for name, option in chosen.items()}
        time_s = together({name: option.time_s for name, option in chosen.items()}, self.after, load)
        return JointPlan(taken, time_s, [PlanPart(time_s, 0.0, chosen)], self)

    def needed_usd(self, found: JointPlan) -> Floats:
        """(DRAWS,) that a run must be allowed."""
        chosen = self._chosen(found.taken)
        if not any(np.any(option.end_usd) for option in chosen.values()):
            return found.cost_usd
        waits_for: Mapping[str, Sequence[str]] = self.after
        if not self.shares_machine:
            chosen, waits_for = on_shared_machines(chosen, waits_for)
        self.reckoned += _NEEDS * len(chosen) ** 2
        return _needed_usd(chosen, waits_for, found.cost_usd)

    def usd_per_hour(self, taken: Mapping[str, int]) -> float:
        """Of all machines that may be there at the same time."""
        self.reckoned += len(taken)
        return _hourly(self._chosen(taken), self.before)

    def all_below(self, aim: Aim) -> list[JointPlan]:
        """Plans of the fastest options below each price per hour; on the own machine none is dearer."""
        return self._all_below if aim is Aim.PER_HOUR or not self.shares_machine else []

    @cached_property
    def _all_below(self) -> list[JointPlan]:
        return [self.whole(taken) for taken in _all_below(self.options)]

    def deciding(self, now: JointPlan, aim: Aim) -> set[str]:
        """Experiments of which a change may gain something."""
        if aim is not Aim.TIME or self.shares_machine:
            return {*now.taken}
        order = np.argsort(now.time_s)
        share = len(order) / 100
        draws = order[int(_MIDDLE.start * share) : int(_MIDDLE.stop * share) + 1]
        return set[str]().union(*(part.deciding(now.time_s, draws) for part in now.parts))

    @cached_property
    def is_too_soon(self) -> bool:
        """No plan keeps the deadline: all at once on the fastest machines, there already, do not."""
        least = {n: np.min([one.work_s for one in each], axis=0) for n, each in self.options.items()}
        time_s = latest([*schedule(least, self.after)[1].values()])
        return float((time_s <= self.limits.deadline_s).mean()) < SURE

    def _chosen(self, taken: Mapping[str, int]) -> dict[str, Option]:
        return {name: self.options[name][row] for name, row in taken.items()}

    def _apart(self, taken: Mapping[str, int]) -> Iterable[Sequence[str]]:
        """The experiments of each part."""
        first: dict[Hashable, str] = {}
        joined: dict[str, str] = {}

        def root(of: str) -> str:
            while of in joined:
                of = joined[of]
            return of

        for name, row in taken.items():
            mine, cluster = root(self._root[name]), self.options[name][row].cluster
            if cluster is not None and (other := root(first.setdefault(cluster, mine))) != mine:
                joined[mine] = other
        parts: dict[str, list[str]] = {}
        for name in taken:
            parts.setdefault(root(self._root[name]), []).append(name)
        return parts.values()

    def _part(self, names: Sequence[str], taken: Mapping[str, int]) -> PlanPart:
        key = tuple((name, taken[name]) for name in names)
        found = self._parts.get(key) or self._earlier_parts.get(key)
        if found is None:
            self.reckoned += len(names)
            found = PlanPart.of({name: self.options[name][row] for name, row in key}, self.after)
        self._parts[key] = found
        return found


def plan(
    options: Mapping[str, Sequence[Option]],
    start: Mapping[str, int],
    after: Mapping[str, Sequence[str]],
    limits: QuoteLimits,
    shares_machine: bool = False,
) -> JointPlan:
    """Take one option of each experiment.

    Begins with the picks of the objective; while the price per hour (then the deadline, then the budget) does
    not hold, the one change that gains most of it per second (time per dollar, dollars per second) is made.
    With one experiment that is the whole front; with several it is greedy. After some seconds an end is made:
    see `JointPlan.is_cut`.

    Args:
        options: of each experiment, those of its Pareto front, and some that cost little per hour.
        start: the pick of the objective, a position in them.
        after: which experiments each waits for.
        limits: of the whole run.
        shares_machine: all run on one machine; see ``Option.load``.
    """
    choices = PlanChoices(options, after, limits, shares_machine)
    best = choices.whole(dict(start))
    for aim in Aim:
        changes = _Changes(choices, aim)
        while not best.feasible and best.breaks(aim):
            choices.forget()
            move = changes.best(best)
            if move is None:
                break
            best = move
    return _without_waste(best) if best.taken != start else best


def _without_waste(best: JointPlan) -> JointPlan:
    """What later changes have made needless for the limits is taken back, as long as there is any."""
    choices, before = best.of, None
    while best is not before and best.feasible:
        before = best
        for name, row in before.taken.items():
            for other in choices.spaced(name):
                if other != row and not choices.gives_up:
                    then = choices.whole({**best.taken, name: other})
                    if _value(then) < _value(best) / _ROUNDED and then.feasible:
                        best = then
    return best


def _value(found: JointPlan) -> float:
    return float(found.of.limits.objective(np.array(found.typical_s), np.array(found.typical_usd)))


@dataclass
class _Changes:
    """Those changes are looked at that may gain most by what they gained before.

    Once all were looked at, they are made one after the other as long as each still gains most of what it
    did then, before all are looked at again.
    """

    choices: PlanChoices
    aim: Aim
    _rates: dict[tuple[str, int], float] = field(default_factory=dict, init=False)

    def best(self, now: JointPlan) -> JointPlan | None:
        """A plan after one of them; None where none gains anything, or more would take too long."""
        while self._rates:
            (name, row), most = max(self._rates.items(), key=lambda each: each[1])
            del self._rates[name, row]
            if row != now.taken[name]:
                then, rate = self._changed(now, name, row, most * _STILL)
                if rate >= most * _STILL:
                    return then
        best, most = None, 0.0
        for then in self.choices.all_below(self.aim):
            if (rate := self._rate(now, then, most)) > most:
                best, most = then, rate
        for name in self.choices.deciding(now, self.aim):
            for row in self.choices.spaced(name):
                if row == now.taken[name] or self.choices.gives_up:
                    continue
                then, rate = self._changed(now, name, row, 0.0)
                if rate > 0:
                    self._rates[name, row] = rate
                if rate > most:
                    best, most = then, rate
        return best

    def _changed(self, now: JointPlan, name: str, row: int, least: float) -> tuple[JointPlan, float]:
        then = self.choices.whole({**now.taken, name: row})
        return then, self._rate(now, then, least)

    def _rate(self, now: JointPlan, then: JointPlan, least: float) -> float:
        """What a change gains for what it takes; 0: less than it should, or it is dearer than is allowed.

        What it gains at most is known sooner.
        """
        if _rate(now, then, self.aim, at_most=True) <= least / _ROUNDED:
            return 0.0
        allowed = self.choices.limits.usd_per_hour
        if allowed < math.inf and then.usd_per_hour > max(now.usd_per_hour, allowed) * _ROUNDED:
            return 0.0
        return _rate(now, then, self.aim)


def _rate(now: JointPlan, then: JointPlan, aim: Aim, *, at_most: bool = False) -> float:
    """What a change gains for what it takes."""
    gained, takes = now.gain(then, aim, at_most=at_most)
    return gained / max(takes, 1e-9) if gained > _LEAST else 0.0


def _needed_usd(chosen: Mapping[str, Option], after: Mapping[str, Sequence[str]], cost_usd: Floats) -> Floats:
    """(DRAWS,) that a run must be allowed: at each moment what it has cost, and the end of what is there.

    That is most when an experiment ends. What has ended by then was given back, and what begins later costs
    nothing yet.

    Args:
        chosen: options, on the machines that they share.
        after: which experiments each waits for.
        cost_usd: (DRAWS,) of all.
    """
    by_name = schedule({name: option.time_s for name, option in chosen.items()}, after)
    begins, ends = (np.array([each[name] for name in chosen]) for each in by_name)
    took_s = np.maximum([option.time_s for option in chosen.values()], 1e-9)
    usd = np.array([option.cost_usd for option in chosen.values()])
    end_usd = np.array([np.broadcast_to(option.end_usd, cost_usd.shape) for option in chosen.values()])
    needed = cost_usd
    for at in ends:
        check_processor_limit()
        spent = (usd * np.clip((at - begins) / took_s, 0.0, 1.0)).sum(axis=0)
        kept = np.where((begins < at) & (at <= ends), end_usd, 0.0).sum(axis=0)
        needed = np.maximum(needed, spent + kept)
    return needed


def _hourly(chosen: Mapping[str, Option], before: Mapping[str, set[str]]) -> float:
    """Dollars per hour of all that may be there at once; experiments that share machines have them once."""
    serves: dict[str, list[str]] = {}
    names: dict[Hashable, str] = {}
    for name, option in chosen.items():
        cluster = name if option.cluster is None else names.setdefault(option.cluster, name)
        serves.setdefault(cluster, []).append(name)
    prices = {
        cluster: sum(max(chosen[name].usd_per_hour[role] for name in members) for role in (0, 1))
        for cluster, members in serves.items()
    }
    return most_at_once(prices, serves, before)


def _all_below(options: Mapping[str, Sequence[Option]]) -> Iterator[Mapping[str, int]]:
    """The fastest options below each price per hour: one change alone gains nothing on shared machines."""
    medians = {name: [float(np.median(option.time_s)) for option in each] for name, each in options.items()}
    prices = sorted({sum(option.usd_per_hour) for each in options.values() for option in each})
    for most in prices[:: -(-len(prices) // _PRICES)]:
        below = {
            name: [row for row, option in enumerate(each) if sum(option.usd_per_hour) <= most]
            for name, each in options.items()
        }
        if all(below.values()):
            yield {name: min(rows, key=medians[name].__getitem__) for name, rows in below.items()}
