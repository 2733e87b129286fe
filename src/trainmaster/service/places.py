"""`settled_place`: which of several providers a run is on: the first that can start it in time.

A run is in one place if that has room for all of it, else each experiment is. `next_place` says where a run
goes that is in one place when that has no machines later. What each would give is told, to be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.place_table import (
    Place,
    PlaceTable,
    chosen,
    is_by_objective,
    places_of,
    quote_now,
    says_objective,
    spreads_over_places,
    taken_by_objective,
)
from trainmaster.service.quotes.worker_counts import with_workers
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.spec.parts import as_written, in_place, named_places, part_of, plannable_again

if TYPE_CHECKING:
    from trainmaster.advisor.quote.quote import Quote
    from trainmaster.service.open_home import OpenHome
    from trainmaster.service.place_answers import Ask
    from trainmaster.service.service import Service
    from trainmaster.service.spread_quotes import QuotedSpread
    from trainmaster.spec import Recipe


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
    asking = _Asking(service, recipe, environ, tell, ask or asked_place)
    tell = asking.say
    has_own = any(each.provider for each in recipe.experiments.values())
    whole = None if has_own else asking.whole(seen)
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
        raise _none(asking.refusals)
    recipe = _on_fewer(with_workers(recipe, asking.sizes), asking.fewer, tell, asking.best)
    if not has_own and len(places) == 1:
        why = f"the {recipe.objective.name} by its quote" if asking.best else ""
        return _at(recipe, asking.answers[places.pop()], tell, asking.refusals, why)
    return _spread(recipe, found, tell, asking.best)


def _on_fewer(
    recipe: Recipe,
    fewer: Mapping[str, int],
    tell: Callable[[str], None],
    best: Mapping[str, QuotedSpread] | None = None,
) -> Recipe:
    """Sweeps that are on as many machines as one place gives in time, or as are best by the objective."""
    experiments = dict(recipe.experiments)
    for name, nodes in fewer.items():
        why = "more would wait" if name not in (best or {}) else "more would be no better by the quotes"
        tell(f"{name}: its tasks are on {nodes} of {experiments[name].workers} machines: {why}")
        experiments[name] = experiments[name].model_copy(update={"workers": nodes})
    overrides = [f"experiments.{name}.workers={nodes}" for name, nodes in fewer.items()]
    update = {"experiments": experiments, "overrides": (*recipe.overrides, *overrides)}
    return recipe.model_copy(update=update) if fewer else recipe


def _at(
    recipe: Recipe, place: Place | None, tell: Callable[[str], None], refusals: list[str], why: str = ""
) -> Recipe:
    """All of it in one place; the others are asked where that has no machines later.

    Raises:
        UsageError: there is none.
    """
    if place is None:
        raise _none(refusals)
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

    def whole(self, seen: PlaceTable | None) -> Place | None:
        """The place for all of it; None if there is none. Later ones than one in time are seldom asked."""
        asks_all = seen is not None or is_by_objective(self.recipe)
        table = PlaceTable(self.service, self.recipe, self.environ) if seen is None else seen
        found = table.places
        for name in self.recipe.places:
            place = self.ask(self.service, in_place(self.recipe, name), self.environ)
            found.append(table.with_limits(place))
            self._tell_place("", found[-1])
            if found[-1].is_in_time and not asks_all:
                break
        if is_by_objective(self.recipe):
            best = taken_by_objective(self.recipe, table.quoted())
            self.by_objective = best is not None
            if best is not None:
                return best
            if any(each.is_in_time for each in found):
                self.say("objective: nothing is known of the job yet, so the order of its places decides")
        return chosen(found)

    def groups(self) -> list[list[str]]:
        """Experiments that share machines, and may be in the same places."""
        from trainmaster.cluster.renting.requirements import Needs
        from trainmaster.service.quotes.worker_counts import with_fewest

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
        seen = [self._asked([name], place, nodes)]
        # One that never has so many may have fewer.
        takes_some = nodes == 1 or not (seen[-1].refusal and self._takes_none(name, place))
        while not seen[-1].is_in_time and takes_some and nodes > 1:
            nodes = nodes // 2
            seen.append(self._asked([name], place, nodes))
        return nodes, seen

    def _by_quotes(self, name: str, places: tuple[str, ...], wanted: int) -> dict[str, int]:
        """As many nodes of each place as are best by the objective; nothing where no quote is known."""
        from trainmaster.advisor.quote.infeasible import NoFeasibleQuote
        from trainmaster.service.spread_quotes import best_spread, sizes_of

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
                made = quote_now(self.service, part, self.environ)
            except TrainmasterError as error:
                whys.setdefault(part.provider, str(error.args[0]).partition("\n")[0])
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
        return _with_total(self.recipe, max(budget.total_usd - usd, 0.0)) if usd else self.recipe

    def _cost_usd(self, name: str, shares: Mapping[str, int]) -> float:
        """Of an experiment in its place: what was chosen for it, else the median of its quote; 0 unknown."""
        if name in self.best:
            return self.best[name].spread.cost_usd
        made: Quote | None = None
        if len(shares) == 1:
            with suppress(TrainmasterError):
                part = part_of(self.recipe, next(iter(shares)), {name: None})
                made = quote_now(self.service, _with_total(part, None), self.environ)
        return made.cost_usd.p50 if made is not None and made.cost_usd and not made.is_unknown else 0.0

    def _takes_none(self, name: str, place: str) -> bool:
        """Whether a place would not give a single node either."""
        return bool(self.ask(self.service, part_of(self.recipe, place, {name: 1}), self.environ).refusal)

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


def _with_total(recipe: Recipe, total_usd: float | None) -> Recipe:
    budget = recipe.budget and recipe.budget.model_copy(update={"total_usd": total_usd})
    return recipe.model_copy(update={"budget": budget})


def next_place(
    service: OpenHome,
    recipe: Recipe,
    environ: Mapping[str, str],
    why: str,
    tell: Callable[[str], None],
    *,
    has_wallet: bool = False,
) -> Recipe | None:
    """The recipe in the next of its places that can begin in time, where the present one has no machines.

    One that costs is taken only if ``budget.total`` says how much: there is no question any more.

    Args:
        service: of the run's home and team.
        recipe: of the run.
        environ: of the caller.
        why: there are no machines.
        tell: takes a line for each place that was asked.
        has_wallet: the run is paid for from one, which was asked for what the present place costs.

    Returns:
        None if no other place would do now.
    """
    recipe = as_written(recipe)
    capped = recipe.budget is not None and recipe.budget.total_usd is not None
    for name in recipe.places_left:
        place, fewer = _asked_in_time(service, in_place(recipe, name), environ)
        if place.usd_per_hour and has_wallet:
            place = replace(place, refusal="it costs, and the wallet was not asked for that")
        elif place.usd_per_hour and not capped:
            place = replace(place, refusal="it costs, and `budget.total` does not say how much it may")
        tell(f"place {place.line}")
        if place.is_in_time:
            left = tuple(each for each in recipe.places_left if each != name)
            given_up = (*recipe.places_given_up, f"{recipe.provider}: {why}")
            update = {"places_left": left, "places_given_up": given_up}
            return _on_fewer(in_place(recipe, name), fewer, tell).model_copy(update=update)
    return None


def _asked_in_time(
    service: OpenHome, recipe: Recipe, environ: Mapping[str, str]
) -> tuple[Place, dict[str, int]]:
    """What a place would give; on how many nodes its sweeps begin in time if with all of them they do not."""
    first = place = asked_place(service, recipe, environ)
    nodes = {
        name: min(each.workers, len(each.tasks(recipe.seed)))
        for name, each in recipe.experiments.items()
        if each.workers and each.serve is None and each.distributed is None
    }
    if place.refusal and max(nodes.values(), default=1) > 1:  # one that never has so many may have fewer
        one = _on_fewer(recipe, dict.fromkeys(nodes, 1), lambda _: None)
        nodes = {} if asked_place(service, one, environ).refusal else nodes
    while not place.is_in_time and max(nodes.values(), default=1) > 1:
        nodes = {name: max(count // 2, 1) for name, count in nodes.items()}
        place = asked_place(service, _on_fewer(recipe, nodes, lambda _: None), environ)
    return (place, nodes) if place.is_in_time and place is not first else (first, {})


def check_places(
    service: Service, recipe: Recipe, environ: Mapping[str, str], *, has_code: bool = True
) -> list[str]:
    """Refuse what no place of a recipe could ever run, as `check_run` does; notes for the user.

    Raises:
        UsageError: saying why of each.
    """
    from trainmaster.service.renting import check_run

    def check(part: Recipe) -> list[str]:
        return check_run(service, part, environ, has_code=has_code)

    has_own = any(each.provider for each in recipe.experiments.values())
    if not recipe.places and not has_own:
        return check(recipe)
    if not has_own:
        notes, refusals = _tried((in_place(recipe, name) for name in recipe.places), check)
        if len(refusals) < len(recipe.places):
            return [*dict.fromkeys(notes), *_lines(refusals)]
        if len(recipe.experiments) == 1 or any(capabilities_of(name).is_here for name in recipe.places):
            raise _all_refused(refusals)
    told, experiments = list[str](), dict(recipe.experiments)
    for name, each in experiments.items():
        places = each.provider or recipe.places or (recipe.provider,)
        if len(places) > 1:
            _, refusals = _tried((part_of(recipe, place, {name: None}) for place in places), check)
            if len(refusals) == len(places):
                raise _all_refused(refusals)
            told += [f"{name} at {line}" for line in _lines(refusals)]
            places = tuple(place for place in places if place not in refusals)
        experiments[name] = each.model_copy(update={"provider": places[:1], "shares": {}})
    first = next(iter(experiments.values())).provider[0]
    update = {"provider": first, "places": (), "experiments": experiments}
    return [*check(recipe.model_copy(update=update)), *told]


def _tried(
    parts: Iterable[Recipe], check: Callable[[Recipe], list[str]]
) -> tuple[list[str], dict[str, TrainmasterError]]:
    """Notes of those that are fine, and why others are refused, by their place."""
    notes: list[str] = []
    refusals: dict[str, TrainmasterError] = {}
    for part in parts:
        try:
            notes += check(part)
        except TrainmasterError as error:
            refusals[part.provider] = error
    return notes, refusals


def _lines(refusals: Mapping[str, TrainmasterError]) -> list[str]:
    return [_refused(name, error).line for name, error in refusals.items()]


def _all_refused(refusals: Mapping[str, TrainmasterError]) -> TrainmasterError:
    is_one = len({str(error) for error in refusals.values()}) == 1  # it is not the place
    return next(iter(refusals.values())) if is_one else _none(_lines(refusals))


def _none(lines: list[str]) -> UsageError:
    reasons = "\n".join(dict.fromkeys(lines))  # the whole, then each experiment, may be refused alike
    hint = "Name another place, or see with `trainmaster doctor --provider NAME` what one of these lacks."
    return UsageError(f"no place would give what this recipe asks for:\n{reasons}", hint)


def asked_place(service: OpenHome, recipe: Recipe, environ: Mapping[str, str]) -> Place:
    """What a place would give; nothing is rented."""
    name = recipe.provider
    try:
        if capabilities_of(name).is_here:
            from trainmaster.service.quotes.worker_counts import with_fewest

            service.check(with_fewest(recipe), environ)
            return Place(name, "this machine")
        from trainmaster.service.renting import asked_of

        machines, usd_per_hour, wait_s, nodes = asked_of(service, recipe, environ, datetime.now(UTC).date())
        return Place(name, machines, usd_per_hour, wait_s, nodes=nodes)
    except TrainmasterError as error:
        return _refused(name, error)


def _refused(name: str, error: TrainmasterError) -> Place:
    words = str(error.args[0]).removeprefix(f"provider: {name}: ")
    return Place(name, refusal=words.partition("\n")[0].rstrip(":"), hint=error.hint)
