"""What reading a volume raises beside :class:`~trainmaster.spec.errors.PublishError`.

* TrainmasterError
  + CacheError          the node's chunk cache cannot be used, or is too small
"""

from trainmaster.spec.errors import TrainmasterError


class CacheError(TrainmasterError):
    """The node's chunk cache cannot be used, or is too small."""


class NoRoomError(CacheError):
    """Every slot is needed sooner than the chunk that was asked for; only prefetching meets it."""
