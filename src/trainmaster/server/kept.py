"""Models that could not be published when their run ended: kept in its home, named, and saved later."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmaster.control.layout import Home
from trainmaster.server.run_names import owner_of
from trainmaster.server.stored_recipe import stored_recipe
from trainmaster.spec.errors import NotFoundError, UsageError, one_line
from trainmaster.spec.states import EndReason
from trainmaster.store import Store, kept_rows

if TYPE_CHECKING:
    from trainmaster.server.service import Service


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


def save_kept(service: Service, run: str) -> list[SavedModel]:
    """Publish all models of a run that are kept here, and record them as the run's.

    Raises:
        UsageError: somebody drives the run.
        PublishError: the store cannot be written; what was not published is still kept.
    """
    rows = kept_rows.kept_models(service.store, run)
    if not rows:
        return []
    from trainmaster.control.board import Task
    from trainmaster.control.keeping import publish_kept
    from trainmaster.control.saving import clean_up
    from trainmaster.control.workshop import Workshop

    recipe = stored_recipe(service.store.run_row(run))
    home = service.home_of(run)
    workshop = Workshop(
        home=home, run=run, recipe=recipe, base={}, secrets={},
        find_models=lambda *_: [], slots=1, owner=owner_of(service.store.run_row(run), home),
    )  # fmt: skip
    lease = service.store.acquire(run, time.time())
    if lease is None:
        raise UsageError(
            f"{run} is driven by another process",
            "It saves what it can itself: wait for its end, or cancel it.",
        )
    found = []
    try:
        for row in rows:
            context = workshop.context(
                Task(
                    row["experiment"],
                    row["number"],
                    attempt=row["kept_model"],
                    parameters=json.loads(row["parameters"]),
                    kept_model=row["kept_model"],
                )
            )
            name, uri = f"{row['experiment']}/{row['number']}", context.model_uri
            try:
                publish_kept(context, json.loads(row["metrics"]))
            except NotFoundError as error:
                service.store.record_saved(lease, row["experiment"], row["number"], None, time.time())
                found.append(SavedModel(name, "", one_line(error)))
                continue
            service.store.record_saved(lease, row["experiment"], row["number"], uri, time.time())
            clean_up(context, keep_output=False, keep_checkpoint=True)
            found.append(SavedModel(name, uri))
    finally:
        service.store.release(lease, time.time())
    return found


def unsaved_summary(store: Store, home: Home | None, run: str) -> list[dict[str, Any]]:
    """What of a run is not saved, as ``--json`` prints it.

    Args:
        store: the database.
        home: the run's; None if it is not on this machine.
        run: its id.
    """
    found: list[dict[str, Any]] = []
    for row in kept_rows.waiting_saves(store, run):
        what = "model" if row["end_reason"] == EndReason.SUCCEEDED else "checkpoint"
        found.append(_item(home, run, row, what, row["kept_model"]) | {"tries": row["tries"]})
    for row in kept_rows.kept_models(store, run):
        command = f"trainmaster models save {run}"
        found.append(_item(home, run, row, "model", row["kept_model"]) | {"command": command})
    return found


def _item(home: Home | None, run: str, row: Any, what: str, kept: int | None) -> dict[str, Any]:  # noqa: ANN401
    directory = None
    if home is not None and kept is not None:
        directory = str(home.attempt(run, row["experiment"], row["number"], kept).output("", first=True))
    return {
        "experiment": row["experiment"],
        "task": row["number"],
        "attempt": kept or row["attempt"],
        "what": what,
        "directory": directory,
    }
