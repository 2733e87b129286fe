"""How long what is under way will still take: the quote's own draws, given how far it has come."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.phases import NOTHING, Waited, machines_belief
from trainmaster.advisor.model.shapes import Floats
from trainmaster.advisor.quote.beliefs import ENDING_S
from trainmaster.advisor.quote.interval import Interval
from trainmaster.advisor.quote.joint import schedule, together
from trainmaster.advisor.quote.quantiles import interval
from trainmaster.advisor.quote.timing import DRAWS, Timing
from trainmaster.dataclass import dataclass
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec.log_normal import LogNormal

#: How much the time to come differs from what the time until now says (log): others use the machine too.
_LATER: Final = 0.06
#: A task that has taken longer than it should takes at least this share of its time more.
_LEFT: Final = 0.05
#: Slots that are free at the same time are taken in their order; halvings of a time that find when that is.
_TIE_S: Final = 1e-6
_HALVED: Final = 48


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A task under way.

    Attributes:
        elapsed_s: since its members were started.
        share: of its steps that are done; None if it shows none.
        reports: steps, and values of its target's metric there; empty without a target.
        ends: shares of its steps at which it may end as its target is reached; empty: all of them are made.
        number: of its experiment's tasks, which begin in this order.
        machine: what it runs on, as measurements call it; empty if unknown.
    """

    elapsed_s: float
    share: float | None = None
    reports: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    ends: tuple[float, ...] = ()
    number: int = 0
    machine: str = ""


@dataclass(frozen=True, slots=True)
class Doing:
    """How far an experiment is.

    Attributes:
        ended: how many of its tasks have ended.
        running: those under way.
    """

    ended: int = 0
    running: tuple[RunningTask, ...] = ()


@dataclass(frozen=True, slots=True)
class Overhead:
    """What of an experiment is no training, on the machines that it has.

    Attributes:
        before: what comes before its first members start, by the phase's name. after: what comes after its
            last ones have ended.
        since_s: how long it is under way; None: not begun.
        is_over: members have started.
    """

    before: tuple[tuple[str, LogNormal], ...] = ()
    after: LogNormal = NOTHING
    since_s: float | None = None
    is_over: bool = False

    def left_s(self, seed: int) -> Floats:
        """(DRAWS,) seconds that are still to come."""
        rng = np.random.default_rng((7, seed))
        before, after = (
            sum((b.median * np.exp(b.spread * rng.standard_normal(DRAWS)) for b in some), np.zeros(DRAWS))
            for some in ([belief for _, belief in self.before], [self.after])
        )
        if self.is_over:
            return np.asarray(after)
        left = before if self.since_s is None else np.maximum(before - self.since_s, _LEFT * before)
        return np.asarray(left + after)


def remaining_s(timing: Timing, one: Candidates, doing: Doing) -> Floats:
    """(DRAWS,) seconds until the last task of an experiment has ended.

    Args:
        timing: of the experiment.
        one: its cluster.
        doing: how far it is.
    """
    total = timing.workload.tasks
    waiting = max(total - doing.ended - len(doing.running), 0)
    if waiting == total:
        return timing.outcomes(one).time_s[:, 0]
    begun, later = _under_way(timing, one, doing, waiting)
    slots = max(float(one.at_once[0]), len(begun), 1.0)
    longest = np.max(begun, axis=0) if begun else np.zeros(DRAWS)
    if not waiting:
        return longest
    work = waiting * later + (np.sum(begun, axis=0) if begun else 0.0)
    # the last ones end one after the other: half a task is lost on average
    work = work / slots + 0.5 * later * (1 - 1 / slots)
    return np.maximum(work, longest)


@dataclass(frozen=True, slots=True)
class PlaceNow:
    """One of the places that a sweep spreads over.

    Attributes:
        timing: by what is known of its machines. one: its cluster.
        doing: what runs there.
        come_s: (DRAWS,) until its machines are there.
        slower: (DRAWS,) how many times as long its machines train as those that `timing` is of.
    """

    timing: Timing
    one: Candidates
    doing: Doing = Doing()
    come_s: Floats | float = 0.0
    slower: Floats | float = 1.0


