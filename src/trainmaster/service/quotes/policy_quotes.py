"""`by_policy`: a quote by a rule of the papers: FC2's, or Anwar's lookup."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from trainmaster.providers import Catalogue
from trainmaster.providers.offer import Extras
from trainmaster.service.quotes.candidate_offers import CandidateOffers, measured_for, own_arch
from trainmaster.service.quotes.home_load import HomeLoad
from trainmaster.service.quotes.measuring_runs import of_each_job
from trainmaster.service.quotes.own_points import OwnPoints, with_shipped
from trainmaster.service.quotes.quote_options import QuoteOptions, types_in
from trainmaster.service.quotes.worker_counts import quoted_workload
from trainmaster.spec import Recipe
from trainmaster.spec.errors import MeasurementNeeded, UsageError

if TYPE_CHECKING:
    from trainmaster.advisor.quote.quote import Quote
    from trainmaster.service.service import Service


def by_policy(
    service: Service,
    recipe: Recipe,
    catalogue: Catalogue,
    options: QuoteOptions,
    candidate_offers: CandidateOffers | None,
) -> Quote:
    """Quote a recipe by ``options.policy``.

    Args:
        service: of the user's home.
        recipe: to be quoted.
        catalogue: what there is.
        options: of the quote; with a policy that is not ours.
        candidate_offers: what the catalogue is of; None where it was named.

    Raises:
        UsageError: the rule has no answer; says why.
    """
    from trainmaster.advisor.papers.policies import HEADROOM
    from trainmaster.advisor.papers.policy_quote import PolicyInput, policy_quote, read_bandwidth

    offers = candidate_offers if options.catalogue is None else None
    if offers and offers.shares:  # traffic was measured between cards that carry less than is published
        cards = replace(offers.shares, cpu=1.0, memory=1.0, runtime_cores=0.0)
        catalogue = catalogue.with_offers(map(cards.of, catalogue))
    given = PolicyInput(
        catalogue=catalogue,
        bandwidth_mbps=read_bandwidth(options.bandwidth) if options.bandwidth else {},
        servers=types_in(options.parameter_server),
        workers=types_in(options.worker_types),
        max_workers=options.max_workers,
        usd_per_hour=options.usd_per_hour,
        p=HEADROOM if options.p is None else options.p,
        extras=offers.extras if offers else Extras(),
        arch=own_arch() if offers else "",
        provider=recipe.provider,
        usd=recipe.budget.total_usd if recipe.budget else None,
        # The paper's own weights, 1 and 0, unless the recipe has its own.
        time_weight=recipe.objective.time or 1.0,
        cost_weight=recipe.objective.cost if recipe.objective.time else 0.0,
    )
    workloads = [quoted_workload(recipe, each, options) for each in recipe.experiments.values()]
    history, jobs = {}, {}
    if options.policy == "lookup" and options.measurements is not None:
        own = OwnPoints.read(options.measurements, recipe, with_shipped(catalogue), may_fail=True)
        history = dict(own.measurements)
    elif options.policy == "lookup" or options.policy.startswith("scala-opt"):
        # without the code Scala-Opt has what a file says
        with suppress(UsageError) if options.policy != "lookup" else nullcontext():
            load = HomeLoad.now().of(offer.provider for offer in catalogue)
            known = service.measurements(recipe, load)
            history = {name: measured_for(each.same, catalogue) for name, each in known.items()}
            jobs = {name: each.fingerprint.exact for name, each in known.items()}
    try:
        return policy_quote(options.policy, workloads, given, history)
    except MeasurementNeeded as error:
        error.types = of_each_job(error.types, jobs)
        raise
