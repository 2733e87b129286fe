"""`RentalOffer`: what is put before the user, before machines are rented."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trainmaster.cluster.renting.plan import ClusterPlan, dearest_usd_per_hour, most_at_once, words
from trainmaster.control.decide.budget import SWITCH_OFF_S, USUAL_LEASE_S, saving_limit_usd
from trainmaster.dataclass import dataclass
from trainmaster.db import Database, NewQuoteRow
from trainmaster.service.quotes.quote_record import QuoteRecord, keeping_words, most_usd, told_in_full
from trainmaster.spec import Recipe
from trainmaster.spec.units import dollars, format_duration

if TYPE_CHECKING:
    from trainmaster.advisor.quote.quote import Quote
    from trainmaster.advisor.quote.unknown_time import UnknownTime


@dataclass(frozen=True)
class RentalOffer:
    """What is put before the user.

    Attributes:
        recipe: with every number of workers settled, and what was planned put in.
        plans: of the clusters.
        usd_per_hour: of all machines that may be there at the same time, had in the cheapest way.
        most_usd_per_hour: had in the dearest way that is planned for when there is no capacity.
        quote: what is to be expected; None where nothing is known. no_quote: why.
        unknown: then, when it starts: it is told, and neither chooses nor promises anything.
        notes: what was decided for the user, and wishes that mean nothing.
        keep_s: how long machines stay warm afterwards.
    """

    recipe: Recipe
    plans: tuple[ClusterPlan, ...]
    usd_per_hour: float
    most_usd_per_hour: float
    quote: Quote | None = None
    no_quote: str = ""
    unknown: UnknownTime | None = None
    notes: tuple[str, ...] = ()
    keep_s: float = 0.0

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
        if kept := keeping_words(self.recipe, self.keep_s, sum(map(dearest_usd_per_hour, self.plans))):
            found.append(kept)
        if self.quote is not None and self.quote.time_s is not None and self.quote.cost_usd is not None:
            took = told_in_full(self.quote.time_s, self.quote.cost_usd)
            without = f" {self.quote.without}" if self.quote.without else ""
            found.append(f"estimate{without}: {took}, {self._with_wait}")
            if self.quote.queue is not None:
                found.append(f"before that {self.quote.queue.words}, not in the estimate")
            limits = {name: one.bottleneck for name, one in self.quote.experiments.items() if one.bottleneck}
            is_one = len(set(limits.values())) == 1
            told = [f"{'' if is_one else name + ': '}limited by {limit}" for name, limit in limits.items()]
            found += dict.fromkeys(told)
            found += [f"{name} is not in the estimate: {why}" for name, why in self.quote.not_quoted.items()]
        elif self.unknown is not None:
            found.append(f"no estimate: it {self.unknown.words(self.no_quote)}")
        elif self.no_quote:
            found.append(f"no estimate: {self.no_quote}")
        return found

    @property
    def _with_wait(self) -> str:
        if self.quote is None or not (warm := self.quote.warm):
            return "with the wait for the machines"
        if {*self.quote.experiments} <= {*warm}:
            return "on machines that are still warm"
        return f"{', '.join(warm)} on machines that are still warm, with the wait for the others"

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
        quote = self.quote
        if quote is None or quote.time_s is None or quote.cost_usd is None or quote.not_quoted:
            return
        points = sum(one.measurements for one in quote.experiments.values())
        phases = {
            name: {each.name: each.time_s.as_dict() for each in one.phases}
            for name, one in quote.experiments.items()
        }
        promise = QuoteRecord("estimate", now, quote.time_s, quote.cost_usd, points, _other(quote), phases)
        database.add_quote(NewQuoteRow(run, None, promise.kind, now, promise.as_json()))


def offer_of(
    recipe: Recipe,
    plans: tuple[ClusterPlan, ...],
    quote: Quote | None = None,
    no_quote: str = "",
    notes: tuple[str, ...] = (),
) -> RentalOffer:
    """An offer of these clusters, with what they cost together."""
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


def _line(plan: ClusterPlan) -> str:
    best = plan.roles[0].rentals[0]
    where = f" in {best.region}" if best.region else ""
    price = f" at ${plan.usd_per_hour:.4g} per hour" if plan.usd_per_hour else ""
    return f"{', '.join(plan.experiments)}: {words(plan)}{where}{price}"
