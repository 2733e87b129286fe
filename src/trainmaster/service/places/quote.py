"""`quote_in_places`: the quote of a run whose experiments, or tasks of a sweep, are in several places."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from trainmaster.advisor.market.hourly_cost import ancestors, most_at_once
from trainmaster.advisor.quote.interval import Interval
from trainmaster.advisor.quote.quote import ExperimentQuote, PlaceRow, Quote
from trainmaster.advisor.quote.spreading import PlaceCapacity, tasks_by_place
from trainmaster.advisor.quote.unknown_time import UnknownTime
from trainmaster.cluster.renting.plan import ClusterPlan
from trainmaster.dataclass import dataclass
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.places.place import Ask, Place, asked_place, wait_words
from trainmaster.service.places.table import PlaceTable
from trainmaster.service.quotes.job_knowledge import NO_END, NOT_MEASURED
from trainmaster.service.quotes.quote_options import QuoteOptions, TaskShare
from trainmaster.service.quotes.quote_record import limit_notes
from trainmaster.service.quotes.worker_counts import with_fewest
from trainmaster.service.renting.cheapest import plans_of
from trainmaster.service.service import Service
from trainmaster.spec import Recipe
from trainmaster.spec.errors import TrainmasterError, UsageError, one_line
from trainmaster.spec.recipe_parts import parts_by_place, with_limits

#: Before the tasks, and after them: once for each place, however many tasks it has.
_BEFORE: Final = ("machines", "image", "setup")
_AFTER: Final = "giving back"

#: Quotes what is in one place.
Quoting = Callable[["Recipe", QuoteOptions], Quote]


@dataclass(frozen=True)
class _QuotedPart:
    """What is in one place: its recipe with machine types, and machines and tasks of each experiment."""

    recipe: Recipe
    shares: Mapping[str, TaskShare]
    wait_s: float | None
    quote: Quote

    @property
    def place(self) -> str:
        return self.recipe.provider


def quote_in_places(
    settled: Recipe,
    seen: PlaceTable,
    ask: Ask = asked_place,
    *,
    quote: Quoting | None = None,
    options: QuoteOptions | None = None,
    plans: Sequence[ClusterPlan] | None = None,
) -> Quote:
    """Of a recipe whose places are settled; each place has the machines that a run takes there.

    Time is until the last task has ended. Neither time nor cost has the waits, which the table of places has.

    Args:
        settled: see `settled_place`.
        seen: of the recipe before it was settled, with what all of it would take in the places asked.
        ask: a place, for its wait.
        quote: of what is in one place, may measure; without, by what is known now.
        options: of the quote.
        plans: of all its clusters, with the fewest workers where the recipe leaves that open; None: planned.

    Raises:
        UsageError: there is none of a part.
    """
    recipe, options, parts = with_fewest(settled), options or QuoteOptions(), list[_QuotedPart]()
    plans, quote = plans or plans_of(seen.service, recipe, seen.environ), quote or seen.quote_part
    measured = set[str]()  # again, once for all places
    for bare in parts_by_place(recipe):
        if all(each.serve is not None for each in bare.experiments.values()):
            continue  # it has no end
        one, machines = _planned(bare, plans)
        shares = {name: TaskShare(count) for name, count in machines.items()}
        is_new = not one.experiments.keys() <= measured
        made = quote(one, replace(options, shares=shares, fresh=options.fresh and is_new))
        measured |= one.experiments.keys()
        parts.append(_QuotedPart(one, shares, ask(seen.service, bare, seen.environ).wait_s, made))
    if not parts:
        raise UsageError(
            f"{recipe.name} has services only: they have no end, so there is no time and no cost to quote",
            "`trainmaster run` says what their machines cost per hour, and asks, before it rents any.",
        )
    counts = {name: _counts(recipe, name, parts) for part in parts for name in part.shares}
    for number, part in enumerate(parts):
        shares = {name: replace(share, tasks=counts[name][part.place]) for name, share in part.shares.items()}
        made = part.quote
        if any(len(counts[name]) > 1 for name in shares):
            made = quote(part.recipe, replace(options, shares=shares, fresh=False))
        parts[number] = replace(part, shares=shares, quote=made)
    rows = [_row(part) for part in parts]
    seen.ask_again()
    whole = [each.row for each in seen.quoted()]
    rows += [replace(row, why_not=row.why_not or "this is what it would take alone") for row in whole]
    return _together(recipe, parts, tuple(rows))


def estimate_in_places(
    service: Service,
    settled: Recipe,
    environ: Mapping[str, str],
    plans: Sequence[ClusterPlan],
    options: QuoteOptions | None = None,
) -> dict[str, Any]:
    """The quote by what is known now, or why there is none: what a `RentalOffer` says of it."""

    def begins(_: object, part: Recipe, __: object) -> Place:
        return Place(part.provider)

    try:
        seen = PlaceTable(service, settled, environ, options)
        made = quote_in_places(settled, seen, begins, plans=plans, options=options)
    except TrainmasterError as reason:
        return {"no_quote": one_line(reason)}
    if made.unknown is not None:
        return {"unknown": made.unknown, "no_quote": made.unknown.why or NOT_MEASURED}
    if unknown := [row.place for row in made.places if row.is_unknown]:
        return {"no_quote": f"nothing is known of what is on {' and '.join(unknown)}"}
    return {"quote": made}


def _planned(part: Recipe, plans: Iterable[ClusterPlan]) -> tuple[Recipe, dict[str, int]]:
    """What is in one place without limits, on the machines that were planned there; how many these are."""
    experiments, machines = dict(part.experiments), dict[str, int]()
    for plan in (plan for plan in plans if plan.provider == part.provider):
        workers, best = plan.roles[0], plan.roles[0].rentals[0]
        for name in (name for name in plan.experiments if name in experiments):
            machines[name] = workers.count
            if capabilities_of(part.provider).rents:
                changes = {"instance": (best.instance_type,), "spot": best.spot}
                hardware = experiments[name].hardware.model_copy(update=changes)
                experiments[name] = experiments[name].model_copy(update={"hardware": hardware})
    part = with_limits(part, total_usd=None, deadline_s=None, usd_per_hour=None)
    return part.model_copy(update={"experiments": experiments}), machines


def _counts(recipe: Recipe, name: str, parts: Sequence[_QuotedPart]) -> dict[str, int]:
    """How many tasks of an experiment run in each place."""
    own, tasks = (
        [part for part in parts if name in part.shares],
        len(recipe.experiments[name].tasks(recipe.seed)),
    )
    if len(own) == 1:
        return {own[0].place: tasks}
    is_known = all(name in part.quote.experiments and not part.quote.is_unknown for part in own)
    capacities = [_capacity(part, name, tasks) if is_known else _equal(part, name) for part in own]
    gangs = {
        part.place: max(part.shares[name].machines // capacity.nodes, 1)
        for part, capacity in zip(own, capacities, strict=True)
    }
    return tasks_by_place(capacities, tasks, gangs)


def _capacity(part: _QuotedPart, name: str, tasks: int) -> PlaceCapacity:
    one = part.quote.experiments[name]
    if one.time_s is None:
        return _equal(part, name)
    at_once = max(min(one.cluster.at_once, tasks), 1)
    phases = {each.name: each.time_s.p50 for each in one.phases}
    before_s = sum(phases.get(each, 0.0) for each in _BEFORE)
    task_s = (one.time_s.p50 - before_s - phases.get(_AFTER, 0.0)) / math.ceil(tasks / at_once)
    nodes = max(part.shares[name].machines // at_once, 1)
    return PlaceCapacity(part.place, at_once, max(task_s, 1e-3), 0.0, (part.wait_s or 0.0) + before_s, nodes)


def _equal(part: _QuotedPart, name: str) -> PlaceCapacity:
    """Where nothing is known, each machine is as good as any other."""
    shaped = part.recipe.experiments[name].distributed
    workers = shaped.workers if shaped is not None and isinstance(shaped.workers, int) else 1
    return PlaceCapacity(part.place, max(part.shares[name].machines // workers, 1), 1.0, 0.0, 0.0, workers)


def _row(part: _QuotedPart) -> PlaceRow:
    usd = sum(one.cluster.usd_per_hour for one in part.quote.experiments.values())
    tasks = {name: share.tasks for name, share in part.shares.items() if share.tasks is not None}
    plain = PlaceRow(part.place, "", usd, wait=wait_words(part.wait_s), is_taken=True, tasks=tasks)
    return replace(plain.quoted(part.quote), wait=plain.wait)


def _together(recipe: Recipe, parts: Sequence[_QuotedPart], rows: tuple[PlaceRow, ...]) -> Quote:
    """One quote of all parts: the critical path, and the sum; each quantile by those of the parts."""
    found, spans = dict[str, "ExperimentQuote"](), dict[str, Interval | None]()
    warm = list[str]()
    for name in recipe.order():
        own = [part for part in parts if name in part.quote.experiments]
        each = {part.place: part.quote.experiments[name] for part in own}
        for part in own:
            label = f"{name} at {part.place}" if len(each) > 1 else name
            found[label] = replace(each[part.place], name=label)
            warm += [label] * (name in part.quote.warm)
        before = [spans[other] for other in recipe.experiments[name].depends_on if other in spans]
        own_s = _latest([one.time_s for one in each.values()])
        spans[name] = _sum([_latest(before), own_s]) if before else own_s
        if not each:
            del spans[name]
    time_s, cost_usd = _latest([*spans.values()]), _sum([part.quote.cost_usd for part in parts])
    costing = [p.quote for p in parts if capabilities_of(p.place).costs] or [parts[0].quote]
    services = {name: NO_END for name, one in recipe.experiments.items() if one.serve is not None}
    missing = services | {name: why for part in parts for name, why in part.quote.not_quoted.items()}
    quoted = {name for part in parts for name in part.recipe.experiments}
    alone = [f"{name} is not in this quote: {NO_END}" for name in services if name not in quoted]
    prices = [one.cluster.usd_per_hour for one in found.values()]
    end_usd = 0.0 if cost_usd is None else _end_usd(recipe, parts)
    wanted: dict[str, Any] = {}
    for part in parts:
        wanted = {**part.quote.to_measure, **wanted}
    return Quote(
        found,
        time_s,
        cost_usd,
        policy=parts[0].quote.policy,
        catalogue=", ".join(dict.fromkeys(each.catalogue for each in costing if each.catalogue)),
        as_of=min((each.as_of for each in costing if each.as_of), default=""),
        not_quoted={name: why for name, why in missing.items() if name not in spans},
        notes=(*limit_notes(recipe, time_s, cost_usd, end_usd), *_notes(parts), *alone),
        to_measure=wanted,
        places=rows,
        unknown=_unknown(recipe, [part.quote for part in parts], prices),
        end_usd=end_usd,
        warm=tuple(warm),
    )


def _end_usd(recipe: Recipe, parts: Sequence[_QuotedPart]) -> float:
    """What the run keeps of its budget for its end: of the machines of all places that are there at once."""
    before = ancestors({name: each.depends_on for name, each in recipe.experiments.items()})
    usd, serves = dict[str, float](), dict[str, list[str]]()
    for part in parts:
        for name, one in part.quote.experiments.items():
            at = f"{name} {part.place}"
            usd[at], serves[at] = one.end_usd, [name]
    return most_at_once(usd, serves, before)


def _unknown(recipe: Recipe, quotes: Sequence[Quote], prices: Sequence[float]) -> UnknownTime | None:
    """When the part with the first experiment starts, and what ends the run; None if a part is known."""
    if not all(each.is_unknown for each in quotes):
        return None
    from trainmaster.advisor.quote.unknown import stop_conditions

    first = next(each.unknown for name in recipe.order() for each in quotes if name in each.experiments)
    return first and replace(first, ends=stop_conditions(recipe, prices))


def _notes(parts: Sequence[_QuotedPart]) -> list[str]:
    """Of all parts; what is not said of all of them with its place."""
    every = dict.fromkeys(note for part in parts for note in part.quote.notes)
    found = []
    if (unknown := [part for part in parts if part.quote.is_unknown]) and len(unknown) < len(parts):
        names = " and ".join(f"{name} at {part.place}" for part in unknown for name in part.quote.experiments)
        found.append(f"nothing is known of {names} yet, so there is neither a time nor a cost of all of it")
    for note in every:
        own = [part.place for part in parts if note in part.quote.notes]
        found.append(note if len(own) == len(parts) else f"{', '.join(own)}: {note}")
    return found


def _latest(spans: Sequence[Interval | None]) -> Interval | None:
    return _each(spans, max)


def _sum(spans: Sequence[Interval | None]) -> Interval | None:
    return _each(spans, sum)


def _each(spans: Sequence[Interval | None], of: Callable[[list[float]], float]) -> Interval | None:
    """Of each quantile; None where one of them is not known."""
    known = [each for each in spans if each is not None]
    if not known or len(known) < len(spans):
        return None
    return Interval(*(of([getattr(each, mark) for each in known]) for mark in ("p5", "p50", "p95")))
