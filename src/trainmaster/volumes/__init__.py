"""Files that outlive a machine: artifacts, checkpoints and code snapshots on object stores.

An **artifact** is a set of files that is there whole or not at all: models, checkpoints.
A **snapshot** is the code of a run, addressed by its content, on the local disk.
Importing this package costs nothing; each name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster.volumes.artifact import delete, fetch, list_artifacts, publish, read_manifest
    from trainmaster.volumes.checkpoints import CheckpointSeries
    from trainmaster.volumes.manifest import JSON, FileEntry, Manifest
    from trainmaster.volumes.objects import ObjectStore
    from trainmaster.volumes.publishing import AlreadyPublished, Upload, commit, upload
    from trainmaster.volumes.reading.volume import Volume
    from trainmaster.volumes.snapshot import Snapshot, materialise, take_snapshot
    from trainmaster.volumes.tree import Listing, Stamp, UnstableDirectory, listing, parts_listing

__all__ = [
    "JSON",
    "AlreadyPublished",
    "CheckpointSeries",
    "FileEntry",
    "Listing",
    "Manifest",
    "ObjectStore",
    "Snapshot",
    "Stamp",
    "UnstableDirectory",
    "Upload",
    "Volume",
    "commit",
    "delete",
    "fetch",
    "list_artifacts",
    "listing",
    "materialise",
    "parts_listing",
    "publish",
    "read_manifest",
    "take_snapshot",
    "upload",
]

_HOME = {
    "JSON": "manifest",
    "AlreadyPublished": "publishing",
    "CheckpointSeries": "checkpoints",
    "FileEntry": "manifest",
    "Listing": "tree",
    "Manifest": "manifest",
    "ObjectStore": "objects",
    "Snapshot": "snapshot",
    "Stamp": "tree",
    "UnstableDirectory": "tree",
    "Upload": "publishing",
    "Volume": "reading.volume",
    "commit": "publishing",
    "delete": "artifact",
    "fetch": "fetching",
    "list_artifacts": "artifact",
    "listing": "tree",
    "materialise": "snapshot",
    "parts_listing": "tree",
    "publish": "publishing",
    "read_manifest": "artifact",
    "take_snapshot": "snapshot",
    "upload": "publishing",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
