"""`lineage`: what a model was made of; `inputs_of`: what a run began with; `refuse_used_volume`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.db import queries
from trainmaster.db.run_facts import facts_of
from trainmaster.db.workflow_rows import started_by
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.spec.facts import Fact
from trainmaster.spec.redaction import redacted
from trainmaster.volumes.packed.addresses import volume_address

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.db import Database
    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec import Experiment


def lineage(opened: OpenHome, run: str, experiment: str, task: int) -> dict[str, Any]:
    """What a model was made of.

    Returns:
        ``code`` (SHA-256 of its files), ``seed``, ``attempt``, and ``data``: of each ``name`` its
        ``kind`` (``volume``, ``url``, ``dir``, ``from`` or ``model``) and ``source``,
        of volumes with the version; and ``environment`` (``python``, ``platform``, ``packages``;
        of a container ``image`` and ``digest``), None where that was not recorded. Of a volume also
        ``made_by``, if a task of a run has pushed that version: the run; ``newest``, if there is a newer
        version by now: its number; and ``workflow``: ``workflow``, ``trigger`` and ``cause`` of what started
        the run, or None.
    """
    from trainmaster.control.attempt.data_sources import volume_url

    database = opened.database
    row = database.run_row(run)
    recipe = stored_recipe(row)
    facts = facts_of(database, run)
    data = list(_data(row, recipe.experiments[experiment], facts))
    for each in data:
        if each["kind"] != "volume":
            continue
        named = recipe.experiments[experiment].data[each["name"]].volume or ""
        uri = volume_url(facts.get((Fact.VOLUME, named), named), row["store_url"])
        if made_by := _made_by(uri):
            each["made_by"] = made_by
        if newest := _newer(uri):
            each["newest"] = newest
    attempts = [each["number"] for each in queries.attempts(database, run, experiment, task)]
    noted = facts.get((Fact.ENVIRONMENT, experiment))
    return {
        "code": Path(row["code_path"]).name,
        "seed": recipe.seed,
        "attempt": max(attempts, default=None),
        "data": data,
        "workflow": started_by(database, run),
        "environment": None if noted is None else json.loads(noted),
    }


def inputs_of(opened: OpenHome, run: str) -> dict[str, dict[str, str]]:
    """What each experiment of a run began with, in the versions that it has had; if it had anything.

    Returns:
        By experiment: ``data.NAME`` (its kind and source, as of `lineage`), ``checkpoint`` and ``search``
        (``RUN/EXPERIMENT/TASK@NUMBER`` and ``RUN/EXPERIMENT@TASKS`` of the earlier run).
    """
    row, facts = opened.database.run_row(run), facts_of(opened.database, run)
    found = {}
    for name, experiment in stored_recipe(row).experiments.items():
        data = _data(row, experiment, facts)
        its = {f"data.{each['name']}": f"{each['kind']} {each['source']}" for each in data}
        if experiment.beginning is not None:
            its["checkpoint"] = str(experiment.beginning)
        if experiment.search is not None and experiment.search.earlier is not None:
            its["search"] = str(experiment.search.earlier)
        if its:
            found[name] = its
    return found


def refuse_used_volume(
    database: Database, which: queries.RunFilter, text: str, url: str, version: int | None
) -> None:
    """Refuse to remove what a run that is not over has as data.

    Args:
        database: of the runs.
        which: runs are asked about.
        text: what is to be removed, for people.
        url: of the volume.
        version: that is meant; None: all of it.

    Raises:
        UsageError: which run has it.
    """
    from trainmaster.control.attempt.data_sources import BUILT_IN_PREFIX, volume_url
    from trainmaster.objects import ObjectStore

    there = ObjectStore(url).url  # a directory has several names
    for listed in queries.runs(database, which=replace(which, is_over=False)):
        row = database.run_row(listed["id"])
        facts = facts_of(database, row["id"])
        for experiment in stored_recipe(row).experiments.values():
            for source in filter(None, (each.volume for each in experiment.data.values())):
                pinned = facts.get((Fact.VOLUME, source), source)
                if pinned.startswith(BUILT_IN_PREFIX):
                    continue
                had = volume_address(volume_url(pinned, row["store_url"]))
                if ObjectStore(had.url).url == there and version in (None, had.version or _newest(url)):
                    raise UsageError(
                        f"{text} stays: {row['id']}, which is not over, has it as data",
                        f"`trainmaster cancel {row['id']}` ends that run.",
                    )


def _newest(url: str) -> int | None:
    """The version that a run gets which has not begun with any."""
    from trainmaster.service.volumes.stored import StoredVolume

    return max(StoredVolume(url).numbers(), default=None)


def _data(
    row: RowMapping, experiment: Experiment, facts: Mapping[tuple[Fact, str], str]
) -> Iterator[dict[str, Any]]:
    from trainmaster.control.attempt.data_sources import BUILT_IN_PREFIX

    for name, source in experiment.data.items():
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
            known = facts.get((Fact.VOLUME, text), text)
            text = text if known.startswith(BUILT_IN_PREFIX) else known
        yield {"name": name, "kind": kind, "source": redacted(text)}


def _newer(uri: str) -> int | None:
    """The newest version of a volume if that is above this one; None if not, or if it cannot be read."""
    url, _, version = uri.rpartition("@")
    if "://" not in url or not version.isdecimal():
        return None
    with suppress(TrainmasterError, OSError):
        newest = _newest(url)
        return newest if newest is not None and newest > int(version) else None
    return None


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
