"""`plan_run`: the machines of a run, what they cost and what is to be expected, before any is had."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.cluster.record import ClusterState, fits, readable
from trainmaster.cluster.renting.offer_filter import AvailableOffers
from trainmaster.cluster.renting.plan import ClusterPlan, capped, dearest_usd_per_hour, most_at_once, words
from trainmaster.cluster.renting.plan_clusters import pinned, plan_clusters
from trainmaster.cluster.renting.requirements import Pick
from trainmaster.control.checks.framework_notes import framework_notes
from trainmaster.control.checks.inputs import missing_script_notes
from trainmaster.control.checks.preflight import (
    check_all,
    check_machine,
    check_parts,
    check_volumes,
    recipe_notes,
)
from trainmaster.control.decide.budget import BOOTING_S, SWITCH_OFF_S, USUAL_LEASE_S, Meter, saving_limit_usd
from trainmaster.executors.capacity import detect_capacity
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.driving.run_clusters import check_provider
from trainmaster.service.models.starting_models import with_versions
from trainmaster.service.quotes.candidate_offers import CandidateOffers, candidate_offers_of
from trainmaster.service.quotes.prices import CATALOGUE
from trainmaster.service.quotes.quote_options import QuoteOptions
from trainmaster.service.quotes.quote_record import QuoteRecord, most_usd, told_in_full
from trainmaster.service.quotes.worker_counts import with_clusters, with_fewest
from trainmaster.spec import Experiment, Recipe
from trainmaster.spec.errors import UsageError, one_line
from trainmaster.spec.objective import Objective
from trainmaster.spec.parts import parted
from trainmaster.spec.units import dollars, format_duration

if TYPE_CHECKING:
    from trainmaster.advisor.quote.quote import Interval, Quote
    from trainmaster.db import Database
    from trainmaster.providers import NodeRequest
    from trainmaster.service.open_home import OpenHome
    from trainmaster.service.quotes.quote_service import Quoter
    from trainmaster.service.service import Service

__all__ = ["RentalOffer", "check_with_provider", "plan_run", "planned_requests"]

#: This machine's processors as catalogues call them.
_ARCHES: Final = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}

_ONE_PLACE: Final = "it is chosen by only for runs in one place; these machines are the cheapest of each"
#: Makes a `Quoter` that knows what there is to be had.
MakeQuoter = Callable[[CandidateOffers], "Quoter"]


@dataclass(frozen=True)
class RentalOffer:
    """What is put before the user.

    Attributes:
        recipe: with every number of workers settled, and what was planned put in.
        plans: of the clusters.
        usd_per_hour: of all machines that may be there at the same time, had in the cheapest way.
        most_usd_per_hour: had in the dearest way that is planned for when there is no capacity.
        quote: what is to be expected; None where nothing is known. no_quote: why.
        of_any_job: then, what jobs of any kind take: it is told, and neither chooses nor promises anything.
        notes: what was decided for the user, and wishes that mean nothing.
    """

    recipe: Recipe
    plans: tuple[ClusterPlan, ...]
    usd_per_hour: float
    most_usd_per_hour: float
    quote: Quote | None = None
    no_quote: str = ""
    of_any_job: Quote | None = None
    notes: tuple[str, ...] = ()

    @property
    def costs(self) -> bool:
        """Whether anything is to be paid."""
        return self.most_usd_per_hour > 0

    @property
    def most_usd(self) -> float | None:
        """What the whole run may cost; None if unknown."""
        if not self.costs:
            return 0.0
        quoted = None if self.quote is None or self.quote.cost_usd is None else self.quote.cost_usd.p95
        return most_usd(quoted, self.recipe)

    @property
    def cap_usd(self) -> float | None:
        """A cap, in whole cents, that what is planned does not reach; None if unknown.

        All at the highest price, and beside the run a lease of all machines: a cap sets aside for its end.
        """
        if self.most_usd is None:
            return None
        dearer = self.most_usd_per_hour / self.usd_per_hour if self.usd_per_hour else 1.0
        lease_usd = self.most_usd_per_hour * (USUAL_LEASE_S + SWITCH_OFF_S) / 3600
        return math.ceil(100 * (dearer * self.most_usd + lease_usd)) / 100

    @property
    def lines(self) -> list[str]:
        """The machines, their price and what is to be expected, for people."""
        found = [_line(plan) for plan in self.plans]
        if self.costs and len(self.plans) > 1:
            found.append(f"at the same time: at most ${self.usd_per_hour:.4g} per hour")
        oldest = min((r.as_of for p in self.plans for o in p.roles for r in o.rentals if r.as_of), default="")
        if oldest:
            found.append(f"prices as of {oldest}{self._what_prices_hold()}")
        if self.costs:
            budget = self.recipe.budget
            usd = saving_limit_usd(budget.saving_usd if budget else None, self.usd_per_hour)
            usd = usd if budget is None or budget.total_usd is None else min(usd, budget.total_usd)
            found.append(
                f"if a model cannot be saved, machines wait for it for at most {dollars(usd)} (budget.saving)"
            )
        if self.quote is not None and self.quote.time_s is not None and self.quote.cost_usd is not None:
            found.append(
                f"estimate: {told_in_full(self.quote.time_s, self.quote.cost_usd)}, with the wait for "
                "the machines"
            )
            if self.quote.queue is not None:
                found.append(f"before that {self.quote.queue.words}, not in the estimate")
            limits = {one.bottleneck: None for one in self.quote.experiments.values() if one.bottleneck}
            found += [f"limited by {limit}" for limit in limits]
            found += [f"{name} is not in the estimate: {why}" for name, why in self.quote.not_quoted.items()]
        elif self.of_any_job is not None and self.of_any_job.time_s is not None:
            found.append(f"estimate: {self._any_job(self.of_any_job.time_s)}, as {self.no_quote}")
        elif self.no_quote:
            found.append(f"no estimate: {self.no_quote}")
        return found

    def _any_job(self, time_s: Interval) -> str:
        """What jobs of any kind take, and cost on these machines."""
        words = f"{format_duration(time_s.p5)} to {format_duration(time_s.p95)}"
        if self.costs:
            cap_usd = self.recipe.budget.total_usd if self.recipe.budget is not None else None
            low, high = (self.usd_per_hour / 3600 * each for each in (time_s.p5, time_s.p95))
            low, high = (each if cap_usd is None else min(each, cap_usd) for each in (low, high))
            words += f", {dollars(low)} to {dollars(high)}"
        return f"{words}, what jobs of any kind take"

    def _what_prices_hold(self) -> str:
        rentals = [role.rentals[0] for plan in self.plans for role in plan.roles]
        extras = max(rental.extras_usd_per_hour for rental in rentals)
        rise = max((r.at_most.usd_per_hour / r.usd_per_hour for r in rentals if r.usd_per_hour), default=1.0)
        told = f"; ${extras:.2g} of each machine's is for its disk and address" if extras else ""
        return told + (f"; spot machines are given up at {rise:.3g} times the price" if rise > 1 else "")

    def note_down(self, database: Database, run: str, now: float) -> None:
        """Write down what was estimated for a run that has just been accepted, so that it can be judged.

        Args:
            database: the database.
            run: its id.
            now: Unix seconds.
        """
        from trainmaster.db import NewQuoteRow

        quote = self.quote
        if quote is None or quote.time_s is None or quote.cost_usd is None or quote.not_quoted:
            return
        points = sum(one.measurements for one in quote.experiments.values())
        phases: dict[str, dict[str, float]] = {}
        if len(quote.experiments) == 1:
            phases = {each.name: each.time_s.as_dict() for each in quote.main.phases}
        promise = QuoteRecord("estimate", now, quote.time_s, quote.cost_usd, points, _other(quote), phases)
        database.add_quote(NewQuoteRow(run, None, promise.kind, now, promise.as_json()))


def plan_run(
    service: Service,
    recipe: Recipe,
    recipe_path: Path,
    environ: Mapping[str, str],
    make_quoter: MakeQuoter,
    *,
    allow_stale: bool = False,
    before_measuring: Callable[[RentalOffer], None] | None = None,
) -> RentalOffer:
    """Choose the machines of a run on any provider but `local`. Nothing is rented, and there is no question.

    A recipe that leaves the number of workers open is measured on this machine, if nothing is known of it.

    Args:
        service: of the user's home.
        recipe: as read.
        recipe_path: where.
        environ: of the caller.
        make_quoter: makes what quotes.
        allow_stale: take prices however old they are.
        before_measuring: is shown the cheapest that could do it; may refuse by raising.

    Raises:
        UsageError: nothing has what is asked for, ``budget`` allows nothing, or prices are too old.
        NoFeasibleQuote: what is known of the job says that no cluster keeps deadline and budget.
        InterruptedByUser: while measuring.
    """
    today = datetime.now(UTC).date()
    if len(parted(recipe)) > 1:
        from trainmaster.service.quote_in_places import estimate_in_places

        offer = _offer_of_parts(service, with_fewest(recipe), environ, today, allow_stale=allow_stale)
        known = estimate_in_places(service, recipe, environ, offer.plans)
        return replace(offer, notes=(*_left_out_of_parts(recipe), *offer.notes), **known)
    candidate_offers = candidate_offers_of(recipe, service.home, environ, today)
    probe = with_fewest(recipe)  # what is wrong anyway is said before anything is measured
    if candidate_offers.costs and not allow_stale:
        candidate_offers = _not_stale(probe, candidate_offers, today)
    plans = capped(probe, plan_clusters(probe, _available(candidate_offers)))
    _check_total(probe, plans)
    if probe is not recipe and before_measuring is not None:
        before_measuring(_offer(probe, plans))
    quoter = make_quoter(candidate_offers)
    chosen, notes = None, candidate_offers.notes
    if recipe.objective.policy and candidate_offers.costs:
        chosen = quoter.quote(recipe, recipe_path, environ, QuoteOptions())
        by = recipe.objective.policy
        notes += tuple(f"{by}: {name}: {one.cluster.words()}" for name, one in chosen.experiments.items())
        recipe = with_clusters(recipe, chosen)
    settled = quoter.settle(recipe, recipe_path, environ)
    quote, of_any_job, why = None, None, ""
    try:
        quote, why = quoter.estimate(settled, environ)
    except UsageError as reason:
        if candidate_offers.costs:
            raise
        why = one_line(reason)
    if quote is not None and quote.is_unknown:
        quote, of_any_job = None, quote
    picks = _picks(quote) if quote is not None and candidate_offers.costs else {}
    picks |= _picks(chosen) if chosen is not None else {}
    available = replace(_available(candidate_offers), memory=quoter.memory(settled, environ))
    plans = capped(settled, plan_clusters(settled, available, picks))
    _check_total(settled, plans)
    return replace(_offer(pinned(settled, plans), plans, quote, why, notes), of_any_job=of_any_job)


def _offer_of_parts(
    service: OpenHome, recipe: Recipe, environ: Mapping[str, str], today: date, *, allow_stale: bool = True
) -> RentalOffer:
    """The cheapest machines of a run whose experiments are in several places.

    Raises:
        UsageError: one of them has not what is asked for, or ``budget`` allows nothing.
    """
    plans, placed, notes = list[ClusterPlan](), recipe, tuple[str, ...]()
    for part in parted(recipe):
        # A gang that was planned elsewhere, too, has as many members on each machine there.
        part = part.model_copy(update={"experiments": _placed_before(part, placed)})
        offers = candidate_offers_of(part, service.home, environ, today)
        if offers.costs and not allow_stale:
            offers = _not_stale(part, offers, today)
        found = plan_clusters(part, _available(offers))
        plans += _named_apart(found, {plan.name for plan in plans}, recipe.experiments)
        placed, notes = pinned(placed, found), notes + offers.notes
    every = capped(recipe, plans)
    _check_total(recipe, every)
    return _offer(placed, every, notes=notes)


def _left_out_of_parts(recipe: Recipe) -> list[str]:
    """What is said in a recipe and chooses nothing, as its experiments are in several places."""
    if len(parted(recipe)) < 2:
        return []
    found, left = list[str](), [name for name, each in recipe.experiments.items() if not each.picks]
    if recipe.objective != Objective() and left:
        who = f"{', '.join(left)}: " if len(left) < len(recipe.experiments) else ""
        found.append(f"{who}objective: {recipe.objective.name}: {_ONE_PLACE}")
    for name, experiment in with_fewest(recipe).experiments.items():
        before, now = recipe.experiments[name].distributed, experiment.distributed
        if before is not None and now is not None and before.is_flexible:
            found.append(f"{name}: distributed.workers: {now.workers}, the fewest: {_ONE_PLACE}")
    return found


def _named_apart(
    plans: tuple[ClusterPlan, ...], taken: set[str], experiments: Container[str]
) -> Iterator[ClusterPlan]:
    """A cluster has the name of its first experiment; in a second place that of the place is added."""
    for plan in plans:
        name = plan.name
        while name in taken or (name != plan.name and name in experiments):
            name = f"{name}-{plan.provider}"
        taken.add(name)
        yield replace(plan, name=name)


def _placed_before(part: Recipe, placed: Recipe) -> dict[str, Experiment]:
    found = {}
    for name, experiment in part.experiments.items():
        before = placed.experiments[name]
        hardware = before.hardware.model_copy(update={"instance": experiment.hardware.instance})
        update = {"distributed": before.distributed, "hardware": hardware}
        found[name] = experiment.model_copy(update=update) if before.shares else experiment
    return found


def check_run(
    service: Service, recipe: Recipe, environ: Mapping[str, str], *, has_code: bool = True
) -> list[str]:
    """Refuse what `trainmaster run` would refuse before it asks whether to rent. Nothing is measured.

    Args:
        service: of the user's home.
        recipe: as read.
        environ: of the caller.
        has_code: False for the text alone: whoever has the code looks into it, and nothing that the recipe
            names is asked, as a server may reach what its users may not.

    Returns:
        Notes for the user.

    Raises:
        UsageError: something is not there, cannot be had, or this machine or the budget do not suffice.
    """
    probe = with_fewest(with_versions(service, recipe))
    notes: list[str] = []
    checks: list[Callable[[], object]] = [
        lambda: notes.extend(service.check_inputs(probe, environ)),
        lambda: notes.extend(missing_script_notes(probe)),
    ]
    if not has_code:
        notes += framework_notes(probe, environ)
        checks = [
            lambda: service.secrets_of(probe, environ),
            lambda: check_volumes(probe, service.home.store_url),
        ]
    if not has_code and capabilities_of(recipe.provider).is_here:
        check_all(
            *checks,
            lambda: check_parts(probe),
            lambda: notes.extend(check_machine(probe, detect_capacity())),
        )
        return [*notes, *recipe_notes(probe)]
    if capabilities_of(recipe.provider).is_here:
        check_all(*checks, lambda: notes.extend(service.check(probe, environ)))
        return notes
    check_all(*checks, lambda: check_parts(probe))
    offer = _offer_of_parts(service, probe, environ, datetime.now(UTC).date())
    for part in parted(probe):
        check_provider(service.home, part.provider, environ, dials=False)
    return [*notes, *recipe_notes(probe), *_left_out_of_parts(recipe), *offer.notes]


def planned_requests(
    service: Service, recipe: Recipe, environ: Mapping[str, str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Requests that renting the machines of a run would send, in order; notes. Nothing is sent or measured.

    Raises:
        UsageError: what it asks for is not there.
    """
    from trainmaster.providers import ProviderPlace, get_provider

    plans = _offer_of_parts(service, with_fewest(recipe), environ, datetime.now(UTC).date()).plans
    place = ProviderPlace(service.home.root, service.home.identity(), environ)
    shown = []
    for plan in plans:
        with closing(get_provider(plan.provider, place)) as provider:
            shown += provider.dry_run(plan.name, _requests(plan))
    notes = (note for plan in plans for note in plan.notes)
    return shown, list(dict.fromkeys([*_left_out_of_parts(recipe), *notes]))


