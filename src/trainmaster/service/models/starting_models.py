"""What a run starts from: registered models and checkpoints, which stay while it needs them, and trials."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from trainmaster.db import queries, removals, run_facts
from trainmaster.db.registry_rows import UsedVersion, use
from trainmaster.spec.errors import NotFoundError, PublishError, TrainmasterError, UsageError
from trainmaster.spec.facts import Fact
from trainmaster.spec.model_reference import ModelReference
from trainmaster.spec.sections import RunReference
from trainmaster.spec.states import EndReason, State

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, RowMapping

    from trainmaster.db import Database
    from trainmaster.service.open_home import OpenHome
    from trainmaster.service.users.caller import Caller
    from trainmaster.spec import DataSource, Experiment, Recipe
    from trainmaster.sweeps import Trial
    from trainmaster.sweeps.earlier import Mistake

#: Keys of an experiment that name a run: section, attribute, key in the recipe.
_NAME_RUNS: Final = (
    ("checkpoint", "begins_with", "from"), ("search", "goes_on", "from"), ("serve", "model", "model"),
)  # fmt: skip
_LATEST: Final = re.compile("latest((?:[/@].*)?)")


def with_own_latest(database: Database, recipe: Recipe, caller: Caller) -> Recipe:
    """The recipe with the id of the caller's last run in place of each ``latest``, as verbs have it.

    Raises:
        RecipeError: there is none; with the line.
    """
    from trainmaster.service.runs.run_names import resolve_run

    mistakes: list[tuple[tuple[str, ...], TrainmasterError]] = []
    experiments = dict(recipe.experiments)
    which = queries.RunFilter(None if caller.team is None else (caller.team,))
    for name, experiment in recipe.experiments.items():
        changes = {}
        for section, field, key in _NAME_RUNS:
            noun = getattr(experiment, section)
            found = _LATEST.fullmatch((noun and getattr(noun, field)) or "")
            if found is None or (
                section == "serve" and "/" not in found[1]
            ):  # so a registered model is named
                continue
            try:
                run = resolve_run(database, "latest", which, caller.own)
            except NotFoundError as error:
                mistakes.append((("experiments", name, section, key), error))
                continue
            changes[section] = noun.model_copy(update={field: f"{run}{found[1]}"})
        experiments[name] = experiment.model_copy(update=changes)
    if mistakes:
        raise recipe.refused(mistakes)
    return recipe.model_copy(update={"experiments": experiments})


def with_versions(opened: OpenHome, recipe: Recipe) -> Recipe:
    """The recipe with versions, and where they are, in place of what it starts from.

    That is each ``data: {X: {model: NAME@ALIAS}}``, each ``checkpoint: {from: RUN}`` and each
    ``search: {from: RUN}``. One that has versions already stays the same.

    Args:
        opened: for the team whose they are.
        recipe: as read.

    Raises:
        RecipeError: with the line of each that is not there, and what is near.
    """
    if not recipe.starts_from:
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
        key = "checkpoint"
        try:
            found = _with_beginning(opened, experiment)
            key = "search"
            experiments[name], wrong = _going_on(opened, found, recipe.seed)
        except (NotFoundError, UsageError, PublishError) as error:
            mistakes.append((("experiments", name, key, "from"), error))
            continue
        mistakes += ((("experiments", name, *path), error) for path, error in wrong)
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


def _going_on(opened: OpenHome, experiment: Experiment, seed: int) -> tuple[Experiment, list[Mistake]]:
    """With the number of the earlier tasks that its search goes on with; and why it cannot do so.

    Raises:
        NotFoundError: there is no such run, or it is not the team's to see; or it has none.
        UsageError: it is not over, or several could be meant.
    """
    if experiment.search is None or experiment.search.earlier is None:
        return experiment, []
    from trainmaster.service.runs.stored_recipe import stored_recipe
    from trainmaster.sweeps.earlier import MOST, mistakes

    wanted = experiment.search.earlier
    row = _row(opened, wanted.run, "more of its tasks may still show something")
    recipe, run = stored_recipe(row), row["id"]
    having = [name for name, each in recipe.experiments.items() if each.parameters]
    name = RunReference(run, wanted.experiment).one_of(
        experiment.name, having, list(recipe.experiments), "have parameters"
    )
    trials = _trials(opened, run, name, experiment.search.metric)
    if not trials or len(trials) < (wanted.number or 0):
        raise NotFoundError(f"{run}/{name} knows of {len(trials)} tasks", "Name another run, or none.")
    trials = trials[: wanted.number]
    if len(trials) > MOST:
        raise UsageError(f"{run}/{name} has {len(trials)} tasks", f"A search goes on with {MOST} at most.")
    search = experiment.search.model_copy(update={"goes_on": f"{run}/{name}@{len(trials)}"})
    found = experiment.model_copy(update={"search": search})
    return found, mistakes(found, seed, recipe.experiments[name], recipe.seed, trials)


def _trials(opened: OpenHome, run: str, experiment: str, metric: str) -> tuple[Trial, ...]:
    """What the tasks of an experiment of a run that is over have shown, after those that it went on with."""
    from trainmaster.sweeps.earlier import ended_trial, from_json

    before = run_facts.facts_of(opened.database, run).get((Fact.TRIALS, experiment))
    earlier = () if before is None else from_json(before)
    own = (
        ended_trial(
            len(earlier) + row["number"],
            json.loads(row["parameters"]),
            EndReason(row["reason"]) if row["reason"] else None,
            json.loads(row["metrics"]),
            metric,
        )
        for row in queries.results(opened.database, run, experiment)
    )
    return (*earlier, *own)


def _row(opened: OpenHome, named: str, why: str) -> RowMapping:
    """The row of a run that is over.

    Args:
        opened: for the team that asks.
        named: the run, as `resolve_run` takes it; on a server after `with_own_latest`.
        why: it has to be over.

    Raises:
        NotFoundError: there is no such run, or it is not the team's to see.
        UsageError: it is not over.
    """
    from trainmaster.service.runs.run_names import resolve_run

    which = queries.RunFilter(None if opened.team is None else (opened.team,))
    run = resolve_run(opened.database, named, which)
    row = opened.database.run_row(run)
    if row["state"] != State.DONE:
        hint = f"Wait for its end. `trainmaster cancel {run}` ends it."
        raise UsageError(f"{run} is not over: {why}", hint)
    return row


def _checkpoint(opened: OpenHome, wanted: RunReference, namesake: str) -> RunReference:
    """Which checkpoint of a run is meant.

    Raises:
        NotFoundError: there is no such run, or it is not the team's to see; or it has no such checkpoint.
        UsageError: it is not over, or several could be meant.
        PublishError: the store cannot be read.
    """
    from trainmaster.artifacts.checkpoints import CheckpointSeries
    from trainmaster.objects import ObjectStore
    from trainmaster.service.runs.run_names import owner_of
    from trainmaster.service.runs.stored_recipe import stored_recipe

    row = _row(opened, wanted.run, "its last checkpoint is still to come")
    run = row["id"]
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
    named = RunReference(run, wanted.experiment, wanted.task, wanted.number)
    found = named.settled(namesake, tasks)
    series = CheckpointSeries(opened.home.checkpoints_uri(*found.place), owner_of(row, opened.home))
    whole = series.complete()
    if not whole or found.number not in (None, *whole):
        has = f"it has {', '.join(map(str, whole))}" if whole else "none of it is complete"
        raise NotFoundError(f"there is no checkpoint {found}: {has}", "Name another one, or none.")
    return RunReference(*found.place, whole[-1] if found.number is None else found.number)


def using(
    opened: OpenHome, recipe: Recipe, run: str, team: str, admit: Callable[[Connection], None]
) -> Callable[[Connection], None]:
    """Note in the transaction that accepts a run what it starts from; then ``admit`` decides.

    Models and checkpoints stay. Of trials what they have shown is kept with the new run.
    """
    used = []
    for experiment, key, source in _sources(recipe):
        if source.model is not None:
            wanted = ModelReference.parse(source.model)
            assert wanted.version is not None, "it was planned by `with_versions`"
            used.append(UsedVersion(experiment, key, team, wanted.name, wanted.version))
    runs = {found.run for each in recipe.experiments.values() if (found := each.beginning)}
    trials = dict(_kept_trials(opened, recipe))

    def accept(connection: Connection) -> None:
        use(connection, run, used)
        removals.require_whole(connection, runs)
        run_facts.begin_with(connection, run, Fact.TRIALS, trials)
        admit(connection)

    return accept


def _kept_trials(opened: OpenHome, recipe: Recipe) -> Iterator[tuple[str, str]]:
    """By experiment what those of an earlier run have shown."""
    for name, experiment in recipe.experiments.items():
        search = experiment.search
        if search is not None and search.earlier is not None:
            from trainmaster.sweeps.earlier import to_json

            found = _trials(opened, search.earlier.run, search.earlier.experiment or "", search.metric)
            yield name, to_json(found[: search.earlier_count])


def _sources(recipe: Recipe) -> Iterator[tuple[str, str, DataSource]]:
    for name, experiment in recipe.experiments.items():
        for key, source in experiment.data.items():
            yield name, key, source
