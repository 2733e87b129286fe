"""What mounting raises.

* TrainmasterError
  + MountError          a volume cannot be mounted, or a mount cannot be ended
"""

from trainmaster.spec.errors import TrainmasterError


class MountError(TrainmasterError):
    """A volume cannot be mounted, or a mount cannot be ended."""
