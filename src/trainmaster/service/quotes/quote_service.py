"""`Quoter`: measures a recipe's experiments where that is needed, and quotes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from trainmaster.advisor.market.memory_floor import Memory
from trainmaster.advisor.market.phases import ClusterWait
from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.quote.quote import Quote, QuotedQueue
from trainmaster.cluster.renting.plan import dearest_usd_per_hour
from trainmaster.control.task.gangs import slots_of
from trainmaster.db import queries
from trainmaster.executors.capacity import detect_capacity
from trainmaster.providers import STALE_DAYS, Catalogue
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.quotes.candidate_offers import (
    CandidateOffers,
    candidate_offers_of,
    catalogue_is_own,
    learn_machines,
    own_arch,
)
from trainmaster.service.quotes.home_load import HomeLoad
from trainmaster.service.quotes.job_knowledge import (
    NO_END,
    NOT_MEASURED,
    NOT_SHOWN,
    OF_A_PERSON,
    JobKnowledge,
    NotMeasured,
    is_elsewhere,
    same_seen,
    why_no_length,
)
from trainmaster.service.quotes.knowledge_builder import KnowledgeBuilder
from trainmaster.service.quotes.phase_records import ExperimentPhases, phases_of, waited_for
from trainmaster.service.quotes.prices import Prices
from trainmaster.service.quotes.quote_options import QuoteOptions, types_in
from trainmaster.service.quotes.quote_record import keeping_words, limit_notes, run_end_s
from trainmaster.service.quotes.warm_machines import WarmMachines
from trainmaster.service.quotes.worker_counts import (
    allowed_workers,
    begun_at,
    quoted_workload,
    with_lengths,
    with_workers,
)
from trainmaster.service.runs.summary import is_driven
from trainmaster.spec import Experiment, Recipe
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.advisor.model.knowledge import Knowledge
    from trainmaster.advisor.quote.quoting import Subject
    from trainmaster.advisor.quote.supply import Supply
    from trainmaster.control.measure.profile_progress import ProfileProgress
    from trainmaster.service.service import Service

#: Those that are still going are among them.
_LATEST_RUNS: Final = 100

Tell = Callable[[str], None]
Show = Callable[["ProfileProgress"], None]


class Quoter:
    """Quotes recipes.

    Args:
        service: of the user's home.
        tell: shows lines to the user.
        show: shows how far a measurement is.
        candidate_offers: what there is to be had; None is all that the recipe's provider has.
        measures: False: what is not known is not measured on this machine.
    """

    def __init__(
        self,
        service: Service,
        tell: Tell,
        show: Show | None = None,
        candidate_offers: CandidateOffers | None = None,
        *,
        measures: bool = True,
    ) -> None:
        self._service = service
        self._tell = tell
        self._jobs = JobKnowledge(service, tell, show, measures=measures)
        self._candidate_offers = candidate_offers

    def interrupt(self) -> bool:
        """Ctrl-C: a measurement ends in order; False if none is under way. Signal-safe."""
        return self._jobs.interrupt()

    @property
    def has_measured(self) -> bool:
        """Whether something was measured for its quotes."""
        return self._jobs.has_measured

    def refresh_prices(self, recipe: Recipe, environ: Mapping[str, str]) -> None:
        """Ask for prices of what the recipe's provider rents, if those that are here are old.

        There is no question if something is missing without which nothing is measured: `quote` says what.
        """

        def is_whole() -> bool:
            try:
                self._service.check_inputs(recipe, environ, measures=True)
            except UsageError:
                return False
            return True

        Prices.of(self._service, environ).keep_fresh(recipe, self._tell, is_wanted=is_whole)

    def quote(self, recipe: Recipe, environ: Mapping[str, str], options: QuoteOptions) -> Quote:
        """Quote a recipe; measures first what no earlier run has measured.

        Raises:
            UsageError: nothing is feasible, or a script shows no steps; names what to change.
            InterruptedByUser: while measuring.
        """
        options = options.for_recipe(recipe)
        catalogue = self._catalogue(recipe, environ, options)
        if options.policy != "quote":
            from trainmaster.service.quotes.policy_quotes import by_policy

            made = by_policy(self._service, recipe, catalogue, options, self._candidate_offers)
            kept = self._keeping(recipe, options, made, self._warm_machines(environ))
            return replace(made, notes=(*made.notes, *kept, *self._stale(catalogue, options)))
        if all(each.serve is not None for each in recipe.experiments.values()):
            raise UsageError(
                f"{recipe.name} is a service: it has no end, so there is no time and no cost to quote",
                "What its machines cost per hour is said before any is rented.",
            )
        builder = self._builder(recipe, catalogue)
        self._check(recipe, catalogue, options)
        costs = self._candidate_offers is not None and self._candidate_offers.costs
        found, missing = self._jobs.gather(recipe, environ, builder, options, costs=costs)
        if not found and options.only is not None:
            name, why = next(iter(missing.items()))
            raise UsageError(
                f"experiments.{name}: cannot be quoted: {why}",
                "Run the recipe once: a run is a measurement.",
            )
        made = self._quoted(recipe, catalogue, options, found, missing, environ)
        return replace(made, to_measure=self._to_measure(recipe, catalogue, options, missing, made))

    def _quoted(
        self,
        recipe: Recipe,
        catalogue: Catalogue,
        options: QuoteOptions,
        known: Mapping[str, Knowledge],
        missing: Mapping[str, str],
        environ: Mapping[str, str],
    ) -> Quote:
        """What is known of a recipe, or that nothing is; on warm machines where they are there."""
        of = partial(self._of_known, known=known) if known else self._of_unknown
        quoting = partial(of, catalogue=catalogue, missing=missing, environ=environ)
        machines = self._warm_machines(environ)
        made = quoting(recipe, options) if machines is None else machines.quote(recipe, options, quoting)
        return replace(made, notes=(*made.notes, *self._keeping(recipe, options, made, machines)))

    def _warm_machines(self, environ: Mapping[str, str]) -> WarmMachines | None:
        if (offers := self._candidate_offers) is None:
            return None
        return WarmMachines(self._service, offers, lambda settled: self.memory(settled, environ))

    def _keeping(
        self, recipe: Recipe, options: QuoteOptions, made: Quote, machines: WarmMachines | None
    ) -> tuple[str, ...]:
        """What keeping the machines afterwards costs, as a run would have them."""
        usd_per_hour = sum(one.cluster.usd_per_hour for one in made.experiments.values())
        if options.keep_s and machines is not None and options.catalogue is None:
            with suppress(UsageError):  # a run is refused, and says why
                usd_per_hour = sum(map(dearest_usd_per_hour, machines.plans(recipe, made)))
        return tuple(filter(None, [keeping_words(recipe, options.keep_s, usd_per_hour)]))

    def _of_unknown(
        self,
        recipe: Recipe,
        options: QuoteOptions,
        *,
        catalogue: Catalogue,
        missing: Mapping[str, str],
        environ: Mapping[str, str],
    ) -> Quote:
        """When it starts on the cheapest machines that can do it."""
        from trainmaster.advisor.market.phases import NOTHING
        from trainmaster.advisor.quote.unknown import quote_of_unknown
        from trainmaster.service.quotes.other_jobs import like_others_s, other_jobs_s
        from trainmaster.service.quotes.unmeasured_cluster import UnmeasuredCluster

        supply, clusters, before = self._supply(recipe, catalogue, options), {}, {}
        load = HomeLoad.now().of(offer.provider for offer in catalogue)
        phases = self._phases(recipe, environ, load, options)
        for name in (name for name in missing if recipe.experiments[name].serve is None):
            found = UnmeasuredCluster.of(recipe, recipe.experiments[name], supply, options)
            clusters[name], best = found.shape, found.offer
            before[name] = [
                ("machines", NOTHING if name in options.warm else found.wait(supply)),
                *phases[name].beside(best.provider, best.region, best.instance_type).before,
            ]
        like = like_others_s(other_jobs_s(self._service.database, self._service.team))
        whys = {
            name: each if each.startswith(NOT_SHOWN) else f"not measured: {each}"
            for name, each in missing.items()
        }
        made = quote_of_unknown(recipe, clusters, before, whys, tuple(self._stale(catalogue, options)))
        as_of = catalogue.as_of.isoformat() if catalogue.as_of else ""
        queue = None
        if options.asks_queue and not {*clusters} <= {*options.warm}:
            queue = self._queue(recipe, made, supply, environ)
        why = next((each for each in missing.values() if each.startswith(NOT_SHOWN)), "")
        unknown = made.unknown and replace(
            made.unknown, queue=queue.words if queue else "", why=why, like_others_s=like
        )
        return replace(made, catalogue=catalogue.name, as_of=as_of, queue=queue, unknown=unknown)

    def _to_measure(
        self,
        recipe: Recipe,
        catalogue: Catalogue,
        options: QuoteOptions,
        names: Mapping[str, str],
        made: Quote,
    ) -> dict[str, Any]:
        """Machines to measure these first, or to narrow a quote; none where they cost nothing."""
        if not capabilities_of(recipe.provider).costs:
            return {}
        points = {
            name: one.next_measurement.to_measure(one.cluster)
            for name, one in made.experiments.items()
            if one.next_measurement is not None
            # What is measured would not change a quote that is by a file.
            and options.catalogue is None
            and options.measurements is None
        }
        found = {name: recipe.experiments[name] for name in (*names, *points)}
        alone = [
            name
            for name, each in found.items()
            # What has shown no length in a minute shows none in the next one.
            if each.serve is None
            and not names.get(name, "").startswith(NOT_SHOWN)
            and not any(data.experiment for data in each.data.values())
        ]
        if not alone:
            return {}
        from trainmaster.service.quotes.measuring_runs import of_each_job
        from trainmaster.service.quotes.unmeasured_cluster import UnmeasuredCluster

        supply, wanted = self._supply(recipe, catalogue, options), dict[str, Any]()
        for name in alone:
            if name in points:
                wanted[name] = points[name] | {"provider": recipe.provider}
                continue
            cluster = UnmeasuredCluster.of(recipe, recipe.experiments[name], supply, options)
            wanted[name] = cluster.to_measure(recipe.provider)
        return of_each_job(wanted, self._jobs.fingerprints)

    def estimate(
        self, recipe: Recipe, environ: Mapping[str, str], options: QuoteOptions | None = None
    ) -> tuple[Quote | None, str]:
        """A quote from what earlier runs and measurements showed, at once; or why there is none.

        Where nothing is known it says when the job starts (`Quote.is_unknown`), and why.

        Args:
            recipe: of any provider.
            environ: of the caller.
            options: what is known of the machines; see `QuoteOptions`.

        Raises:
            NoFeasibleQuote: no cluster keeps the limits.
        """
        options = options or QuoteOptions()
        catalogue = self._catalogue(recipe, environ, options)
        builder = self._builder(recipe, catalogue)
        known = self._jobs.known(recipe, recipe.experiments, builder)
        is_here = catalogue_is_own(catalogue)
        lengthless = {
            name: why
            for name, each in recipe.experiments.items()
            if each.serve is None and (why := why_no_length(each, known.get(name), is_here=is_here))
        }
        known = {name: each for name, each in known.items() if name not in lengthless}
        if all(each.serve is not None for each in recipe.experiments.values()):
            return None, "a service has no end"
        missing = {
            name: "not measured yet" if each.serve is None else NO_END
            for name, each in recipe.experiments.items()
            if name not in known
        } | lengthless
        if not known:
            why = OF_A_PERSON if recipe.is_notebook else next(iter(lengthless.values()), NOT_MEASURED)
            with suppress(UsageError):  # then it has no machine, which planning tells better
                return self._quoted(recipe, catalogue, options, {}, missing, environ), why
            return None, why
        return self._quoted(recipe, catalogue, options, known, missing, environ), ""

    def memory(self, recipe: Recipe, environ: Mapping[str, str]) -> dict[str, Memory]:
        """What a process of each experiment was measured to need, where the very same has been measured.

        Args:
            recipe: with every number of workers settled.
            environ: of the caller.
        """
        builder = self._builder(recipe, self._catalogue(recipe, environ, QuoteOptions()))
        found = {}
        for name, known in self._jobs.known(recipe, recipe.experiments, builder).items():
            if known.similar or is_elsewhere(known):
                continue

            experiment = recipe.experiments[name]
            count = experiment.distributed.workers if experiment.distributed else 1
            lengths = Workload.of(experiment, recipe.seed, None).lengths
            length = lengths.get(count) if isinstance(count, int) else None
            found[name] = Memory(*known.memory_of(length.local_batch if length else None))
        return found

    def settle(self, recipe: Recipe, environ: Mapping[str, str], *, measures: bool = True) -> Recipe:
        """The recipe with a number in place of each ``workers: auto`` or ``1..8``: that of the quote.

        An experiment that cannot be quoted gets as many as this machine has cores, or the fewest that are
        allowed where machines are rented: a run never fails for want of a quote.

        Args:
            recipe: to be run.
            environ: of the caller.
            measures: False: what would be measured is refused instead.

        Raises:
            NoFeasibleQuote: machines are rented, and none keep the limits.
            NotMeasured: it would be measured.
        """
        flexible = [
            name for name, e in recipe.experiments.items() if e.distributed and e.distributed.is_flexible
        ]
        if not flexible:
            return recipe
        counts = {}
        try:
            options = QuoteOptions(only=tuple(flexible), measures=measures)
            quote = self.quote(recipe, environ, options)
            counts = {name: one.cluster.workers for name, one in quote.experiments.items()}
        except UsageError as reason:
            from trainmaster.advisor.quote.infeasible import NoFeasibleQuote

            is_infeasible = isinstance(reason, NoFeasibleQuote) and capabilities_of(recipe.provider).costs
            if is_infeasible or isinstance(reason, NotMeasured):
                raise
            self._tell(f"note: no quote: {reason}")
        fixed = {}
        for name in flexible:
            fixed[name] = counts.get(name) or self._as_many_as_fit(recipe.experiments[name], recipe.provider)
            self._tell(f"{name}: {fixed[name]} worker{'s' * (fixed[name] != 1)}")
        return with_workers(recipe, fixed)

    def _as_many_as_fit(self, experiment: Experiment, provider: str) -> int:
        allowed = allowed_workers(experiment)
        if not capabilities_of(provider).is_here:
            return allowed[0]
        return max([n for n in allowed if n <= detect_capacity().cores] or allowed[:1])

    def _of_known(
        self,
        recipe: Recipe,
        options: QuoteOptions,
        *,
        catalogue: Catalogue,
        known: Mapping[str, Knowledge],
        missing: Mapping[str, str],
        environ: Mapping[str, str],
    ) -> Quote:
        """The quote of what is known."""
        from trainmaster.advisor.quote.choosing import QuoteLimits
        from trainmaster.advisor.quote.quoting import make_quote

        without = recipe
        recipe = with_lengths(recipe, {name: same_seen(each) for name, each in known.items()})
        subjects = [self._subject(recipe, name, found, options) for name, found in known.items()]
        load = HomeLoad.now().of(offer.provider for offer in catalogue)
        phases = self._phases(recipe, environ, load, options)
        subjects = [
            replace(each, workload=phases[each.workload.name].counted(each.workload)) for each in subjects
        ]
        budget = recipe.budget
        limits = QuoteLimits(
            deadline_s=_or_infinite(budget.deadline_s if budget else None),
            budget_usd=_or_infinite(budget.total_usd if budget else None),
            usd_per_hour=_or_infinite(options.for_recipe(recipe).usd_per_hour),
            time_weight=recipe.objective.time,
            cost_weight=recipe.objective.cost,
            end_s=run_end_s(
                recipe, max(each.output_bytes + each.checkpoint_bytes for each in known.values())
            ),
        )
        supply = self._supply(recipe, catalogue, options)
        quote = make_quote(subjects, supply, limits, recipe.seed)
        queue = None
        if options.asks_queue and not {*quote.experiments} <= {*options.warm}:
            queue = self._queue(recipe, quote, supply, environ)
        notes = [
            *([f"waits before that {queue.words}; neither time nor cost have it"] if queue else []),
            *limit_notes(recipe, quote.time_s, quote.cost_usd, quote.end_usd, quote.experiments),
            *quote.notes,
            *self._jobs.notes,
            *(
                f"{name} goes on after step {done:,}: its checkpoint has done those"
                for name, each in known.items()
                if (done := begun_at(recipe.experiments[name], each.seen))
            ),
            *(
                f"{name} makes {each.steps:,} steps, as its script or its command says"
                for name, each in recipe.experiments.items()
                if each is not without.experiments[name]
            ),
            *filter(None, (e.until_caveat for name, e in recipe.experiments.items() if _untold(quote, name))),
            *self._waits(catalogue),
            *filter(None, (phases[n].words(one.cluster.worker) for n, one in quote.experiments.items())),
            *self._stale(catalogue, options),
        ]
        notes += [f"{name} is not in this quote: {why}" for name, why in missing.items()]
        if not catalogue_is_own(catalogue) and any(
            found.measured.offer == "local" for found in known.values()
        ):
            notes.append("measured on this machine: other devices are predicted from published figures")
        return replace(quote, not_quoted=dict(missing), notes=tuple(notes), queue=queue)

    def _queue(
        self, recipe: Recipe, quote: Quote, supply: Supply, environ: Mapping[str, str]
    ) -> QuotedQueue | None:
        if self._candidate_offers is None:
            return None
        from trainmaster.service.quotes.quoted_queue import quoted_queue

        hosts = self._candidate_offers.hosts
        return quoted_queue(self._service, recipe, quote, environ, supply.waited, hosts)

    # --- parts -----------------------------------------------------------------------------------

    def _phases(
        self, recipe: Recipe, environ: Mapping[str, str], load: HomeLoad, options: QuoteOptions
    ) -> dict[str, ExperimentPhases]:
        """What is no training, on the machines that it would have."""
        found = phases_of(self._service, recipe, environ, load=load)
        return {n: one.on_warm(options.warm[n]) if n in options.warm else one for n, one in found.items()}

    def _builder(self, recipe: Recipe, catalogue: Catalogue) -> KnowledgeBuilder:
        shares = self._candidate_offers.shares if self._candidate_offers else None
        return KnowledgeBuilder(catalogue, shares, recipe.seed)

    def _subject(self, recipe: Recipe, name: str, known: Knowledge, options: QuoteOptions) -> Subject:
        from trainmaster.advisor.quote.quoting import Subject

        experiment = recipe.experiments[name]
        workload = quoted_workload(
            recipe, experiment, options, known.curves, self._jobs.earlier_trials.get(name, ())
        )
        workload = workload.begun(begun_at(experiment, known.seen))
        if known.model is not None and not workload.has_length:
            known = known.as_whole_tasks() or known  # see `why_no_length`
        return Subject(workload, known, known.fingerprint)

    def _supply(self, recipe: Recipe, catalogue: Catalogue, options: QuoteOptions) -> Supply:
        from trainmaster.advisor.quote.supply import Supply
        from trainmaster.providers.aws.settings import USUAL_EXTRAS

        own = catalogue_is_own(catalogue)
        slots, gpus = None, 0
        if own:
            machine = detect_capacity()
            slots = max([machine.cores, *(slots_of(e) for e in recipe.experiments.values())])
            gpus = len(machine.gpus)
        arch = own_arch()
        local_store = self._service.home.store_url.startswith("file:")
        candidate_offers = self._candidate_offers if options.catalogue is None else None
        database = self._service.database
        waited: tuple[ClusterWait, ...] = ()
        gave_back_s: tuple[float, ...] = ()
        if candidate_offers is not None and not own:
            provider, shares = candidate_offers.provider, candidate_offers.shares
            real = map(shares.of, catalogue) if shares is not None else catalogue
            waited = waited_for(database, provider, real, engine=recipe.engine)
            gave_back_s = tuple(database.gave_back_s(provider))
        return Supply(
            catalogue,
            own,
            slots,
            gpus,
            types_in(options.parameter_server),
            waited,
            gave_back_s,
            data_leaves=local_store and not own,
            arch=arch,
            hosts=len(candidate_offers.hosts) if candidate_offers and candidate_offers.hosts else None,
            are_whole=not all(host.slots for host in (candidate_offers and candidate_offers.hosts) or ()),
            shares=candidate_offers.shares if candidate_offers else None,
            servers_apart=options.catalogue is not None or options.parameter_server is not None,
            extras=candidate_offers.extras if candidate_offers else USUAL_EXTRAS,
        )

    def _catalogue(self, recipe: Recipe, environ: Mapping[str, str], options: QuoteOptions) -> Catalogue:
        """The named one; else what the provider has."""
        today = datetime.now(UTC).date()
        if options.catalogue is not None:
            from trainmaster.providers import load_catalogue

            return load_catalogue(options.catalogue, today=today)
        if self._candidate_offers is None:
            learn_machines(recipe, self._service, environ)
            self._candidate_offers = candidate_offers_of(recipe, self._service, environ, today)
        return self._candidate_offers.catalogue

    def _stale(self, catalogue: Catalogue, options: QuoteOptions) -> list[str]:
        today = datetime.now(UTC).date()
        old = catalogue.stale(today)
        if not old or options.allow_stale:
            return []
        oldest = min(offer.as_of for offer in old)
        many = "1 price is" if len(old) == 1 else f"{len(old)} prices are"
        return [f"{many} older than {STALE_DAYS} days, the oldest of {oldest.isoformat()}"]

    def _waits(self, catalogue: Catalogue) -> list[str]:
        """What of waiting is not in the quote."""
        if not catalogue_is_own(catalogue):
            return []
        database = self._service.database
        now = database.clock_s()
        rows = queries.runs(database, _LATEST_RUNS)
        here = [row for row in rows if capabilities_of(row["provider"]).is_here]
        busy = [row["id"] for row in here if is_driven(row, now)]
        many = f"{len(busy)} runs" if len(busy) > 1 else "".join(busy)
        return [f"{many} may hold this machine's slots: waiting for them is not counted"] * bool(busy)

    def _check(self, recipe: Recipe, catalogue: Catalogue, options: QuoteOptions) -> None:
        """What is wrong whatever will be measured is said before that."""
        from trainmaster.advisor.quote.supply import offers_for, servers_for

        supply = self._supply(recipe, catalogue, options)
        for name in (name for name in recipe.experiments if options.only is None or name in options.only):
            workload = Workload.of(recipe.experiments[name], recipe.seed, options.max_workers)
            offers_for(workload, supply)
            if supply.has_server_machines(workload):
                servers_for(workload, supply)


def _untold(quote: Quote, name: str) -> bool:
    """Whether an experiment's quote does not say when its target is reached."""
    return name not in quote.experiments or quote.experiments[name].target is None


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value
