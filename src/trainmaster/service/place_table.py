"""`quoted_places`: all places of a recipe with the quote of each; `taken_by_objective` chooses by these."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.advisor.quote.quote import PlaceRow
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.parts import in_place
from trainmaster.spec.places import IN_TIME_S
from trainmaster.spec.units import format_duration

if TYPE_CHECKING:
    from trainmaster.advisor.quote.quote import Quote
    from trainmaster.service.service import Service
    from trainmaster.spec import Experiment, Recipe
    from trainmaster.spec.objective import Objective


@dataclass(frozen=True, slots=True)
class Place:
    """What a provider would give for a run.

    Attributes:
        provider: its name.
        machines: in words; empty if it would give none.
        usd_per_hour: of all of them.
        wait_s: until they could begin to start; None if it does not say.
        refusal: why it would give none; empty if it would. hint: what to do about that.
        nodes: how many machines of its workers.
        misses: which limits of the recipe it does not keep by its quote; empty if it does, or has none.
    """

    provider: str
    machines: str = ""
    usd_per_hour: float = 0.0
    wait_s: float | None = 0.0
    refusal: str = ""
    hint: str = ""
    nodes: int = 0
    misses: str = ""

    @property
    def waits_s(self) -> float:
        """What does not say may take for ever."""
        return math.inf if self.wait_s is None else self.wait_s

    @property
    def is_in_time(self) -> bool:
        """Whether it can begin soon, and keeps the limits of the recipe as far as is known."""
        return not self.refusal and not self.misses and self.waits_s <= IN_TIME_S

    @property
    def line(self) -> str:
        """For people.

        >>> Place("slurm", "2 x gpu", 0.0, 5400.0).line
        'slurm: 2 x gpu, $0 an hour; waits 1 h 30 min in its queue'
        >>> Place("hosts", refusal="0 of 1 hosts are free").line
        'hosts: no, 0 of 1 hosts are free'
        """
        if self.refusal or self.misses:
            return f"{self.provider}: no, {self.refusal or self.misses}"
        wait = f"; waits {format_duration(self.wait_s)} in its queue" if self.wait_s else ""
        unsaid = "; how long its queue is it does not say" if self.wait_s is None else ""
        return f"{self.provider}: {self.machines}, ${self.usd_per_hour:.4g} an hour{wait}{unsaid}"


def chosen(places: Sequence[Place]) -> Place | None:
    """The first that can begin in time; else that which waits least; None if none would give anything.

    If none keeps the limits of the recipe, the first that costs least: where that is nothing, it goes on.

    >>> a, b, c = Place("a", refusal="full"), Place("b", "m", 0.0, 7200.0), Place("c", "m", 3.0)
    >>> chosen([a, b, c]).provider, chosen([a, b]).provider, chosen([a])
    ('c', 'b', None)
    >>> d, e = Place("d", "m", 2.0, misses="its budget"), Place("e", "m", misses="its deadline")
    >>> chosen([d, b]).provider, chosen([d, e]).provider, chosen([a, d]).provider
    ('b', 'e', 'd')
    """
    could = [each for each in places if not each.refusal]
    if in_time := [each for each in could if each.is_in_time]:
        return in_time[0]
    keeping = [each for each in could if not each.misses]
    dearest_last = min(could, key=lambda each: each.usd_per_hour, default=None)
    return min(keeping, key=lambda each: each.waits_s, default=dearest_last)


def with_limits(service: Service, recipe: Recipe, environ: Mapping[str, str], place: Place) -> Place:
    """A place with the limits of the recipe that it would not keep, by what is known of the job now."""
    budget = recipe.budget
    if place.refusal or budget is None or (budget.total_usd is None and budget.deadline_s is None):
        return place
    from trainmaster.advisor.quote.infeasible import NoFeasibleQuote

    try:
        _quote(service, recipe, environ, place)
    except NoFeasibleQuote as error:
        return replace(place, misses=str(error.args[0]).partition("\n")[0])
    except TrainmasterError:
        pass  # without a quote it is not known
    return place


@dataclass(frozen=True, slots=True)
class QuotedPlace:
    """A place, and its row in the table."""

    place: Place
    row: PlaceRow

    @property
    def is_comparable(self) -> bool:
        """Whether it begins in time, and how long the job takes there is known."""
        known = self.row.time_s is not None and self.row.cost_usd is not None and not self.row.is_unknown
        return self.place.is_in_time and known

    def value(self, objective: Objective) -> tuple[float, float, float]:
        """What is to be small: by weight, then cost, then time with the wait."""
        assert self.row.time_s is not None
        assert self.row.cost_usd is not None
        time_s, usd = self.place.waits_s + self.row.time_s.p50, self.row.cost_usd.p50
        return objective.time * time_s + objective.cost * usd, usd, time_s


def places_of(recipe: Recipe, experiment: Experiment) -> tuple[str, ...]:
    """Where an experiment may be."""
    return experiment.provider or recipe.places or (recipe.provider,)


def spreads_over_places(recipe: Recipe, experiment: Experiment) -> bool:
    """Whether it is a sweep over several. None of them is this machine: that is for whole runs."""
    places = places_of(recipe, experiment)
    many = experiment.serve is None and len(experiment.tasks(recipe.seed)) > 1
    apart = len(places) > 1 and not any(capabilities_of(name).is_here for name in places)
    return many and apart and (experiment.workers or 0) > 1


def is_by_objective(recipe: Recipe) -> bool:
    """Whether quotes choose among its places: it says an objective, and none of another system.

    A quote is of one place, so it chooses nothing for a sweep that spreads.
    """
    spreads = any(spreads_over_places(recipe, each) for each in recipe.experiments.values())
    return "objective" in recipe.model_fields_set and not recipe.objective.policy and not spreads


def taken_by_objective(recipe: Recipe, places: Iterable[QuotedPlace]) -> Place | None:
    """The best by the quotes; None where nothing is said to be better, or nothing is known of the job."""
    known = [each for each in places if each.is_comparable]
    if not known or not is_by_objective(recipe):
        return None
    return min(known, key=lambda each: each.value(recipe.objective)).place


def quoted_places(
    service: Service, recipe: Recipe, environ: Mapping[str, str], places: Iterable[Place]
) -> list[QuotedPlace]:
    """Each place with its quote by what is known now; nothing is measured.

    Args:
        service: of the user's home.
        recipe: as read.
        environ: of the caller.
        places: that were asked.
    """
    return [QuotedPlace(each, _row(service, recipe, environ, each)) for each in places]


def with_places(
    service: Service,
    recipe: Recipe,
    environ: Mapping[str, str],
    seen: Sequence[Place],
    settled: Recipe,
    quote: Callable[[Recipe], Quote],
) -> Quote:
    """The quote of the place that is taken, with the table of all.

    Args:
        service: of the user's home.
        recipe: as read.
        environ: of the caller.
        seen: places that were asked; fewer than two make no table.
        settled: the recipe in the place that was chosen before its job may have been measured.
        quote: makes the quote of a recipe in one place; may measure.
    """
    made = quote(settled)
    if len(seen) < 2:
        return made
    places, name = quoted_places(service, recipe, environ, seen), settled.provider
    best = taken_by_objective(recipe, places)
    if best is not None and best.provider != name:
        made, name = quote(in_place(recipe, best.provider)), best.provider
    return replace(made, places=table_of(recipe, places, [name]))


def _quote(service: Service, recipe: Recipe, environ: Mapping[str, str], place: Place) -> Quote:
    from trainmaster.service.quotes.quote_options import QuoteOptions
    from trainmaster.service.quotes.quote_service import Quoter

    quoter = Quoter(service, lambda _: None, measures=False)
    options = QuoteOptions(measures=False)
    return quoter.quote(in_place(recipe, place.provider), Path("recipe.yaml"), environ, options)


def _row(service: Service, recipe: Recipe, environ: Mapping[str, str], place: Place) -> PlaceRow:
    plain = PlaceRow(place.provider, place.machines, place.usd_per_hour, wait=_wait_words(place.wait_s))
    if place.refusal:
        return replace(plain, wait="", why_not=place.refusal)
    try:
        quote = _quote(service, recipe, environ, place)
    except TrainmasterError as error:
        return replace(plain, no_quote=str(error.args[0]).partition("\n")[0])
    return replace(plain.quoted(quote), wait=plain.wait)


def table_of(recipe: Recipe, places: Sequence[QuotedPlace], taken: Sequence[str]) -> tuple[PlaceRow, ...]:
    """The rows, with which is taken and why others are not.

    Args:
        recipe: as read.
        places: with their quotes.
        taken: names of those where the run is.
    """
    by_objective = taken_by_objective(recipe, places) is not None
    found, is_later = list[PlaceRow](), False
    for each in places:
        name = each.place.provider
        if name in taken:
            found.append(replace(each.row, is_taken=True))
            is_later = True
            continue
        why = each.row.why_not or _why_not(recipe, each, is_later=is_later, by_objective=by_objective)
        found.append(replace(each.row, why_not=why))
    return tuple(found)


def _why_not(recipe: Recipe, each: QuotedPlace, *, is_later: bool, by_objective: bool) -> str:
    if each.place.misses:
        return "it would not keep the budget or the deadline"
    if not each.place.is_in_time:
        in_time = format_duration(IN_TIME_S)
        return f"it waits for more than {in_time}" if each.place.wait_s else "its queue may be longer"
    if by_objective:
        words = {"cheapest": "it is not cheaper", "fastest": "it is not faster"}
        why = words.get(recipe.objective.name, "it is no better by the objective")
        return why if each.is_comparable else f"{each.row.no_quote or 'nothing is known of it'}"
    return "an earlier one begins in time" if is_later else "it has no room for all of the run"


def _wait_words(wait_s: float | None) -> str:
    """How long a place lets one wait.

    >>> _wait_words(None), _wait_words(0.0), _wait_words(5400.0)
    ('it does not say how long its queue is', '', '1 h 30 min in its queue')
    """
    if wait_s is None:
        return "it does not say how long its queue is"
    return f"{format_duration(wait_s)} in its queue" if wait_s else ""
