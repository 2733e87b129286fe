"""From a recipe's demand and what was measured to a quote: the policy ``quote``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.candidates import Candidates
from trainmaster.advisor.choosing import Choice, Drawn, Limits, choose, pareto, sure
from trainmaster.advisor.infeasible import NoFeasibleQuote, no_feasible
from trainmaster.advisor.joint import Option, Plan, plan
from trainmaster.advisor.knowledge import Knowledge
from trainmaster.advisor.machines import Machines
from trainmaster.advisor.market import (
    Market,
    headroom,
    left_aside,
    offers_for,
    per_node_of,
    servers_for,
    that_fit,
)
from trainmaster.advisor.next_point import next_measurement
from trainmaster.advisor.own_machine import own_load
from trainmaster.advisor.quote import Alternative, ClusterShape, ExperimentQuote, Interval, Quote, Rented
from trainmaster.advisor.shapes import Floats
from trainmaster.advisor.timing import Timing
from trainmaster.advisor.workload import Workload
from trainmaster.providers import Catalogue
from trainmaster.spec.errors import UsageError

#: Parameter servers are chosen among so many machines that no other beats; of many regions, few in each.
_SERVERS: Final = 12
_FEWEST_SERVERS: Final = 3
#: Most regions that are looked at where all must be in one; what one has not counts as so many times dearer.
_PLACES: Final = 3
_DEAR: Final = 3.0
#: Clusters this near to the front by typical figures are drawn, at most so many.
_NEAR: Final = 1.02
_FRONT: Final = 128
#: A dearer cluster is shown if it is faster by so much.
_FASTER: Final = 0.01
#: Most of the time is something else than training from here on.
_MOSTLY: Final = 0.5


@dataclass(frozen=True)
class Subject:
    """One experiment to be quoted.

    Attributes:
        workload: what is to be done. knowledge: what was measured of it.
        fingerprint: of what the measurements rest on.
    """

    workload: Workload
    knowledge: Knowledge
    fingerprint: str = ""


def make_quote(subjects: Sequence[Subject], market: Market, limits: Limits, seed: int = 0) -> Quote:
    """Quote all experiments of a run.

    Args:
        subjects: at least one.
        market: what can be had.
        limits: of the whole run.
        seed: of all draws; the same inputs give the same quote.

    Raises:
        NoFeasibleQuote: nothing keeps the limits; names the nearest budget and deadline.
        UsageError: no offer has what the recipe asks for.
    """
    if all(offer.price_usd_per_hour == 0 for offer in market.catalogue):
        limits = replace(limits, time_weight=limits.time_weight or 1.0)  # the cheapest is the fastest
    asked = [_Asked.of(subject, market, limits, seed + 100 * i) for i, subject in enumerate(subjects)]
    if len(asked) == 1:
        return _single(asked[0], limits, market)
    return _several(asked, limits, market)


@dataclass(frozen=True)
class _Asked:
    """One experiment with its candidates."""

    subject: Subject
    timing: Timing
    candidates: Candidates
    notes: tuple[str, ...]

    @classmethod
    def of(cls, subject: Subject, market: Market, limits: Limits, seed: int) -> _Asked:
        workload = subject.workload
        wished = offers_for(workload, market)
        per_node = per_node_of(workload, wished, market)
        wished = market.real(wished)
        offers = wished.offers
        if market.is_there:
            machines = Machines.of(wished.columns(), per_node)
            if market.hosts is not None:
                machines = replace(machines, memory=np.full(len(machines), np.nan))
            servers = machines[:0]
        elif market.has_server_machines(workload):
            hosts = market.real(servers_for(workload, market))
            machines, servers = _together(subject, wished, hosts, per_node)
            offers = offers + hosts.offers
        else:
            machines = Machines.of(wished.columns(), per_node).undominated(_measured(subject, wished))
            servers = machines[:0]
        candidates = Candidates.of(workload, machines, servers, market.slots, market.hosts)
        candidates, notes = that_fit(workload.name, candidates, machines, subject.knowledge, limits)
        notes = (*left_aside(workload, market), *notes)
        timing = Timing(
            workload,
            subject.knowledge,
            machines,
            servers,
            offers,
            market.own_machine,
            market.waited_s,
            seed,
            data_leaves=market.data_leaves,
        )
        return cls(subject, timing, candidates, notes)

    def shape(self, some: Candidates, row: int) -> ClusterShape:
        """The cluster of one candidate."""

        def rented(machines: Machines, which: int, count: float) -> Rented:
            offer = self.timing.offers[int(machines.index[which])]
            return Rented(
                offer.instance_type,
                int(count),
                offer.spot,
                offer.provider,
                offer.region,
                offer.price_usd_per_hour,
            )

        server = int(some.server[row])
        return ClusterShape(
            worker=rented(self.timing.machines, int(some.machine[row]), some.machines[row]),
            server=rented(self.timing.servers, server, some.servers[row]) if server >= 0 else None,
            workers=int(some.workers[row]),
            at_once=int(some.at_once[row]),
        )

    def quote(self, drawn: Drawn, row: int, considered: int) -> ExperimentQuote:
        """Of one drawn candidate."""
        one = drawn.candidates[np.array([row])]
        front = _front(self, drawn)
        known = self.subject.knowledge
        step = None
        if known.model is not None:
            step = Interval(*np.quantile(self.timing.step_s(one)[:, 0], (0.05, 0.5, 0.95)).tolist())
        return ExperimentQuote(
            name=self.subject.workload.name,
            cluster=self.shape(one, 0),
            time_s=Interval(*drawn.time_s[row].tolist()),
            cost_usd=Interval(*drawn.cost_usd[row].tolist()),
            step_s=step,
            bottleneck=_bottleneck(self.timing, one, float(drawn.time_s[row, 1])),
            pareto=front,
            memory_headroom=headroom(one, self.timing.machines, known),
            measurements=known.points,
            similar=known.similar,
            next_measurement=next_measurement(self.timing, one),
            candidates=considered,
            notes=self.notes,
            fingerprint=self.subject.fingerprint,
        )


def _measured(subject: Subject, offers: Catalogue) -> NDArray[np.bool_]:
    """(k,) offers of the type that the job was measured on."""
    name = subject.knowledge.measured.offer
    return np.array([offer.instance_type == name for offer in offers], dtype=bool)


def _together(
    subject: Subject, wished: Catalogue, hosts: Catalogue, per_node: Floats
) -> tuple[Machines, Machines]:
    """Machines of workers and of parameter servers, which have to be in one region.

    The servers' positions count on after the workers' offers.
    """
    known: dict[tuple[str, str], int] = {}
    places = np.array([known.setdefault((o.provider, o.region), len(known)) for o in [*wished, *hosts]])
    mine, theirs = places[: len(wished)], places[len(wished) :]
    both = np.intersect1d(mine, theirs)
    if not len(both):
        raise UsageError(
            f"experiments.{subject.workload.name}: no region has both the workers' and the servers' machines",
            "Widen hardware.region, or distributed.hardware.ps.",
        )
    both = _best_places(Machines.of(wished.columns(), per_node), mine, both)
    machines = Machines.of(wished.columns(), per_node, mine)
    servers = Machines.of(hosts.columns(), np.ones(len(hosts)), theirs).undominated()
    servers = servers[np.argsort(servers.price / np.fmax(servers.nic, 1e-3), kind="stable")]
    each = max(_SERVERS // len(both), _FEWEST_SERVERS)
    kept = np.concatenate([np.flatnonzero(servers.place == place)[:each] for place in both.tolist()])
    servers = servers[kept]
    there = np.isin(mine, both)
    return (
        machines[there].undominated(_measured(subject, wished)[there]),
        replace(servers, index=servers.index + len(wished)),
    )


def _best_places(machines: Machines, mine: NDArray[np.int_], both: NDArray[np.int_]) -> NDArray[np.int_]:
    """The cheapest few of many regions, and those that alone have some kind of machine.

    How cheap a region is: its price of each kind over the least one anywhere, on average.
    """
    if len(both) <= _PLACES:
        return both
    kinds = int(machines.group.max(initial=0)) + 1
    least = np.full((len(both), kinds), np.inf)
    for row, place in enumerate(both.tolist()):
        there = mine == place
        np.minimum.at(least[row], machines.group[there], machines.price[there])
    cheapest = np.where(np.isfinite(least.min(0)), least.min(0), 1.0)
    order = np.argsort(np.minimum(least / np.maximum(cheapest, 1e-9), _DEAR).mean(1), kind="stable")
    kept: list[int] = []
    seen = np.zeros(kinds, dtype=bool)
    for row in order.tolist():
        has = np.isfinite(least[row])
        if len(kept) < _PLACES or (has & ~seen).any():
            kept.append(row)
            seen |= has
    return both[kept]


def _single(asked: _Asked, limits: Limits, market: Market) -> Quote:
    choice = choose(asked.candidates, asked.timing, limits)
    if choice.best is None:
        raise _infeasible(asked, choice, limits)
    quote = asked.quote(choice.drawn, choice.best, choice.considered)
    return _whole({quote.name: quote}, quote.time_s, quote.cost_usd, market)


def _several(asked: Sequence[_Asked], limits: Limits, market: Market) -> Quote:
    alone = replace(limits, deadline_s=math.inf, budget_usd=math.inf)
    drawn, options, start = {}, {}, {}
    considered = {}
    for each in asked:
        name = each.subject.workload.name
        choice = choose(each.candidates, each.timing, alone)
        assert choice.best is not None  # without limits everything is feasible
        picked = choice.drawn.at(np.array([choice.best]))
        front = _front_rows(each)
        rows = Drawn.joined([picked, front])
        order = np.argsort(rows.time_s[:, 1], kind="stable")
        drawn[name], considered[name] = rows.at(order), choice.considered
        start[name] = int(np.flatnonzero(order == 0)[0])
        outcomes = each.timing.outcomes(drawn[name].candidates)
        load = own_load(each.subject.workload, drawn[name].candidates, market.slots or 1)
        options[name] = [
            Option(outcomes.time_s[:, i], outcomes.cost_usd[:, i], float(load[i])) for i in range(len(order))
        ]
    after = {each.subject.workload.name: each.subject.workload.after for each in asked}
    best = plan(options, start, after, limits, market.own_machine)
    if not best.feasible:
        raise _infeasible_plan(options, after, limits, best, market.own_machine)
    quotes = {}
    for each in asked:
        name = each.subject.workload.name
        quotes[name] = each.quote(drawn[name], best.taken[name], considered[name])
    return _whole(quotes, _interval(best.time_s), _interval(best.cost_usd), market)


def _whole(
    quotes: Mapping[str, ExperimentQuote], time_s: Interval | None, cost: Interval | None, market: Market
) -> Quote:
    catalogue = market.catalogue
    notes = tuple(catalogue.warnings)
    as_of = catalogue.as_of.isoformat() if catalogue.as_of else ""
    return Quote(quotes, time_s, cost, "quote", catalogue.name, as_of, notes=notes)


def _front_rows(asked: _Asked) -> Drawn:
    """The Pareto front over all candidates: what is near it by typical figures is drawn, then compared."""
    time_s, cost = asked.timing.typical(asked.candidates)
    order = np.lexsort((cost, time_s))
    near = order[cost[order] <= np.minimum.accumulate(cost[order]) * _NEAR + 1e-12]
    some = near[np.linspace(0, len(near) - 1, min(len(near), _FRONT)).astype(int)]
    drawn = Drawn.of(asked.candidates[some], asked.timing, Limits())
    return drawn.at(pareto(drawn))


def _worth_showing(front: Sequence[Alternative]) -> tuple[Alternative, ...]:
    """Without those that are faster than a cheaper one by next to nothing; fastest first."""
    kept: list[Alternative] = []
    for one in reversed(front):
        if not kept or one.time_s < kept[-1].time_s * (1 - _FASTER):
            kept.append(one)
    return tuple(reversed(kept))


def _front(asked: _Asked, drawn: Drawn) -> tuple[Alternative, ...]:
    rows = Drawn.joined([drawn, _front_rows(asked)]) if len(asked.candidates) > 1 else drawn
    shapes, seen = [], set()
    for row in pareto(rows).tolist():
        shape = asked.shape(rows.candidates, row)
        if shape not in seen:
            seen.add(shape)
            shapes.append(Alternative(shape, float(rows.time_s[row, 1]), float(rows.cost_usd[row, 1])))
    return _worth_showing(shapes)


# --- words -------------------------------------------------------------------------------------------


def _bottleneck(timing: Timing, one: Candidates, time_s: float) -> str:
    known = timing.knowledge
    training = float(np.median(timing.training_s(one)))
    share = training * math.ceil(timing.workload.tasks / float(one.at_once[0])) / max(time_s, 1e-9)
    if known.model is None:
        return f"the tasks themselves: {timing.workload.tasks} of them, {int(one.at_once[0])} at a time"
    if timing.slowed_by_credits(one):
        return "CPU credits: they run out, and the cores go on at a fraction of their speed"
    if share < _MOSTLY:
        return "start-up: most of the time is spent before the first step or after the last one"
    shapes = timing.shapes(one)
    return known.model.bottlenecks(shapes, np.median(timing.slowness(one), axis=0, keepdims=True))[0]


def _infeasible(asked: _Asked, choice: Choice, limits: Limits) -> NoFeasibleQuote:
    """Say how far off it is: the least budget for this deadline, the least deadline for this budget."""
    budget = deadline = None
    cheap = choose(
        asked.candidates,
        asked.timing,
        replace(limits, budget_usd=math.inf, time_weight=0.0, cost_weight=1.0),
    )
    if cheap.best is not None and limits.budget_usd < math.inf:
        budget = float(cheap.drawn.sure_cost[cheap.best])
    fast = choose(
        asked.candidates,
        asked.timing,
        replace(limits, deadline_s=math.inf, time_weight=1.0, cost_weight=0.0),
    )
    if fast.best is not None and limits.deadline_s < math.inf:
        deadline = float(fast.drawn.sure_time[fast.best])
    row = choice.nearest
    nearest = (float(choice.drawn.sure_time[row]), float(choice.drawn.sure_cost[row]))
    return no_feasible(limits, budget, deadline, nearest)


def _infeasible_plan(
    options: Mapping[str, Sequence[Option]],
    after: Mapping[str, Sequence[str]],
    limits: Limits,
    best: Plan,
    shares_machine: bool,
) -> NoFeasibleQuote:
    budget = deadline = None
    if limits.budget_usd < math.inf:
        cheapest = {name: len(each) - 1 for name, each in options.items()}
        rich = plan(options, cheapest, after, replace(limits, budget_usd=math.inf), shares_machine)
        budget = float(sure(rich.cost_usd)) if rich.feasible else None
    if limits.deadline_s < math.inf:
        fastest = dict.fromkeys(options, 0)
        patient = plan(options, fastest, after, replace(limits, deadline_s=math.inf), shares_machine)
        deadline = float(sure(patient.time_s)) if patient.feasible else None
    nearest = (float(sure(best.time_s)), float(sure(best.cost_usd)))
    return no_feasible(limits, budget, deadline, nearest)


def _interval(draws: Floats) -> Interval:
    return Interval(*np.quantile(draws, (0.05, 0.5, 0.95)).tolist())
