"""What can be wrong with a volume, its cache on a node or its mount, apart from the store that keeps it."""

from trainmaster.objects.errors import DamagedObjectError, ObjectChangedError
from trainmaster.spec.errors import PublishError, TrainmasterError


class DamagedVolumeError(DamagedObjectError):
    """A head, a manifest or a chunk is not what was published."""


class DamagedChunkError(DamagedVolumeError):
    """The bytes of a chunk are wrong, too few or too many."""


class MissingChunkError(DamagedVolumeError):
    """A chunk that a version names is not there."""


class SourceChangedError(ObjectChangedError):
    """An object that a volume was indexed over is no longer the one that was indexed."""


class OverwritingStoreError(PublishError):
    """The store overwrites what it was asked only to create: versions would not be safe there."""


class VersionConflictError(PublishError):
    """Another version was published meanwhile."""


class CacheError(TrainmasterError):
    """The node's chunk cache cannot be used, or is too small."""


class NoRoomError(CacheError):
    """Every slot is needed sooner than the chunk that was asked for; only prefetching meets it."""


class MountError(TrainmasterError):
    """A volume cannot be mounted, or a mount cannot be ended."""


class NoImageError(MountError):
    """The kernel cannot read this volume by itself: it is served through FUSE instead."""


class InUseError(MountError):
    """Another volume, or another version, is still read where one is to appear."""
