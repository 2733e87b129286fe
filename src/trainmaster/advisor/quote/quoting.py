"""From a recipe's demand and what was measured to a quote: the policy ``quote``."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.hourly_cost import least_cap
from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.market.pairs import Pairs
from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.knowledge import Knowledge
from trainmaster.advisor.model.shapes import Floats
from trainmaster.advisor.quote import beliefs
from trainmaster.advisor.quote.choosing import Choice, QuoteLimits, SampledCandidates, choose, pareto
from trainmaster.advisor.quote.explaining import bought, explained
from trainmaster.advisor.quote.infeasible import NoFeasibleQuote, no_feasible
from trainmaster.advisor.quote.interval import Interval
from trainmaster.advisor.quote.joint import Aim, JointPlan, plan
from trainmaster.advisor.quote.next_point import next_measurement
from trainmaster.advisor.quote.quantiles import interval, sure
from trainmaster.advisor.quote.quote import Alternative, ClusterShape, ExperimentQuote, Quote, Rented
from trainmaster.advisor.quote.quoted_target import QuotedTarget
from trainmaster.advisor.quote.supply import (
    Supply,
    headroom,
    in_one_region,
    left_aside,
    node_share,
    offers_for,
    own_load,
    per_node_of,
    servers_for,
    that_fit,
)
from trainmaster.advisor.quote.timing import Timing
from trainmaster.advisor.quote.timing_by_type import TimingByType, predicted_from
from trainmaster.advisor.quote.turns import Option
from trainmaster.dataclass import dataclass
from trainmaster.providers.capabilities import OfferSource, capabilities_of
from trainmaster.spec.processor_limit import check_processor_limit
from trainmaster.spec.units import format_mbps

#: Clusters this near to the front by typical figures are drawn, at most so many.
_NEAR: Final = 1.02
_FRONT: Final = 128
#: So many clusters are looked at for whether a measurement makes one of them the better one.
_RIVALS: Final = 31
#: A dearer cluster is shown if it is faster by so much.
_FASTER: Final = 0.01
#: Of the price per hour that is allowed for all, experiments side by side may have so much each.
_SHARES: Final = (0.75, 0.5, 1 / 3, 0.25, 0.125)
#: Most of the time is something else than training from here on.
_MOSTLY: Final = 0.5
#: Experiments that are named where many share machines.
_NAMED: Final = 3
#: Of the time in which workers do not compute, waits for disks and volumes must be so much to be named.
_WAITS_FOR_DATA: Final = 0.3
_SHARES_OF_TARGET: Final = {"p5": 0.05, "p50": 0.5, "p95": 0.95}


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


def make_quote(subjects: Sequence[Subject], supply: Supply, limits: QuoteLimits, seed: int = 0) -> Quote:
    """Quote all experiments of a run.

    Args:
        subjects: at least one.
        supply: what can be had.
        limits: of the whole run.
        seed: of all draws; the same inputs give the same quote.

    Raises:
        NoFeasibleQuote: nothing keeps the limits; names the nearest budget and deadline.
        UsageError: no offer has what the recipe asks for.
    """
    if all(offer.price_usd_per_hour == 0 for offer in supply.catalogue):
        limits = replace(limits, time_weight=limits.time_weight or 1.0)  # the cheapest is the fastest
    asked = [_Asked.of(subject, supply, limits, seed + 100 * i) for i, subject in enumerate(subjects)]
    if len(asked) == 1:
        return _single(asked[0], limits, supply)
    return _several(asked, limits, supply)


@dataclass(frozen=True)
class _Asked:
    """One experiment with its candidates.

    Attributes:
        timing: of any of them; knows its machines. drawing: of all of them.
        slots: of each offer's machine, as a run counts them.
    """

    subject: Subject
    timing: Timing
    drawing: TimingByType
    candidates: Candidates
    notes: tuple[str, ...]
    slots: Floats

    @classmethod
    def of(cls, subject: Subject, supply: Supply, limits: QuoteLimits, seed: int) -> _Asked:
        check_processor_limit()
        workload = subject.workload
        wished = offers_for(workload, supply)
        per_node = per_node_of(workload, wished, supply)
        slots, wished = wished.columns().vcpus, supply.real(wished)
        offers = wished.offers
        pairs: Pairs | None = None
        known_by = predicted_from(subject.knowledge, workload, offers, per_node)
        if supply.is_there:
            machines = Machines.of(wished.columns(), per_node)
            if supply.hosts is not None:
                machines = replace(machines, memory=np.where(machines.memory > 1, machines.memory, np.nan))
            servers = machines[:0]
        elif supply.has_server_machines(workload):
            hosts = supply.real(servers_for(workload, supply))
            machines, servers, pairs = in_one_region(
                workload,
                wished,
                hosts,
                per_node,
                known_by,
                by_cores=subject.knowledge.server_work_s is not None,
            )
            offers = offers + hosts.offers
        else:
            machines = Machines.of(wished.columns(), per_node).undominated(known_by)
            servers = machines[:0]
        timing = Timing(
            workload,
            subject.knowledge,
            machines,
            servers,
            offers,
            supply.own_machine,
            supply.waited,
            supply.gave_back_s,
            seed,
            data_leaves=supply.data_leaves,
            end_s=limits.end_s,
        )
        drawing = TimingByType.of(timing)
        candidates = Candidates.of(
            workload, machines, servers, supply.slots, supply.hosts, pairs, supply.gpus
        )
        candidates, notes = that_fit(candidates, drawing, limits)
        notes = (
            *left_aside(workload, supply),
            *notes,
            *_not_learnt(subject.knowledge),
            *filter(None, [timing.sizes.note()]),
        )
        return cls(subject, timing, drawing, candidates, notes, slots)

    def shape(self, some: Candidates, row: int) -> ClusterShape:
        """The cluster of one candidate."""

        def rented(machines: Machines, which: int, count: float) -> Rented:
            return Rented.of(self.timing.offers[int(machines.index[which])], int(count))

        server = int(some.server[row])
        return ClusterShape(
            worker=rented(self.timing.machines, int(some.machine[row]), some.machines[row]),
            server=rented(self.timing.servers, server, some.servers[row]) if server >= 0 else None,
            workers=int(some.workers[row]),
            at_once=int(some.at_once[row]),
        )

    def rent(self, drawn: SampledCandidates, row: int) -> tuple[Hashable, tuple[float, float]]:
        """What shares machines with it, and dollars per hour of the workers' and the servers' machines."""
        shape, workload = self.shape(drawn.candidates, row), self.subject.workload
        parts = (shape.worker, shape.server)
        types = tuple(part and (part.instance, part.provider, part.region, part.spot) for part in parts)
        prices = [part.count * part.usd_per_hour if part else 0.0 for part in parts]
        key = (workload.hardware.model_dump_json(), workload.server_hardware.model_dump_json(), types)
        return key, (prices[0], prices[1])

    def shared(self, some: Candidates, row: int) -> dict[str, Any]:
        """What experiments that share its machines have once: those fields of `Option`."""
        one = some[np.array([row])]
        timing = self.drawing.timing(one)
        machine, at_once = int(one.machine[0]), float(one.at_once[0])
        index, vcpus = int(timing.machines.index[machine]), float(timing.machines.vcpus[machine])
        gpus = timing.offers[index].accelerators
        share = node_share(self.subject.workload, one, float(self.slots[index]), gpus)
        cores = at_once * float(one.workers[0]) * (self.subject.knowledge.cores_per_worker or 0.0)
        fills = at_once * float(one.nodes[0]) * share
        coming_s = timing.once_s(one)["machines"]
        return {
            "coming_s": np.broadcast_to(coming_s, (timing.draws, 1))[:, 0],
            "leaving_s": float(np.broadcast_to(timing.once.giving_back_s(one), 1)[0]),
            "rent_usd": lambda rented_s: timing.rent_usd(rented_s[:, None], one)[:, 0],
            "machines": float(one.machines[0]),
            "fills": fills,
            "busy": min(cores / max(vcpus, 1e-9), float(one.machines[0])),
        }

    def _assumed(self, one: Candidates) -> tuple[str, ...]:
        """Notes of what is not known of the machines of one candidate."""
        machines, servers = self.timing.machines, self.timing.servers
        rows = [(machines, int(one.machine[0]))] if one.nodes[0] > 1 or one.servers[0] else []
        rows += [(servers, int(one.server[0]))] if one.server[0] >= 0 else []
        found = []
        for some, row in rows:
            offer, mbps = self.timing.offers[int(some.index[row])], float(some.nic[row])
            name, is_told = (
                offer.instance_type,
                offer.nic_gbps is not None or offer.nic_burst_gbps is not None,
            )
            if capabilities_of(offer.provider).offers is OfferSource.INVENTORY:
                found.append(_between_hosts(mbps))
            elif not is_told and math.isfinite(mbps):
                found.append(f"the network of {name} is unknown; {mbps / 1000:.3g} Gbit/s is assumed")
        return tuple(dict.fromkeys(found))

    def quote(
        self, drawn: SampledCandidates, row: int, considered: int, limits: QuoteLimits | None
    ) -> ExperimentQuote:
        """Of one drawn candidate; limits are of this experiment alone, None if others share them."""
        check_processor_limit()
        one = drawn.candidates[np.array([row])]
        front, rivals = _front(self, drawn), self._rivals(drawn, row, limits)
        timing, known = self.drawing.timing(one), self.subject.knowledge
        step = None
        if known.model is not None:
            step = interval(timing.step_s(one)[:, 0])
        time_s, cost_usd = timing.time_s(one), Interval(*drawn.cost_usd[row].tolist())
        if (replaced_usd := timing.replaced_usd(time_s, one)).any():
            cost_usd = interval((timing.cost_usd(time_s, one) + replaced_usd)[:, 0])
        return ExperimentQuote(
            name=self.subject.workload.name,
            cluster=self.shape(one, 0),
            time_s=Interval(*drawn.time_s[row].tolist()),
            cost_usd=cost_usd,
            step_s=step,
            bottleneck=_bottleneck(timing, one, float(drawn.time_s[row, 1])),
            pareto=front,
            memory_headroom=headroom(one, self.drawing),
            measurements=known.all_points,
            similar=known.all_points if known.similar else 0,
            next_measurement=next_measurement(timing, one, rivals, self.drawing, limits),
            candidates=considered,
            notes=(*self.notes, *self._assumed(one), *_begins_again(timing, one)),
            fingerprint=self.subject.fingerprint,
            measured=known.seen,
            phases=explained(timing, one),
            more_measuring=bought(timing, one),
            target=_target(timing, one),
            attempt_s=interval(timing.task_s(one)[:, 0]),
            end_usd=self.end_usd(drawn, row),
        )

    def end_usd(self, drawn: SampledCandidates, row: int) -> float:
        """What a run keeps of its budget for the end of one drawn candidate, beside its cost."""
        one = drawn[np.array([row])]
        needed_usd = float(self.drawing.needed_usd(one.time_s[:, 2], one.candidates)[0])
        return max(needed_usd - float(one.cost_usd[0, 2]), 0.0)

    def _rivals(self, drawn: SampledCandidates, row: int, limits: QuoteLimits | None) -> Candidates:
        """The best of those that were drawn beside one."""
        value = (limits or QuoteLimits()).objective(drawn.time_s[:, 1], drawn.cost_usd[:, 1])
        order = np.argsort(value, kind="stable")
        return drawn.candidates[order[order != row][:_RIVALS]]


def _begins_again(timing: Timing, one: Candidates) -> tuple[str, ...]:
    """What a job that writes no checkpoints loses, where machines are lost."""
    if timing.knowledge.saves_every_s != 0 or not any(rate.any() for rate in timing.loss_rates(one)):
        return ()
    many = "" if timing.workload.side_by_side == 1 else "the task's "
    return (
        f"it writes no checkpoint: {many}work since the start is lost with a machine. "
        "Write some into TRAINMASTER_CHECKPOINT_DIR, and begin with what is there (docs/how/checkpoints.md)",
    )


def _between_hosts(mbps: float) -> str:
    """What is known of the network between hosts of one's own."""
    if math.isfinite(mbps):
        return f"hosts get {format_mbps(mbps)} from each other, as was measured between them"
    believed = format_mbps(beliefs.UNTOLD_CARD_MBPS.median)
    look = "`trainmaster doctor --provider hosts` measures it"
    return f"what hosts get from each other is not known, {believed} is believed: {look}"