def remaining_in_places_s(places: Sequence[PlaceNow], ended: int) -> Floats:
    """(DRAWS,) seconds until the last task of a sweep over several places has ended.

    Each task begins where something is free first, and takes what tasks take there.

    Args:
        places: in their order.
        ended: how many of its tasks have ended.
    """
    total = places[0].timing.workload.tasks
    waiting = max(total - ended - sum(len(place.doing.running) for place in places), 0)
    free, each, running = list[Floats](), list[Floats](), list[Floats]()
    for place in places:
        begun, later = _under_way(place.timing, place.one, place.doing, waiting, place.slower)
        slots = max(int(place.one.at_once[0]), len(begun), 1)
        running += begun
        free += [*begun, *[np.zeros(DRAWS) + place.come_s] * (slots - len(begun))]
        each += [later] * slots
    last = _last_end_s(np.array(free), np.array(each), waiting)
    return np.max([*running, last], axis=0)


def _last_end_s(free: Floats, each: Floats, tasks: int) -> Floats:
    """(S,) when the last of so many tasks ends, of which each takes the first of K slots that is free.

    Of slots that are free at once the first one is taken.

    >>> _last_end_s(np.array([[0.0], [5.0]]), np.array([[10.0], [100.0]]), 3).round(3).tolist()
    [105.0]
    >>> _last_end_s(np.array([[0.0], [0.0]]), np.array([[10.0], [100.0]]), 1).round(3).tolist()
    [10.0]

    Args:
        free: (K, S) when slots are free.
        each: (K, S) what a task takes there.
        tasks: how many.
    """
    if not tasks:
        return np.zeros(free.shape[1])
    free = free + _TIE_S * np.arange(len(free))[:, None]
    each = np.maximum(each, 1e-3)

    def begun(until: Floats) -> Floats:
        return np.maximum(np.floor((until - free) / each) + 1, 0.0)

    low, high = free.min(0) - 1.0, (free + (tasks - 1) * each).min(0) + _TIE_S / 2
    for _ in range(_HALVED):
        middle = (low + high) / 2
        are_enough = begun(middle).sum(0) >= tasks
        low, high = np.where(are_enough, low, middle), np.where(are_enough, middle, high)
    many = begun(high)
    return np.asarray(np.where(many > 0, free + many * each, 0.0).max(0), dtype=float)


def _under_way(
    timing: Timing, one: Candidates, doing: Doing, waiting: int, slower: Floats | float = 1.0
) -> tuple[list[Floats], Floats]:
    """(DRAWS,) seconds that each running task still takes, and that one takes which waits still.

    Args:
        timing: of their machines.
        one: their cluster.
        doing: what runs there.
        waiting: how many tasks of the experiment have not begun.
        slower: their training takes so many times as long.
    """
    total = timing.workload.tasks
    task, training = _copies(timing.task_s(one)), _copies(timing.training_s(one))
    task, training = task + training * (slower - 1.0), training * slower
    has_steps = timing.knowledge.model is not None
    tail = _copies(timing.tail_s())
    trained = _copies(timing.trained(one))
    order = _Order(np.array(timing.workload.plays), total)
    begun = []
    for each in doing.running:
        mine = training * order.over_average([each.number], trained)
        if timing.workload.target is None:
            each = order.with_ends(each)
        begun.append(_left(task - training + mine, mine, training / trained, tail, each, has_steps, trained))
    if not waiting:
        return begun, np.zeros(DRAWS)
    return begun, task - training + training * order.over_average(range(total - waiting, total), trained)


