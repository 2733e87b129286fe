"""Registered models that a run starts from: of a fixed version, which stays while the run needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from trainmaster.db.registry_rows import UsedVersion, use
from trainmaster.service.models.registry import Registry
from trainmaster.spec.errors import Mistake, NotFoundError, RecipeError, UsageError
from trainmaster.spec.model_reference import ModelReference

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec import DataSource, Recipe


def with_versions(opened: OpenHome, recipe: Recipe, file: str) -> Recipe:
    """The recipe with a version, and where it is, in place of each ``data: {X: {model: NAME@ALIAS}}``.

    One that has versions already stays as it is.

    Args:
        opened: for the team whose models they are.
        recipe: as read.
        file: its name in messages.

    Raises:
        RecipeError: with the line of each model that is not registered, and what is near.
    """
    if not any(source.model for _, _, source in _sources(recipe)):
        return recipe
    registry = Registry(opened, opened.team, "")
    mistakes: list[tuple[tuple[str, ...], UsageError]] = []
    experiments = {}
    for name, experiment in recipe.experiments.items():
        data = dict(experiment.data)
        for key, source in data.items():
            if source.model is None or source.model_uri is not None:
                continue
            try:
                found = registry.version(source.model)
            except (NotFoundError, UsageError) as error:
                where = ("experiments", name, "data", key, "model")
                mistakes.append((where, UsageError(error.args[0], error.hint)))
                continue
            fixed = {"model": f"{found['name']}@{found['version']}", "model_uri": found["uri"]}
            data[key] = source.model_copy(update=fixed)
        experiments[name] = experiment.model_copy(update={"data": data})
    if mistakes:
        raise _told(recipe, file if opened.team is None else "recipe", mistakes)  # teams see no path of ours
    return recipe.model_copy(update={"experiments": experiments})


def using(
    recipe: Recipe, run: str, team: str, admit: Callable[[Connection], None]
) -> Callable[[Connection], None]:
    """Note in the transaction that accepts a run which versions it starts from; then ``admit`` decides."""
    used = []
    for experiment, key, source in _sources(recipe):
        if source.model is not None:
            wanted = ModelReference.parse(source.model)
            assert wanted.version is not None, "it was planned by `with_versions`"
            used.append(UsedVersion(experiment, key, team, wanted.name, wanted.version))

    def accept(connection: Connection) -> None:
        use(connection, run, used)
        admit(connection)

    return accept if used else admit


def _sources(recipe: Recipe) -> Iterator[tuple[str, str, DataSource]]:
    for name, experiment in recipe.experiments.items():
        for key, source in experiment.data.items():
            yield name, key, source


def _told(recipe: Recipe, file: str, mistakes: list[tuple[tuple[str, ...], UsageError]]) -> UsageError:
    """All of them with their lines, if each has one: what ``--set`` has put there has none."""
    from trainmaster.spec.node import compose

    root, found = compose(recipe.source_text, file), []
    for path, error in mistakes:
        for place in (path, path[2:]):  # `data` of the recipe is every experiment's
            node = root
            for key in place:
                if key not in node.entries:
                    break
                node = node.entries[key]
            else:
                words = f"{error.args[0]}; {error.hint[:1].lower()}{error.hint[1:].rstrip('.')}"
                found.append(Mistake(node.line, node.column, ".".join(place), words))
                break
    if len(found) < len(mistakes):
        path, error = mistakes[0]
        return UsageError(f"{'.'.join(path)}: {error.args[0]}", error.hint)
    return RecipeError(file, list(dict.fromkeys(found)))