def _not_learnt(known: Knowledge) -> tuple[str, ...]:
    number = sum(each.unexplained for each in known.types)
    if not number:
        return ()
    many = "1 measured point was" if number == 1 else f"{number} measured points were"
    return (f"{many} not learnt: no cluster behaves like that next to the others",)


def _single(asked: _Asked, limits: QuoteLimits, supply: Supply) -> Quote:
    choice = choose(asked.candidates, asked.drawing, limits)
    if choice.best is None:
        raise _infeasible(asked, choice, limits)
    quote = asked.quote(choice.drawn, choice.best, choice.considered, limits)
    return _whole({quote.name: quote}, quote.time_s, quote.cost_usd, quote.end_usd, supply)


def _several(asked: Sequence[_Asked], limits: QuoteLimits, supply: Supply) -> Quote:
    alone = replace(limits, deadline_s=math.inf, budget_usd=math.inf)
    drawn, options, start = {}, {}, {}
    considered = {}
    for each in asked:
        check_processor_limit()
        name = each.subject.workload.name
        choice = choose(each.candidates, each.drawing, alone)
        assert choice.best is not None  # without limits everything is feasible
        picked = choice.drawn[np.array([choice.best])]
        rows = SampledCandidates.joined([picked, _front_rows(each), *_frugal(each, limits)])
        order = np.argsort(rows.time_s[:, 1], kind="stable")
        drawn[name], considered[name] = rows[order], choice.considered
        start[name] = int(np.flatnonzero(order == 0)[0])
        outcomes = each.drawing.outcomes(drawn[name].candidates)
        end_usd = each.drawing.needed_usd(outcomes.time_s, drawn[name].candidates) - outcomes.cost_usd
        usd = outcomes.cost_usd + each.drawing.replaced_usd(outcomes.time_s, drawn[name].candidates)
        load = own_load(each.subject.workload, drawn[name].candidates, supply.slots or 1)
        options[name] = [
            Option(
                outcomes.time_s[:, i],
                usd[:, i],
                float(load[i]),
                *each.rent(drawn[name], i),
                end_usd=end_usd[:, i],
                **each.shared(drawn[name].candidates, i),
            )
            for i in range(len(order))
        ]
    after = {each.subject.workload.name: each.subject.workload.after for each in asked}
    best = plan(options, start, after, limits, supply.own_machine)
    if not best.feasible:
        raise _infeasible_plan(options, after, limits, best, supply.own_machine)
    has_limits = min(limits.deadline_s, limits.budget_usd, limits.usd_per_hour) < math.inf
    quotes = {}
    for each in asked:
        name, own = each.subject.workload.name, None if has_limits else limits
        quotes[name] = each.quote(drawn[name], best.taken[name], considered[name], own)
    cost_usd = interval(best.cost_usd)
    kept_usd = max(interval(best.needed_usd).p95 - cost_usd.p95, 0.0)
    shared = [group.names for part in best.parts for group in part.groups if group.rent_usd is not None]
    notes = [_shared_words([quotes[name] for name in names]) for names in shared if len(names) > 1]
    return _whole(quotes, interval(best.time_s), cost_usd, kept_usd, supply, notes)


