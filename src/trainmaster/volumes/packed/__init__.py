"""Packed volumes: immutable, versioned sets of files in chunks on object storage.

::

    URL/heads/000001.json            a version; created once, never changed
    URL/manifests/<sha256>.parquet   its tables: files, chunks, parts
    URL/chunks/ab/<blake3>           up to 64 MiB; shared by the versions that need it
    URL/pushes/<id>.json             a push that is under way
    URL/collections/<id>.json        a collection of garbage that is under way
    URL/collections/000001.deletions names that are given up, see `deletions`

Importing this package costs nothing; each name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster.volumes.packed.addresses import VolumeAddress, cache_directory, volume_address
    from trainmaster.volumes.packed.faults import (
        DamagedChunkError,
        DamagedVolumeError,
        MissingChunkError,
        OverwritingStoreError,
        SourceChangedError,
        VersionConflictError,
    )
    from trainmaster.volumes.packed.garbage import Collected, collect_garbage, remove_volume
    from trainmaster.volumes.packed.getting import GetProgress, get
    from trainmaster.volumes.packed.head import (
        Head,
        alive_heads,
        head_numbers,
        read_head,
        remove_version,
    )
    from trainmaster.volumes.packed.indexing import IndexProgress, index
    from trainmaster.volumes.packed.opening import OpenVolume, open_volume
    from trainmaster.volumes.packed.pushing import PushProgress, PushReport, push
    from trainmaster.volumes.packed.source import ChunkSource
    from trainmaster.volumes.packed.table import Entry, Extent, FileTable
    from trainmaster.volumes.packed.verifying import Damage, Verdict, verified

__all__ = [
    "ChunkSource",
    "Collected",
    "Damage",
    "DamagedChunkError",
    "DamagedVolumeError",
    "Entry",
    "Extent",
    "FileTable",
    "GetProgress",
    "Head",
    "IndexProgress",
    "MissingChunkError",
    "OpenVolume",
    "OverwritingStoreError",
    "PushProgress",
    "PushReport",
    "SourceChangedError",
    "Verdict",
    "VersionConflictError",
    "VolumeAddress",
    "alive_heads",
    "cache_directory",
    "collect_garbage",
    "get",
    "head_numbers",
    "index",
    "open_volume",
    "push",
    "read_head",
    "remove_version",
    "remove_volume",
    "verified",
    "volume_address",
]

_HOME = {
    "ChunkSource": "source",
    "Collected": "garbage",
    "Damage": "verifying",
    "DamagedChunkError": "faults",
    "DamagedVolumeError": "faults",
    "Entry": "table",
    "Extent": "table",
    "FileTable": "table",
    "GetProgress": "getting",
    "Head": "head",
    "IndexProgress": "indexing",
    "MissingChunkError": "faults",
    "OpenVolume": "opening",
    "OverwritingStoreError": "faults",
    "PushProgress": "pushing",
    "PushReport": "pushing",
    "SourceChangedError": "faults",
    "Verdict": "verifying",
    "VersionConflictError": "faults",
    "VolumeAddress": "addresses",
    "alive_heads": "head",
    "cache_directory": "addresses",
    "collect_garbage": "garbage",
    "get": "getting",
    "head_numbers": "head",
    "index": "indexing",
    "open_volume": "opening",
    "push": "pushing",
    "read_head": "head",
    "remove_version": "head",
    "remove_volume": "garbage",
    "verified": "verifying",
    "volume_address": "addresses",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
