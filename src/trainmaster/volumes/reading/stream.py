"""A volume's samples in a known, shuffled order, fetched before they are needed."""

import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trainmaster.spec.errors import UsageError
from trainmaster.volumes.reading.order import EpochOrder, Quality, SampleLayout, quality
from trainmaster.volumes.reading.prefetch import planned
from trainmaster.volumes.reading.prefetcher import Prefetcher
from trainmaster.volumes.reading.sharing import Padding, Share, Split, TrainingPosition, blocks, left, share
from trainmaster.volumes.reading.volume import Volume

_QUALITY_ROWS = 1 << 20
_PIECE = 256


class SampleOrder:
    """Which samples a rank reads, epoch after epoch; resumable, also by another number of ranks.

    Args:
        volume: whose files are the samples.
        seed: of the shuffle.
        window: how many chunks are shuffled together; 0: all, a uniform shuffle. The cache should
            hold two windows.
        shuffle: without it samples come in the order in which they are packed.
        padding: see :func:`~trainmaster.volumes.reading.sharing.share`.
        split: see there; ``chunks`` suits ranks on several nodes, ``samples`` ranks of one.
        rows: which files are samples, increasing; None: all.
    """

    def __init__(
        self,
        volume: Volume,
        *,
        seed: int = 0,
        window: int = 8,
        shuffle: bool = True,
        padding: Padding = "pad",
        split: Split = "chunks",
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        self.volume = volume
        self.progress = TrainingPosition(seed, 0)
        self._window, self._shuffle = window, shuffle
        self._padding: Padding = padding
        self._split: Split = split
        self._rows = rows
        first_chunks = np.asarray(volume.table.first_chunks)
        if rows is not None:
            if len(rows) and (np.any(np.diff(rows) <= 0) or rows[0] < 0 or rows[-1] >= len(volume)):
                raise UsageError("rows must increase and be files of the volume.", "Sort them.")
            first_chunks = first_chunks[rows]
        self._layout = SampleLayout.of_first_chunks(first_chunks, volume.table.chunk_count)
        self._orders: dict[int, EpochOrder] = {}

    def __len__(self) -> int:
        """Samples of a whole epoch, over all ranks and without padding."""
        return self._layout.rows

    def order(self, epoch: int) -> EpochOrder:
        """Gives the order of an epoch."""
        if epoch not in self._orders:
            self._orders = {number: kept for number, kept in self._orders.items() if number >= epoch - 1}
            self._orders[epoch] = EpochOrder(
                self._layout, seed=self.progress.seed, epoch=epoch, window=self._window, shuffle=self._shuffle
            )
        return self._orders[epoch]

    def share(self, rank: int, world: int) -> Share:
        """Gives what is left of this epoch for a rank."""
        spans = left(len(self), self.progress.consumed, self._split)
        return share(spans, world, rank, padding=self._padding, split=self._split)

    def rows(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Gives the files at positions of an epoch's order."""
        rows = self.order(epoch).at(positions)
        return rows if self._rows is None else self._rows[rows]

    def quality(self) -> Quality:
        """Measures the shuffle of this epoch, of its first million samples at most."""
        return quality(self.order(self.progress.epoch).rows(0, min(len(self), _QUALITY_ROWS)))

    def consumed(self, samples: int, world: int) -> None:
        """Notes that each rank has taken so many samples more."""
        *before, last = self.progress.consumed or ((world, 0),)
        if last[0] == world:
            phases = (*before, (world, last[1] + samples))
        else:
            phases = (*before, last, (world, samples))
        self.progress = TrainingPosition(self.progress.seed, self.progress.epoch, phases)

    def next_epoch(self) -> None:
        """Begins the next epoch."""
        self.progress = TrainingPosition(self.progress.seed, self.progress.epoch + 1)

    def prefetcher(self, mine: Share, rank: int, world: int, turn: tuple[int, int] = (0, 1)) -> Prefetcher:
        """Announces a share, and behind it the next epoch's: what is used again soon is kept.

        Args:
            mine: the share.
            rank: of the share.
            world: number of ranks.
            turn: which of the rank's loading processes this is, and of how many.
        """
        epoch = self.progress.epoch
        following = share([(0, len(self))], world, rank, padding=self._padding, split=self._split)
        rows = np.concatenate(
            (
                self.rows(epoch, mine.positions(0, len(mine))),
                self.rows(epoch + 1, following.positions(0, len(following))),
            )
        )
        first_chunks = np.asarray(self.volume.table.first_chunks)[rows].astype(np.int64)
        sizes = np.asarray(self.volume.table.sizes)[rows].astype(np.int64)
        return Prefetcher(self.volume, planned(first_chunks, self._counts(rows, first_chunks, sizes)), turn)

    def _counts(
        self, rows: NDArray[np.int64], chunks: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """In how many chunks each sample lies; None: each in one."""
        offsets = np.asarray(self.volume.table.offsets)[rows].astype(np.int64)
        ends = np.cumsum(np.asarray(self.volume.table.chunk_sizes).astype(np.int64))
        if not len(ends):
            return None
        last_byte = ends[chunks] - np.asarray(self.volume.table.chunk_sizes)[chunks] + offsets + sizes - 1
        counts = np.searchsorted(ends, last_byte, "right") - chunks + 1
        return np.maximum(counts, 1) if np.any(counts > 1) else None


def samples(
    order: SampleOrder,
    *,
    rank: int = 0,
    world: int = 1,
    block: int = 1,
    workers: int = 1,
    worker: int = 0,
    prefetch: bool = True,
) -> Iterator[int]:
    """Gives the rows that one loading process of a rank reads until the end of the epoch.

    Args:
        order: of the samples; where it stands is where this begins.
        rank: which rank.
        world: number of ranks.
        block: samples in a batch.
        workers: loading processes of the rank; they take batches in turn.
        worker: which of them.
        prefetch: fetch chunks ahead, and tell the cache the order.
    """
    mine = order.share(rank, world)
    epoch = order.progress.epoch
    fetcher = order.prefetcher(mine, rank, world, (worker, workers)) if prefetch and len(mine) else None
    done, every = 0, 1
    if fetcher is not None:
        order.volume.follow(fetcher)
        every = fetcher.every
    # One loading process alone reads everything in a row, however small the batches are.
    spans = blocks(len(mine), block if workers > 1 else _PIECE, workers, worker)
    try:
        for places, rows in _pieces(order, mine, epoch, spans):
            for place, row in zip(places, rows, strict=True):
                if fetcher is not None and done % every == 0:
                    fetcher.advance(place)
                done += 1
                yield row
    finally:
        if fetcher is not None:
            order.volume.unfollow(fetcher)
            fetcher.close()


def _pieces(
    order: SampleOrder, mine: Share, epoch: int, spans: Iterator[tuple[int, int]]
) -> Iterator[tuple[list[int], list[int]]]:
    """Gives places of the share with their rows; looks many up at a time, however small the spans are."""
    spans = iter(spans)
    while True:
        places: list[int] = []
        for span in spans:
            places.extend(range(*span))
            if len(places) >= _PIECE:
                break
        if not places:
            return
        yield places, order.rows(epoch, mine.at(np.array(places, np.int64))).tolist()


def rank_and_world() -> tuple[int, int]:
    """Gives this process's rank and how many there are: of torch.distributed, or from the environment."""
    import sys

    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
