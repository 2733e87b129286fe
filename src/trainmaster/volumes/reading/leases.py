"""Bytes of files as they lie in the cache, kept there for as long as anybody looks at them."""

import weakref

import numpy as np
from numpy.typing import NDArray

from trainmaster.volumes.reading.slot_file import SlotFile

_Bytes = NDArray[np.uint8]


class _Lease(weakref.ref[_Bytes]):
    """Ends the pin of a slot when the last view, slice or array made of its bytes is gone."""

    __slots__ = ("slot", "slots")

    slots: SlotFile
    slot: int


# A weak reference must itself be kept, or nobody is called.
_leases: dict[int, _Lease] = {}


def leased(slots: SlotFile, slot: int, offset: int, length: int) -> memoryview:
    """Gives bytes of a slot that is pinned; the pin ends with them.

    Every slice and array that is made of them holds on to the one array below, so it is that
    whose end counts.
    """
    array = np.frombuffer(slots.data, np.uint8, length, slot * slots.slot_bytes + offset)
    lease = _Lease(array, _ended)
    lease.slots, lease.slot = slots, slot
    _leases[id(lease)] = lease
    return memoryview(array)  # type: ignore[arg-type] # Python 3.12 says that it is a buffer


def _ended(lease: _Lease) -> None:
    del _leases[id(lease)]
    lease.slots.unpin_soon(lease.slot)
