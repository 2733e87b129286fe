"""What a run starts from: versions of registered models, and checkpoints, which stay while it needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from trainmaster.db import removals
from trainmaster.db.registry_rows import UsedVersion, use
from trainmaster.spec.errors import NotFoundError, PublishError, TrainmasterError, UsageError
from trainmaster.spec.model_reference import ModelReference
from trainmaster.spec.sections import CheckpointReference
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec import DataSource, Experiment, Recipe


def with_versions(opened: OpenHome, recipe: Recipe) -> Recipe:
    """The recipe with versions, and where they are, in place of what it starts from.

    That is each ``data: {X: {model: NAME@ALIAS}}``, and each ``checkpoint: {from: RUN}``. One that has
    versions already stays as it is.

    Args:
        opened: for the team whose they are.
        recipe: as read.

    Raises:
        RecipeError: with the line of each that is not there, and what is near.
    """
    if not any(each.starts_from for each in recipe.experiments.values()):
        return recipe
    mistakes: list[tuple[tuple[str, ...], TrainmasterError]] = []
    experiments = dict(recipe.experiments)
    for name, key, source in _sources(recipe):
        if source.model is None or source.model_uri is not None:
            continue
        try:
            fixed = _model(opened, source.model)
        except (NotFoundError, UsageError) as error:
            mistakes.append((("experiments", name, "data", key, "model"), error))
            continue
        data = {**experiments[name].data, key: source.model_copy(update=fixed)}
        experiments[name] = experiments[name].model_copy(update={"data": data})
    for name, experiment in experiments.items():
        try:
            experiments[name] = _with_beginning(opened, experiment)
        except (NotFoundError, UsageError, PublishError) as error:
            mistakes.append((("experiments", name, "checkpoint", "from"), error))
    if mistakes:
        raise recipe.refused(mistakes)
    return recipe.model_copy(update={"experiments": experiments})


def _model(opened: OpenHome, reference: str) -> dict[str, str]:
    """Which version of a registered model is meant, and where it is."""
    from trainmaster.service.models.registry import Registry

    found = Registry(opened, opened.team, "").version(reference)
    return {"model": f"{found['name']}@{found['version']}", "model_uri": found["uri"]}


def _with_beginning(opened: OpenHome, experiment: Experiment) -> Experiment:
    """With the very checkpoint that an experiment is to begin with."""
    if experiment.checkpoint is None or experiment.beginning is None:
        return experiment
    found = str(_checkpoint(opened, experiment.beginning, experiment.name))
    fixed = experiment.checkpoint.model_copy(update={"begins_with": found})
    return experiment.model_copy(update={"checkpoint": fixed})


def _checkpoint(opened: OpenHome, wanted: CheckpointReference, namesake: str) -> CheckpointReference:
    """Which checkpoint of a run is meant.

    Raises:
        NotFoundError: there is no such run, or it is not the team's to see; or it has no such checkpoint.
        UsageError: it is not over, or several could be meant.
        PublishError: the store cannot be read.
    """
    from trainmaster.artifacts.checkpoints import CheckpointSeries
    from trainmaster.db.queries import RunFilter
    from trainmaster.db.run_rows import existing
    from trainmaster.objects import ObjectStore
    from trainmaster.service.runs.run_names import owner_of
    from trainmaster.service.runs.stored_recipe import stored_recipe
    from trainmaster.service.runs.summary import resolve_run

    if opened.team is not None and wanted.run == "latest":
        raise NotFoundError("`latest` names no run of a team", "`trainmaster status` lists the runs.")
    which = RunFilter(None if opened.team is None else (opened.team,))
    run = resolve_run(opened.database, wanted.run, which)
    row = opened.database.run_row(run)
    existing(row if opened.team in (None, row["team"]) else None, run)
    if row["state"] != State.DONE:
        raise UsageError(
            f"{run} is not over: its last checkpoint is still to come",
            f"Wait for its end, or end it with `trainmaster cancel {run}`.",
        )
    if row["store_url"].rstrip("/") != opened.home.store_url.rstrip("/"):
        where = row["store_url"] if opened.team is None else "the store of that time"
        raise UsageError(
            f"the checkpoints of {run} are on another store than this run's would be",
            f"A run begins with those of its own store: set TRAINMASTER_STORE to {where}.",
        )
    if row["trimmed_at"]:
        raise NotFoundError(f"the checkpoints of {run} were removed", "Name another run.")
    store, top = ObjectStore(row["store_url"]), f"checkpoints/{run}"
    tasks = {
        name: {int(task) for task in store.folders(f"{top}/{name}") if task.isdecimal()}
        for name in stored_recipe(row).experiments
    }
    named = CheckpointReference(run, wanted.experiment, wanted.task, wanted.number)
    found = named.settled(namesake, tasks)
    series = CheckpointSeries(opened.home.checkpoints_uri(*found.place), owner_of(row, opened.home))
    whole = series.complete()
    if not whole or found.number not in (None, *whole):
        has = f"it has {', '.join(map(str, whole))}" if whole else "none of it is complete"
        raise NotFoundError(f"there is no checkpoint {found}: {has}", "Name another one, or none.")
    return CheckpointReference(*found.place, whole[-1] if found.number is None else found.number)


def using(
    recipe: Recipe, run: str, team: str, admit: Callable[[Connection], None]
) -> Callable[[Connection], None]:
    """Note in the transaction that accepts a run what it starts from, which stays; then ``admit`` decides."""
    used = []
    for experiment, key, source in _sources(recipe):
        if source.model is not None:
            wanted = ModelReference.parse(source.model)
            assert wanted.version is not None, "it was planned by `with_versions`"
            used.append(UsedVersion(experiment, key, team, wanted.name, wanted.version))
    runs = {found.run for each in recipe.experiments.values() if (found := each.beginning)}

    def accept(connection: Connection) -> None:
        use(connection, run, used)
        removals.require_whole(connection, runs)
        admit(connection)

    return accept if used or runs else admit


def _sources(recipe: Recipe) -> Iterator[tuple[str, str, DataSource]]:
    for name, experiment in recipe.experiments.items():
        for key, source in experiment.data.items():
            yield name, key, source
