"""Volumes: all that ``trainmaster volume`` does with packed, versioned sets of files on object stores."""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.volumes.mounting import mount as mount
    from trainmaster.volumes.mounting import withdraw as withdraw
    from trainmaster.volumes.mounting.mounts import means_of as means_of
    from trainmaster.volumes.packed.addresses import named_volumes as named_volumes
    from trainmaster.volumes.packed.addresses import volume_address as volume_address
    from trainmaster.volumes.packed.garbage import DEFAULT_GRACE_S as DEFAULT_GRACE_S
    from trainmaster.volumes.packed.garbage import GRACE as GRACE
    from trainmaster.volumes.packed.garbage import Collected as Collected
    from trainmaster.volumes.packed.getting import GetProgress as GetProgress
    from trainmaster.volumes.packed.getting import get as get
    from trainmaster.volumes.packed.head import Head as Head
    from trainmaster.volumes.packed.indexing import IndexProgress as IndexProgress
    from trainmaster.volumes.packed.indexing import index as index
    from trainmaster.volumes.packed.opening import OpenVolume as OpenVolume
    from trainmaster.volumes.packed.opening import open_volume as open_volume
    from trainmaster.volumes.packed.pushing import PushProgress as PushProgress
    from trainmaster.volumes.packed.pushing import push as push
    from trainmaster.volumes.packed.table import Entry as Entry
    from trainmaster.volumes.packed.verifying import VersionCheck as VersionCheck

__all__, __getattr__ = lazy_exports(__name__)
