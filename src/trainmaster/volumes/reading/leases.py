"""Chunks as they lie in the cache, kept there for as long as anybody looks at their bytes."""

import os
import weakref
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from trainmaster.volumes.reading.slot_file import SlotFile

Bytes = NDArray[np.uint8]


class SlotPin(weakref.ref[Bytes]):
    """Ends the pin of a slot when the last view, slice or array that was made of its bytes is gone.

    Attributes:
        slots: where the slot is.
        slot: its number.
    """

    __slots__ = ("slot", "slots")

    slots: SlotFile
    slot: int


# A weak reference must itself be kept, or its callback never runs.
_leases: dict[int, SlotPin] = {}


def leased(slots: SlotFile, slot: int, size_bytes: int) -> tuple[Bytes, SlotPin]:
    """Gives the bytes of a slot that is pinned; the pin ends with them.

    Whatever is made of the array holds on to it, so it is its end that counts.

    Returns:
        The array, and a weak reference to it.
    """
    array = np.frombuffer(slots.data, np.uint8, size_bytes, slot * slots.slot_bytes)
    lease = SlotPin(array, _ended)
    lease.slots, lease.slot = slots, slot
    _leases[id(lease)] = lease
    return array, lease


def _ended(lease: SlotPin) -> None:
    del _leases[id(lease)]
    lease.slots.unpin_soon(lease.slot)


def _pin_again() -> None:
    """In a forked child: what somebody looks at is pinned there, too, and nothing else."""
    for lease in list(_leases.values()):
        if lease() is not None:
            with suppress(ValueError):  # of a cache that was closed
                lease.slots.pin(lease.slot)


os.register_at_fork(after_in_child=_pin_again)  # later than `renewal`, so it is called when all have locks
