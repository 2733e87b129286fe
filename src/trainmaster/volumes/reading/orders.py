# ruff: noqa: PTH103, PTH104, PTH108
# Names of a private directory, opened by descriptor: os functions are exact here.
"""The orders that readers of a node have announced, for the one that has to evict a chunk.

Each reader keeps one small file: its order, how far it is and how fast. The file is locked by
its owner, so that those of dead readers are known and removed.
"""

import fcntl
import mmap
import os
import struct
import time
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from trainmaster.volumes.reading.eviction import NextUses

_HEAD = struct.Struct("<8sQQd")  # magic, count, position, seconds per sample
_HEAD_BYTES = 64
_MAGIC = b"TMORDER1"
# Longer orders are announced piece by piece: 16 MB of disk for each reader.
HORIZON = 1 << 20
# Until the reader has told its pace.
_SECONDS_PER_SAMPLE = 1e-3


class AnnouncedOrder:
    """This reader's order, for all processes of the node to see until it is closed or the reader dies."""

    def __init__(self, directory: str, keys: NDArray[np.uint64], positions: NDArray[np.int64]) -> None:
        os.makedirs(directory, exist_ok=True)
        name = f"{os.getpid()}-{time.monotonic_ns():x}-{id(self) & 0xFFFF:x}"
        self._path = f"{directory}/{name}"
        scratch = f"{directory}/.{name}"
        self._descriptor = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        body = np.concatenate((keys[:HORIZON].astype("<u8"), positions[:HORIZON].astype("<u8"))).tobytes()
        head = _HEAD.pack(_MAGIC, len(body) // 16, 0, _SECONDS_PER_SAMPLE)
        os.pwrite(self._descriptor, head.ljust(_HEAD_BYTES, b"\0") + body, 0)
        self._mapped = mmap.mmap(self._descriptor, _HEAD_BYTES)
        os.rename(scratch, self._path)
        self._pid = os.getpid()

    def advance(self, position: int, seconds_per_sample: float) -> None:
        """Says how many samples are done, and how long one takes at present."""
        struct.pack_into("<Qd", self._mapped, 16, position, seconds_per_sample)

    def close(self) -> None:
        """Takes the order back. In a forked child the parent's stays."""
        if self._descriptor < 0:
            return
        if self._pid == os.getpid():
            with suppress(OSError):
                os.unlink(self._path)
        os.close(self._descriptor)
        self._descriptor = -1


class KnownOrders:
    """The orders of all living readers of a cache."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._read: dict[tuple[str, int], tuple[NextUses, mmap.mmap]] = {}

    def next_use_s(self, keys: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Estimates in how many seconds each chunk will be used by anybody; ``inf`` if unknown."""
        soonest = np.full(len(keys), np.inf)
        seen: dict[tuple[str, int], tuple[NextUses, mmap.mmap]] = {}
        for name in self._names():
            known = self._open(name)
            if known is None:
                continue
            identity, order, mapped = known
            seen[identity] = (order, mapped)
            position, seconds_per_sample = struct.unpack_from("<Qd", mapped, 16)
            np.minimum(soonest, order.distances(keys, position) * max(seconds_per_sample, 1e-9), out=soonest)
        self._read = seen
        return soonest

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._directory) if name[0] != "."]  # noqa: PTH208
        except FileNotFoundError:
            return []

    def _open(self, name: str) -> tuple[tuple[str, int], NextUses, mmap.mmap] | None:
        path = f"{self._directory}/{name}"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:  # orphaned: its owner is dead
                with suppress(OSError):
                    os.unlink(path)
                return None
            identity = (name, os.fstat(descriptor).st_ino)
            if known := self._read.get(identity):
                return (identity, *known)
            size_bytes = os.fstat(descriptor).st_size
            if size_bytes <= _HEAD_BYTES:
                return None
            mapped = mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ)
            magic, count, _, _ = _HEAD.unpack_from(mapped)
            if magic != _MAGIC or _HEAD_BYTES + count * 16 > size_bytes:
                return None
            body = np.frombuffer(mapped, "<u8", 2 * count, _HEAD_BYTES)
            return identity, NextUses(body[:count], body[count:].astype(np.int64)), mapped
        finally:
            os.close(descriptor)
