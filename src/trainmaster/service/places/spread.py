"""`best_spread`: quotes say how many machines of each place a sweep takes, and how large its gangs are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from trainmaster.advisor.quote.infeasible import NoFeasibleQuote
from trainmaster.advisor.quote.quote import Quote
from trainmaster.advisor.quote.spreading import PlaceCapacity, Spread, spread
from trainmaster.dataclass import dataclass
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.quotes.quote_record import run_end_s
from trainmaster.service.quotes.worker_counts import with_workers
from trainmaster.spec import Recipe
from trainmaster.spec.recipe_parts import with_limits
from trainmaster.spec.units import dollars, format_duration


@dataclass(frozen=True, slots=True)
class QuotedSpread:
    """A choice for a sweep.

    Attributes:
        spread: of its tasks. workers: of each task. picks: types of machines, by place; empty for own
            hosts.
    """

    spread: Spread
    workers: int
    picks: Mapping[str, str]

    @property
    def nodes(self) -> Mapping[str, int]:
        """Machines in each place."""
        return self.spread.nodes

    def words(self, objective: str) -> str:
        """For people."""
        about = f"{format_duration(self.spread.time_s)}, {dollars(self.spread.cost_usd)}"
        return f"the {objective} by the quotes of its places: about {about}"


def best_spread(
    recipe: Recipe,
    name: str,
    parts: Mapping[str, Recipe],
    waits_s: Mapping[str, float],
    most_nodes: int,
    quote: Callable[[Recipe], Quote | None],
) -> QuotedSpread | None:
    """The best by the objective of the recipe, within its limits.

    A place that alone does not keep them may do so with another one. None where no quote is known, or where
    such places do not keep them together either.

    All gangs of a sweep have one size, as a checkpoint may need it: the best of those that the quotes of its
    places take.

    Args:
        recipe: as read.
        name: of the experiment.
        parts: what is in each place that begins in time, with the machines that it would give.
        waits_s: until it could begin there.
        most_nodes: that the sweep spreads over.
        quote: of a part; None where there is none. Raises `NoFeasibleQuote` where that keeps no limits.
    """
    shaped = recipe.experiments[name].distributed
    made = {place: found for place, part in parts.items() if (found := _quoted(part, quote)) is not None}
    sizes = {one.experiments[name].cluster.workers for one, _ in made.values()}
    choices, limits = list[tuple[Spread, int, dict[str, str]]](), _limits(recipe)
    tasks = len(recipe.experiments[name].tasks(recipe.seed))
    for size in sorted(sizes):
        if len(sizes) > 1 and shaped is not None and shaped.is_flexible:
            sized = {place: with_workers(parts[place], {name: size}) for place in made}
            all_made = {place: _quoted(part, quote) for place, part in sized.items()}
            these = {place: found for place, found in all_made.items() if found is not None}
        else:
            these = made
        all_capacities = [
            _capacity(place, one, name, parts[place], waits_s[place], keeps)
            for place, (one, keeps) in these.items()
        ]
        capacities = [
            capacity
            for capacity in all_capacities
            if capacity is not None
            and capacity.tasks > 0
            and capacity.nodes <= most_nodes
            and capacity.usd_per_hour <= limits["usd_per_hour"] * (1 + 1e-9)
        ]
        if capacities:
            best = spread(capacities, tasks, most_nodes, recipe.objective, **limits)
            choices.append((best, size, {place: _pick(these[place][0], name, place) for place in best.nodes}))
    if not choices:
        return None
    weights = recipe.objective
    best, size, picks = min(
        choices,
        key=lambda each: (
            each[0].misses > 0,
            weights.time * each[0].time_s + weights.cost * each[0].cost_usd,
            each[0].cost_usd,
            each[1],
        ),
    )
    if best.misses and not all(keeps for _, keeps in made.values()):
        return None
    return QuotedSpread(best, size, picks)


def sizes_of(recipe: Recipe, name: str, best: QuotedSpread) -> dict[str, int]:
    """How many workers the gangs of a sweep have, where the recipe leaves that open."""
    shaped = recipe.experiments[name].distributed
    return {name: best.workers} if shaped is not None and shaped.is_flexible else {}


def _quoted(part: Recipe, quote: Callable[[Recipe], Quote | None]) -> tuple[Quote, bool] | None:
    """The quote of a part, and whether it keeps the limits alone."""
    with suppress(NoFeasibleQuote):
        found = quote(part)
        return None if found is None else (found, True)
    with suppress(NoFeasibleQuote):  # by the hour it costs too much
        found = quote(with_limits(part, total_usd=None, deadline_s=None))
        return None if found is None else (found, False)
    return None


def _capacity(
    place: str, quoted: Quote, name: str, part: Recipe, wait_s: float, keeps: bool
) -> PlaceCapacity | None:
    """Of a quote of all tasks in one place, where they run in rounds."""
    one, each = quoted.experiments[name], part.experiments[name]
    if one.time_s is None or one.cost_usd is None:
        return None
    cluster, tasks = one.cluster, len(each.tasks(part.seed))
    at_once = max(min(cluster.at_once, tasks), 1)
    nodes, on_node = max(cluster.worker.count // at_once, 1), max(at_once // max(cluster.worker.count, 1), 1)
    task_s = one.time_s.p50 / math.ceil(tasks / at_once) / on_node
    usd, usd_per_hour = one.cost_usd.p50 / tasks, cluster.usd_per_hour / max(cluster.worker.count, 1) * nodes
    end_usd = one.end_usd / max(cluster.worker.count, 1) * nodes
    return PlaceCapacity(
        place, (each.workers or 1) // nodes, task_s, usd, wait_s, nodes, keeps, usd_per_hour, end_usd
    )


def _pick(made: Quote, name: str, place: str) -> str:
    """The type of machine of a quote; empty for own hosts, which have none."""
    return made.experiments[name].cluster.worker.instance if capabilities_of(place).rents else ""


def _limits(recipe: Recipe) -> dict[str, Any]:
    budget = recipe.budget
    usd = None if budget is None else budget.total_usd
    time_s = None if budget is None else budget.deadline_s
    usd_per_hour = None if budget is None else budget.usd_per_hour
    return {
        "budget_usd": math.inf if usd is None else usd,
        "deadline_s": math.inf if time_s is None else time_s,
        "usd_per_hour": math.inf if usd_per_hour is None else usd_per_hour,
        "end_s": run_end_s(recipe),
    }
