"""What is said of a job of which nothing is known: when it starts, and what ends it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trainmaster.advisor.quote import beliefs
from trainmaster.advisor.quote.explaining import explained_phases
from trainmaster.advisor.quote.interval import Interval
from trainmaster.advisor.quote.quantiles import interval
from trainmaster.advisor.quote.quote import ClusterShape, ExperimentQuote, Quote
from trainmaster.advisor.quote.timing import DRAWS
from trainmaster.advisor.quote.unknown_time import UnknownTime
from trainmaster.spec import Recipe
from trainmaster.spec.log_normal import LogNormal
from trainmaster.spec.units import dollars, format_duration


def quote_of_unknown(
    recipe: Recipe,
    clusters: Mapping[str, ClusterShape],
    before: Mapping[str, Sequence[tuple[str, LogNormal]]],
    why: Mapping[str, str],
    notes: tuple[str, ...],
) -> Quote:
    """What can be said of a recipe at once.

    Args:
        recipe: of the run.
        clusters: of each experiment the smallest that it runs on.
        before: phases of each until its members start.
        why: nothing is known of each, or not how long it is.
        notes: what the user should know.
    """
    quoted, starts = {}, dict[str, Interval]()
    for number, (name, each) in enumerate(clusters.items()):
        rng = np.random.default_rng((11, number))
        phases = {"": beliefs.OVERHEAD_S.median * np.exp(beliefs.OVERHEAD_S.spread * rng.normal(size=DRAWS))}
        for phase, belief in before[name]:
            took = belief.median * np.exp(belief.spread * rng.normal(size=DRAWS))
            phases[phase] = phases.get(phase, 0.0) + took
        starts[name] = interval(np.sum(list(phases.values()), axis=0))
        told = tuple(one for one in explained_phases(phases) if one.name and one.time_s.p50)
        quoted[name] = ExperimentQuote(name, each, notes=(why[name],), phases=told)
    roots = [each for name, each in starts.items() if not recipe.experiments[name].depends_on]
    first = min(roots or starts.values(), key=lambda one: one.p50)
    ends = stop_conditions(recipe, [each.usd_per_hour for each in clusters.values()])
    return Quote(quoted, None, None, notes=notes, unknown=UnknownTime(first, ends))


def stop_conditions(recipe: Recipe, usd_per_hour: Sequence[float]) -> str:
    """What ends it, whatever it does.

    Args:
        recipe: of the run.
        usd_per_hour: of the cluster of each experiment; they may come one after the other.
    """
    found = []
    budget = recipe.budget
    if budget is not None and budget.total_usd is not None and any(usd_per_hour):
        least = min(usd_per_hour)
        longest = f", after {format_duration(budget.total_usd / least * 3600)} at most" if least else ""
        found.append(f"budget.total ends it at {dollars(budget.total_usd)}{longest}")
    limits = {name: one.timeout_s for name, one in recipe.experiments.items() if one.timeout_s is not None}
    for name, timeout_s in limits.items():
        which = f"experiments.{name}.timeout" if len(recipe.experiments) > 1 else "timeout"
        found.append(f"{which} ends an attempt after {format_duration(timeout_s)}")
    return "; ".join(found)
