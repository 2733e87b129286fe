"""Registered models that a run starts from: of a fixed version, which stays while the run needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from trainmaster.db.registry_rows import UsedVersion, use
from trainmaster.spec.errors import NotFoundError, TrainmasterError, UsageError
from trainmaster.spec.model_reference import ModelReference

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec import DataSource, Recipe


def with_versions(opened: OpenHome, recipe: Recipe) -> Recipe:
    """The recipe with a version, and where it is, in place of each ``data: {X: {model: NAME@ALIAS}}``.

    One that has versions already stays as it is.

    Args:
        opened: for the team whose models they are.
        recipe: as read.

    Raises:
        RecipeError: with the line of each model that is not registered, and what is near.
    """
    if not any(source.model for _, _, source in _sources(recipe)):
        return recipe
    from trainmaster.service.models.registry import Registry

    registry = Registry(opened, opened.team, "")
    mistakes: list[tuple[tuple[str, ...], TrainmasterError]] = []
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
                mistakes.append((where, error))
                continue
            fixed = {"model": f"{found['name']}@{found['version']}", "model_uri": found["uri"]}
            data[key] = source.model_copy(update=fixed)
        experiments[name] = experiment.model_copy(update={"data": data})
    if mistakes:
        raise recipe.refused(mistakes)
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
