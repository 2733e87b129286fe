"""Volumes: all that ``trainmaster volume`` does with packed, versioned sets of files on object stores."""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.service.volumes.stored import RemovedVolume as RemovedVolume
    from trainmaster.service.volumes.stored import StoredVolume as StoredVolume
    from trainmaster.service.volumes.stored import VolumeInfo as VolumeInfo
    from trainmaster.service.volumes.stored import content as content
    from trainmaster.service.volumes.stored import contents as contents
    from trainmaster.service.volumes.stored import entries as entries
    from trainmaster.service.volumes.stored import entry_document as entry_document
    from trainmaster.volumes.mounting import mount as mount
    from trainmaster.volumes.mounting import withdraw as withdraw
    from trainmaster.volumes.mounting.mounts import means_of as means_of
    from trainmaster.volumes.packed import Collected as Collected
    from trainmaster.volumes.packed import Entry as Entry
    from trainmaster.volumes.packed import GetProgress as GetProgress
    from trainmaster.volumes.packed import Head as Head
    from trainmaster.volumes.packed import IndexProgress as IndexProgress
    from trainmaster.volumes.packed import OpenVolume as OpenVolume
    from trainmaster.volumes.packed import PushProgress as PushProgress
    from trainmaster.volumes.packed import VersionCheck as VersionCheck
    from trainmaster.volumes.packed import get as get
    from trainmaster.volumes.packed import index as index
    from trainmaster.volumes.packed import open_volume as open_volume
    from trainmaster.volumes.packed import push as push
    from trainmaster.volumes.packed.addresses import named_volumes as named_volumes

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "stored": "RemovedVolume StoredVolume VolumeInfo content contents entries entry_document",
        "trainmaster.volumes.mounting": "mount withdraw",
        "trainmaster.volumes.mounting.mounts": "means_of",
        "trainmaster.volumes.packed": (
            "Collected Entry GetProgress Head IndexProgress OpenVolume PushProgress VersionCheck "
            "get index open_volume push"
        ),
        "trainmaster.volumes.packed.addresses": "named_volumes",
    },
)