def _shared_words(quotes: Sequence[ExperimentQuote]) -> str:
    """That these are on the same machines: the price of each alone has all of them."""
    names = [quote.name for quote in quotes[:_NAMED]]
    last = names.pop() if len(quotes) == len(names) else f"{len(quotes) - len(names)} more"
    words = max((quote.cluster for quote in quotes), key=lambda each: each.usd_per_hour).words()
    return f"{', '.join(names)} and {last} share {words}, rented and paid for once"


def _whole(
    quotes: Mapping[str, ExperimentQuote],
    time_s: Interval | None,
    cost: Interval | None,
    end_usd: float,
    supply: Supply,
    notes: Iterable[str] = (),
) -> Quote:
    catalogue = supply.catalogue
    notes = (*catalogue.warnings, *notes)
    as_of = catalogue.as_of.isoformat() if catalogue.as_of else ""
    return Quote(quotes, time_s, cost, "quote", catalogue.name, as_of, notes=notes, end_usd=end_usd)


def _front_rows(asked: _Asked) -> SampledCandidates:
    """The Pareto front over all candidates: what is near it by typical figures is drawn, then compared."""
    kinds = asked.drawing.alike(asked.candidates)
    time_s = asked.drawing.typical_s(asked.candidates[kinds.first])[kinds.back]
    cost = asked.drawing.cost_usd(time_s[None], asked.candidates)[0]
    order = np.lexsort((cost, time_s))
    near = order[cost[order] <= np.minimum.accumulate(cost[order]) * _NEAR + 1e-12]
    some = near[np.linspace(0, len(near) - 1, min(len(near), _FRONT)).astype(int)]
    drawn = SampledCandidates.of(asked.candidates[some], asked.drawing)
    return drawn[pareto(drawn)]


