"""`stored_recipe`: the recipe of a run as the database has it; `recipe_text`: as YAML that means the same.

`experiments_in_all_sizes`: its experiments, with what was changed of their gangs since.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainmaster.spec.errors import StoreError
from trainmaster.spec.node import written

if TYPE_CHECKING:
    from trainmaster.db import Database
    from trainmaster.spec import Experiment, Recipe


def stored_recipe(row: Mapping[Any, Any]) -> Recipe:
    """What a run was started with.

    Args:
        row: of the run.

    Raises:
        StoreError: it is damaged.
    """
    from trainmaster.spec import Recipe  # lists of runs read none

    try:
        return Recipe.model_validate_json(row["recipe"])
    except (ValueError, TypeError) as error:
        words = " ".join(str(error).split())[:300]
        raise StoreError(
            f"the recipe of {row['id']} in the database (table run) is damaged: {words}",
            "What was published stays; `trainmaster clusters` lists machines that it may have. Start the "
            "recipe anew. If a later Trainmaster has written it, use that one.",
        ) from None


def experiments_in_all_sizes(database: Database, run: str) -> Iterator[Experiment]:
    """Experiments of a run, each as often as its gang had another size.

    Args:
        database: that the run is in.
        run: its id.
    """
    recipe = stored_recipe(database.run_row(run))
    yield from recipe.experiments.values()
    if not any(each.adapt for each in recipe.experiments.values()):
        return
    from trainmaster.control.task.gangs import resized
    from trainmaster.db.run_facts import facts_of
    from trainmaster.spec.facts import RunFacts

    facts = RunFacts(facts_of(database, run))
    for name, each in recipe.experiments.items():
        yield from (resized(each, size.workers, size.servers) for size in facts.sizes(name).values())


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
    return text_as_sent(row)


def text_as_sent(row: Mapping[Any, Any]) -> str:
    """The file of a run's recipe, without what else was said."""
    return str(json.loads(row["recipe"]).get("source_text", ""))


def recipe_texts(rows: Sequence[Mapping[Any, Any]]) -> list[str]:
    """As they were sent, with their comments; in one form, so that keys alone differ, where that tells less.

    So where more was said of one (`--set`), or one was written by ``export``.
    """
    told = [recipe_text(row) for row in rows]
    if told == [*map(text_as_sent, rows)] and len(set(told)) == 1:
        return told
    alike = [written(stored_recipe(row).tree()) for row in rows]
    if told != [*map(text_as_sent, rows)] or 0 < _differing(alike) < _differing(told):
        return [_without_place(row) for row in rows]
    return told


def _without_place(row: Mapping[Any, Any]) -> str:
    """In one form, and not where its code lay: a capsule, or a server, has it elsewhere."""
    from trainmaster.spec.sections import is_directory

    recipe = stored_recipe(row)
    root = recipe.tree()
    kept = {key: node for key, node in root.entries.items() if key != "code" or not is_directory(recipe.code)}
    return written(replace(root, entries=kept))


def _differing(texts: Sequence[str]) -> int:
    """How many lines of texts the first one does not have."""
    first = set(texts[0].splitlines())
    return sum(line not in first for text in texts[1:] for line in text.splitlines())
