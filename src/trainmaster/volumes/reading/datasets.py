"""Volumes as PyTorch's ``DataLoader`` takes them."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from trainmaster.spec.errors import UsageError
from trainmaster.volumes.reading.order import Quality
from trainmaster.volumes.reading.sharing import Padding, Split, TrainingPosition
from trainmaster.volumes.reading.stream import SampleOrder, rank_and_world, samples
from trainmaster.volumes.reading.volume import Volume

#: Makes a sample of a file's bytes, which lie in the cache and are not copied, and its path.
Decode = Callable[[memoryview, str], Any]
_MOST_PHASES = 62


class VolumeDataset(Dataset[Any]):
    """The files of a volume by number, for a ``DataLoader`` with a sampler.

    Args:
        volume: an open volume or its address.
        decode: makes a sample of ``(data, path)``; without it a sample is the file's bytes.
        rows: which files are samples; None: all.
    """

    def __init__(
        self,
        volume: Volume | str,
        decode: Decode | None = None,
        *,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        self.volume = volume if isinstance(volume, Volume) else Volume.open(volume)
        self.rows = rows
        self._decode = decode

    def __len__(self) -> int:
        return len(self.volume) if self.rows is None else len(self.rows)

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401 - whatever decode gives
        if not 0 <= index < len(self):
            raise IndexError(f"there are samples 0 to {len(self) - 1}, not {index}")
        return decoded(self.volume, index if self.rows is None else int(self.rows[index]), self._decode)


class VolumeSampler(Sampler[int]):
    """The shuffled order for a :class:`VolumeDataset`, known to the cache; the chunks are fetched ahead.

    Each pass is an epoch. For resuming in the middle of one use :class:`VolumeStream`.

    Args:
        dataset: whose samples.
        seed: of the shuffle.
        window: see :class:`~trainmaster.volumes.reading.stream.SampleOrder`.
        padding: see there.
        split: see there.
        prefetch: whether to fetch chunks ahead.
    """

    def __init__(
        self,
        dataset: VolumeDataset,
        *,
        seed: int = 0,
        window: int = 8,
        padding: Padding = "pad",
        split: Split = "chunks",
        prefetch: bool = True,
    ) -> None:
        self._dataset = dataset
        self._prefetch = prefetch
        self._order = SampleOrder(
            dataset.volume, seed=seed, window=window, padding=padding, split=split, rows=dataset.rows
        )

    def __len__(self) -> int:
        return len(self._order.share(*rank_and_world()))

    def __iter__(self) -> Iterator[int]:
        rank, world = rank_and_world()
        rows = self._dataset.rows
        for row in samples(self._order, rank=rank, world=world, prefetch=self._prefetch):
            yield row if rows is None else int(np.searchsorted(rows, row))
        self._order.next_epoch()

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next pass."""
        self._order.progress = TrainingPosition(self._order.progress.seed, epoch)


