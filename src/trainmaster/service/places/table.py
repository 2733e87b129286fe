"""`PlaceTable`: all places of a recipe with the quote of each; `taken_by_objective` chooses by these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainmaster.advisor.quote.quote import PlaceRow, Quote
from trainmaster.dataclass import dataclass
from trainmaster.service.places.place import (
    Place,
    chosen,
    first_line,
    spreads_over_places,
    wait_words,
)
from trainmaster.service.quotes.quote_options import QuoteOptions
from trainmaster.spec import Recipe
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.objective import Objective
from trainmaster.spec.places import IN_TIME_S
from trainmaster.spec.recipe_parts import in_place
from trainmaster.spec.units import format_duration

if TYPE_CHECKING:
    from trainmaster.service.service import Service


_IN_TIME: Final = format_duration(IN_TIME_S)


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


def says_objective(recipe: Recipe) -> bool:
    """Whether it says what is better, and not by a policy of another system."""
    return "objective" in recipe.model_fields_set and not recipe.objective.policy


def is_by_objective(recipe: Recipe) -> bool:
    """Whether quotes choose the place of all of it: it says an objective, and no sweep of it spreads."""
    spreads = any(spreads_over_places(recipe, each) for each in recipe.experiments.values())
    return says_objective(recipe) and not spreads


def taken_by_objective(recipe: Recipe, places: Iterable[QuotedPlace]) -> Place | None:
    """The best by the quotes; None where nothing is said to be better, or nothing is known of the job."""
    known = [each for each in places if each.is_comparable]
    if not known or not is_by_objective(recipe):
        return None
    return min(known, key=lambda each: each.value(recipe.objective)).place


class PlaceTable:
    """Places of a recipe that were asked, each with one quote by what is known now; nothing is measured.

    Args:
        service: of the user's home.
        recipe: as read.
        environ: of the caller.
        options: of the quotes.

    Attributes:
        service, recipe, environ: the same.
        places: that were asked.
    """

    def __init__(
        self,
        service: Service,
        recipe: Recipe,
        environ: Mapping[str, str],
        options: QuoteOptions | None = None,
    ) -> None:

        self.places: list[Place] = []
        self.service = service
        self.recipe = recipe
        self.environ = environ
        self._options = replace(options or QuoteOptions(), measures=False, fresh=False)
        self._made: dict[str, Quote | TrainmasterError] = {}

    def quote(self, name: str) -> Quote:
        """Of all of it in one place; made once.

        Raises:
            TrainmasterError: there is none.
        """
        if name not in self._made:
            try:
                self._made[name] = self.quote_part(in_place(self.recipe, name))
            except TrainmasterError as error:
                self._made[name] = error
        made = self._made[name]
        if isinstance(made, TrainmasterError):
            raise made
        return made

    def quote_settled(self, settled: Recipe) -> Quote:
        """Of a recipe in one place as it was settled there, which may be on fewer machines.

        Raises:
            TrainmasterError: there is none.
        """
        if settled.experiments == in_place(self.recipe, settled.provider).experiments:
            return self.quote(settled.provider)
        return self.quote_part(settled)

    def quote_part(self, part: Recipe, options: QuoteOptions | None = None) -> Quote:
        """Of a recipe in one place, by what is known now.

        Raises:
            TrainmasterError: there is none.
        """
        options = self._options if options is None else replace(options, measures=False, fresh=False)
        return _quote(self.service, part, self.environ, options)

    def with_limits(self, place: Place) -> Place:
        """A place with the limits of the recipe that it would not keep, by what is known of the job now."""
        budget, place = self.recipe.budget, replace(place, misses="")
        if place.refusal or budget is None or (budget.total_usd is None and budget.deadline_s is None):
            return place
        from trainmaster.advisor.quote.infeasible import NoFeasibleQuote

        try:
            self.quote(place.provider)
        except NoFeasibleQuote as error:
            return replace(place, misses=first_line(error))
        except TrainmasterError:
            pass  # without a quote it is not known
        return place

    def ask_again(self) -> None:
        """What nothing was known of is quoted once more: it may have been measured since."""
        self._made = {
            name: made
            for name, made in self._made.items()
            if isinstance(made, TrainmasterError) or not made.is_unknown
        }

    def quoted(self) -> list[QuotedPlace]:
        """Each place with its row."""
        return [QuotedPlace(each, self._row(each)) for each in self.places]

    def rows(self, taken: Sequence[str]) -> tuple[PlaceRow, ...]:
        """See `table_of`; none of fewer than two places."""
        return table_of(self.recipe, self.quoted(), taken) if len(self.places) > 1 else ()

    def quote_of(self, settled: Recipe, quote: Callable[[Recipe], Quote]) -> Quote:
        """The quote of the place that is taken, with the table of all.

        Args:
            settled: the recipe in the place that was chosen before its job may have been measured.
            quote: makes the quote of a recipe in one place; may measure.

        Raises:
            TrainmasterError: there is none; with the table where no place keeps the limits.
        """
        from trainmaster.advisor.quote.infeasible import NoFeasibleQuote

        name = settled.provider
        try:
            made = quote(settled)
        except NoFeasibleQuote as error:
            best = self._keeping(name) if len(self.places) > 1 else None
            if best is None:
                raise self._with_rows(error) from None
            made, name = quote(in_place(self.recipe, best)), best
        if len(self.places) < 2:
            return made
        self._learn(name, made)
        best = getattr(taken_by_objective(self.recipe, self.quoted()), "provider", name)
        if best != name:
            made, name = quote(in_place(self.recipe, best)), best
        return replace(made, places=self.rows([name]))

    def _learn(self, name: str, made: Quote) -> None:
        """What was measured for one place is known for the others, too."""
        before = self._made.get(name)
        was_known = before is not None and not isinstance(before, TrainmasterError) and not before.is_unknown
        if not was_known and not made.is_unknown:
            self._made.clear()
        self._made[name] = made

    def _keeping(self, name: str) -> str | None:
        """The place that keeps the limits where one that was just measured for does not."""
        self._made.clear()
        self.places = [self.with_limits(each) for each in self.places]
        best = taken_by_objective(self.recipe, self.quoted()) or chosen(self.places)
        return best.provider if best is not None and not best.misses and best.provider != name else None

    def _with_rows(self, error: TrainmasterError) -> TrainmasterError:
        lines = [f"place {', '.join(filter(None, row.cells))}" for row in self.rows([])]
        error.args = ("\n".join([str(error.args[0]), *lines]), *error.args[1:])
        return error

    def _row(self, place: Place) -> PlaceRow:
        plain = PlaceRow(place.provider, place.machines, place.usd_per_hour, wait=wait_words(place.wait_s))
        if place.refusal:
            return replace(plain, wait="", why_not=place.refusal)
        try:
            quote = self.quote(place.provider)
        except TrainmasterError as error:
            return replace(plain, no_quote=first_line(error))
        return replace(plain.quoted(quote), wait=plain.wait)


def _quote(service: Service, recipe: Recipe, environ: Mapping[str, str], options: QuoteOptions) -> Quote:
    from trainmaster.service.quotes.quote_service import Quoter

    quoter = Quoter(service, lambda _: None, measures=False)
    return quoter.quote(recipe, environ, options)


def table_of(recipe: Recipe, places: Sequence[QuotedPlace], taken: Sequence[str]) -> tuple[PlaceRow, ...]:
    """The rows, with which is taken and why others are not.

    Args:
        recipe: as read.
        places: with their quotes.
        taken: names of those where the run is.
    """
    by_objective = says_objective(recipe) and any(each.is_comparable for each in places)
    all_wait = not any(each.place.is_in_time for each in places if each.place.provider in taken)
    found, is_later = list[PlaceRow](), False
    for each in places:
        name = each.place.provider
        if name in taken:
            found.append(replace(each.row, is_taken=True))
            is_later = True
            continue
        why = each.row.why_not or _why_not(
            recipe, each, is_later=is_later, by_objective=by_objective, all_wait=all_wait and bool(taken)
        )
        found.append(replace(each.row, why_not=why))
    return tuple(found)


def _why_not(recipe: Recipe, each: QuotedPlace, *, is_later: bool, by_objective: bool, all_wait: bool) -> str:
    if each.place.misses:
        return "it would not keep the budget or the deadline"
    if not each.place.is_in_time:
        longer = "another one waits no longer" if all_wait else f"it waits for more than {_IN_TIME}"
        return "its queue may be longer" if each.place.wait_s is None else longer
    if by_objective:
        words = {"cheapest": "it is not cheaper", "fastest": "it is not faster"}
        why = words.get(recipe.objective.name, "it is no better by the objective")
        return why if each.is_comparable else f"{each.row.no_quote or 'nothing is known of it'}"
    return "an earlier one begins in time" if is_later else "it has no room for all of the run"
