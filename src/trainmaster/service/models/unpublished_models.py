"""Models that could not be published when their run ended: kept in its home, named, and saved later."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from trainmaster.control.task.job_context import TaskContext
from trainmaster.control.task.layout import Home
from trainmaster.dataclass import dataclass
from trainmaster.db import Database, Lease, queries
from trainmaster.db.leases import RENEW_S
from trainmaster.service.runs.run_names import owner_of
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.spec.errors import NotFoundError, StoreError, UsageError, one_line
from trainmaster.spec.periodic import periodically


@dataclass(frozen=True, slots=True)
class SavedModel:
    """What became of a model that was kept.

    Attributes:
        name: experiment and task.
        uri: where it is published; empty if it was not there any more.
        error: why not, in words.
    """

    name: str
    uri: str
    error: str = ""


def save_kept(database: Database, home_of: Callable[[str], Home], run: str) -> list[SavedModel]:
    """Publish all models of a run that are kept here, and record them as the run's.

    Args:
        database: the database.
        home_of: gives the home of a run.
        run: its name.

    Raises:
        UsageError: somebody drives the run.
        PublishError: the store cannot be written; what was not published is still kept.
    """
    rows = queries.kept_models(database, run)
    if not rows:
        return []
    from trainmaster.control.loop.attempt_actions import AttemptActions
    from trainmaster.control.loop.run_state import Task

    recipe, home = stored_recipe(database.run_row(run)), home_of(run)
    actions = AttemptActions(
        home=home, run=run, recipe=recipe, secrets={},
        find_models=lambda *_: [], owner=owner_of(database.run_row(run), home),
    )  # fmt: skip
    lease = database.acquire(run)
    if lease is None:
        raise UsageError(
            f"{run} is driven by another process",
            "It saves what it can itself: wait for its end, or cancel it.",
        )
    found = []
    try:
        with renewed(database, lease):
            while rows:  # those that are recorded are kept no more
                for row in rows:
                    context = actions.context(
                        Task(
                            row["experiment"],
                            row["number"],
                            attempt=row["kept_model"],
                            parameters=json.loads(row["parameters"]),
                            kept_model=row["kept_model"],
                        )
                    )
                    found.append(_saved(database, lease, context, json.loads(row["metrics"])))
                rows = queries.kept_models(database, run)
    finally:
        database.release(lease)
    return found


def _saved(database: Database, lease: Lease, context: TaskContext, metrics: Any) -> SavedModel:  # noqa: ANN401
    """Publish one of them, and record that."""
    from trainmaster.control.attempt.unpublished import publish_kept

    experiment, task, uri = context.experiment.name, context.task, context.model_uri
    try:
        publish_kept(context, metrics)
    except NotFoundError as error:
        database.record_saved(lease, experiment, task, None, time.time())
        return SavedModel(f"{experiment}/{task}", "", one_line(error))
    gated = context.experiment.require is not None
    database.record_saved(lease, experiment, task, uri, time.time(), gated=gated)
    context.place.clean_up(keep_output=False, keep_checkpoint=True)
    return SavedModel(f"{experiment}/{task}", uri)


@contextmanager
def renewed(database: Database, lease: Lease) -> Iterator[None]:
    """Renew a lease meanwhile: a large model takes longer to publish than it lasts.

    A process that loses it all the same, asleep for instance, learns that from the next record.
    """

    def renew() -> None:
        with suppress(StoreError):
            database.renew(lease, time.time())

    with periodically(renew, RENEW_S, "lease"):
        yield
