"""Batches for a training step: how many samples a second, and how long a training waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import Queue
from typing import Any

import numpy as np
import torch
from peers_method import Seen
from peers_place import Place
from peers_shards import BATCH, Stream
from torch.utils.data import get_worker_info

Batch = tuple[list[str], list[int], torch.Tensor]
#: Batches that wait, as many as DataLoader's `prefetch_factor` for each worker.
AHEAD = 4
MATRIX = 256
_WORD = (1 << 64) - 1
_ring: list[torch.Tensor] = []
_turn, _turns = 0, 2


def collate(samples: list[tuple[str, Any]]) -> Batch:
    """Copies samples of different sizes into one tensor: of shared memory in a worker, else a used one."""
    ends = np.cumsum([len(data) for _, data in samples]).tolist()
    total = ends[-1]
    if get_worker_info() is not None:
        storage = torch.UntypedStorage._new_shared(total)
        batch = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (total,))
    else:
        batch = _used(total)
    there, begin = batch.numpy(), 0
    for (_, data), end in zip(samples, ends, strict=True):
        there[begin:end] = np.frombuffer(data, np.uint8)
        begin = end
    return [name for name, _ in samples], ends, batch


def _used(size_bytes: int) -> torch.Tensor:
    """A buffer that is used in turn, as pinned ones are: fresh memory costs more than the copy."""
    global _turn
    _turn = (_turn + 1) % _turns
    while len(_ring) <= _turn:
        _ring.append(torch.empty(0, dtype=torch.uint8))
    if len(_ring[_turn]) < size_bytes:
        _ring[_turn] = torch.zeros(size_bytes + (size_bytes >> 1), dtype=torch.uint8)
    return _ring[_turn][:size_bytes]


def note_batch(seen: Seen, batch: Batch) -> None:
    """Looks at each sample of a batch."""
    names, ends, tensor = batch
    data, begin = memoryview(tensor.numpy()), 0
    for name, end in zip(names, ends, strict=True):
        seen.note(name, data[begin:end])
        begin = end


def ahead(loader: Iterable[Batch]) -> Iterator[Batch]:
    """Batches that a thread of this process makes while the training computes."""
    queue: Queue[Batch | BaseException | None] = Queue(AHEAD)

    def run() -> None:
        try:
            for batch in loader:
                queue.put(batch)
            queue.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again by what waits
            queue.put(error)

    threading.Thread(target=run, daemon=True).start()
    while (batch := queue.get()) is not None:
        if isinstance(batch, BaseException):
            raise batch
        yield batch


def computing(step_s: float) -> Callable[[float], None]:
    """A step of real work for one processor, always the same, that takes so long when nobody disturbs it.

    Returns:
        What does a share of it; 1 is a step.
    """
    left, result = torch.rand(MATRIX, MATRIX), torch.empty(MATRIX, MATRIX)
    torch.set_num_threads(1)
    best_s = 1.0
    for _ in range(200):
        began = time.perf_counter()
        torch.mm(left, left, out=result)
        best_s = min(best_s, time.perf_counter() - began)

    def work(share: float) -> None:
        for _ in range(round(step_s * share / best_s)):
            torch.mm(left, left, out=result)

    return work


def epochs(
    method: Stream,
    place: Place,
    seen: Seen,
    *,
    count: int,
    share: float,
    seed: int,
    compute: str = "",
    step_s: float = 0.0,
) -> list[dict[str, float]]:
    """Trains epochs with one loader.

    Args:
        method: whose batches; of one without workers a thread makes them while a step computes.
        place: where the store is.
        seen: looks at every sample, at eight bytes of it.
        count: how many epochs.
        share: how much of the volume may be cached.
        seed: of the shuffle.
        compute: what a step is: nothing, ``sleep`` as while a GPU works, or ``cpu``.
        step_s: of a whole batch.
    """
    step = {
        "": lambda part: None,
        "sleep": lambda part: time.sleep(step_s * part),
        "cpu": computing(step_s) if compute == "cpu" else None,
    }[compute]
    loader, is_threaded = method.loader(place, seed, share, collate), bool(compute) and not method.workers
    global _turns
    _turns += AHEAD if is_threaded else 0  # one is filled and one looked at, besides those that wait
    result = []
    for _ in range(count):
        waits: list[float] = []
        seen.files = seen.bytes = seen.sum = 0
        began = asked = time.perf_counter()
        for batch in ahead(loader) if is_threaded else loader:
            waits.append(time.perf_counter() - asked)
            note_batch(seen, batch)
            step(len(batch[0]) / BATCH)
            asked = time.perf_counter()
        took = asked - began
        if seen.files != len(method.names):
            raise AssertionError(f"{method.name}: {seen.files} samples in an epoch, not {len(method.names)}")
        result.append(
            {
                "samples_per_s": seen.files / took,
                "stall_share": sum(waits) / took,
                "first_batch_s": waits[0],
                "seconds": took,
                "proven": {"files": seen.files, "bytes": seen.bytes, "sum": f"{seen.sum & _WORD:016x}"},
            }
        )
    return result
