"""Which chunk has to go. Pure."""

import numpy as np
from numpy.typing import NDArray


def victims(
    slots: NDArray[np.int64],
    used: NDArray[np.uint64],
    next_use_s: NDArray[np.float64],
    needed_in_s: float = -1.0,
) -> list[int]:
    """Orders slots by how little their chunks will be missed.

    First those without an announced use, the least recently used
    first; then those that will be used, the furthest first (Belady's rule).

    Args:
        slots: candidates.
        used: when each was last used, in fills.
        next_use_s: seconds from now to the next use of each, ``inf`` where none is known.
        needed_in_s: when the chunk that is to come will be used. Chunks that will be used
            sooner are left out; none is when it is negative.

    >>> victims(np.array([0, 1, 2, 3]), np.array([5, 9, 3, 4]), np.array([2.0, np.inf, np.inf, 7.0]))
    [2, 1, 3, 0]
    >>> victims(np.array([0, 1]), np.array([5, 9]), np.array([2.0, 7.0]), needed_in_s=4.0)
    [1]
    """
    if needed_in_s >= 0:
        keep = next_use_s > needed_in_s
        slots, used, next_use_s = slots[keep], used[keep], next_use_s[keep]
    order = np.lexsort((used, -next_use_s))
    return [int(slot) for slot in slots[order]]


class NextUses:
    """The order in which a reader will use chunks, made ready for "when next?".

    Args:
        keys: a number for the chunk of each use, in order.
        positions: when each use comes, in samples; never decreasing.
    """

    def __init__(self, keys: NDArray[np.uint64], positions: NDArray[np.int64]) -> None:
        order = np.argsort(keys, kind="stable")
        self._keys, self._positions = keys[order], positions[order]

    def distances(self, keys: NDArray[np.uint64], position: int) -> NDArray[np.float64]:
        """Says how many samples away the next use of each key is; ``inf`` if there is none.

        >>> order = NextUses(np.array([7, 8, 7, 9], np.uint64), np.array([0, 1, 20, 30]))
        >>> order.distances(np.array([7, 8, 9, 1], np.uint64), position=1)
        array([19.,  0., 29., inf])
        """
        first = np.searchsorted(self._keys, keys, "left")
        last = np.searchsorted(self._keys, keys, "right")
        found = np.full(len(keys), np.inf)
        for index in np.flatnonzero(last > first):
            uses = self._positions[first[index] : last[index]]
            next_one = np.searchsorted(uses, position)
            if next_one < len(uses):
                found[index] = float(uses[next_one] - position)
        return found