def _frugal(asked: _Asked, limits: QuoteLimits) -> list[SampledCandidates]:
    """The best that costs little per hour: experiments that run side by side share what is allowed."""
    if limits.usd_per_hour == math.inf:
        return []
    price = asked.candidates.price
    caps = [limits.usd_per_hour * share for share in _SHARES] + [float(price.min())]
    found = []
    for cap in caps:
        if (price <= cap).any():
            choice = choose(
                asked.candidates[price <= cap],
                asked.drawing,
                replace(limits, deadline_s=math.inf, budget_usd=math.inf),
            )
            assert choice.best is not None
            found.append(choice.drawn[np.array([choice.best])])
    return found


def _worth_showing(front: Sequence[Alternative]) -> tuple[Alternative, ...]:
    """Without those that are faster than a cheaper one by next to nothing; fastest first."""
    kept: list[Alternative] = []
    for one in reversed(front):
        if not kept or one.time_s < kept[-1].time_s * (1 - _FASTER):
            kept.append(one)
    return tuple(reversed(kept))


def _front(asked: _Asked, drawn: SampledCandidates) -> tuple[Alternative, ...]:
    rows = SampledCandidates.joined([drawn, _front_rows(asked)]) if len(asked.candidates) > 1 else drawn
    shapes, seen = [], set()
    for row in pareto(rows).tolist():
        shape = asked.shape(rows.candidates, row)
        if shape not in seen:
            seen.add(shape)
            shapes.append(Alternative(shape, float(rows.time_s[row, 1]), float(rows.cost_usd[row, 1])))
    return _worth_showing(shapes)


