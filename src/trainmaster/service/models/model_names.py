"""Which models are meant by the name of a run, an experiment or a task."""

from __future__ import annotations

import json
from contextlib import suppress

from trainmaster.db import Database, queries
from trainmaster.service.runs.run_names import resolve_run
from trainmaster.spec.errors import NotFoundError, TrainmasterError, UsageError
from trainmaster.spec.states import EndReason, State


def find_models(database: Database, run: str, experiment: str, best: str | None) -> list[tuple[int, str]]:
    """(task, uri) of an experiment's models; with ``best``, only the one with the best metric.

    The goal is that of the experiment's recipe if it looks at this metric; else ``min`` for names that
    sound like a loss or an error, and ``max`` for others.

    Raises:
        UsageError: no model has that metric, or there is none.
    """
    found = queries.models(database, run, experiment)
    if best is None:
        return [(row["task"], row["uri"]) for row in found]
    if not found:
        raise UsageError(
            f"{experiment!r} has left no model, so there is no best one by {best!r}",
            "A script has to write it into TRAINMASTER_OUTPUT_DIR: one that is ended early, by `until`, "
            "`target` or a pruner, when it gets SIGTERM.",
        )
    from trainmaster.service.runs.curves import goal_of

    values = [(json.loads(row["metrics"]).get(best), row) for row in found]
    numbers = [(float(v), row) for v, row in values if isinstance(v, int | float)]
    if not numbers:
        seen = sorted({key for row in found for key in json.loads(row["metrics"])})
        raise UsageError(
            f"no model of {experiment!r} has the metric {best!r}",
            f"Metrics seen: {', '.join(seen) or 'none'}.",
        )
    stored = json.loads(database.run_row(run)["recipe"])["experiments"][experiment]
    first = min if goal_of(best, stored) == "min" else max
    row = first(numbers, key=lambda pair: (pair[0], -pair[1]["task"]))[1]
    return [(row["task"], row["uri"])]


def find_model(database: Database, name: str, run: str | None = None, *, is_own: bool = False) -> str:
    """The URI of the one model that ``RUN``, ``RUN/EXPERIMENT`` or ``RUN/EXPERIMENT/TASK`` means.

    ``best`` in place of a task, or behind a run with one experiment, is that with the best metric: the one
    that the recipe looks at, else the first that has values which are better than others.

    Args:
        database: the database.
        name: of the model.
        run: id of the run that it names; None to look for it.
        is_own: the caller reads the store: where there is no model, the error names a checkpoint there.

    Raises:
        NotFoundError: there is no such run, or it left no such model.
        UsageError: there are several.
    """
    named, *parts = name.strip("/").split("/")
    run = resolve_run(database, named) if run is None else run
    rows = [(f"{row['experiment']}/{row['task']}", row["uri"]) for row in queries.models(database, run)]
    wanted = "/".join(parts)
    found = [row for row in rows if not parts or row[0] == wanted or row[0].startswith(f"{wanted}/")]
    if len(found) == 1:
        if not parts:
            _refuse_if_others_lack(database, name, run, rows[0][0])
        return str(found[0][1])
    if parts and parts[-1] == "best" and not found:
        return _find_best(database, name, run, "/".join(parts[:-1]))
    near = found or rows
    names = ", ".join(f"{run}/{task}" for task, _ in near[:5]) + " ..." * (len(near) > 5)
    if found:
        raise UsageError(f"{name}: there are {len(found)} models", f"Name one of them: {names}")
    if names:
        raise NotFoundError(f"{name}: there is no such model", f"There are: {names}")
    row = database.run_row(run)
    if row["state"] != State.DONE:
        raise NotFoundError(f"{run} has no model yet", "A task leaves its model when it has ended.")
    if row["reason"] != EndReason.SUCCEEDED:
        why = f"`trainmaster status {run}` says why.{_newest_checkpoint(database, run) if is_own else ''}"
        raise NotFoundError(f"{run} left no model: it ended as {row['reason']}", why)
    raise NotFoundError(
        f"{run} left no model", "Its tasks must write files into the directory TRAINMASTER_OUTPUT_DIR."
    )


def _newest_checkpoint(database: Database, run: str) -> str:
    """How to get the newest one of the first task that failed and has one; empty if none has."""
    from trainmaster.artifacts import CheckpointSeries
    from trainmaster.service.runs.summary import highlights

    store = database.run_row(run)["store_url"].rstrip("/")
    for each in highlights(database, run).bad:
        task = f"{each.experiment}/{each.task}"
        series = CheckpointSeries(f"{store}/checkpoints/{run}/{task}")
        with suppress(TrainmasterError):  # the model is what was asked for
            if (number := series.newest()) is not None:
                uri = series.uri_of(number)
                begins = f"a recipe with `checkpoint: {{from: {run}/{task}}}` begins with it"
                return f"\n`trainmaster models get {uri} DIR` gets the last checkpoint of {task}; {begins}."
    return ""


def _refuse_if_others_lack(database: Database, name: str, run: str, task: str) -> None:
    """Refuse a run's only model if an experiment that does not lead to it left none: that may be meant.

    Raises:
        NotFoundError: naming these.
    """
    own = task.rpartition("/")[0]
    experiments = json.loads(database.run_row(run)["recipe"])["experiments"]
    leads: set[str] = set()
    new = [own]
    while new:
        leads.add(each := new.pop())
        keys = experiments.get(each, {})
        sources = (source.get("experiment") for source in keys.get("data", {}).values())
        new += [before for before in (*keys.get("after", ()), *sources) if before and before not in leads]
    others = [each for each in experiments if each not in leads]
    if others:
        raise NotFoundError(
            f"{name}: {', '.join(others)} left no model; the only one is of {own}",
            f"If that is meant, name it: {run}/{task}",
        )


def _find_best(database: Database, name: str, run: str, experiment: str) -> str:
    """The URI of the best model of an experiment, or of the only one that has models."""
    from trainmaster.service.runs.curves import has_goal, stated_goals

    rows = queries.models(database, run, experiment or None)
    names = dict.fromkeys(row["experiment"] for row in rows)
    if len(names) > 1:
        choice = ", ".join(f"{run}/{each}/best" for each in names)
        raise UsageError(f"{name}: models of {len(names)} experiments", f"Name one of them: {choice}")
    if not rows:
        raise NotFoundError(
            f"{name}: there is no such model", f"`trainmaster models {run}` lists its models."
        )
    experiment = next(iter(names))
    stored = json.loads(database.run_row(run)["recipe"])["experiments"][experiment]
    seen = dict.fromkeys(key for row in rows for key in json.loads(row["metrics"]))
    wanted = (*stated_goals(stored), *(key for key in seen if has_goal(key, stored)))
    metric = next((key for key in wanted if key in seen), None)
    if metric is None:
        raise UsageError(
            f"{name}: no metric says which model is the best; seen: {', '.join(seen) or 'none'}",
            f"`trainmaster models {run}` lists them.",
        )
    return find_models(database, run, experiment, metric)[0][1]