def check_with_provider(
    service: OpenHome, plans: tuple[ClusterPlan, ...], environ: Mapping[str, str], team: str | None = None
) -> list[str]:
    """Ask the provider whether it would give these machines: permissions, quotas, hosts that answer.

    Machines that an earlier run of the team has kept warm are there already, without a question.

    Returns:
        Notes for the user.

    Raises:
        UsageError: it would not; nothing was rented.
        ProviderError: it cannot be reached.
    """
    from trainmaster.providers import ProviderPlace, get_provider

    notes: list[str] = []
    plans = tuple(plan for plan in plans if not _is_warm(service, plan, team))
    for name in dict.fromkeys(plan.provider for plan in plans):
        place = ProviderPlace(service.home.root, service.home.identity(), environ)
        mine = (plan for plan in plans if plan.provider == name)
        with closing(get_provider(name, place)) as provider:
            notes += provider.preflight([request for plan in mine for request in _requests(plan)])
    return notes


def plans_of(
    service: OpenHome, recipe: Recipe, environ: Mapping[str, str], today: date | None = None
) -> tuple[ClusterPlan, ...]:
    """The cheapest clusters for a recipe whose numbers of workers are settled.

    Raises:
        UsageError: its provider has not what it asks for, or ``budget`` allows nothing.
    """
    return _offer_of_parts(service, recipe, environ, today or datetime.now(UTC).date()).plans


