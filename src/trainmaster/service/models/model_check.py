"""`trainmaster models fsck`: whether all models and checkpoints that the database promises can be had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.artifacts.artifact_check import ArtifactCheck
from trainmaster.artifacts.manifest import MANIFEST_KEY
from trainmaster.db import queries
from trainmaster.objects.object_store import ObjectStore
from trainmaster.service.runs.run_names import owner_of
from trainmaster.spec.errors import PublishError

if TYPE_CHECKING:
    from trainmaster.service.service import Service

_MODEL_DEPTH, _CHECKPOINT_DEPTH = 4, 5  # folders above an artifact's files, with its own


def check_models(service: Service, runs: Sequence[str] = (), *, is_deep: bool = False) -> dict[str, Any]:
    """Look for what is promised on the object stores; nothing is changed.

    Args:
        service: home and database.
        runs: their ids; all of them by default.
        is_deep: read every file, and compare its hash.

    Returns:
        ``models`` and ``checkpoints`` that were looked at, ``damaged``: ``run``, ``uri``, ``fault`` and
        ``advice`` of each, ``unnamed``: ``uri`` and ``bytes`` of what no model or checkpoint needs, and
        ``unread``: ``run`` and ``error`` of those whose store cannot be read, which hides nothing of others.
    """
    found: dict[str, Any] = {"models": 0, "checkpoints": 0, "damaged": [], "unnamed": [], "unread": []}
    for run in runs or queries.run_ids(service.database):
        try:
            _check_run(service, run, is_deep, found)
        except PublishError as error:
            found["unread"].append({"run": run, "error": str(error)})
    return found


def _check_run(service: Service, run: str, is_deep: bool, found: dict[str, Any]) -> None:
    row = service.database.run_row(run)
    url = row["store_url"].rstrip("/")
    store, owner = ObjectStore(url), owner_of(row, service.home)
    listed = [info for top in ("models", "checkpoints") for info in store.list(f"{top}/{run}")]
    sizes = {info.key: info.size_bytes for info in listed}
    models = [model["uri"].removeprefix(f"{url}/") for model in queries.models(service.database, run)]
    series = [
        key.removesuffix(f"/{MANIFEST_KEY}")
        for key in sorted(sizes)
        if key.startswith("checkpoints/")
        and key.endswith(f"/{MANIFEST_KEY}")
        and key.count("/") == _CHECKPOINT_DEPTH
    ]
    below: dict[str, dict[str, int]] = {}
    for key, size in sizes.items():
        below.setdefault(_artifact(key), {})[key] = size
    named: set[str] = set()
    for folder in [*models, *series]:
        is_model = folder.startswith("models/")
        check = ArtifactCheck(store, folder, below.get(folder, {}), owner, is_deep=is_deep)
        named.update(check.named())
        if check.is_withdrawn and not is_model:
            continue
        faults = check.faults or (["it was never completed"] if check.is_withdrawn else [])
        found["models" if is_model else "checkpoints"] += 1
        advice = (
            f"Bring it back from a copy of the store, or train it again: trainmaster run {row['recipe_path']}"
            if is_model
            else "A restart uses the newest one that is whole; nothing need be done."
        )
        found["damaged"] += [
            {"run": run, "uri": store.url_of(folder), "fault": fault, "advice": advice} for fault in faults
        ]
    rest: Counter[str] = Counter()
    for key, size in sizes.items():
        if key not in named:
            rest[_artifact(key)] += size
    found["unnamed"] += [{"run": run, "uri": store.url_of(f), "bytes": n} for f, n in sorted(rest.items())]


def _artifact(key: str) -> str:
    depth = _MODEL_DEPTH if key.startswith("models/") else _CHECKPOINT_DEPTH
    return "/".join(key.split("/")[:depth])
