"""`next_place`: where a run goes that is in one of its places, when that has no machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from trainmaster.service.places.place import Place, asked_place, halved
from trainmaster.service.places.settling import tell_fewer
from trainmaster.spec.recipe_parts import as_written, in_place, on_fewer

if TYPE_CHECKING:
    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec import Recipe


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
            tell_fewer(recipe, fewer, tell)
            return on_fewer(in_place(recipe, name), fewer).model_copy(update=update)
    return None


def _asked_in_time(
    service: OpenHome, recipe: Recipe, environ: Mapping[str, str]
) -> tuple[Place, dict[str, int]]:
    """What a place would give; on how many nodes its sweeps begin in time if with all of them they do not."""
    most = {
        name: min(each.workers, len(each.tasks(recipe.seed)))
        for name, each in recipe.experiments.items()
        if each.workers and each.serve is None and each.distributed is None
    }

    def fewer(halvings: int) -> dict[str, int]:
        return {name: max(count >> halvings, 1) for name, count in most.items()} if halvings else {}

    def ask(halvings: int) -> Place:
        return asked_place(service, on_fewer(recipe, fewer(halvings)), environ)

    def gives_one() -> bool:
        return not asked_place(service, on_fewer(recipe, dict.fromkeys(most, 1)), environ).refusal

    halvings, seen = halved(ask, max(most.values(), default=1), gives_one)
    return (seen[-1], fewer(halvings)) if seen[-1].is_in_time else (seen[0], {})
