"""The chunks that lie on this node, for all processes that read volumes there."""

import logging
import os
import threading
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainmaster.spec.errors import PublishError
from trainmaster.volumes.errors import CacheError, DamagedChunkError, NoRoomError
from trainmaster.volumes.reading.download import DOWNLOADER, Chunk, Placed
from trainmaster.volumes.reading.eviction import victims
from trainmaster.volumes.reading.orders import KnownOrders
from trainmaster.volumes.reading.place import SLOT_BYTES, chunk_directory
from trainmaster.volumes.reading.renewal import renew_after_fork
from trainmaster.volumes.reading.slot_file import SlotFile
from trainmaster.volumes.reading.slot_table import FILLING, FREE, SUSPECT, VALID

_PATIENCE_S = 60.0
_LOOK_AGAIN_S = 0.01
_BLOCK_BYTES = 512

log = logging.getLogger(__name__)


class _Flight:
    """A chunk that a thread of this process is fetching."""

    def __init__(self) -> None:
        self.landed = threading.Event()
        self.error: PublishError | CacheError | None = None


class ChunkCache:
    """A node's cache of chunks.

    One for all processes of a node: its slots lie in one file that every reader maps. Each
    chunk is fetched by exactly one of the readers that want it, verified, and then shown to
    all. Safe to use from several threads and, after a fork, in the child.

    An unpinned chunk may be evicted at any time. Readers either pin it, or copy
    and then look whether its stamp is still the same.

    Attributes:
        directory: where the slots lie.
        slots: the file of slots.
        orders: the directory in which readers announce their orders.
        fetched_chunks: how many chunks this object has fetched from stores.
        damaged_chunks: how many of them came damaged at the first try.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        slot_bytes: int = SLOT_BYTES,
        limit_bytes: int | None = None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """Opens or makes the cache.

        Args:
            directory: None: ``TRAINMASTER_CACHE/chunks``.
            slot_bytes: size of a slot; no chunk may be larger.
            limit_bytes: the most the cache may take on the disk, at least two slots; None:
                ``TRAINMASTER_CACHE_BYTES``, or what was given last, or half of the free disk.
            patience_s: how long to wait for a slot while all are in use.

        Raises:
            CacheError: the directory cannot be written, or the limit is too small.
        """
        self._root = os.fspath(directory or chunk_directory())
        self.slots = SlotFile(self._root, slot_bytes, limit_bytes)
        self.directory = Path(self.slots.directory)
        self.orders = f"{self.slots.directory}/orders"
        self._known = KnownOrders(self.orders)
        self._patience_s = patience_s
        self._mutex = threading.Lock()
        self._choosing = threading.Lock()
        self._flights: dict[bytes, _Flight] = {}
        self.fetched_chunks = 0
        self.damaged_chunks = 0
        renew_after_fork(self)

    @property
    def limit_bytes(self) -> int:
        """The most the cache takes on the disk."""
        return self.slots.limit_bytes

    def find(self, chunk: Chunk) -> Placed | None:
        """Says where the chunk lies, if it is there, without fetching it."""
        self.slots.refresh()
        found = self.slots.table.find(chunk.key)
        if found is None or found[1] % 4 != VALID:
            return None
        return Placed(*found)

    def obtain(self, chunk: Chunk, *, pinned: bool = False, ahead: bool = False) -> Placed:
        """Makes sure that the chunk is there; fetches it if needed.

        Args:
            chunk: which.
            pinned: keep it there until ``unpin(placed)``.
            ahead: its use lies ahead, in an announced order: fetch it only if no chunk has to go
                that will be used sooner.

        Raises:
            PublishError: it cannot be read from the store, or is damaged there.
            CacheError: no slot can be had.
            NoRoomError: every chunk that is there is needed sooner.
        """
        if chunk.size_bytes > self.slots.slot_bytes:
            raise CacheError(
                f"A chunk of {chunk.size_bytes:,} bytes does not fit a slot of {self.slots.slot_bytes:,}.",
                "Open the cache with slots as large as the volume's chunks.",
            )
        while True:
            placed = self.find(chunk)
            if placed is not None and (not pinned or self.pin(placed)):
                self.slots.table.touch(placed.slot)
                return placed
            with self._mutex:
                flight = self._flights.get(chunk.key)
                leads = flight is None
                if flight is None:
                    flight = self._flights[chunk.key] = _Flight()
            if not leads:
                flight.landed.wait()
                if flight.error is not None and not isinstance(flight.error, NoRoomError):
                    raise flight.error
                continue
            try:
                placed = self._lead(chunk, ahead)
            except (PublishError, CacheError) as error:
                flight.error = error
                raise
            finally:
                with self._mutex:
                    del self._flights[chunk.key]
                flight.landed.set()
            if not pinned:
                self.slots.unpin(placed.slot)
            return placed

    def pin(self, placed: Placed) -> bool:
        """Keeps a chunk where it lies until :meth:`unpin`; False if it is there no more."""
        if not self.slots.pin(placed.slot):
            return False
        if self.slots.table.stamp(placed.slot) == placed.stamp:
            return True
        self.slots.unpin(placed.slot)
        return False

    def unpin(self, placed: Placed) -> None:
        """Gives one pin back."""
        self.slots.unpin(placed.slot)

    def _lead(self, chunk: Chunk, ahead: bool) -> Placed:
        """Fetches a chunk, unless another process has by the time it is our turn; gives it pinned."""
        with self.slots.chunk_lock(chunk.key):
            while True:
                self.slots.refresh()
                found = self.slots.table.find(chunk.key)
                if found is None:
                    return self._fill(chunk, self._claim(chunk, ahead))
                placed = Placed(*found)
                if placed.stamp % 4 == SUSPECT:
                    self._verify_again(chunk, placed)
                elif self.pin(placed):
                    self.slots.table.touch(placed.slot)
                    return placed

    def _verify_again(self, chunk: Chunk, placed: Placed) -> None:
        """Drops a chunk from before the last boot: it may not have reached the disk."""
        slot = placed.slot
        if not self.slots.claim(slot, placed.stamp):
            time.sleep(_LOOK_AGAIN_S)
            return
        state = FREE
        try:
            if self.slots.table.size_bytes(slot) == chunk.size_bytes:
                chunk.source.verify(chunk.number, self.slots.view(slot, 0, chunk.size_bytes))
                self._clear_rest(chunk, slot)
                state = VALID
        except PublishError:
            log.warning("a chunk in %s did not survive the last restart; it is fetched again", self.directory)
        finally:
            self.slots.table.advance(slot, state)
            self.slots.release(slot)

    def _fill(self, chunk: Chunk, slot: int) -> Placed:
        table = self.slots.table
        try:
            table.advance(slot, FILLING)
            self._download(chunk, slot)
            self._clear_rest(chunk, slot)
            table.describe(slot, chunk.key, chunk.size_bytes)
            table.tick()
            table.touch(slot)
            stamp = table.stamp(slot) // 4 * 4 + VALID
            table.set_stamp(slot, stamp)
        except BaseException:
            table.advance(slot, FREE)
            self.slots.release(slot)
            raise
        self.slots.release_pinned(slot)
        return Placed(slot, stamp)

    def _download(self, chunk: Chunk, slot: int) -> None:
        def write(start: int, data: memoryview) -> None:
            self.slots.write(slot, start, data)

        for attempt in (1, 2):
            try:
                DOWNLOADER.fill_slot(chunk, self.slots.path, slot * self.slots.slot_bytes, write)
                self.fetched_chunks += 1
                chunk.source.verify(chunk.number, self.slots.view(slot, 0, chunk.size_bytes))
            except DamagedChunkError as error:
                if attempt == 2:
                    raise
                self.damaged_chunks += 1
                log.warning("%s It is fetched once more.", str(error).partition("\n")[0])
            else:
                return

    def _clear_rest(self, chunk: Chunk, slot: int) -> None:
        """A kernel that reads the slot by itself shows the rest of the last block to what maps a file."""
        self.slots.write(slot, chunk.size_bytes, memoryview(bytes(-chunk.size_bytes % _BLOCK_BYTES)))

    def _claim(self, chunk: Chunk, ahead: bool) -> int:
        """Gets a slot to fill: one that is free, a new one, or the one that will be missed least."""
        deadline_s = time.monotonic() + self._patience_s
        while True:
            with self._choosing:  # two threads would choose the same victim
                slot = self._free_slot()
                if slot is None:
                    slot = self.slots.reserve_another()
                if slot is None:
                    slot = self._evicted(chunk, ahead)
            if slot is not None:
                return slot
            if ahead:
                raise NoRoomError("Every chunk in the cache is needed sooner.")
            if time.monotonic() > deadline_s:
                raise CacheError(
                    f"All slots of the chunk cache {self.directory} are in use by readers and mounts.",
                    "Release views, end a mount (findmnt -t erofs), or raise TRAINMASTER_CACHE_BYTES.",
                )
            time.sleep(_LOOK_AGAIN_S)

    def _free_slot(self) -> int | None:
        table = self.slots.table
        states = table.states()
        for slot in self.slots.usable().tolist():
            # A slot that is FILLING and not locked is a dead process's.
            if states[slot] in (FREE, FILLING) and self.slots.claim(slot, table.stamp(slot)):
                if table.stamp(slot) % 4 in (FREE, FILLING):
                    return int(slot)
                self.slots.release(slot)
        return None

    def _evicted(self, chunk: Chunk, ahead: bool) -> int | None:
        table = self.slots.table
        candidates = self.slots.usable()
        if not len(candidates):
            return None
        stamps = {slot: table.stamp(slot) for slot in candidates.tolist()}
        # All in one look, so that they are compared at one position and one pace.
        prefixes = np.append(table.prefixes()[candidates], np.uint64(chunk.prefix))
        *rest, own_s = self._known.next_use_s(prefixes)
        sooner_s = own_s if ahead else -1.0
        for slot in victims(candidates, table.used()[candidates], np.array(rest), sooner_s):
            if self.slots.claim(slot, stamps[slot]):
                return slot
        return None

    def resident(self, prefixes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Says which of these chunks are there, by the first eight bytes of their keys."""
        table = self.slots.table
        return np.isin(prefixes, table.prefixes()[table.states() == VALID])

    def after_fork(self) -> None:
        """In a forked child: locks and threads of its own."""
        self._mutex = threading.Lock()
        self._choosing = threading.Lock()
        self._flights = {}

    def close(self) -> None:
        """Gives all locks and pins back."""
        self.slots.close()
