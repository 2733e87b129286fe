"""`settled_place`: which of several providers a run is on: the first that can start it in time.

A run is in one place if that has room for all of it, else each experiment is. What each place would give is
told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from trainmaster.advisor.quote.quote import Quote
from trainmaster.dataclass import dataclass, field
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.places.place import (
    Ask,
    Place,
    asked_place,
    chosen,
    first_line,
    halved,
    no_place,
    places_of,
    spreads_over_places,
)
from trainmaster.service.places.table import (
    PlaceTable,
    is_by_objective,
    says_objective,
    taken_by_objective,
)
from trainmaster.service.quotes.worker_counts import with_fewest, with_workers
from trainmaster.spec import Recipe
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.recipe_parts import (
    in_place,
    named_places,
    on_fewer,
    part_of,
    plannable_again,
    with_limits,
)

if TYPE_CHECKING:
    from trainmaster.service.places.spread import QuotedSpread
    from trainmaster.service.service import Service


def settled_place(
    service: Service,
    recipe: Recipe,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
    seen: PlaceTable | None = None,
    ask: Ask | None = None,
) -> Recipe:
    """The recipe with one provider for each of its experiments; for all of them if one has room for all.

    A sweep with a number of nodes (``workers``) spreads over its places: it has of each what that gives in
    time. The choice becomes an override: a run that goes on later, or elsewhere, goes on in the same place.

    Args:
        service: of the user's home.
        recipe: as read.
        environ: of the caller.
        tell: takes a line for each place that was asked, and one for the choice.
        seen: of the recipe; takes what each place says of all of it: all of them are asked then.
        ask: a place; None is `asked_place`.

    Raises:
        UsageError: none would give what it asks for.
    """
    if len(named_places(recipe)) < 2:
        return recipe
    recipe = plannable_again(recipe)
    table = PlaceTable(service, recipe, environ) if seen is None else seen
    asking = _Asking(service, recipe, environ, tell, ask or asked_place, table)
    tell = asking.say
    has_own = any(each.provider for each in recipe.experiments.values())
    whole = None if has_own else asking.whole(asks_all=seen is not None or is_by_objective(recipe))
    is_settled = whole is not None and whole.is_in_time and whole.provider == recipe.places[0]
    if whole is not None and asking.by_objective:
        return _at(recipe, whole, tell, asking.refusals, f"the {recipe.objective.name} by its quote")
    has_local = any(capabilities_of(name).is_here for name in recipe.places)
    if not has_own and not asking.spreads and (is_settled or has_local or len(asking.groups()) == 1):
        return _at(recipe, whole, tell, asking.refusals)
    found = asking.all_shares()
    places = {place for shares in found.values() for place in shares}
    if not has_own and not all(found.values()):
        return _at(recipe, whole, tell, asking.refusals)
    if not all(found.values()):
        raise no_place(asking.refusals)
    recipe = with_workers(recipe, asking.sizes)
    tell_fewer(recipe, asking.fewer, tell, asking.best)
    recipe = on_fewer(recipe, asking.fewer)
    if not has_own and len(places) == 1:
        why = f"the {recipe.objective.name} by its quote" if asking.best else ""
        return _at(recipe, asking.answers[places.pop()], tell, asking.refusals, why)
    return _spread(recipe, found, tell, asking.best)


def tell_fewer(
    recipe: Recipe,
    fewer: Mapping[str, int],
    tell: Callable[[str], None],
    best: Mapping[str, QuotedSpread] | None = None,
) -> None:
    """Say which sweeps are on fewer machines: as many as begin in time, or as are best by the objective."""
    for name, nodes in fewer.items():
        why = "more would wait" if name not in (best or {}) else "more would be no better by the quotes"
        tell(f"{name}: its tasks are on {nodes} of {recipe.experiments[name].workers} machines: {why}")


def _at(
    recipe: Recipe, place: Place | None, tell: Callable[[str], None], refusals: list[str], why: str = ""
) -> Recipe:
    """All of it in one place; the others are asked where that has no machines later.

    Raises:
        UsageError: there is none.
    """
    if place is None:
        raise no_place(refusals)
    else_why = "as no place keeps its limits" if place.misses else "which waits least"
    why = why or ("the first that can begin in time" if place.is_in_time else else_why)
    tell(f"it runs on {place.provider}, {why}")
    left = tuple(name for name in recipe.places if name != place.provider)
    return in_place(recipe, place.provider).model_copy(update={"places_left": left})


def _spread(
    recipe: Recipe,
    found: Mapping[str, Mapping[str, int]],
    tell: Callable[[str], None],
    best: Mapping[str, QuotedSpread],
) -> Recipe:
    """Its experiments where they were found a place."""
    experiments, overrides = dict(recipe.experiments), list(recipe.overrides)
    for name, shares in found.items():
        update = {"provider": tuple(shares), "shares": dict(shares) if len(shares) > 1 else {}}
        update |= {"picks": dict(best[name].picks)} if name in best else {}
        experiments[name] = recipe.experiments[name].model_copy(update=update)
        overrides.append(f"experiments.{name}.provider=[{', '.join(shares)}]")
        nodes = ", ".join(f"{count} on {place}" for place, count in shares.items())
        tell(f"{name} runs on {next(iter(shares))}" if len(shares) == 1 else
             f"{name}: its tasks spread over {sum(shares.values())} machines: {nodes}")  # fmt: skip
        if name in best:
            tell(f"{name}: {best[name].words(recipe.objective.name)}")
    first = next(iter(next(iter(found.values()))))
    update = {"provider": first, "places": (), "experiments": experiments, "overrides": tuple(overrides)}
    update |= {"unplanned": {}}  # it stays there
    return recipe.model_copy(update=update)


@dataclass
class _Asking:
    """Asks places what they would give for parts of a recipe; what is told is told once.

    Attributes:
        fewer: over how many nodes sweeps spread that one place alone begins in time, and not with all.
        by_objective: quotes have chosen the place of the whole.
        answers: what places have said last, the best of each.
        placed: how many nodes experiments have in each place.
        best: of sweeps, by their quotes. sizes: workers of their gangs, where the recipe leaves a choice.
    """

    service: Service
    recipe: Recipe
    environ: Mapping[str, str]
    tell: Callable[[str], None]
    ask: Ask
    table: PlaceTable
    refusals: list[str] = field(default_factory=list)
    fewer: dict[str, int] = field(default_factory=dict)
    by_objective: bool = False
    answers: dict[str, Place] = field(default_factory=dict)
    placed: dict[str, dict[str, int]] = field(default_factory=dict)
    best: dict[str, QuotedSpread] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)
    _held: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        """Tell it, after the refusals before it. The last ones are not told, as the error says them."""
        for each in (*self._held, line):
            self.tell(each)
        self._held.clear()

    @property
    def spreads(self) -> bool:
        """Whether one of its sweeps says over how many nodes it spreads."""
        return any(spreads_over_places(self.recipe, each) for each in self.recipe.experiments.values())

    def whole(self, *, asks_all: bool) -> Place | None:
        """The place for all of it; None if there is none. Later ones than one in time are seldom asked."""
        found = self.table.places
        for name in self.recipe.places:
            place = self.ask(self.service, in_place(self.recipe, name), self.environ)
            found.append(self.table.with_limits(place))
            self._tell_place("", found[-1])
            if found[-1].is_in_time and not asks_all:
                break
        if is_by_objective(self.recipe):
            best = taken_by_objective(self.recipe, self.table.quoted())
            self.by_objective = best is not None
            if best is not None:
                return best
            if any(each.is_in_time for each in found):
                self.say("objective: nothing is known of the job yet, so the order of its places decides")
        return chosen(found)

    def groups(self) -> list[list[str]]:
        """Experiments that share machines, and may be in the same places."""
        from trainmaster.cluster.renting.requirements import Needs

        found: dict[tuple[object, ...], list[str]] = {}
        for name, each in with_fewest(self.recipe).experiments.items():
            alone = name if spreads_over_places(self.recipe, each) else ""
            key = (self._places(name), alone, Needs.of(each, self.recipe.seed).key)
            found.setdefault(key, []).append(name)
        return list(found.values())

    def all_shares(self) -> dict[str, dict[str, int]]:
        """Where each experiment is, see `_shares`. Sweeps come last: the others leave them what they cost."""
        experiments = self.recipe.experiments
        for group in sorted(
            self.groups(), key=lambda group: spreads_over_places(self.recipe, experiments[group[0]])
        ):
            self.placed |= self._shares(group)
        return {name: self.placed[name] for name in experiments}

    def _shares(self, group: list[str]) -> dict[str, dict[str, int]]:
        """Where each experiment of a group is: a place, or how many nodes in each of some."""
        first, places = self.recipe.experiments[group[0]], self._places(group[0])
        if spreads_over_places(self.recipe, first) and first.workers is not None and len(places) > 1:
            most = first.workers
            if first.distributed is None:  # else a task is on several
                most = min(most, len(first.tasks(self.recipe.seed)))
            return {group[0]: self._over(group[0], places, most)}
        if len(places) == 1:
            return {name: {places[0]: 0} for name in group}
        seen: list[Place] = []
        for name in places:
            seen.append(self._asked(group, name))
            if seen[-1].is_in_time:
                break
        best = chosen(seen)
        return {name: {} if best is None else {best.provider: best.nodes} for name in group}

    def _over(self, name: str, places: tuple[str, ...], wanted: int) -> dict[str, int]:
        """As many nodes as each place gives in time, the first ones first; the least wait if none does."""
        if says_objective(self.recipe) and (chosen_nodes := self._by_quotes(name, places, wanted)):
            return chosen_nodes
        found: dict[str, int] = {}
        seen: list[Place] = []
        is_less = False
        for place in places:
            left = wanted - sum(found.values())
            nodes, answers = self._room(name, place, left)
            seen += answers
            is_too_many = bool(found) and seen[-1].nodes > left  # a gang is there as a whole
            if seen[-1].is_in_time and not is_too_many:
                found[place] = max(seen[-1].nodes, 1)
                is_less = nodes < left
            if sum(found.values()) >= wanted:
                break
        if len(found) == 1 and is_less:
            self.fewer[name] = sum(found.values())
        best = chosen(seen)
        return found or ({} if best is None else {best.provider: best.nodes})

    def _room(self, name: str, place: str, nodes: int) -> tuple[int, list[Place]]:
        """With how many nodes a place begins in time, at most so many; what it has said, that last."""

        def ask(halvings: int) -> Place:
            return self._asked([name], place, nodes >> halvings)

        def gives_one() -> bool:
            one = part_of(self.recipe, place, {name: 1})
            return not self.ask(self.service, one, self.environ).refusal

        halvings, seen = halved(ask, nodes, gives_one)
        return nodes >> halvings, seen

    def _by_quotes(self, name: str, places: tuple[str, ...], wanted: int) -> dict[str, int]:
        """As many nodes of each place as are best by the objective; nothing where no quote is known."""
        from trainmaster.advisor.quote.infeasible import NoFeasibleQuote
        from trainmaster.service.places.spread import best_spread, sizes_of

        recipe = self._unspent()
        rooms = {place: self._room(name, place, wanted)[1][-1] for place in places}
        parts = {
            place: part_of(recipe, place, {name: seen.nodes or wanted})
            for place, seen in rooms.items()
            if seen.is_in_time
        }
        if not parts:
            return {}  # none begins in time, which each has said
        waits_s = {place: rooms[place].waits_s for place in parts}
        whys: dict[str, str] = {}

        def quote(part: Recipe) -> Quote | None:
            try:
                made = self.table.quote_part(part)
            except TrainmasterError as error:
                whys.setdefault(part.provider, first_line(error))
                if isinstance(error, NoFeasibleQuote):
                    raise
                return None
            return None if made.is_unknown or name not in made.experiments else made

        best = best_spread(recipe, name, parts, waits_s, wanted, quote)
        if best is None:
            said = "; ".join(f"{place}: {why}" for place, why in whys.items())
            why = f"there is no quote ({said})" if said else "nothing is known of it yet"
            self.say(f"{name}: {why}, so the order of its places decides")
            return {}
        self.best[name] = best
        self.sizes |= sizes_of(self.recipe, name, best)
        if len(best.nodes) == 1 and sum(best.nodes.values()) < wanted:
            self.fewer[name] = sum(best.nodes.values())
        return dict(best.nodes)

    def _unspent(self) -> Recipe:
        """With what the experiments that have their places leave of ``budget.total``."""
        budget = self.recipe.budget
        if budget is None or budget.total_usd is None:
            return self.recipe
        usd = sum(self._cost_usd(name, shares) for name, shares in self.placed.items())
        return with_limits(self.recipe, total_usd=max(budget.total_usd - usd, 0.0)) if usd else self.recipe

    def _cost_usd(self, name: str, shares: Mapping[str, int]) -> float:
        """Of an experiment in its place: what was chosen for it, else the median of its quote; 0 unknown."""
        if name in self.best:
            return self.best[name].spread.cost_usd
        made: Quote | None = None
        if len(shares) == 1:
            with suppress(TrainmasterError):
                part = part_of(self.recipe, next(iter(shares)), {name: None})
                made = self.table.quote_part(with_limits(part, total_usd=None))
        return made.cost_usd.p50 if made is not None and made.cost_usd and not made.is_unknown else 0.0

    def _asked(self, group: list[str], place: str, nodes: int | None = None) -> Place:
        part = part_of(self.recipe, place, dict.fromkeys(group, nodes))
        found = self.ask(self.service, part, self.environ)
        self._tell_place(", ".join(group), found)
        if place not in self.answers or not self.answers[place].is_in_time:
            self.answers[place] = found
        return found

    def _tell_place(self, who: str, place: Place) -> None:
        is_part = who and len(self.recipe.experiments) > 1
        line = f"{who} at {place.line}" if is_part else f"place {place.line}"
        is_new = line not in self._told
        self._told.add(line)
        if place.refusal:
            self.refusals.append(line.removeprefix("place "))
            self._held += [line] * is_new
        elif is_new:
            self.say(line)

    def _places(self, name: str) -> tuple[str, ...]:
        return places_of(self.recipe, self.recipe.experiments[name])
