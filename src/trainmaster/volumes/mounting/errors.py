"""What mounting raises.

* TrainmasterError
  + MountError          a volume cannot be mounted, or a mount cannot be ended
    + NoImageError      the kernel cannot read this volume by itself
    + InUseError        another volume is read there
"""

from trainmaster.spec.errors import TrainmasterError


class MountError(TrainmasterError):
    """A volume cannot be mounted, or a mount cannot be ended."""


class NoImageError(MountError):
    """The kernel cannot read this volume by itself: it is served through FUSE instead."""


class InUseError(MountError):
    """Another volume, or another version, is still read where one is to appear."""