def asked_of(
    service: OpenHome, recipe: Recipe, environ: Mapping[str, str], today: date
) -> tuple[str, float, float | None, int]:
    """What a recipe's provider would give for its smallest machines, in words; dollars per hour; its queue.

    The last is how many machines of workers that are.

    Raises:
        UsageError: it would not.
        NoCapacityError: it has no room now.
        ProviderError: it cannot be reached.
    """
    from trainmaster.providers import ProviderPlace, get_provider
    from trainmaster.providers.base import CountsFree, Queue

    check_provider(service.home, recipe.provider, environ)
    probe = with_fewest(recipe)
    plans = plans_of(service, probe, environ, today)
    check_with_provider(service, plans, environ, service.team)
    cold = [each for each in plans if not _is_warm(service, each, service.team)]
    place = ProviderPlace(service.home.root, service.home.identity(), environ)
    wait_s: float | None = 0.0
    with closing(get_provider(recipe.provider, place)) as provider:
        requests = [request for plan in cold for request in _requests(plan)]
        if isinstance(provider, CountsFree) and cold:
            free = iter(provider.free_nodes(requests))
            plans = tuple(_of_free(plan, free) if plan in cold else plan for plan in plans)
        elif isinstance(provider, Queue) and cold:
            wait_s = provider.queue_wait_s(requests)
    machines = " and ".join(dict.fromkeys(words(plan) for plan in plans))
    nodes = sum(plan.roles[0].count for plan in plans)
    return machines, _offer(probe, plans).usd_per_hour, wait_s, nodes