def _target(timing: Timing, one: Candidates) -> QuotedTarget | None:
    """When it is reached with one candidate."""
    workload, most = timing.workload, float(one.steps[0])
    if workload.until is None or not math.isfinite(most):
        return None
    batch = float(timing.global_batch(one)[0])
    found = QuotedTarget(workload.name, str(workload.until), most, batch=batch if batch == batch else None)
    belief = workload.target
    if belief is None:
        return found
    steps = np.sort(belief.steps(np.array([batch])).ravel())
    within = np.where(steps <= most, steps, math.inf)
    at = {name: float(within[int(share * len(within))]) for name, share in _SHARES_OF_TARGET.items()}
    critical = float(np.median(belief.critical))
    return replace(
        found,
        chance=round(float(np.isfinite(within).mean()), 3),
        steps={name: round(each, 1) if math.isfinite(each) else None for name, each in at.items()},
        curves=belief.curves,
        reached=belief.reached,
        is_measured=belief.is_measured,
        is_kin=belief.is_kin,
        critical_batch=round(critical, 1) if belief.batch else None,
    )


# --- words -------------------------------------------------------------------------------------------


def _bottleneck(timing: Timing, one: Candidates, time_s: float) -> str:
    known = timing.knowledge
    training = float(np.median(timing.training_s(one)))
    share = training * float(timing.workload.waves(one.at_once)[0]) / max(time_s, 1e-9)
    if known.model is None:
        tasks, at_once = timing.workload.tasks, int(one.at_once[0])
        return f"the tasks themselves: {tasks}, {at_once} at a time" if tasks > 1 else "the task itself"
    if words := timing.held_up_by(one):
        return words
    if share < _MOSTLY:
        return "start-up: most of the time is spent before the first step or after the last one"
    shapes = timing.shapes(one)
    words = known.model.bottlenecks(shapes, np.median(timing.slowness(one), axis=0, keepdims=True))[0]
    if words.startswith("compute") and (busy := known.computing_share) is not None and busy < _MOSTLY:
        data = known.data_share
        told = f"workers computed {busy:.0%} of the measured time"
        if data is not None and data >= _WAITS_FOR_DATA * (1 - busy):
            return f"waiting for data: {told}, and waited for disks or volumes {data:.0%} of it"
        return f"waiting: {told}; else they slept, or waited for what is not seen"
    return words


