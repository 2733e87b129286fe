"""`lineage`: what a model was made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.control.recorded_environment import noted_environment
from trainmaster.db import queries
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.spec.errors import UsageError
from trainmaster.spec.redaction import redacted

if TYPE_CHECKING:
    from trainmaster.service.open_home import OpenHome


def lineage(opened: OpenHome, run: str, experiment: str, task: int) -> dict[str, Any]:
    """What a model was made of.

    Returns:
        ``code`` (SHA-256 of its files), ``seed``, ``attempt``, and ``data``: of each ``name`` its
        ``kind`` (``volume``, ``url``, ``dir``, ``from`` or ``model``) and ``source``,
        of volumes with the version; and ``environment`` (``python``, ``platform``, ``packages``), None where
        that was not recorded.
    """
    from trainmaster.control.data_sources import volume_url

    database = opened.database
    row = database.run_row(run)
    recipe = stored_recipe(row)
    used = _volumes(opened, run)
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
            text = next(
                (uri for uri in used if uri.rpartition("@")[0] in (place, place.rpartition("@")[0])), text
            )
        data.append({"name": name, "kind": kind, "source": redacted(text)})
    attempts = [each["number"] for each in queries.attempts(database, run, experiment, task)]
    try:
        environment = noted_environment(opened.home_of(run), run, experiment)
    except UsageError:
        environment = None
    return {
        "code": Path(row["code_path"]).name,
        "seed": recipe.seed,
        "attempt": max(attempts, default=None),
        "data": data,
        "environment": environment,
    }


def _volumes(opened: OpenHome, run: str) -> list[str]:
    """Which versions of volumes a run has looked at, as far as its home is here."""
    try:
        directory = opened.home_of(run).data_directory(run)
        return sorted({pin.read_text() for pin in directory.rglob("*.volume")})
    except (UsageError, OSError):
        return []
