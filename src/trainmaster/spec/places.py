"""`provider` of a recipe, and of an experiment: one, or several that are chosen from when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from trainmaster.spec.node import YamlNode
from trainmaster.spec.reading import Path, Problems, list_of, pattern, takes

if TYPE_CHECKING:
    from trainmaster.spec.recipe import Recipe

#: A queue starts in time if it does so within this, seconds; else the next place is asked.
IN_TIME_S: Final = 900.0
PROVIDER_NAME: Final = r"[a-z][a-z0-9_-]*"
_provider = pattern(PROVIDER_NAME, "write a provider's name such as local")
read_providers = list_of(_provider, "write a provider's name such as local, or a list of some", single=True)


def first_provider(node: YamlNode, path: Path, problems: Problems) -> str:
    """One, or the first of several; see `Recipe.places`."""
    found = read_providers(node, path, problems)
    if not found:
        raise problems.refuse(node, path, "it is empty; write a provider's name such as local")
    return found[0]


_ITEM: Final = {"type": ["string", "number", "boolean"], "pattern": f"^{PROVIDER_NAME}$"}
takes(first_provider, any=[_provider, {"type": "array", "items": _ITEM, "minItems": 1}])


def places_of(root: YamlNode) -> tuple[str, ...]:
    """All that a recipe names which was read."""
    named = root.entries.get("provider")
    return tuple(each.text for each in named.items) if named is not None and len(named.items) > 1 else ()


def by_hand(root: YamlNode, provider: str) -> list[str]:
    """Changes of a recipe all of which is to be in one place, whatever it names."""
    experiments = root.entries.get("experiments")
    named = [] if experiments is None else experiments.entries.items()
    own = [f"experiments.{name}.provider=null" for name, each in named if "provider" in each.entries]
    return [f"provider={provider}", *own]


def named_places(recipe: Recipe) -> tuple[str, ...]:
    """All places that a recipe, or one of its experiments, names.

    Those that tasks spread over come first, in their order.
    """
    shared = recipe.places or (recipe.provider,)
    ordered = sorted(recipe.experiments.values(), key=lambda one: not one.shares)
    each = (name for one in ordered for name in one.provider or shared)
    return tuple(dict.fromkeys(each)) or shared


def parted(recipe: Recipe) -> list[Recipe]:
    """What of a recipe is in each of its places: the recipe itself where all of it is in one.

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
        update: dict[str, Any] = {"provider": (), "shares": {}, "after": (), "data": data}
        experiments[name] = one.model_copy(update=update | ({} if nodes is None else {"workers": nodes}))
    return recipe.model_copy(update={"provider": place, "places": (), "experiments": experiments})
