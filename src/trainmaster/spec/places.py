"""`provider` of a recipe, and of an experiment: one, or several that are chosen from when it starts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from trainmaster.spec.node import YamlNode, changed
from trainmaster.spec.reading import Path, Problems, list_of, pattern, takes

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


def by_hand(root: YamlNode, overrides: Sequence[str], provider: str) -> list[str]:
    """Changes after others of a recipe all of which is to be in one place, whatever it names."""
    experiments = reduce(changed, overrides, root).entries.get("experiments")
    named = [] if experiments is None else experiments.entries.items()
    own = [f"experiments.{name}.provider=null" for name, each in named if "provider" in each.entries]
    return [f"provider={provider}", *own]
