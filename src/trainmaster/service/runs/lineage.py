"""`lineage`: what a model was made of."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.control.attempt.recorded_environment import environment_noted_before
from trainmaster.db import queries
from trainmaster.db.run_facts import facts_of
from trainmaster.db.workflow_rows import started_by
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.spec.facts import Fact
from trainmaster.spec.redaction import redacted

if TYPE_CHECKING:
    from trainmaster.control.task.layout import Home
    from trainmaster.service.open_home import OpenHome


def lineage(opened: OpenHome, run: str, experiment: str, task: int) -> dict[str, Any]:
    """What a model was made of.

    Returns:
        ``code`` (SHA-256 of its files), ``seed``, ``attempt``, and ``data``: of each ``name`` its
        ``kind`` (``volume``, ``url``, ``dir``, ``from`` or ``model``) and ``source``,
        of volumes with the version; and ``environment`` (``python``, ``platform``, ``packages``;
        of a container ``image`` and ``digest``), None where that was not recorded. Of a volume also
        ``made_by``, if a task of a run has pushed that version: the run; and ``workflow``: ``workflow``,
        ``trigger`` and ``cause`` of what started the run, or None.
    """
    from trainmaster.control.attempt.data_sources import BUILT_IN_PREFIX, volume_url

    database = opened.database
    row = database.run_row(run)
    recipe = stored_recipe(row)
    facts = facts_of(database, run)
    try:  # what an earlier Trainmaster found out lies in files there, and nowhere else
        here = opened.home_of(run)
    except UsageError:
        here = None
    before = [] if here is None else _volumes_seen_before(here, run)
    data = []
    for name, source in recipe.experiments[experiment].data.items():
        kind, text = next(
            (kind, value)
            for kind, value in (
                ("volume", source.volume),
                ("url", source.url),
                ("dir", source.directory),
                ("from", source.experiment),
                ("model", source.model),
            )
            if value
        )
        if kind == "volume":
            place = volume_url(text, row["store_url"])
            of_old = (uri for uri in before if uri.rpartition("@")[0] in (place, place.rpartition("@")[0]))
            known = facts.get((Fact.VOLUME, text)) or next(of_old, text)
            text = text if known.startswith(BUILT_IN_PREFIX) else known
        found = {"name": name, "kind": kind, "source": redacted(text)}
        if kind == "volume" and (made_by := _made_by(volume_url(text, row["store_url"]))):
            found["made_by"] = made_by
        data.append(found)
    attempts = [each["number"] for each in queries.attempts(database, run, experiment, task)]
    noted = facts.get((Fact.ENVIRONMENT, experiment))
    environment = None if noted is None else json.loads(noted)
    if environment is None and here is not None:
        environment = environment_noted_before(here, run, experiment)
    return {
        "code": Path(row["code_path"]).name,
        "seed": recipe.seed,
        "attempt": max(attempts, default=None),
        "data": data,
        "workflow": started_by(database, run),
        "environment": environment,
    }


def _made_by(uri: str) -> str:
    """The run whose task has pushed a version of a volume, if one has and that can be read."""
    from trainmaster.objects import ObjectStore
    from trainmaster.volumes.packed.head import MADE_BY, head_of

    url, _, version = uri.rpartition("@")
    if "://" not in url or not version.isdecimal():
        return ""
    with suppress(TrainmasterError, OSError):
        head = head_of(ObjectStore(url), int(version))
        for note in () if head is None else head.notes:
            if note.startswith(MADE_BY):
                return note.removeprefix(MADE_BY)
    return ""


def _volumes_seen_before(home: Home, run: str) -> list[str]:
    """Which versions of volumes an earlier Trainmaster wrote down, beside a run's data."""
    try:
        return sorted({pin.read_text() for pin in home.data_directory(run).rglob("*.volume")})
    except OSError:
        return []
