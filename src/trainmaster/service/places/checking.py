"""`check_places`: what none of the places of a recipe could ever run is refused before the start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.places.place import no_place, places_of, refused_place
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.recipe_parts import in_place, part_of

if TYPE_CHECKING:
    from trainmaster.service.service import Service
    from trainmaster.spec import Recipe


def check_places(
    service: Service, recipe: Recipe, environ: Mapping[str, str], *, has_code: bool = True
) -> list[str]:
    """Refuse what no place of a recipe could ever run, as `check_run` does; notes for the user.

    Raises:
        UsageError: saying why of each.
    """
    from trainmaster.service.renting.plan_run import check_run

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
        places = places_of(recipe, each)
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
    return [refused_place(name, error).line for name, error in refusals.items()]


def _all_refused(refusals: Mapping[str, TrainmasterError]) -> TrainmasterError:
    is_one = len({str(error) for error in refusals.values()}) == 1  # it is not the place
    return next(iter(refusals.values())) if is_one else no_place(_lines(refusals))