def forecast(
    elapsed_s: float,
    left: Mapping[str, Floats],
    after: Mapping[str, Sequence[str]],
    cost_usd: Floats | float,
    load: Mapping[str, float] | None = None,
) -> tuple[Interval, Interval]:
    """Seconds and dollars of a whole run.

    Args:
        elapsed_s: since its start.
        left: (DRAWS,) of each experiment that has not ended.
        after: which experiments each waits for.
        cost_usd: (DRAWS,) of the whole run.
        load: share of one machine that each experiment keeps busy; None if each has its own.
    """
    rest = together(left, after, load) if left else np.zeros(DRAWS)
    rng = np.random.default_rng(5)
    later = np.exp(_LATER * rng.standard_normal(DRAWS))
    ending = ENDING_S.median * np.exp(ENDING_S.spread * rng.standard_normal(DRAWS))
    time_s = elapsed_s + rest * later + ending
    cost = np.broadcast_to(np.asarray(cost_usd, dtype=float), (len(time_s),))
    return interval(time_s), interval(cost)


@dataclass(frozen=True, slots=True)
class RentedPart:
    """A cluster of a run.

    Attributes:
        experiments: that it is for. usd_per_hour: of all its machines.
        is_there: it is paid for already; else only from when the first of its experiments begins.
        machine: what its workers' machines are called in measurements.
        machines: how many it has.
        paid_s: for so long from now on it is paid: what is billed is rounded up. Of one that is not there all
            that it is billed for at least.
        quantum_s: beyond that it is billed in such pieces.
        provider: whose machines; empty: the run's.
        stays: it is kept for the next run, and not given back.
    """

    experiments: tuple[str, ...]
    usd_per_hour: float
    is_there: bool
    machine: str = ""
    machines: int = 1
    paid_s: float = 0.0
    quantum_s: float = 0.0
    provider: str = ""
    stays: bool = False

    def usd(self, seconds: Floats) -> Floats:
        """(DRAWS,) what so much more time costs.

        >>> part = RentedPart(("main",), 3600.0, is_there=True, paid_s=50.0)
        >>> part.usd(np.array([20.0, 80.0])).tolist()
        [0.0, 30.0]
        """
        more = np.maximum(seconds - self.paid_s, 0.0)
        if self.quantum_s:
            more = np.ceil(more / self.quantum_s) * self.quantum_s
        least = 0.0 if self.is_there else self.paid_s
        return np.asarray(self.usd_per_hour / 3600 * (more + least), dtype=float)


def forecast_rented(
    elapsed_s: float,
    spent_usd: float,
    left: Mapping[str, Floats],
    after: Mapping[str, Sequence[str]],
    parts: Sequence[RentedPart],
    provider: str,
    waited: Sequence[Waited] = (),
    gave_back_s: Mapping[str, Sequence[float]] | None = None,
    apart: Collection[str] = (),
) -> tuple[Interval, Interval]:
    """Seconds and dollars of a whole run on machines of a provider.

    A cluster is paid for until the last of its experiments has ended, and not while it is given back.

    Args:
        elapsed_s: since its start.
        spent_usd: until now, as billed (rounded up): see `RentedPart.paid_s`.
        left: (DRAWS,) of each experiment that has not ended, once its machines are there.
        after: which experiments each waits for.
        parts: the clusters.
        provider: of the run.
        waited: how long earlier runs waited for machines.
        gave_back_s: what giving them back took, by provider.
        apart: experiments whose time counts the wait for each of their clusters already.
    """
    rng = np.random.default_rng(6)

    def drawn(belief: LogNormal) -> Floats:
        return belief.median * np.exp(belief.spread * rng.standard_normal(DRAWS))

    later = np.exp(_LATER * rng.standard_normal(DRAWS))
    normal, ending = rng.standard_normal(DRAWS), drawn(ENDING_S)
    giving_back, back_s = np.zeros(DRAWS), gave_back_s or {}
    for whose in (provider, *sorted({part.provider for part in parts} - {"", provider})):
        its = [part for part in parts if (part.provider or provider) == whose]
        belief = capabilities_of(whose).giving_back_s.learnt(back_s.get(whose, ()))
        took_s = drawn(belief)
        if not (its and all(part.stays for part in its)):
            giving_back = np.maximum(giving_back, took_s)
    absent: dict[str, Floats] = {}
    for part in (part for part in parts if not part.is_there):
        whose = part.provider or provider
        prior = capabilities_of(whose).provisioning_s
        wait = machines_belief(prior, waited, whose, part.machine, machines=part.machines)
        come_s = wait.median * np.exp(wait.spread * normal)
        absent |= {name: come_s for name in part.experiments if name not in apart}
    takes = {name: left[name] * later + absent.get(name, 0.0) for name in left}
    begins, ends = schedule(takes, after)
    rest = np.max(list(ends.values()), axis=0) if ends else np.zeros(DRAWS)
    cost = np.full(DRAWS, spent_usd)
    for part in parts:
        mine = [name for name in part.experiments if name in left]
        if not mine:
            continue
        until = np.max([ends[name] for name in mine], axis=0)
        since = 0.0 if part.is_there else np.min([begins[name] for name in mine], axis=0)
        cost = cost + part.usd(until - since + ending)
    time_s = elapsed_s + rest + ending + giving_back
    return interval(time_s), interval(cost)


