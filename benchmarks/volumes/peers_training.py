"""Batches for a training step: how many samples a second, and how long a training waits for them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from peers_method import Seen
from peers_place import Place
from peers_shards import BATCH, Stream
from torch.utils.data import get_worker_info

Batch = tuple[list[str], list[int], torch.Tensor]
_WORD = (1 << 64) - 1
_ring: list[torch.Tensor] = []
_turn = 0


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
    """One of two buffers in turn, as pinned ones are: fresh memory costs more than the copy."""
    global _turn
    _turn ^= 1
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


def epochs(
    method: Stream, place: Place, seen: Seen, *, count: int, step_s: float, share: float, seed: int
) -> list[dict[str, float]]:
    """Trains epochs with one loader; a step is a sleep, during which the loader may work.

    Args:
        method: whose batches.
        place: where the store is.
        seen: looks at every sample, at eight bytes of it.
        count: how many epochs.
        step_s: of a batch; 0: none.
        share: how much of the volume may be cached.
        seed: of the shuffle.
    """
    loader = method.loader(place, seed, share, collate)
    result = []
    for _ in range(count):
        waits: list[float] = []
        seen.files = seen.bytes = seen.sum = 0
        began = asked = time.perf_counter()
        for batch in loader:
            waits.append(time.perf_counter() - asked)
            note_batch(seen, batch)
            if step_s:
                time.sleep(step_s * len(batch[0]) / BATCH)
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
