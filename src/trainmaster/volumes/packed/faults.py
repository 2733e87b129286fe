"""What can be wrong with a volume, apart from the store that keeps it."""

from trainmaster.objects.errors import DamagedObjectError, ObjectChangedError
from trainmaster.spec.errors import PublishError


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
