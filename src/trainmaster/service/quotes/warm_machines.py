"""`WarmMachines`: quotes a recipe on machines that earlier runs have kept, where it would take such."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from trainmaster.dataclass import dataclass
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.quotes.quote_options import QuoteOptions, TaskShare
from trainmaster.service.quotes.worker_counts import (
    filling_machines,
    on_machines,
    with_clusters,
    with_fewest,
    with_workers,
)
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.advisor.market.memory_floor import Memory
    from trainmaster.advisor.quote.quote import Quote
    from trainmaster.cluster.renting.plan import ClusterPlan
    from trainmaster.cluster.renting.requirements import QuotedChoice
    from trainmaster.service.quotes.candidate_offers import CandidateOffers
    from trainmaster.service.renting.kept_clusters import KeptCluster
    from trainmaster.service.service import Service
    from trainmaster.spec.objective import Objective

Quoting = Callable[[Recipe, QuoteOptions], "Quote"]


@dataclass(frozen=True)
class WarmMachines:
    """Of one provider.

    Attributes:
        service: of the user's home. offers: what there is to be had.
        memory: what a process of each experiment was measured to need; see `Quoter.memory`.
    """

    service: Service
    offers: CandidateOffers
    memory: Callable[[Recipe], Mapping[str, Memory]]

    def quote(self, recipe: Recipe, options: QuoteOptions, quoting: Quoting) -> Quote:
        """The best by the objective: of what must be waited for, and of what is there and need not be.

        Raises:
            NoFeasibleQuote: nothing keeps the limits.
        """
        from trainmaster.advisor.quote.infeasible import NoFeasibleQuote
        from trainmaster.service.renting.kept_clusters import kept_clusters

        if options.catalogue is not None:
            return quoting(recipe, options)
        kept = list(kept_clusters(self.service, self.offers.provider, self.service.team))
        is_open = with_fewest(recipe) is not recipe
        if kept and not self.offers.costs and not is_open:  # then no quote chooses anything
            return self._warmed(recipe, None, options, quoting)
        # No queue is waited in for what is there; if another choice is made, it is asked for that.
        asks_later = bool(kept) and options.asks_queue and capabilities_of(self.offers.provider).queues
        cold: Quote | None = None
        made: list[Quote] = []
        refused: NoFeasibleQuote | None = None
        try:
            cold = quoting(recipe, replace(options, asks_queue=not asks_later and options.asks_queue))
            made = [self._warmed(recipe, cold, options, quoting) if kept else cold]
        except NoFeasibleQuote as error:
            refused = error
        if self.offers.costs and (cold is None or not (cold.is_unknown or made[0].warm)):
            for each in {each.machines: each for each in reversed(kept)}.values():
                with suppress(UsageError):  # such machines are not allowed, or keep no limits either
                    made += filter(None, [self._on(each, recipe, options, quoting)])
        if refused is not None and not made:
            raise refused
        best = min(made, key=partial(_to_be_small, recipe.objective))
        if best is cold or cold is None:
            return quoting(recipe, options) if best is cold and asks_later else best
        every = {name: one.candidates for name, one in cold.experiments.items()}  # they were compared, too
        chosen = {
            name: replace(one, candidates=max(every.get(name, 0), one.candidates))
            for name, one in best.experiments.items()
        }
        return replace(best, experiments=chosen)

    def _warmed(self, recipe: Recipe, cold: Quote | None, options: QuoteOptions, quoting: Quoting) -> Quote:
        """The quote of what was chosen, if anything was, with what is there of it."""
        known = options
        there: Mapping[str, KeptCluster] = {}
        with suppress(UsageError):  # no machines can be planned for all of it, which planning tells better
            known, there = self._on_warm(self.plans(recipe, cold), options)
        if cold is None or known.warm:
            chosen = recipe if cold is None or cold.is_unknown else with_clusters(recipe, cold)
            return _told(quoting(_on_kept(chosen, there), known), known)
        return cold

    def _on(self, kept: KeptCluster, recipe: Recipe, options: QuoteOptions, quoting: Quoting) -> Quote | None:
        """All of it on such machines; None if what would be planned then is not there."""
        worker, server = kept.machines
        names, there = list(recipe.experiments), kept.contents(self.service)
        shares = {name: TaskShare(worker.count) for name in names} | dict(options.shares)
        pinned = {}
        for name, each in recipe.experiments.items():
            if (filling := filling_machines(each, worker.count, kept.gpus)) is None:
                return None
            pinned[name] = on_machines(filling, worker, server)
        taken = recipe.model_copy(update={"experiments": pinned})
        guess = replace(options, warm=dict.fromkeys(names, there), shares=shares)
        found = quoting(taken, guess)
        known, _ = self._on_warm(self.plans(recipe, found), options)
        if not known.warm:
            return None
        if known.warm != guess.warm:
            found = quoting(taken, known)
        return _told(found, known)

    def plans(self, recipe: Recipe, made: Quote | None) -> tuple[ClusterPlan, ...]:
        """The machines that a run takes by a quote.

        Raises:
            UsageError: it could not have them.
        """
        from trainmaster.cluster.renting.plan import capped
        from trainmaster.cluster.renting.plan_clusters import plan_clusters
        from trainmaster.service.renting.cheapest import available_of

        chosen = {} if made is None or made.is_unknown else made.experiments
        gangs = {n: one.cluster.workers for n, one in chosen.items() if recipe.experiments[n].distributed}
        settled = with_fewest(with_workers(recipe, gangs))
        available = replace(available_of(self.offers), memory=self.memory(settled))
        picks = {} if made is None or made.is_unknown else picks_of(made)
        return capped(settled, plan_clusters(settled, available, picks))

    def _on_warm(
        self, plans: tuple[ClusterPlan, ...], options: QuoteOptions
    ) -> tuple[QuoteOptions, dict[str, KeptCluster]]:
        """With what is there of the machines that are planned: just these are taken; they, by experiment."""
        from trainmaster.service.renting.kept_clusters import warm_clusters

        found = warm_clusters(self.service, plans, self.service.team)
        warm, shares = dict[str, frozenset[str]](), dict[str, TaskShare]()
        there: dict[str, KeptCluster] = {}
        for plan in (plan for plan in plans if plan.name in found):
            there |= dict.fromkeys(plan.experiments, found[plan.name])
            warm |= dict.fromkeys(plan.experiments, found[plan.name].contents(self.service))
            shares |= dict.fromkeys(plan.experiments, TaskShare(plan.roles[0].count))
        return replace(options, warm=warm, shares=shares | dict(options.shares)), there


def _on_kept(recipe: Recipe, there: Mapping[str, KeptCluster]) -> Recipe:
    """The recipe with the machines that are there, and that a run takes instead."""
    kept = {name: on_machines(recipe.experiments[name], *one.machines) for name, one in there.items()}
    return recipe.model_copy(update={"experiments": {**recipe.experiments, **kept}})


def _to_be_small(objective: Objective, made: Quote) -> float:
    seconds, usd = (each.p50 if each else 0.0 for each in (made.time_s, made.cost_usd))
    return objective.time * seconds + objective.cost * usd


def _told(made: Quote, known: QuoteOptions) -> Quote:
    from trainmaster.service.renting.kept_clusters import warm_note

    names = [name for name in made.experiments if name in known.warm]
    return replace(made, warm=tuple(names), notes=(warm_note(names), *made.notes) if names else made.notes)


def picks_of(made: Quote) -> dict[str, QuotedChoice]:
    """The clusters of a quote as plans take them, by experiment."""
    from trainmaster.cluster.renting.requirements import QuotedChoice

    found = {}
    for name, one in made.experiments.items():
        worker, server = one.cluster.worker, one.cluster.server
        found[name] = QuotedChoice(
            instance=worker.instance,
            region=worker.region,
            spot=worker.spot,
            nodes=worker.count,
            server=server.instance if server else "",
            servers=server.count if server else 0,
        )
    return found
