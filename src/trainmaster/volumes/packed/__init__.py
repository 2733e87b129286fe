"""Packed volumes: immutable, versioned sets of files in chunks on object storage.

::

    URL/heads/000001.json            a version; created once, never changed
    URL/manifests/<sha256>.parquet   its tables: files, chunks, parts
    URL/chunks/ab/<blake3>           up to 64 MiB; shared by the versions that need it
    URL/pushes/<id>.json             a push that is under way
    URL/collections/<id>.json        a collection of garbage that is under way
    URL/collections/000001.deletions names that are given up, see `deletions`
"""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.volumes.packed.addresses import VolumeAddress as VolumeAddress
    from trainmaster.volumes.packed.addresses import cache_directory as cache_directory
    from trainmaster.volumes.packed.addresses import volume_address as volume_address
    from trainmaster.volumes.packed.faults import DamagedChunkError as DamagedChunkError
    from trainmaster.volumes.packed.faults import DamagedVolumeError as DamagedVolumeError
    from trainmaster.volumes.packed.faults import MissingChunkError as MissingChunkError
    from trainmaster.volumes.packed.faults import OverwritingStoreError as OverwritingStoreError
    from trainmaster.volumes.packed.faults import SourceChangedError as SourceChangedError
    from trainmaster.volumes.packed.faults import VersionConflictError as VersionConflictError
    from trainmaster.volumes.packed.garbage import Collected as Collected
    from trainmaster.volumes.packed.garbage import collect_garbage as collect_garbage
    from trainmaster.volumes.packed.garbage import remove_volume as remove_volume
    from trainmaster.volumes.packed.getting import GetProgress as GetProgress
    from trainmaster.volumes.packed.getting import get as get
    from trainmaster.volumes.packed.head import Head as Head
    from trainmaster.volumes.packed.head import alive_heads as alive_heads
    from trainmaster.volumes.packed.head import head_numbers as head_numbers
    from trainmaster.volumes.packed.head import read_head as read_head
    from trainmaster.volumes.packed.head import remove_version as remove_version
    from trainmaster.volumes.packed.indexing import IndexProgress as IndexProgress
    from trainmaster.volumes.packed.indexing import index as index
    from trainmaster.volumes.packed.opening import OpenVolume as OpenVolume
    from trainmaster.volumes.packed.opening import open_volume as open_volume
    from trainmaster.volumes.packed.pushing import PushProgress as PushProgress
    from trainmaster.volumes.packed.pushing import PushReport as PushReport
    from trainmaster.volumes.packed.pushing import push as push
    from trainmaster.volumes.packed.source import ChunkSource as ChunkSource
    from trainmaster.volumes.packed.table import Entry as Entry
    from trainmaster.volumes.packed.table import Extent as Extent
    from trainmaster.volumes.packed.table import FileTable as FileTable
    from trainmaster.volumes.packed.verifying import Damage as Damage
    from trainmaster.volumes.packed.verifying import VersionCheck as VersionCheck
    from trainmaster.volumes.packed.verifying import verified as verified

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "addresses": "VolumeAddress cache_directory volume_address",
        "faults": (
            "DamagedChunkError DamagedVolumeError MissingChunkError OverwritingStoreError "
            "SourceChangedError VersionConflictError"
        ),
        "garbage": "Collected collect_garbage remove_volume",
        "getting": "GetProgress get",
        "head": "Head alive_heads head_numbers read_head remove_version",
        "indexing": "IndexProgress index",
        "opening": "OpenVolume open_volume",
        "pushing": "PushProgress PushReport push",
        "source": "ChunkSource",
        "table": "Entry Extent FileTable",
        "verifying": "Damage VersionCheck verified",
    },
)
