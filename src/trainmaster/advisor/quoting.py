"""From a recipe's demand and what was measured to a quote: the policy ``quote``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trainmaster.advisor.candidates import Candidates
from trainmaster.advisor.choosing import Choice, Drawn, Limits, choose, pareto
from trainmaster.advisor.devices import Device
from trainmaster.advisor.infeasible import NoFeasibleQuote, no_feasible
from trainmaster.advisor.joint import Option, Plan, plan
from trainmaster.advisor.knowledge import Knowledge
from trainmaster.advisor.machines import Machines
from trainmaster.advisor.market import Market, headroom, offers_for, per_node_of, servers_for, that_fit
from trainmaster.advisor.next_point import next_measurement
from trainmaster.advisor.quote import Alternative, ClusterShape, ExperimentQuote, Interval, Quote, Rented
from trainmaster.advisor.shapes import Floats
from trainmaster.advisor.timing import Timing
from trainmaster.advisor.workload import Workload
from trainmaster.spec.errors import UsageError

#: Parameter servers are chosen among so many machines that no other beats.
_SERVERS: Final = 12
#: Clusters this near to the front by typical figures are drawn, at most so many.
_NEAR: Final = 1.02
_FRONT: Final = 128
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
        where = f"experiments.{workload.name}"
        wished = offers_for(workload, market)
        if not len(wished):
            raise UsageError(
                f"{where}.hardware: no offer of the catalogue '{market.catalogue.name}' has all of that",
                "`trainmaster offers` with the same wishes as options shows which one excludes all.",
            )
        per_node = per_node_of(workload, wished, market)
        machines = Machines.of(wished.columns(), per_node)
        machines = machines if market.own_machine else machines.undominated()
        offers, servers = wished.offers, machines[:0]
        if workload.servers and not market.own_machine:
            hosts = servers_for(workload, market)
            found = Machines.of(hosts.columns(), np.ones(len(hosts))).undominated()
            found = found[np.argsort(found.price / np.fmax(found.nic, 1e-3), kind="stable")[:_SERVERS]]
            servers = replace(found, index=found.index + len(offers))
            offers = offers + hosts.offers
        candidates = Candidates.of(workload, machines, servers, market.slots)
        candidates, notes = that_fit(workload.name, candidates, machines, subject.knowledge, limits)
        timing = Timing(
            workload,
            subject.knowledge,
            machines,
            servers,
            offers,
            market.own_machine,
            market.waited_s,
            seed,
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
        options[name] = [Option(outcomes.time_s[:, i], outcomes.cost_usd[:, i]) for i in range(len(order))]
    after = {each.subject.workload.name: each.subject.workload.after for each in asked}
    best = plan(options, start, after, limits)
    if not best.feasible:
        raise _infeasible_plan(options, start, after, limits, best)
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


def _front(asked: _Asked, drawn: Drawn) -> tuple[Alternative, ...]:
    rows = Drawn.joined([drawn, _front_rows(asked)]) if len(asked.candidates) > 1 else drawn
    shapes, seen = [], set()
    for row in pareto(rows).tolist():
        shape = asked.shape(rows.candidates, row)
        if shape not in seen:
            seen.add(shape)
            shapes.append(Alternative(shape, float(rows.time_s[row, 1]), float(rows.cost_usd[row, 1])))
    return tuple(shapes)


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
    start: Mapping[str, int],
    after: Mapping[str, Sequence[str]],
    limits: Limits,
    best: Plan,
) -> NoFeasibleQuote:
    budget = deadline = None
    if limits.budget_usd < math.inf:
        rich = plan(options, start, after, replace(limits, budget_usd=math.inf))
        budget = float(np.quantile(rich.cost_usd, 0.9)) if rich.feasible else None
    if limits.deadline_s < math.inf:
        patient = plan(options, start, after, replace(limits, deadline_s=math.inf))
        deadline = float(np.quantile(patient.time_s, 0.9)) if patient.feasible else None
    nearest = (float(np.quantile(best.time_s, 0.9)), float(np.quantile(best.cost_usd, 0.9)))
    return no_feasible(limits, budget, deadline, nearest)


def _interval(draws: Floats) -> Interval:
    return Interval(*np.quantile(draws, (0.05, 0.5, 0.95)).tolist())


def device_of(accelerator: str, vcpus: float, per_node: float, instance: str) -> Device:
    """The device that something was measured on."""
    return Device(accelerator, vcpus / max(per_node, 1.0), instance)