@dataclass(frozen=True, slots=True)
class _Order:
    """What a pruner lets tasks make, by the order in which they begin: the first ones go furthest.

    Attributes:
        plays: as `Workload.plays`. tasks: how many there are.
    """

    plays: Floats
    tasks: int

    def over_average(self, numbers: Sequence[int], trained: Floats) -> Floats:
        """(DRAWS,) what some tasks make on average, over the average of all; at most whole tasks.

        Args:
            numbers: of the tasks.
            trained: (DRAWS,) share that all make on average.
        """
        if not self.plays.size:
            return np.ones(len(trained))
        each = self.plays[:, [self._place(number) for number in numbers]].mean(axis=1) / self.plays.mean()
        return np.minimum(np.random.default_rng(8).choice(each, len(trained)), 1 / trained)

    def with_ends(self, running: RunningTask) -> RunningTask:
        """The same with where it may end, given how far it is; unchanged if no play lets it come so far."""
        if not self.plays.size or not running.share or running.ends:
            return running
        ends = self.plays[:, self._place(running.number)]
        return replace(running, ends=tuple(ends[ends > running.share].tolist()))

    def _place(self, number: int) -> int:
        """Of a task in the plays: where these have fewer, only the later half stands for several each."""
        here = self.plays.shape[1]
        first = here // 2
        if number < first or self.tasks <= here:
            return min(number, here - 1)
        return min(first + (number - first) * (here - first) // (self.tasks - first), here - 1)


def _left(
    task: Floats,
    training: Floats,
    whole: Floats,
    tail: Floats,
    running: RunningTask,
    has_steps: bool,
    trained: Floats,
) -> Floats:
    """(DRAWS,) seconds that one running task still takes.

    What a pruner has let live beyond what it usually does comes as far again, and no further than its end.

    Args:
        task: that it takes in all.
        training: of that the steps.
        whole: that all steps take.
        tail: after the last one.
        running: how far it is.
        has_steps: it is to show steps.
        trained: share of its steps that a task makes on average.
    """
    if running.share is None and not has_steps:
        return np.maximum(task - running.elapsed_s, _LEFT * task)
    if not running.share:  # it still starts
        return np.maximum(task - running.elapsed_s, training + tail)
    share = min(running.share, 1.0)
    if running.ends:
        ends = np.random.default_rng(8).choice(np.array(running.ends), len(training))
        return np.asarray(whole * np.maximum(ends - share, _LEFT * share) + tail)
    return whole * np.minimum(1 - share, np.maximum(trained - share, share)) + tail


def _copies(values: Floats) -> Floats:
    """(S, 1) to (DRAWS,): the draws that share a posterior draw."""
    flat = np.broadcast_to(values, (len(values), 1))[:, 0]
    return np.tile(flat, DRAWS // len(flat))