def _infeasible(asked: _Asked, choice: Choice, limits: QuoteLimits) -> NoFeasibleQuote:
    """Say how far off it is: the least budget for this deadline, the least deadline for this budget."""
    budget = deadline = None
    cheap = choose(
        asked.candidates,
        asked.drawing,
        replace(limits, budget_usd=math.inf, time_weight=0.0, cost_weight=1.0),
    )
    if cheap.best is not None and limits.budget_usd < math.inf:
        budget = float(cheap.drawn.sure_need[cheap.drawn.sure_time <= limits.deadline_s].min())
    fast = choose(
        asked.candidates,
        asked.drawing,
        replace(limits, deadline_s=math.inf, time_weight=1.0, cost_weight=0.0),
    )
    if fast.best is not None and limits.deadline_s < math.inf:
        deadline = float(fast.drawn.sure_time[fast.best])
    row = choice.nearest
    nearest = (float(choice.drawn.sure_time[row]), float(choice.drawn.sure_need[row]))
    return no_feasible(limits, budget, deadline, nearest)


def _infeasible_plan(
    options: Mapping[str, Sequence[Option]],
    after: Mapping[str, Sequence[str]],
    limits: QuoteLimits,
    best: JointPlan,
    shares_machine: bool,
) -> NoFeasibleQuote:
    if best.usd_per_hour > limits.usd_per_hour * (1 + 1e-9):
        prices = {name: [sum(one.usd_per_hour) for one in each] for name, each in options.items()}
        frugal = {name: each.index(min(each)) for name, each in prices.items()}
        least = plan(options, frugal, after, QuoteLimits(), shares_machine).usd_per_hour
        raise NoFeasibleQuote(
            "no clusters for the experiments that may run at the same time cost at most "
            f"${limits.usd_per_hour:g} per hour together",
            f"The cheapest cost ${least_cap(least):g} per hour: raise budget.per_hour, or let "
            "one experiment come after another.",
        )
    budget = deadline = None
    if limits.budget_usd < math.inf and not best.of.is_too_soon:
        cheapest = {name: len(each) - 1 for name, each in options.items()}
        rich = plan(options, cheapest, after, replace(limits, budget_usd=math.inf), shares_machine)
        budget = float(sure(rich.needed_usd)) if rich.feasible else None
    if limits.deadline_s < math.inf:
        fastest = dict.fromkeys(options, 0)
        patient = plan(options, fastest, after, replace(limits, deadline_s=math.inf), shares_machine)
        would_do = [each for each in (patient, best) if not each.breaks(Aim.COST)]
        deadline = min((float(sure(each.time_s)) for each in would_do), default=None)
    nearest = (float(sure(best.time_s)), float(sure(best.needed_usd)))
    return no_feasible(limits, budget, deadline, nearest, is_cut=best.is_cut)
