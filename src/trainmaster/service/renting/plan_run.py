"""`plan_run`: the machines of a run, chosen by its quote where one is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from trainmaster.cluster.renting.plan import capped
from trainmaster.cluster.renting.plan_clusters import pinned, plan_clusters
from trainmaster.control.checks.framework_notes import framework_notes
from trainmaster.control.checks.preflight import (
    check_all,
    check_machine,
    check_parts,
    check_volumes,
    recipe_notes,
)
from trainmaster.executors.capacity import detect_capacity
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.driving.provider_connection import check_provider
from trainmaster.service.quotes.candidate_offers import (
    CandidateOffers,
    candidate_offers_of,
    learn_machines,
)
from trainmaster.service.quotes.quote_options import QuoteOptions
from trainmaster.service.quotes.warm_machines import picks_of
from trainmaster.service.quotes.worker_counts import with_clusters, with_fewest
from trainmaster.service.renting.cheapest import (
    available_of,
    check_total,
    left_out_of_parts,
    not_stale,
    offer_of_parts,
)
from trainmaster.service.renting.kept_clusters import on_warm, warm_clusters
from trainmaster.service.renting.offer import RentalOffer, offer_of
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError, one_line
from trainmaster.spec.recipe_parts import parts_by_place

if TYPE_CHECKING:
    from trainmaster.service.quotes.quote_service import Quoter
    from trainmaster.service.service import Service

#: Makes a `Quoter` that knows what there is to be had.
MakeQuoter = Callable[[CandidateOffers], "Quoter"]


def plan_run(
    service: Service,
    recipe: Recipe,
    environ: Mapping[str, str],
    make_quoter: MakeQuoter,
    *,
    allow_stale: bool = False,
    can_agree: bool = True,
    keep_s: float = 0.0,
) -> RentalOffer:
    """Choose the machines of a run on any provider but `local`. Nothing is rented, and there is no question.

    A recipe that leaves the number of workers open is measured on this machine, if nothing is known of it.
    Without anybody who can agree to what it costs that is refused: no number of workers is known then.

    Args:
        service: of the user's home.
        recipe: as read.
        environ: of the caller.
        make_quoter: makes what quotes.
        allow_stale: take prices however old they are.
        can_agree: to what it costs; else nothing is measured for it.
        keep_s: how long machines are to stay warm afterwards.

    Raises:
        UsageError: nothing has what is asked for, ``budget`` allows nothing, or prices are too old.
        NotMeasured: see above.
        NoFeasibleQuote: what is known of the job says that no cluster keeps deadline and budget.
        InterruptedByUser: while measuring.
    """
    today, options = datetime.now(UTC).date(), QuoteOptions(keep_s=keep_s)
    if len(parts_by_place(recipe)) > 1:
        from trainmaster.service.places.quote import estimate_in_places

        offer = offer_of_parts(service, with_fewest(recipe), environ, today, allow_stale=allow_stale)
        known = estimate_in_places(service, recipe, environ, offer.plans, options)
        return replace(offer, notes=(*left_out_of_parts(recipe), *offer.notes), keep_s=keep_s, **known)
    learn_machines(recipe, service, environ)
    candidate_offers = candidate_offers_of(recipe, service, environ, today)
    probe = with_fewest(recipe)  # what is wrong anyway is said before anything is measured
    if candidate_offers.costs and not allow_stale:
        candidate_offers = not_stale(probe, candidate_offers, today)
    plans = capped(probe, plan_clusters(probe, available_of(candidate_offers)))
    check_total(probe, plans, warm=partial(warm_clusters, service, plans, service.team))
    quoter = make_quoter(candidate_offers)
    chosen, notes = None, candidate_offers.notes
    if recipe.objective.policy and candidate_offers.costs:
        chosen = quoter.quote(recipe, environ, QuoteOptions())
        by = recipe.objective.policy
        notes += tuple(f"{by}: {name}: {one.cluster.words()}" for name, one in chosen.experiments.items())
        recipe = with_clusters(recipe, chosen)
    settled = quoter.settle(recipe, environ, measures=can_agree or not offer_of(probe, plans).costs)
    quote, why = None, ""
    try:
        quote, why = quoter.estimate(settled, environ, options)
    except UsageError as reason:
        if candidate_offers.costs:
            raise
        why = one_line(reason)
    is_known = quote is not None and not quote.is_unknown
    picks = picks_of(quote) if quote is not None and is_known and candidate_offers.costs else {}
    picks |= picks_of(chosen) if chosen is not None else {}
    available = replace(available_of(candidate_offers), memory=quoter.memory(settled, environ))
    plans = on_warm(service, capped(settled, plan_clusters(settled, available, picks)), service.team)
    check_total(settled, plans, warm=partial(warm_clusters, service, plans, service.team))
    unknown = quote.unknown if quote is not None else None
    offered = offer_of(pinned(settled, plans), plans, None if unknown else quote, why, notes)
    return replace(offered, unknown=unknown, keep_s=keep_s)


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
    if recipe.starts_from:
        from trainmaster.service.models.starting_models import with_versions

        recipe = with_versions(service, recipe)
    probe = with_fewest(recipe)
    notes: list[str] = []
    checks: list[Callable[[], object]] = [
        lambda: notes.extend(service.check_inputs(probe, environ)),
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
    offer = offer_of_parts(service, probe, environ, datetime.now(UTC).date())
    for part in parts_by_place(probe):
        check_provider(part.provider, service.place(part.provider, environ), dials=False)
    return [*notes, *recipe_notes(probe), *left_out_of_parts(recipe), *offer.notes]
