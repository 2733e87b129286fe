"""Bytes of files as they lie in the cache, kept there for as long as anybody looks at them."""

import weakref

import numpy as np
from numpy.typing import NDArray

from trainmaster.volumes.reading.cache import ChunkCache
from trainmaster.volumes.reading.chunk import Placed

_Bytes = NDArray[np.uint8]


class _Lease(weakref.ref[_Bytes]):
    """Ends the pin of a slot when the last view, slice or array made of its bytes is gone."""

    __slots__ = ("cache", "slot")

    cache: ChunkCache
    slot: int


# A weak reference must itself be kept, or nobody is called.
_leases: dict[int, _Lease] = {}


def leased(cache: ChunkCache, placed: Placed, offset: int, length: int) -> memoryview:
    """Gives bytes of a chunk that is pinned; the pin ends with them.

    Every slice and array that is made of them holds on to the one array below, so it is that
    whose end counts.
    """
    start = placed.slot * cache.slots.slot_bytes + offset
    array = np.frombuffer(cache.slots.data, np.uint8, length, start)
    lease = _Lease(array, _ended)
    lease.cache, lease.slot = cache, placed.slot
    _leases[id(lease)] = lease
    return memoryview(array)  # type: ignore[arg-type] # Python 3.12 says that it is a buffer


def _ended(lease: _Lease) -> None:
    del _leases[id(lease)]
    lease.cache.slots.unpin_soon(lease.slot)
