"""`parts_by_place`: a recipe split into one part for each of its places."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainmaster.spec.errors import UsageError
from trainmaster.spec.experiment import OwnMachineKeys
from trainmaster.spec.objective import Budget
from trainmaster.spec.recipe import Recipe


def named_places(recipe: Recipe) -> tuple[str, ...]:
    """All places that a recipe, or one of its experiments, names.

    Those that tasks spread over come first, in their order.
    """
    shared = recipe.places or (recipe.provider,)
    ordered = sorted(recipe.experiments.values(), key=lambda one: not one.shares)
    each = (name for one in ordered for name in one.provider or shared)
    return tuple(dict.fromkeys(each)) or shared


def parts_by_place(recipe: Recipe) -> list[Recipe]:
    """Split a recipe by places; the recipe itself if all of it is in one place.

    Args:
        recipe: whose places are chosen.
    """
    found: dict[str, dict[str, int | None]] = {}
    for name, experiment in recipe.experiments.items():
        shares = experiment.shares or dict.fromkeys(experiment.provider or (recipe.provider,))
        for place, nodes in shares.items():
            found.setdefault(place, {})[name] = nodes
    if list(found) == [recipe.provider]:
        return [recipe]
    return [part_of(recipe, place, names) for place, names in found.items()]


def part_of(recipe: Recipe, place: str, names: Mapping[str, int | None]) -> Recipe:
    """Some experiments of a recipe in one place, for planning their machines; they wait for no others.

    Args:
        recipe: of the run.
        place: that they are in.
        names: of the experiments, and over how many nodes each spreads; None: as the recipe says.
    """
    experiments = {}
    for name, nodes in names.items():
        one = recipe.experiments[name]
        data = {key: source for key, source in one.data.items() if source.experiment is None}
        update: dict[str, Any] = {"provider": (), "shares": {}, "picks": {}, "after": (), "data": data}
        if one.picks.get(place):  # own hosts have no types
            update["hardware"] = one.hardware.model_copy(update={"instance": (one.picks[place],)})
        experiments[name] = one.model_copy(update=update | ({} if nodes is None else {"workers": nodes}))
    return recipe.model_copy(update={"provider": place, "places": (), "experiments": experiments})


def in_place(recipe: Recipe, provider: str) -> Recipe:
    """The recipe with all of it in one place."""
    own = [name for name, each in recipe.experiments.items() if each.provider]
    cleared = {
        name: recipe.experiments[name].model_copy(update={"provider": (), "shares": {}, "picks": {}})
        for name in own
    }
    overrides = [f"provider={provider}", *(f"experiments.{name}.provider=null" for name in own)]
    update: dict[str, object] = {"provider": provider, "places": ()}
    update |= {"overrides": (*recipe.overrides, *overrides), "experiments": {**recipe.experiments, **cleared}}
    return recipe.model_copy(update=update)


def with_limits(recipe: Recipe, **limits: float | None) -> Recipe:
    """The recipe with other limits in its budget, if it has one.

    Args:
        recipe: the recipe.
        limits: fields of `Budget`; None: no limit.
    """
    budget = recipe.budget and recipe.budget.model_copy(update=limits)
    return recipe.model_copy(update={"budget": budget})


def with_total(recipe: Recipe, usd: float) -> Recipe:
    """The recipe with so much as its ``budget.total``, as an override.

    Raises:
        UsageError: it is no amount.
    """
    if not isinstance(usd, int | float) or not 0 < usd < math.inf:
        raise UsageError(f"max_usd={usd} is no amount to spend", "Give US dollars, such as max_usd=20.")
    budget = (recipe.budget or Budget()).model_copy(update={"total_usd": usd})
    overrides = (*recipe.overrides, f"budget.total=${usd!r}")
    return recipe.model_copy(update={"budget": budget, "overrides": overrides})


def on_fewer(recipe: Recipe, nodes: Mapping[str, int]) -> Recipe:
    """The recipe with experiments on so many nodes, as an override."""
    if not nodes:
        return recipe
    experiments = dict(recipe.experiments)
    for name, count in nodes.items():
        experiments[name] = experiments[name].model_copy(update={"workers": count})
    overrides = [f"experiments.{name}.workers={count}" for name, count in nodes.items()]
    update = {"experiments": experiments, "overrides": (*recipe.overrides, *overrides)}
    return recipe.model_copy(update=update)


def plannable_again(recipe: Recipe) -> Recipe:
    """The recipe with a note of what it says of machines itself, before any are planned; see `as_written`."""
    found = {
        name: OwnMachineKeys(hardware=each.hardware, distributed=each.distributed, workers=each.workers)
        for name, each in recipe.experiments.items()
    }
    return recipe.model_copy(update={"unplanned": found})


def as_written(recipe: Recipe) -> Recipe:
    """The recipe without what was planned for the place where it is; its gangs keep their sizes."""
    experiments, overrides = dict(recipe.experiments), list(recipe.overrides)
    for name, written in recipe.unplanned.items():
        each, shape = experiments[name], written.distributed
        if shape is not None and each.distributed is not None:
            sizes = {key: getattr(each.distributed, key) for key in ("workers", "parameter_servers", "span")}
            shape = shape.model_copy(update=sizes)
        if each.workers != written.workers:
            overrides.append(f"experiments.{name}.workers={written.workers or 'null'}")
        update = {"hardware": written.hardware, "distributed": shape, "workers": written.workers}
        experiments[name] = each.model_copy(update=update)
    return recipe.model_copy(update={"experiments": experiments, "overrides": tuple(overrides)})