def _of_free(plan: ClusterPlan, free: Iterator[int]) -> ClusterPlan:
    """With as many machines as are free now; whole gangs of them."""
    roles = (replace(role, count=next(free) // role.needed * role.needed) for role in plan.roles)
    return replace(plan, roles=tuple(roles))


def _requests(plan: ClusterPlan) -> list[NodeRequest]:
    """What is asked of the provider for a cluster, had in the best way."""
    from trainmaster.providers import NodeRequest

    requests = [
        NodeRequest(
            role=role.role,
            count=role.count,
            instance_type=role.rentals[0].instance_type,
            region=role.rentals[0].region,
            zone=role.rentals[0].zone,
            spot=role.rentals[0].spot,
            token=f"{plan.name}-{role.role}",
            labels=role.labels,
            require=role.require,
            slots=role.host_slots,
            gpus=role.host_gpus,
            disk_bytes=role.disk_bytes,
            least=role.least,
            max_usd_per_hour=role.rentals[0].max_price_usd_per_hour,
            memory_bytes=role.memory_bytes,
            cpus=role.cpus,
        )
        for role in plan.roles
    ]
    return [
        replace(each, beside=tuple(other for other in requests if other is not each)) for each in requests
    ]


def _offer(
    recipe: Recipe,
    plans: tuple[ClusterPlan, ...],
    quote: Quote | None = None,
    no_quote: str = "",
    notes: tuple[str, ...] = (),
) -> RentalOffer:
    told = dict.fromkeys([*notes, *(note for plan in plans for note in plan.notes)])
    return RentalOffer(
        recipe=recipe,
        plans=plans,
        usd_per_hour=most_at_once(recipe, {plan.name: plan.usd_per_hour for plan in plans}, plans),
        most_usd_per_hour=most_at_once(
            recipe, {plan.name: dearest_usd_per_hour(plan) for plan in plans}, plans
        ),
        quote=quote,
        no_quote=no_quote,
        notes=tuple(told),
    )


def _other(quote: Quote) -> str:
    """The next faster cluster that costs more, in words; else the fastest other one."""
    one = quote.main
    if one.time_s is None:
        return ""
    others = [each for each in one.pareto if each.cluster != one.cluster]
    faster = [each for each in others if each.time_s < one.time_s.p50]
    best = max(faster, key=lambda each: each.time_s, default=None)
    best = best or min(others, key=lambda each: each.time_s, default=None)
    if best is None:
        return ""
    return f"{best.cluster.words()} ({format_duration(best.time_s)}, {dollars(best.cost_usd)})"


def _available(candidate_offers: CandidateOffers) -> AvailableOffers:
    return candidate_offers.available(_ARCHES.get(platform.machine().lower(), ""))


def _is_warm(service: OpenHome, plan: ClusterPlan, team: str | None) -> bool:
    """Whether an earlier run has kept what is planned; somebody else may still be quicker."""
    rows = service.database.living_clusters(plan.provider, service.home.identity())
    kept = readable(
        [row for row in rows if row["state"] == ClusterState.KEPT and row["team"] == team], lambda _: None
    )
    now = datetime.now(UTC).timestamp()
    return any((record.kept_until or 0.0) > now and fits(record, plan) for record in kept)


def _not_stale(recipe: Recipe, candidate_offers: CandidateOffers, today: date) -> CandidateOffers:
    """What may be rented by prices that are not too old.

    Raises:
        StalePrices: only older ones would do.
    """
    from trainmaster.providers import StalePrices

    fresh = candidate_offers.fresh(today)
    if len(fresh.catalogue) == len(candidate_offers.catalogue):
        return candidate_offers
    try:
        plan_clusters(recipe, _available(fresh))
    except UsageError:
        plans = plan_clusters(recipe, _available(candidate_offers))
        oldest = min(date.fromisoformat(role.rentals[0].as_of) for plan in plans for role in plan.roles)
        stale = StalePrices(candidate_offers.catalogue.name, oldest, (today - oldest).days)
        stale.args = (f"provider: {candidate_offers.provider}: {stale.args[0]}",)
        asked = (
            "Ask AWS for new ones with `trainmaster offers --refresh`, accept"
            if capabilities_of(candidate_offers.provider).tells_prices
            else "Accept"
        )
        stale.hint = f"{asked} them with --allow-stale, or name a newer catalogue with {CATALOGUE}=FILE."
        raise stale from None
    return fresh


def _check_total(recipe: Recipe, plans: tuple[ClusterPlan, ...]) -> None:
    """Refuse a cap that is used up by beginning and ending, unless that may be on what costs less.

    Raises:
        UsageError: naming the least that would do.
    """
    total = recipe.budget.total_usd if recipe.budget else None
    stopping_s = max(each.grace_s for each in recipe.experiments.values())
    reserved_s = BOOTING_S + Meter(stopping_s=stopping_s, usual_lease_s=USUAL_LEASE_S).reserved_s
    bills = dict[str, float]()
    for plan in plans:
        usd = sum(role.count * role.rentals[0].at_most.billed_usd(reserved_s) for role in plan.roles)
        bills |= {name: min(usd, bills.get(name, usd)) for name in plan.experiments}
    least = max(bills.values())
    if total is not None and least > 0 and total <= least:
        raise UsageError(
            f"budget.total: {dollars(total)} is used up before anything has run: to start the machines and "
            f"to give them back in order costs up to {dollars(least)}",
            f"Raise budget.total to {dollars(1.1 * least)}, or ask for fewer or smaller machines.",
        )


def _picks(quote: Quote) -> dict[str, Pick]:
    found = {}
    for name, one in quote.experiments.items():
        worker, server = one.cluster.worker, one.cluster.server
        found[name] = Pick(
            instance=worker.instance,
            region=worker.region,
            spot=worker.spot,
            nodes=worker.count,
            server=server.instance if server else "",
            servers=server.count if server else 0,
        )
    return found


def _line(plan: ClusterPlan) -> str:
    best = plan.roles[0].rentals[0]
    where = f" in {best.region}" if best.region else ""
    price = f" at ${plan.usd_per_hour:.4g} per hour" if plan.usd_per_hour else ""
    return f"{', '.join(plan.experiments)}: {words(plan)}{where}{price}"
