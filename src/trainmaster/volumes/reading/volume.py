"""A volume opened for reading: its files by row and by path, out of the node's cache.

Chunks as they lie in the cache, kept there for as long as anybody looks at their bytes.
"""

import hashlib
import io
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainmaster.objects.object_store import ObjectStore
from trainmaster.objects.range_file import RangeFile
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.volumes.packed.hashes import new_digest
from trainmaster.volumes.packed.head import Head
from trainmaster.volumes.packed.opening import OpenVolume
from trainmaster.volumes.packed.table import Entry, FileTable, resolved
from trainmaster.volumes.reading.cache import ChunkCache
from trainmaster.volumes.reading.cache_location import CacheLocation, cache_location
from trainmaster.volumes.reading.download import DOWNLOADER, Chunk, Placed, RangeSource
from trainmaster.volumes.reading.forked import SharedSource, opened_volume
from trainmaster.volumes.reading.place import slot_bytes_for
from trainmaster.volumes.reading.readahead import ReadAhead
from trainmaster.volumes.reading.renewal import renew_after_fork
from trainmaster.volumes.reading.slot_file import SlotFile
from trainmaster.volumes.reading.slot_table import CLOCK_WORD, stamp_word, used_word

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


class Follower(Protocol):
    """Fetches ahead for a reader whose order it knows."""

    @property
    def is_here(self) -> bool:
        """False in a forked child."""

    def saw(self, chunk: int) -> None:
        """The reader has come to a chunk."""


