"""How long what is under way will still take: the quote's own draws, given how far it has come."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.phases import NOTHING, ClusterWait, machines_belief
from trainmaster.advisor.model.shapes import Floats
from trainmaster.advisor.quote.beliefs import ENDING_S
from trainmaster.advisor.quote.interval import Interval
from trainmaster.advisor.quote.quantiles import interval
from trainmaster.advisor.quote.timing import DRAWS, Timing
from trainmaster.advisor.quote.turns import schedule, together, turns
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
#: So many of the tasks that wait are given to slots one by one.
_LAST: Final = 64


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
class ExperimentProgress:
    """How many tasks of an experiment have ended, and how far the running ones are.

    Attributes:
        ended: how many of its tasks have ended.
        running: those under way.
    """

    ended: int = 0
    running: tuple[RunningTask, ...] = ()

    def begun(self, share: float) -> ExperimentProgress:
        """The same where such a share of each task's steps was done before it began.

        >>> ExperimentProgress(0, (RunningTask(1.0, 0.75),)).begun(0.5).running[0].share
        0.5
        """
        left = max(1 - share, 1e-9)
        of_these = [
            each if each.share is None else replace(each, share=max(each.share - share, 0.0) / left)
            for each in self.running
        ]
        return replace(self, running=tuple(of_these))


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


def remaining_s(timing: Timing, one: Candidates, doing: ExperimentProgress) -> Floats:
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
    begun, each, places = _under_way(timing, one, doing, range(total - waiting, total))
    slots = max(int(one.at_once[0]), len(begun), 1)
    free = np.array([*begun, *[np.zeros(DRAWS)] * (slots - len(begun))])
    first, size = total - waiting, timing.workload.generation or total
    for begin in range(first - first % size, total, size):
        if begin >= first and timing.workload.generation is not None:  # all before must be over
            free[:] = free.max(axis=0)
        mine = places[max(begin - first, 0) : begin + size - first]
        # Of many tasks all but the last ones keep every slot busy, whatever each of them takes.
        free += np.bincount(mine[:-_LAST], minlength=len(each)) @ each / slots
        for place in mine[-_LAST:]:
            free[free.argmin(axis=0), np.arange(DRAWS)] += each[place]
    return np.asarray(free.max(axis=0), dtype=float)


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
    doing: ExperimentProgress = ExperimentProgress()
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
        later = range(total - waiting, total)
        begun, takes, kinds = _under_way(place.timing, place.one, place.doing, later, place.slower)
        slots = max(int(place.one.at_once[0]), len(begun), 1)
        running += begun
        free += [*begun, *[np.zeros(DRAWS) + place.come_s] * (slots - len(begun))]
        each += [np.bincount(kinds, minlength=len(takes)) @ takes / max(waiting, 1)] * slots
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
    timing: Timing, one: Candidates, doing: ExperimentProgress, waiting: range, slower: Floats | float = 1.0
) -> tuple[list[Floats], Floats, NDArray[np.int_]]:
    """(DRAWS,) seconds that each running task still takes, and what one takes which waits still.

    The latter is (P, DRAWS) by place in the order in which tasks begin; last the place of each that waits.

    Args:
        timing: of their machines.
        one: their cluster.
        doing: what runs there.
        waiting: numbers of the experiment's tasks that have not begun.
        slower: their training takes so many times as long.
    """
    training = _copies(timing.training_s(one))
    once, training = _copies(timing.task_s(one)) - training, training * slower
    sizes = () if len(timing.workload.simulated_shares) else timing.sizes.factors
    alike = training / _copies(np.asarray(timing.sizes.over(one.at_once))) if len(sizes) else training

    def of(number: int) -> Floats:
        return alike * _copies(sizes[number][:, None]) if number < len(sizes) else training

    has_steps = timing.knowledge.model is not None
    tail = _copies(timing.tail_s())
    trained = _copies(timing.trained(one))
    order = _Order(np.array(timing.workload.simulated_shares), timing.workload.tasks)
    is_played = bool(order.shares.size) and timing.workload.target is None
    begun = []
    for each in doing.running:
        share = order.share(int(order.places([each.number])[0]), trained, each.share or 0.0)
        whole = of(each.number) / trained
        mine = whole * share
        ends = share if is_played else None
        begun.append(_left(once + mine, mine, whole, tail, each, has_steps, trained, ends))
    if len(sizes):
        return begun, np.array([once + of(number) for number in waiting]), np.arange(len(waiting))
    many = order.shares.shape[1] if order.shares.size else 1
    takes = [once + training / trained * order.share(place, trained) for place in range(many)]
    return begun, np.array(takes), order.places(waiting)


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
        asked_s: seconds since its machines were asked for, where it is not there.
        is_billed: its machines are billed already, though they do not form it yet.
        driver_usd_per_hour: of its machine that stays until the run's end, as it drives that.
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
    asked_s: float = 0.0
    is_billed: bool = False
    driver_usd_per_hour: float = 0.0

    def usd(self, seconds: Floats) -> Floats:
        """(DRAWS,) what so much more time costs.

        >>> part = RentedPart(("main",), 3600.0, is_there=True, paid_s=50.0)
        >>> part.usd(np.array([20.0, 80.0])).tolist()
        [0.0, 30.0]
        """
        more = np.maximum(seconds - self.paid_s, 0.0)
        if self.quantum_s:
            more = np.ceil(more / self.quantum_s) * self.quantum_s
        least = 0.0 if self.is_there or self.is_billed else self.paid_s
        return np.asarray(self.usd_per_hour / 3600 * (more + least), dtype=float)


def forecast_rented(
    elapsed_s: float,
    spent_usd: float,
    left: Mapping[str, Floats],
    after: Mapping[str, Sequence[str]],
    parts: Sequence[RentedPart],
    provider: str,
    waited: Sequence[ClusterWait] = (),
    gave_back_s: Mapping[str, Sequence[float]] | None = None,
    apart: Collection[str] = (),
    fills: Mapping[str, float] | None = None,
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
        fills: the share of its machines that each experiment fills; None: it leaves room for others.
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
        come_s = np.maximum(come_s - part.asked_s, _LEFT * come_s)
        absent |= {name: come_s for name in part.experiments if name not in apart}
    takes = {name: left[name] * later + absent.get(name, 0.0) for name in left}
    if fills is not None:
        sharing = [[n for n in part.experiments if n in left and n not in apart] for part in parts]
        typical_s = {name: float(np.median(each)) for name, each in takes.items()}
        after = turns(typical_s, after, fills, sharing)[0]
    begins, ends = schedule(takes, after)
    rest = np.max(list(ends.values()), axis=0) if ends else np.zeros(DRAWS)
    cost = np.full(DRAWS, spent_usd)
    for part in parts:
        mine = [name for name in part.experiments if name in left]
        until = np.max([ends[name] for name in mine], axis=0) if mine else np.zeros(DRAWS)
        cost = cost + part.driver_usd_per_hour / 3600 * (rest - until + (0.0 if mine else ending))
        if not mine:
            continue
        since = 0.0 if part.is_there else np.min([begins[name] for name in mine], axis=0)
        cost = cost + part.usd(until - since + ending)
    time_s = elapsed_s + rest + ending + giving_back
    return interval(time_s), interval(cost)


@dataclass(frozen=True, slots=True)
class _Order:
    """What a pruner lets tasks make, by the order in which they begin: the first ones go furthest.

    Attributes:
        shares: as `Workload.simulated_shares`. tasks: how many there are.
    """

    shares: Floats
    tasks: int

    def share(self, place: int, trained: Floats, made: float = 0.0) -> Floats:
        """(DRAWS,) share of its steps that a task makes; of several tasks a draw is of the same play.

        Args:
            place: of the task in the plays.
            trained: (DRAWS,) what all make on average, where there are no plays.
            made: what it has made: plays that let it make no more are replaced by others, if there are any.
        """
        if not self.shares.size:
            return trained
        rng, every = np.random.default_rng(8), self.shares[:, place]
        shares, longer = rng.choice(every, len(trained)), every[every > made]
        return np.where(shares > made, shares, rng.choice(longer, len(trained))) if longer.size else shares

    def places(self, numbers: Sequence[int]) -> NDArray[np.int_]:
        """Of tasks in the plays: where these have fewer, only the later half stands for several each."""
        each = np.array(numbers, dtype=int)
        if not self.shares.size:
            return np.zeros_like(each)
        here = self.shares.shape[1]
        first = here // 2
        late = first + (each - first) * (here - first) // max(self.tasks - first, 1)
        return np.minimum(np.where((each < first) | (self.tasks <= here), each, late), here - 1)


def _left(
    task: Floats,
    training: Floats,
    whole: Floats,
    tail: Floats,
    running: RunningTask,
    has_steps: bool,
    trained: Floats,
    ends: Floats | None,
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
        ends: share at which a pruner is taken to end it; None if that is not known.
    """
    if running.share is None and not has_steps:
        return np.maximum(task - running.elapsed_s, _LEFT * task)
    if not running.share:  # it still starts
        return np.maximum(task - running.elapsed_s, training + tail)
    share = min(running.share, 1.0)
    if running.ends:
        ends = np.random.default_rng(8).choice(np.array(running.ends), len(training))
    if ends is not None and (ends > share).any():
        return np.asarray(whole * np.maximum(ends - share, _LEFT * share) + tail)
    return whole * np.minimum(1 - share, np.maximum(trained - share, share)) + tail


def _copies(values: Floats) -> Floats:
    """(S, 1) to (DRAWS,): the draws that share a posterior draw."""
    flat = np.broadcast_to(values, (len(values), 1))[:, 0]
    return np.tile(flat, DRAWS // len(flat))
