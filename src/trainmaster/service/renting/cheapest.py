"""`plans_of`: the cheapest clusters for a recipe, in each of its places; nothing is asked of providers."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Final

from trainmaster.cluster.renting.offer_filter import AvailableOffers
from trainmaster.cluster.renting.plan import ClusterPlan, capped, most_at_once
from trainmaster.cluster.renting.plan_clusters import pinned, plan_clusters
from trainmaster.control.decide.budget import BOOTING_S, cost_words, end_reserve_s
from trainmaster.providers import StalePrices
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.open_home import OpenHome
from trainmaster.service.quotes.candidate_offers import CandidateOffers, candidate_offers_of, own_arch
from trainmaster.service.quotes.prices import CATALOGUE
from trainmaster.service.quotes.worker_counts import with_fewest
from trainmaster.service.renting.kept_clusters import KeptCluster, on_warm, warm_clusters
from trainmaster.service.renting.offer import RentalOffer, offer_of
from trainmaster.spec import Experiment, Recipe
from trainmaster.spec.errors import UsageError
from trainmaster.spec.objective import Objective
from trainmaster.spec.recipe_parts import parts_by_place
from trainmaster.spec.units import dollars, enough_dollars

_ONE_PLACE: Final = "it is chosen by only for runs in one place; these machines are the cheapest of each"


def plans_of(service: OpenHome, recipe: Recipe, environ: Mapping[str, str]) -> tuple[ClusterPlan, ...]:
    """The cheapest clusters for a recipe whose numbers of workers are settled.

    Raises:
        UsageError: its provider has not what it asks for, or ``budget`` allows nothing.
    """
    return offer_of_parts(service, recipe, environ, datetime.now(UTC).date()).plans


def offer_of_parts(
    service: OpenHome, recipe: Recipe, environ: Mapping[str, str], today: date, *, allow_stale: bool = True
) -> RentalOffer:
    """The cheapest machines of a run whose experiments are in several places.

    Raises:
        UsageError: one of them has not what is asked for, or ``budget`` allows nothing.
    """
    plans, placed, notes = list[ClusterPlan](), recipe, tuple[str, ...]()
    for part in parts_by_place(recipe):
        # A gang that was planned elsewhere, too, has as many members on each machine there.
        part = part.model_copy(update={"experiments": _placed_before(part, placed)})
        offers = candidate_offers_of(part, service, environ, today)
        if offers.costs and not allow_stale:
            offers = not_stale(part, offers, today)
        found = plan_clusters(part, available_of(offers))
        plans += _named_apart(found, {plan.name for plan in plans}, recipe.experiments)
        placed, notes = pinned(placed, found), notes + offers.notes
    every = on_warm(service, capped(recipe, plans), service.team)
    check_total(recipe, every, warm=lambda: warm_clusters(service, every, service.team))
    return offer_of(placed, every, notes=notes)


def left_out_of_parts(recipe: Recipe) -> list[str]:
    """What is said in a recipe and chooses nothing, as its experiments are in several places."""
    if len(parts_by_place(recipe)) < 2:
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


def not_stale(recipe: Recipe, candidate_offers: CandidateOffers, today: date) -> CandidateOffers:
    """What may be rented by prices that are not too old.

    Raises:
        StalePrices: only older ones would do.
    """
    fresh = candidate_offers.fresh(today)
    if len(fresh.catalogue) == len(candidate_offers.catalogue):
        return candidate_offers
    try:
        plan_clusters(recipe, available_of(fresh))
    except UsageError:
        plans = plan_clusters(recipe, available_of(candidate_offers))
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


def least_usd(
    recipe: Recipe,
    plans: Sequence[ClusterPlan],
    left: Container[str] | None = None,
    warm: Mapping[str, KeptCluster] = MappingProxyType({}),
) -> float:
    """What a run needs to start the machines that it has at once, at most, and to give them back in order.

    Of an experiment that several clusters are for, the one is counted that costs least.

    Args:
        recipe: of the run.
        plans: of its clusters.
        left: experiments that are not over; None: all.
        warm: what is there already, by the plans' names, which neither boots nor costs more than it does.
    """
    ending_s = end_reserve_s(each.grace_s for each in recipe.experiments.values())
    bills, served = dict[str, float](), dict[str, str]()
    for plan in plans:
        kept, reserved_s = warm.get(plan.name), BOOTING_S + ending_s
        usd = sum(role.count * role.rentals[0].at_most.billed_usd(reserved_s) for role in plan.roles)
        bills[plan.name] = usd if kept is None else kept.billed_usd(ending_s)
        for name in plan.experiments:
            if left is None or name in left:
                served[name] = min(served.get(name, plan.name), plan.name, key=bills.__getitem__)
    begin = [
        replace(plan, experiments=names)
        for plan in plans
        if (names := tuple(name for name in plan.experiments if served.get(name) == plan.name))
    ]
    return most_at_once(recipe, {plan.name: bills[plan.name] for plan in begin}, begin)


def check_total(
    recipe: Recipe,
    plans: Sequence[ClusterPlan],
    resumed: str = "",
    spent_usd: float = 0.0,
    known_usd: float = 0.0,
    left: Container[str] | None = None,
    warm: Callable[[], Mapping[str, KeptCluster]] = dict,
) -> None:
    """Refuse a cap that is used up by beginning and ending, unless that may be on what costs less.

    Args:
        recipe: with the cap.
        plans: of its clusters.
        resumed: id of a run that is to go on.
        spent_usd: by that, at most.
        known_usd: by that, of what was seen.
        left: experiments that are not over; None: all.
        warm: gives what is there already; see `least_usd`. It is asked with a cap alone.

    Raises:
        UsageError: naming the least that would do.
    """
    total = recipe.budget.total_usd if recipe.budget else None
    if total is None:
        return
    least = least_usd(recipe, plans, left, warm())
    if least > 0 and total <= spent_usd + least:
        would_do = enough_dollars(spent_usd + 1.1 * least)
        begins = f"{dollars(total)} is used up before anything has run: to start the machines"
        hint = f"Raise budget.total to {would_do}, or ask for fewer or smaller machines."
        if resumed:
            spent = f"{resumed} {cost_words(known_usd, spent_usd)}"
            begins = f"of {dollars(total)}, {spent}: to start its machines"
            verb = f"trainmaster resume {resumed} --total '{would_do}'"
            hint = f"Give it {would_do} or more in all. `{verb}` does."
        raise UsageError(
            f"budget.total: {begins} and to give them back in order costs up to {dollars(least)}", hint
        )


def available_of(candidate_offers: CandidateOffers) -> AvailableOffers:
    """Those for this machine's kind of processors."""
    return candidate_offers.available(own_arch())