class Volume:
    """One version of a volume, read through the cache of this node.

    Files are numbered: row 0 to ``len(volume) - 1``, in the order in which they are packed. Safe
    to use from several threads; after a fork, in the child; pickled, it is opened again.

    Attributes:
        uri: of this version, its number always given.
        head: what the version is.
        table: its files.
        cache: the node's chunks.
    """

    def __init__(self, opened: OpenVolume, location: CacheLocation) -> None:
        self.uri = opened.uri
        self.head: Head = opened.head
        self.table: FileTable = opened.table
        self._site = location
        slot_bytes = slot_bytes_for(max(opened.head.chunk_limit_bytes, *opened.table.chunk_sizes, 1))
        self.cache: ChunkCache = location.cache(slot_bytes)
        DOWNLOADER.limiter.expect(opened.answer_s)
        self._source = SharedSource(opened.chunks, local=opened.store.is_local and _reads_local(opened))
        # It must not know the volume: a circle would keep what is mapped until the collector runs.
        self._described = partial(_described, self._source, self.table, self.head.table_id)
        self._ahead = ReadAhead(self.cache, self._described, self.table.chunk_count)
        self._followers: tuple[Follower, ...] = ()
        self._reached = -1
        self._mutex = threading.Lock()
        # What `read` needs, as flat as it gets. Of each chunk: where its slot begins in the data, the
        # word of the slot's stamp, and what that word was when the chunk was there.
        self._sizes, self._offsets = self.table.sizes, self.table.offsets
        self._first_chunks, self._chunk_sizes = self.table.first_chunks, self.table.chunk_sizes
        self._places: dict[int, tuple[int, int, int]] = {}
        self._leases: dict[int, SlotPin] = {}
        self._data, self._words = self.cache.slots.data, self.cache.slots.table.words
        if self.head.kind == "packed":
            new_digest()  # imports what proves chunks: a child forked while a thread did would wait for that
        renew_after_fork(self)

    @classmethod
    def open(
        cls,
        uri: str,
        cache: "Path | str | None" = None,
        *,
        version: int | None = None,
        limit_bytes: int | None = None,
    ) -> "Volume":
        """Opens a volume; its tables are fetched the first time, its chunks when they are read.

        Args:
            uri: ``URL``, ``NAME``, ``URL@VERSION`` or ``NAME@VERSION``.
            cache: directory for all that can be made again; None: ``TRAINMASTER_CACHE``. If that
                cannot be written, a directory of this process's own is used and a warning given.
            version: the same as ``@VERSION``.
            limit_bytes: the most that the chunks of all volumes may take there; None: see
                :class:`~trainmaster.volumes.reading.cache.ChunkCache`.

        Raises:
            NotFoundError: there is no such volume or version.
            UsageError: this is no address of a volume.
            PublishError: it is damaged, or the store fails.
            CacheError: the cache cannot be used, or is too small.
        """
        if version is not None:
            uri = f"{uri}@{version}"
        location = cache_location(None if cache is None else Path(cache), limit_bytes)
        return cls(opened_volume(uri, location.root), location)

    def __reduce__(self) -> "tuple[object, tuple[str, Path | None]]":
        return _reopened, (self.uri, self._site.given)

    def __len__(self) -> int:
        return self.table.file_count

    def __repr__(self) -> str:
        return f"<Volume {self.uri}: {len(self):,} files, {self.table.total_bytes:,} bytes>"

    def __getitem__(self, name: "str | int") -> bytes:
        return self.read(name)

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str | bytes) and resolved(self.table, path) >= 0

    def __enter__(self) -> "Volume":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends what runs in the background; views stay valid until they are released."""
        self._ahead.close()

    def after_fork(self) -> None:
        """In a forked child: see :class:`~trainmaster.volumes.reading.renewal.Renewable`."""
        self._mutex = threading.Lock()
        self._data, self._words = self.cache.slots.data, self.cache.slots.table.words

    def follow(self, prefetcher: Follower) -> None:
        """Has what is read fetched ahead by code that knows the order, until :meth:`unfollow`."""
        with self._mutex:
            self._followers, self._reached = (*self._followers, prefetcher), -1

    def unfollow(self, prefetcher: Follower) -> None:
        """It fetches no more."""
        with self._mutex:
            self._followers = tuple(one for one in self._followers if one is not prefetcher)

    # By row: nothing here may cost more than it must.

    def read(self, name: "int | str | bytes") -> bytes:
        """Reads a whole file.

        Args:
            name: its row, or its path; links inside the volume are followed.

        Raises:
            NotFoundError: there is no such file.
            PublishError: the store fails, or its bytes are damaged.
            CacheError: no slot can be had.
        """
        row = name if isinstance(name, int) else self.row_of(name)
        if row < 0:
            raise self._no_row(row)
        try:
            chunk = self._first_chunks[row]
            start, word, stamp = self._places[chunk]
        except KeyError:
            return self._read_slowly(row)
        except IndexError:
            raise self._no_row(row) from None
        words = self._words
        start += self._offsets[row]
        size_bytes = self._sizes[row]
        if words[word] == stamp and self._offsets[row] + size_bytes <= self._chunk_sizes[chunk]:
            data = bytes(self._data[start : start + size_bytes])
            if words[word] == stamp:  # the slot was not reused meanwhile
                words[word + 1] = words[CLOCK_WORD]
                return data
        return self._read_slowly(row)

    def view(self, name: "int | str | bytes") -> memoryview:
        """Gives a file's bytes as they lie in the cache, not copied.

        The chunk stays there for as long as the view, or any slice or array that was made of it,
        exists. A file that lies in several chunks is copied.

        Raises:
            The same as :meth:`read`; CacheError too if views hold every slot.
        """
        row = name if isinstance(name, int) else self.row_of(name)
        if not 0 <= row < self.table.file_count:
            raise self._no_row(row)
        chunk, offset, length = self._first_chunks[row], self._offsets[row], self._sizes[row]
        if not length or offset + length > self._chunk_sizes[chunk]:
            return memoryview(self._read_slowly(row))
        return self._whole(chunk)[offset : offset + length]

    def views(self, rows: "Iterable[int]") -> "list[memoryview]":
        """Gives the bytes of several files as :meth:`view` does, in a third of the time.

        Each chunk that they lie in is looked up and kept only once, until the last of its views is
        gone. So there must be room for all those chunks in the cache at once.

        Raises:
            The same as :meth:`view`.
        """
        first_chunks, offsets, sizes = self._first_chunks, self._offsets, self._sizes
        count = self.table.file_count
        wholes: dict[int, memoryview] = {}
        found = []
        for row in rows:
            if not 0 <= row < count:
                raise self._no_row(row)
            size_bytes = sizes[row]
            if not size_bytes:
                found.append(memoryview(b""))
                continue
            chunk = first_chunks[row]
            whole = wholes.get(chunk)
            if whole is None:
                whole = wholes[chunk] = self._whole(chunk)
            start = offsets[row]
            view = whole[start : start + size_bytes]
            found.append(view if len(view) == size_bytes else memoryview(self._read_slowly(row)))
        return found

    def _whole(self, chunk: int) -> memoryview:
        """Gives the bytes of a chunk, which stays where it is as long as they exist."""
        lease = self._leases.get(chunk)
        array = lease() if lease is not None else None
        if array is None:
            slot = self._pinned_slot(chunk)
            array, self._leases[chunk] = leased(self.cache.slots, slot, self._chunk_sizes[chunk])
        return memoryview(array)  # type: ignore[arg-type] # Python 3.12 says that it is a buffer

    def _pinned_slot(self, chunk: int) -> int:
        slots, place = self.cache.slots, self._places.get(chunk)
        if place is not None:
            slot = place[0] // slots.slot_bytes
            if slots.pin(slot):
                if self._words[place[1]] == place[2]:
                    self._words[place[1] + 1] = self._words[CLOCK_WORD]
                    return slot
                slots.unpin(slot)
        return self.pinned(chunk).slot

    def read_range(self, row: int, start: int, length: int) -> bytes:
        """Reads a part of a file; less at its end."""
        chunk, offset, left = self._located(row, start, length)
        if not left:
            return b""
        if left <= self._chunk_sizes[chunk] - offset:
            return self._piece(chunk, offset, left)
        pieces = []
        while left:
            size_bytes = min(left, self._chunk_sizes[chunk] - offset)
            pieces.append(self._piece(chunk, offset, size_bytes))
            left -= size_bytes
            chunk, offset = chunk + 1, 0
        return b"".join(pieces)

    def view_range(self, row: int, start: int, length: int) -> memoryview:
        """Gives a part of a file as :meth:`view` does; less at its end. Only one in several chunks is copied.

        A large file begins a chunk of its own, and is cut at multiples of 64 KiB.
        """
        chunk, offset, length = self._located(row, start, length)
        if not length or offset + length > self._chunk_sizes[chunk]:
            return memoryview(self.read_range(row, start, length))
        self._come_to(chunk)
        return self._whole(chunk)[offset : offset + length]

    def _located(self, row: int, start: int, length: int) -> tuple[int, int, int]:
        """Says where a part of a file begins: chunk, offset, and how many bytes of it there are."""
        if row < 0 or row >= self.table.file_count:
            raise self._no_row(row)
        end = min(start + length, self._sizes[row])
        if start >= end:
            return 0, 0, 0
        chunk, offset = self._first_chunks[row], self._offsets[row] + start
        while offset >= (room := self._chunk_sizes[chunk]):  # a large file: its chunks follow each other
            offset -= room
            chunk += 1
        return chunk, offset, end - start

    def _come_to(self, chunk: int) -> None:
        if self._followers and chunk != self._reached:
            self._reached = chunk
            for follower in self._followers:
                follower.saw(chunk)

    def _read_slowly(self, row: int) -> bytes:
        return self.read_range(row, 0, self._sizes[row])

    def _piece(self, chunk: int, offset: int, length: int) -> bytes:
        self._come_to(chunk)
        place = self._places.get(chunk)
        if place is not None:
            start, word, stamp = place
            if self._words[word] == stamp:
                data = bytes(self._data[start + offset : start + offset + length])
                if self._words[word] == stamp:
                    self._words[word + 1] = self._words[CLOCK_WORD]
                    return data
        placed = self.pinned(chunk, is_start=offset == 0)
        try:
            return bytes(self.cache.slots.view(placed.slot, offset, offset + length))
        finally:
            self.cache.unpin(placed)

    def chunk(self, number: int) -> Chunk:
        """Describes a chunk to the cache."""
        return self._described(number)

    def pinned(self, number: int, *, is_start: bool = False) -> Placed:
        """Sees that a chunk is in the cache and keeps it there until ``cache.unpin(placed)``.

        Args:
            number: of the chunk.
            is_start: its first bytes are wanted, as by what has read the one before to its end.
        """
        place = self._places.get(number)
        slots = self.cache.slots
        if place is not None:
            placed = Placed(place[0] // slots.slot_bytes, place[2])
            if self.cache.pin(placed):
                slots.table.touch(placed.slot)
                return placed
        if not any(follower.is_here for follower in self._followers):
            self._ahead.saw(number, is_start=is_start)
        placed = self.cache.obtain(self.chunk(number), pinned=True)
        self._remember(number, placed)
        return placed

    def _remember(self, number: int, placed: Placed) -> None:
        slots = self.cache.slots
        with self._mutex:
            if len(slots.data) != len(self._data):  # other processes have made the cache larger
                self._data, self._words = slots.data, slots.table.words
            word = stamp_word(placed.slot)
            assert used_word(placed.slot) == word + 1
            self._places[number] = (placed.slot * slots.slot_bytes, word, placed.stamp)

    def chunk_prefixes(self) -> "NDArray[np.uint64]":
        """The number of each chunk in announced orders."""
        import numpy as np

        count = self.table.chunk_count
        return np.fromiter((self.chunk(number).prefix for number in range(count)), np.uint64, count)

    # By path.

    def row_of(self, path: "str | bytes") -> int:
        """Gives the row of the file at a path; links inside the volume are followed.

        Raises:
            NotFoundError: there is none, or it is a directory.
        """
        row = self.table.row_of(path)
        if not 0 <= row < self.table.file_count:
            row = resolved(self.table, path)
        if row < 0 or row >= self.table.file_count:
            what = "no such file" if row < 0 else "a directory"
            raise NotFoundError(f"{os.fsdecode(path)!r} is {what} in {self.uri}.", "See `volume ls`.")
        return row

    def entry(self, path: "str | bytes") -> "Entry":
        """Gives what is known of a file, directory or link; links are followed.

        Raises:
            NotFoundError: there is none.
        """
        row = resolved(self.table, path)
        if row < 0:
            raise NotFoundError(f"{os.fsdecode(path)!r} is not in {self.uri}.", "See `volume ls`.")
        return self.table.entry(row)

    def list(self, path: "str | bytes" = "") -> "list[Entry]":
        """Lists what lies directly in a directory, links not followed.

        Raises:
            NotFoundError: there is no such directory.
            UsageError: it is a file.
        """
        entry = self.entry(path)
        if entry.kind != "directory":
            raise UsageError(f"{entry.path!r} in {self.uri} is no directory.")
        return [self.table.entry(row) for row in self.table.children(entry.row).tolist()]

    def paths(self) -> Iterator[str]:
        """Gives the paths of all files, by row."""
        return (self.table.path(row) for row in range(self.table.file_count))

    def open_file(self, path: "int | str | bytes") -> io.BufferedReader:
        """Opens a file for reading; it can be seeked, and reads ahead."""
        row = path if isinstance(path, int) else self.row_of(path)
        if not 0 <= row < self.table.file_count:
            raise self._no_row(row)
        file = RangeFile(partial(self.read_range, row), self.table.path(row), self._sizes[row])
        return io.BufferedReader(file, 1 << 20)

    def _no_row(self, row: int) -> IndexError:
        return IndexError(f"{self.uri} has rows 0 to {len(self) - 1}, not {row}")


def _reopened(uri: str, cache: Path | None) -> Volume:
    return Volume.open(uri, cache)


def _described(source: RangeSource, table: "FileTable", table_id: str, number: int) -> Chunk:
    key = table.chunk_hash(number)
    if key is None:
        # Its content is unknown, but the tables' hashes name every object's ETag.
        key = hashlib.sha256(f"{table_id}/{number}".encode()).digest()
    return Chunk(source, number, key, table.chunk_sizes[number])


def _reads_local(opened: OpenVolume) -> bool:
    return opened.head.kind != "indexed" or ObjectStore(opened.head.source_url).is_local
