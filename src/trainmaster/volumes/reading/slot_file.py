# ruff: noqa: PTH116
# One file, by descriptor: os functions are exact.
"""The file of slots, what may change which of them, and how it grows and shrinks within its limit."""

import errno
import mmap
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
from numpy.typing import NDArray

from trainmaster.volumes.errors import CacheError
from trainmaster.volumes.reading.forked import write_all
from trainmaster.volumes.reading.locks import RangeLocks
from trainmaster.volumes.reading.place import (
    is_limit_open,
    limit_bytes_of,
    remembered_limit_bytes,
    require_writable,
)
from trainmaster.volumes.reading.renewal import renew_after_fork
from trainmaster.volumes.reading.slot_table import FREE, SlotTable

_LEAST_SLOTS = 2
# Offsets in the file of locks: slots first, then the cache as a whole, then a region for chunks.
_WHOLE = 1 << 60
_CHUNKS = 1 << 61


class SlotFile:
    """Slots of one size in one file, shared by all processes of a node.

    Slots are reused and never given back while the limit stays: on many machines fresh
    pages cost more than the network does. Disk space is reserved slot by slot, before it is
    written, so a full disk is an error and no signal.

    Attributes:
        directory: where it lies.
        path: the file itself.
        slot_bytes: the size of a slot.
        table: what lies in each.
        data: all slots, mapped read-only.
    """

    _descriptor = -1

    def __init__(self, directory: str, slot_bytes: int, limit_bytes: int | None) -> None:
        """Opens or makes the file.

        Args:
            directory: of all slot files of the cache, ``TRAINMASTER_CACHE/chunks``.
            slot_bytes: the size of a slot.
            limit_bytes: for all slot files together; None: see :func:`limit_bytes_of`.

        Raises:
            CacheError: the directory cannot be written, or the limit allows less than two slots.
        """
        self._root = directory
        self.directory = f"{directory}/{slot_bytes}"
        self.slot_bytes = slot_bytes
        require_writable(self.directory)
        self._mutex = threading.RLock()
        self._whole = RangeLocks(f"{directory}/lock")
        self._locks = RangeLocks(f"{self.directory}/locks")
        # It is never written, and what clears old files out of /tmp must not take it from under the others.
        os.utime(self._locks.descriptor)
        self._pins: dict[int, int] = {}
        self._busy: set[int] = set()
        self._inside = 0
        self._unpinned: deque[int] = deque()
        with self._exclusively():
            is_default = is_limit_open(directory, limit_bytes)
            self.limit_bytes = limit_bytes_of(directory, limit_bytes)
            if self.limit_bytes // slot_bytes < _LEAST_SLOTS:
                if is_default:
                    os.unlink(f"{directory}/limit")  # noqa: PTH108 - there may be more room next time
                    raise CacheError(
                        f"The disk of the chunk cache {directory} is full: of the {2 * self.limit_bytes:,} "
                        f"bytes that are free {_LEAST_SLOTS} chunks of {slot_bytes:,} may take half at most.",
                        "Free some space there, or set TRAINMASTER_CACHE to another disk.",
                    )
                raise CacheError(
                    f"The chunk cache {directory} may take {self.limit_bytes:,} bytes, which is less than "
                    f"{_LEAST_SLOTS} chunks of {slot_bytes:,} bytes.",
                    f"Set TRAINMASTER_CACHE_BYTES to {_LEAST_SLOTS * slot_bytes} or more.",
                )
            self.path = f"{self.directory}/slots"
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self.table = SlotTable(f"{self.directory}/table", slot_bytes)
            self._distrust_a_cut_file()
            self.table.grow(max(self.limit_bytes // slot_bytes, self.table.capacity))
            os.ftruncate(self._descriptor, self.table.capacity * slot_bytes)
            self._shrink()
        self._map()
        renew_after_fork(self)

    def _map(self) -> None:
        length = self.table.capacity * self.slot_bytes
        mapped = mmap.mmap(self._descriptor, length, prot=mmap.PROT_READ)
        with suppress(OSError):  # what comes back from the disk comes in huge pages too, where there are any
            mapped.madvise(mmap.MADV_HUGEPAGE)
        self.data = memoryview(mapped)

    def _distrust_a_cut_file(self) -> None:
        whole = os.fstat(self._descriptor).st_size // self.slot_bytes
        for slot in range(whole, self.table.capacity):
            self.table.advance(slot, FREE)
            self.table.set_reserved(slot, False)

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        with self._mutex:
            self._whole.exclusive(_WHOLE)
            try:
                yield
            finally:
                self._whole.unlock(_WHOLE)

    # Chunks and slots are locked by what fills them, slots also by what reads them.

    @contextmanager
    def chunk_lock(self, key: bytes) -> Iterator[None]:
        """Waits for other processes that fetch the chunk; threads of this one must not meet here."""
        offset = _CHUNKS + (int.from_bytes(key[:8], "little") >> 4)
        self._locks.exclusive(offset)
        try:
            yield
        finally:
            self._locks.unlock(offset)

    def pin(self, slot: int) -> bool:
        """Keeps the slot's bytes as they are until :meth:`unpin`, or until this process ends.

        Returns:
            False if somebody is changing them.
        """
        with self._mutex:
            self._inside += 1
            try:
                if slot in self._busy:
                    return False
                count = self._pins.get(slot, 0)
                if count == 0 and not self._locks.try_shared(slot):
                    return False
                self._pins[slot] = count + 1
                return True
            finally:
                self._inside -= 1

    def unpin(self, slot: int) -> None:
        """Gives one :meth:`pin` back."""
        with self._mutex:
            self._inside += 1
            try:
                count = self._pins.get(slot, 0)
                if count > 1:
                    self._pins[slot] = count - 1
                elif count == 1:
                    del self._pins[slot]
                    self._locks.unlock(slot)
            finally:
                self._inside -= 1
        if self._unpinned:
            self._settle()

    def unpin_soon(self, slot: int) -> None:
        """Gives a pin back from where the collector runs, which may be in the middle of :meth:`pin`."""
        self._unpinned.append(slot)
        self._settle()

    def _settle(self) -> None:
        if self._mutex.acquire(blocking=False):
            try:
                while self._unpinned and not self._inside:
                    self.unpin(self._unpinned.popleft())
            finally:
                self._mutex.release()

    def claim(self, slot: int, stamp: int) -> bool:
        """Takes a slot to change it, if its stamp is unchanged and it is not held."""
        with self._mutex:
            self._settle()
            if slot in self._busy or slot in self._pins or not self._locks.try_exclusive(slot):
                return False
            if self.table.stamp(slot) != stamp:
                self._locks.unlock(slot)
                return False
            self._busy.add(slot)
            return True

    def release(self, slot: int) -> None:
        """Ends a claim."""
        with self._mutex:
            self._busy.discard(slot)
            self._locks.unlock(slot)

    def release_pinned(self, slot: int) -> None:
        """Ends a claim and pins the slot in the same moment."""
        with self._mutex:
            self._locks.try_shared(slot)  # converts our own lock: it cannot fail
            self._busy.discard(slot)
            self._pins[slot] = 1

    def reserve_another(self) -> int | None:
        """Adds a slot if the limit allows.

        Returns:
            It, claimed; None if there is no room for another.

        Raises:
            CacheError: the disk is full, and there are not even two slots.
        """
        with self._exclusively():
            reserved = self.table.reserved()
            self.limit_bytes = remembered_limit_bytes(self._root) or self.limit_bytes
            if (self._reserved_bytes() + self.slot_bytes) > self.limit_bytes:
                if not reserved.any():
                    raise CacheError(
                        f"Chunks of other sizes fill the cache {self._root} up to its limit of "
                        f"{self.limit_bytes:,} bytes.",
                        "Raise TRAINMASTER_CACHE_BYTES, or remove that directory while nothing reads it.",
                    )
                return None
            for slot in np.flatnonzero(~reserved).tolist():
                if not self.claim(slot, self.table.stamp(slot)):
                    continue
                self.table.set_reserved(slot, True)
                try:
                    os.posix_fallocate(self._descriptor, slot * self.slot_bytes, self.slot_bytes)
                except OSError as error:
                    self.table.set_reserved(slot, False)
                    self.release(slot)
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                        raise
                    if int(reserved.sum()) < _LEAST_SLOTS:
                        raise CacheError(
                            f"The disk of the chunk cache {self._root} is full ({error.strerror}).",
                            "Free some space there, or set TRAINMASTER_CACHE to another disk.",
                        ) from error
                    return None
                return int(slot)
            return None

    def _reserved_bytes(self) -> int:
        """Of all slot sizes; those of other sizes are seen through the blocks of their files."""
        total = int(self.table.reserved().sum()) * self.slot_bytes
        for entry in os.scandir(self._root):
            if entry.name.isdigit() and entry.name != str(self.slot_bytes):
                try:
                    total += os.stat(f"{entry.path}/slots").st_blocks * 512
                except FileNotFoundError:
                    continue
        return total

    def _shrink(self) -> None:
        """Gives slots back to the disk where the limit is lower than it was; pinned ones stay."""
        excess = self._reserved_bytes() - self.limit_bytes
        for slot in np.flatnonzero(self.table.reserved())[::-1].tolist():
            if excess <= 0:
                return
            if self.claim(slot, self.table.stamp(slot)):
                self.table.advance(slot, FREE)
                _punch_hole(self._descriptor, slot * self.slot_bytes, self.slot_bytes)
                self.table.set_reserved(slot, False)
                self.release(slot)
                excess -= self.slot_bytes

    def refresh(self) -> None:
        """Maps the slots that other processes have added."""
        with self._mutex:
            if self.table.disk_capacity() > self.table.capacity:
                with self._exclusively():
                    self.table.grow(self.table.disk_capacity())
                    os.ftruncate(
                        self._descriptor,
                        max(os.fstat(self._descriptor).st_size, self.table.capacity * self.slot_bytes),
                    )
                self._map()

    def write(self, slot: int, offset: int, data: memoryview) -> None:
        """Writes into a slot that is claimed."""
        write_all(self._descriptor, data, slot * self.slot_bytes + offset)

    def view(self, slot: int, start: int, end: int) -> memoryview:
        """The bytes of a slot, not copied."""
        base = slot * self.slot_bytes
        return self.data[base + start : base + end]

    def usable(self) -> NDArray[np.int64]:
        """Slots that own blocks of the disk and that this process neither reads nor fills."""
        with self._mutex:
            self._settle()
            own = {*self._pins, *self._busy}
            slots = np.flatnonzero(self.table.reserved())
            return slots[[slot not in own for slot in slots.tolist()]] if own else slots

    def after_fork(self) -> None:
        """In a forked child: nothing is pinned or claimed, as most of it was so by the parent's threads."""
        self._mutex, self._inside = threading.RLock(), 0
        self._pins, self._busy = {}, set()
        self._unpinned.clear()
        # A thread may have been about to map what others had added: then `refresh` does it.
        self.table.capacity = len(self.data) // self.slot_bytes

    def close(self) -> None:
        """Gives all locks back. Views that are still held stay readable, and may change."""
        self._locks.close()
        self._whole.close()
        self.table.close()
        self._close_data()

    def _close_data(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self._close_data()  # its locks and its table close themselves


def _punch_hole(descriptor: int, offset: int, length: int) -> None:
    import ctypes

    keep_size, punch = 1, 2
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if libc.fallocate(descriptor, keep_size | punch, offset, length) != 0:
        # No holes here: the blocks stay with the file, and the slot is simply not used.
        return