class VolumeStream(IterableDataset[Any]):
    """The samples of this rank in a shuffled order that is known to the cache.

    Each pass gives what is left of an epoch, the first one as much as ``load_state_dict`` said.
    Use it through :class:`VolumeLoader`, which counts what was consumed. With a ``DataLoader``
    of your own call :meth:`consumed` after each batch, and :meth:`next_epoch` after each epoch,
    or :meth:`begin_pass` to go on with one that was broken off.

    Args:
        volume: an open volume or its address.
        decode: makes a sample of ``(data, path)``; without it a sample is the file's bytes.
        batch_size: that of the ``DataLoader``: its workers then keep the order.
        seed: of the shuffle.
        window: see :class:`~trainmaster.volumes.reading.stream.SampleOrder`.
        shuffle: see there.
        padding: see there.
        split: see there.
        rows: which files are samples; None: all.
        prefetch: whether to fetch chunks ahead.
    """

    def __init__(
        self,
        volume: Volume | str,
        decode: Decode | None = None,
        *,
        batch_size: int = 1,
        seed: int = 0,
        window: int = 8,
        shuffle: bool = True,
        padding: Padding = "pad",
        split: Split = "chunks",
        rows: NDArray[np.int64] | None = None,
        prefetch: bool = True,
    ) -> None:
        self.volume = volume if isinstance(volume, Volume) else Volume.open(volume)
        self.batch_size = batch_size
        self._decode = decode
        self._prefetch = prefetch
        self._order = SampleOrder(
            self.volume, seed=seed, window=window, shuffle=shuffle, padding=padding, split=split, rows=rows
        )
        # Workers that live on from epoch to epoch have a copy of this object, but the same memory here.
        self._shared = torch.zeros(2 + 2 * _MOST_PHASES, dtype=torch.int64)
        self._shared.share_memory_()

    def __len__(self) -> int:
        """Samples that are left for this rank in this epoch."""
        return len(self._order.share(*rank_and_world()))

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info is not None else (1, 0)
        if info is not None:
            self._order.progress = self._read_shared()
        rank, world = rank_and_world()
        order = samples(
            self._order,
            rank=rank,
            world=world,
            block=self.batch_size,
            workers=workers,
            worker=worker,
            prefetch=self._prefetch,
        )
        for row in order:
            yield decoded(self.volume, row, self._decode)

    def consumed(self, samples: int) -> None:
        """Notes that the training has taken so many samples more, on each rank."""
        # Workers are not told: one that starts late must begin where the others did.
        self._order.consumed(samples, rank_and_world()[1])

    def next_epoch(self) -> None:
        """Begins the next epoch."""
        self._order.next_epoch()
        self.begin_pass()

    def begin_pass(self) -> None:
        """Tells workers that the next pass begins behind what was consumed."""
        self._write_shared()

    def quality(self) -> Quality:
        """Measures the shuffle of this epoch."""
        return self._order.quality()

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self._order.progress.epoch

    def state_dict(self) -> dict[str, object]:
        """Gives ``{seed, epoch, consumed}``; the same on every rank."""
        return self._order.progress.as_state()

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Goes on where another training stopped, whatever its number of ranks was."""
        self._order.progress = TrainingPosition.from_state(state)
        self.begin_pass()

    def _write_shared(self) -> None:
        progress = self._order.progress
        if len(progress.consumed) > _MOST_PHASES:
            raise UsageError(
                f"The number of ranks changed {len(progress.consumed)} times within an epoch.",
                "Begin the next epoch: only 62 changes are remembered.",
            )
        words = [
            progress.epoch,
            len(progress.consumed),
            *(word for phase in progress.consumed for word in phase),
        ]
        self._shared[: len(words)] = torch.tensor(words, dtype=torch.int64)

    def _read_shared(self) -> TrainingPosition:
        epoch, phases, *words = self._shared.tolist()
        pairs = zip(words[0 : 2 * phases : 2], words[1 : 2 * phases : 2], strict=True)
        return TrainingPosition(self._order.progress.seed, epoch, tuple(pairs))


class VolumeLoader:
    """A ``DataLoader`` over a :class:`VolumeStream` that knows how far the training is.

    ``state_dict()`` after any batch, and ``load_state_dict()`` before the first, go on with the
    batch after it, with any number of workers and ranks.

    Args:
        stream: the samples.
        batch_size: of each rank.
        drop_last: leave the last batch out if it is smaller.
        options: for ``DataLoader``: ``num_workers``, ``collate_fn``, ``pin_memory``, ...
    """

    def __init__(
        self,
        stream: VolumeStream,
        batch_size: int,
        *,
        drop_last: bool = False,
        **options: Any,  # noqa: ANN401 - DataLoader's own
    ) -> None:
        stream.batch_size = batch_size
        self.stream = stream
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._loader: DataLoader[Any] = DataLoader(
            stream, batch_size=batch_size, drop_last=drop_last, **options
        )

    def __len__(self) -> int:
        """Batches that are left in this epoch."""
        count = len(self.stream)
        return count // self._batch_size if self._drop_last else -(-count // self._batch_size)

    def __iter__(self) -> Iterator[Any]:
        left = len(self.stream)
        self.stream.begin_pass()
        for batch in self._loader:
            # Counted before the training has it: a state that is taken in the loop is behind this batch.
            taken = min(self._batch_size, left)
            left -= taken
            self.stream.consumed(taken)
            yield batch
        self.stream.next_epoch()

    def state_dict(self) -> dict[str, object]:
        """Gives ``{seed, epoch, consumed}``; the same on every rank."""
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Goes on where another training stopped."""
        self.stream.load_state_dict(state)


def decoded(volume: Volume, row: int, decode: Decode | None) -> Any:  # noqa: ANN401 - whatever decode gives
    """Gives a sample."""
    if decode is None:
        return volume.read(row)
    return decode(volume.view(row), volume.table.path(row))
