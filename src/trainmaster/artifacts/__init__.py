"""Directories that are published whole or not at all: checkpoints, models, and the code of a run.

An **artifact** is a set of files on an object store that is there whole or not at all: models, checkpoints.
A **snapshot** is the code of a run, addressed by its content, on the local disk.
"""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.artifacts.checkpoints import CheckpointSeries as CheckpointSeries
    from trainmaster.artifacts.fetching import fetch as fetch
    from trainmaster.artifacts.manifest import JSON as JSON
    from trainmaster.artifacts.manifest import FileEntry as FileEntry
    from trainmaster.artifacts.manifest import Manifest as Manifest
    from trainmaster.artifacts.publishing import AlreadyPublished as AlreadyPublished
    from trainmaster.artifacts.publishing import Upload as Upload
    from trainmaster.artifacts.publishing import delete as delete
    from trainmaster.artifacts.publishing import publish as publish
    from trainmaster.artifacts.publishing import read_manifest as read_manifest
    from trainmaster.artifacts.snapshot import Snapshot as Snapshot
    from trainmaster.artifacts.snapshot import changed_since as changed_since
    from trainmaster.artifacts.snapshot import materialise as materialise
    from trainmaster.artifacts.snapshot import take_snapshot as take_snapshot
    from trainmaster.artifacts.tree import Listing as Listing
    from trainmaster.artifacts.tree import UnstableDirectory as UnstableDirectory

__all__, __getattr__ = lazy_exports(__name__)
