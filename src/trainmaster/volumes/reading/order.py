"""In which order an epoch reads its samples. Pure: the same on every machine, and never stored.

The chunks are shuffled; each *window* of K of them is then shuffled sample by sample. So a
reader needs K chunks at a time, whatever the size of the volume; K = all of them is a uniform
shuffle. Everything follows from (seed, epoch) by the raw stream of Philox, which NumPy
promises not to change, and any part of the order can be had without the rest.
"""

from collections import OrderedDict

import numpy as np
from numpy.random import Philox, SeedSequence
from numpy.typing import ArrayLike, NDArray

from trainmaster.dataclass import dataclass

Rows = NDArray[np.int64]
_WINDOWS_KEPT = 4
# Streams of one epoch: its chunks, and each window after that.
_CHUNKS = 0


@dataclass(frozen=True, slots=True)
class SampleLayout:
    """How samples lie in chunks.

    Attributes:
        starts: ``starts[c]`` to ``starts[c + 1]`` are the rows that begin in chunk c.
    """

    starts: Rows

    @classmethod
    def of_first_chunks(cls, first_chunks: ArrayLike, chunk_count: int) -> "SampleLayout":
        """Makes it from the chunk of each row; chunks never decrease.

        >>> SampleLayout.of_first_chunks([0, 0, 2], 3).starts
        array([0, 2, 2, 3])
        """
        column = np.asarray(first_chunks)
        return cls(np.searchsorted(column, np.arange(chunk_count + 1)).astype(np.int64))

    @property
    def rows(self) -> int:
        """How many samples there are."""
        return int(self.starts[-1])


class EpochOrder:
    """The order of one epoch: position -> row.

    Args:
        layout: how samples lie in chunks.
        seed: of the training, 0 or more.
        epoch: its number, 0 or more.
        window: how many chunks are shuffled together; 0: all of them, a uniform shuffle.
        shuffle: without it rows come in their own order.

    >>> order = EpochOrder(SampleLayout.of_first_chunks([0, 0, 0, 1, 1, 2], 3), seed=1, epoch=0, window=2)
    >>> sorted(order.rows(0, 6).tolist()), len(order)
    ([0, 1, 2, 3, 4, 5], 6)
    """

    def __init__(
        self, layout: SampleLayout, *, seed: int, epoch: int, window: int = 8, shuffle: bool = True
    ) -> None:
        self._layout = layout
        self._seed = seed
        self._epoch = epoch
        self._shuffle = shuffle
        counts = np.diff(layout.starts)
        chunks = np.flatnonzero(counts)
        if shuffle:
            chunks = chunks[_permutation(len(chunks), seed, epoch, _CHUNKS)]
        self._chunks = chunks
        self._window = window if window > 0 else max(len(chunks), 1)
        ends = np.concatenate(([0], np.cumsum(counts[chunks])))
        cuts = np.append(np.arange(0, len(chunks), self._window), len(chunks))
        self._begins = ends[cuts].astype(np.int64)
        self._kept: OrderedDict[int, Rows] = OrderedDict()

    def __len__(self) -> int:
        return self._layout.rows

    def rows(self, start: int, stop: int) -> Rows:
        """Gives the rows at positions ``start`` to ``stop``."""
        return self.at(np.arange(start, max(start, stop)))

    def at(self, positions: Rows) -> Rows:
        """Gives the rows at any positions; quick where they are close to each other."""
        if not len(positions):
            return np.zeros(0, np.int64)
        numbers = np.searchsorted(self._begins, positions, "right") - 1
        rows = np.empty(len(positions), np.int64)
        for number in np.unique(numbers).tolist():
            here = numbers == number
            rows[here] = self._window_rows(number)[positions[here] - self._begins[number]]
        return rows

    def _window_rows(self, number: int) -> Rows:
        kept = self._kept.get(number)
        if kept is not None:
            self._kept.move_to_end(number)
            return kept
        chunks = self._chunks[number * self._window : (number + 1) * self._window]
        rows = _ranges(self._layout.starts[chunks], self._layout.starts[chunks + 1])
        if self._shuffle:
            rows = rows[_permutation(len(rows), self._seed, self._epoch, 1 + number)]
        self._kept[number] = rows
        if len(self._kept) > _WINDOWS_KEPT:
            self._kept.popitem(last=False)
        return rows


def _permutation(count: int, seed: int, epoch: int, stream: int) -> Rows:
    # Not Generator.permutation: how that uses the stream may change with NumPy's version.
    words = Philox(SeedSequence((seed, epoch, stream))).random_raw(count)
    return np.argsort(words, kind="stable").astype(np.int64)


def _ranges(starts: Rows, stops: Rows) -> Rows:
    """Joins the ranges ``starts[i]`` to ``stops[i]``.

    >>> _ranges(np.array([5, 0]), np.array([7, 2]))
    array([5, 6, 0, 1])
    """
    lengths = stops - starts
    jumps = np.repeat(starts - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
    return jumps + np.arange(int(lengths.sum()), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Quality:
    """How good a shuffle is.

    Attributes:
        displacement: mean distance of samples from where they lie in the volume, as a share of
            what a uniform shuffle gives (a third of the samples): 0 for none, 1 for uniform.
        neighbours: correlation of the places of neighbours in the order: 1 for none, 0 for
            uniform, about 1/K for windows of K chunks. It is what a window costs.
    """

    displacement: float
    neighbours: float


def quality(rows: Rows) -> Quality:
    """Measures the order of an epoch, or of a part of it.

    >>> quality(np.arange(1000))
    Quality(displacement=0.0, neighbours=1.0)
    """
    count = len(rows)
    if count < 3:
        return Quality(0.0, 0.0)
    ranks = np.argsort(np.argsort(rows)) if count != int(rows.max()) + 1 else rows
    moved = float(np.abs(ranks - np.arange(count)).mean())
    # Of a uniform permutation: (n^2 - 1) / 3n.
    expected = (count * count - 1) / (3 * count)
    together = float(np.corrcoef(ranks[:-1], ranks[1:])[0, 1])
    return Quality(round(moved / expected, 6), round(together, 6))
