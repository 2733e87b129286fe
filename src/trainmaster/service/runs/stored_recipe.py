"""`stored_recipe`: the recipe of a run as the database has it; `recipe_text`: as YAML that means the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainmaster.spec import Recipe
from trainmaster.spec.errors import StoreError


def stored_recipe(row: Mapping[Any, Any]) -> Recipe:
    """What a run was started with.

    Args:
        row: of the run.

    Raises:
        StoreError: it is damaged.
    """
    try:
        return Recipe.model_validate_json(row["recipe"])
    except (ValueError, TypeError) as error:
        words = " ".join(str(error).split())[:300]
        raise StoreError(
            f"the recipe of {row['id']} in the database (table run) is damaged: {words}",
            "What was published stays; `trainmaster clusters` lists machines that it may have. Start the "
            "recipe anew. If a later Trainmaster has written it, use that one.",
        ) from None


def recipe_text(row: Mapping[Any, Any]) -> str:
    """What a run was started with, as YAML: as it was sent, or with what else was said (`--set`, defaults).

    Args:
        row: of the run.

    Raises:
        StoreError: it is damaged.
    """
    told = json.loads(row["recipe"])
    if any(told.get(key) for key in ("overrides", "configured", "included")):
        return stored_recipe(row).as_yaml()
    return str(told.get("source_text", ""))
