"""Volumes as directories: mounted read-only through FUSE, or fetched whole where that is not possible."""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.volumes.errors import InUseError as InUseError
    from trainmaster.volumes.errors import MountError as MountError
    from trainmaster.volumes.mounting.lifecycle import mount as mount
    from trainmaster.volumes.mounting.lifecycle import unmount as unmount
    from trainmaster.volumes.mounting.mounts import available as available
    from trainmaster.volumes.mounting.providing import provide as provide
    from trainmaster.volumes.mounting.providing import provided as provided
    from trainmaster.volumes.mounting.providing import withdraw as withdraw

__all__, __getattr__ = lazy_exports(__name__)
