"""Sending chunks: read, hashed, and put unless the store has them."""

import mmap
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from trainmaster.objects.object_store import ObjectStore
from trainmaster.volumes.errors import DamagedChunkError, MissingChunkError
from trainmaster.volumes.packed.chunk_source import chunk_buffer, chunk_key, chunk_name, is_whole
from trainmaster.volumes.packed.deletions import Deletions
from trainmaster.volumes.packed.hashes import FILE_HASH_BYTES, chunk_digest, file_digest
from trainmaster.volumes.packed.journal import PushJournal, Remembered, plan_key
from trainmaster.volumes.packed.packing import FilePart
from trainmaster.volumes.packed.push_source import PushSource

# A file that was written a moment ago may be written again without its times telling.
_RACY_NS = 100_000_000


class PackedChunk(NamedTuple):
    """A chunk that is on the store.

    Attributes:
        digest: its name.
        size_bytes: 0 if it has no bytes; then there is no object.
        hashes: of each whole file in it, 16 bytes each.
        generation: of its name.
    """

    digest: bytes
    size_bytes: int
    hashes: bytes
    generation: int = 0

    def hash_of(self, position: int) -> bytes:
        """Gives the hash of one of its files."""
        return self.hashes[position * FILE_HASH_BYTES : (position + 1) * FILE_HASH_BYTES]


class ChunkUploader:
    """Turns pieces into chunks on the store; safe to use from several threads.

    Args:
        source: of the pieces.
        store: the volume.
        journal: what was read before.
        deletions: names that may not be used.
        limit_bytes: no chunk is larger.
        jobs: how many are read and sent at the same time.
        proves: read every chunk back, and send those again that have other bytes.

    Attributes:
        sent_chunks: how many had to be uploaded.
        sent_bytes: their bytes.
        shared_chunks: how many were there already.
    """

    def __init__(
        self,
        source: PushSource,
        store: ObjectStore,
        journal: PushJournal,
        deletions: Deletions,
        limit_bytes: int,
        jobs: int,
        *,
        proves: bool = False,
    ) -> None:
        self._source = source
        self._store = store
        self._deletions = deletions
        self._journal = journal
        self._limit_bytes = limit_bytes
        self._jobs = jobs
        self._lock = threading.Lock()
        # Which generation of a chunk may be used, and its size as the store has it.
        self._present: dict[bytes, tuple[int, int]] = {}
        for key, size_bytes in stored_chunks(store).items():
            if key not in deletions and (name := chunk_name(key)) is not None:
                self._present[name[0]] = (name[1], size_bytes)
        self._named: dict[bytes, tuple[int, int]] = {}
        self._proves = proves
        self._proved: set[bytes] = set()
        # Used again and again: memory that is touched for the first time costs more than a copy.
        self._buffers: queue.SimpleQueue[mmap.mmap | None] = queue.SimpleQueue()
        for _ in range(jobs + 1):
            self._buffers.put(None)
        self._stopped = False
        self.sent_chunks = self.sent_bytes = self.shared_chunks = 0

    def loaded(self, pieces: Sequence[FilePart]) -> mmap.mmap:
        """Reads pieces into a buffer, which :meth:`packed` takes back; waits until one is free."""
        buffer = self._buffers.get()
        if buffer is None:
            buffer = chunk_buffer(self._limit_bytes)
        try:
            self._source.load(pieces, memoryview(buffer)[: _size(pieces)])
            _clear_gaps(pieces, buffer)
        except BaseException:
            self._buffers.put(buffer)
            raise
        return buffer

    def packed(self, pieces: Sequence[FilePart], buffer: mmap.mmap | None = None) -> PackedChunk:
        """Makes sure that a chunk of these pieces is on the store.

        Args:
            pieces: in their order.
            buffer: their bytes, if :meth:`loaded` has read them.

        Raises:
            UnstableDirectory: a file is no longer what it was.
            DamagedChunkError: what was sent, and is read back, has other bytes.
            PublishError: a file cannot be read, or the store fails.
        """
        key, is_damaged = plan_key(pieces), False
        if buffer is None:
            known = self._journal_get(key)
            if known is not None:
                generation, is_there = self._place(known.digest, known.size_bytes)
                if is_there and not (is_damaged := self._is_damaged(known.digest, generation)):
                    return PackedChunk(*known, generation)
            buffer = self.loaded(pieces)
        try:
            size_bytes = _size(pieces)
            began_ns = time.time_ns()
            data = memoryview(buffer)[:size_bytes]
            chunk = _hashed(pieces, data)
            if size_bytes > 0 and not self._stopped:
                generation, is_there = self._place(chunk.digest, size_bytes, claim=True)
                chunk = chunk._replace(generation=generation)
                if not is_there or is_damaged or self._is_damaged(chunk.digest, generation):
                    self._send(chunk, data)
        finally:
            self._buffers.put(buffer)
        if key is not None and all(began_ns - max(file.stamp[-2:]) > _RACY_NS for file, *_ in pieces):
            with self._lock:
                self._journal.put(key, Remembered(chunk.digest, chunk.size_bytes, chunk.hashes))
        return chunk

    def stop(self) -> None:
        """Sends nothing more."""
        self._stopped = True

    @property
    def keys(self) -> Iterator[str]:
        """The keys of all chunks that are needed."""
        return (chunk_key(name, generation) for name, (generation, _) in self._named.items())

    def confirm(self) -> None:
        """Compares what the store says that it has with what was sent.

        Raises:
            MissingChunkError: a chunk is not there.
            DamagedChunkError: it has another size.
            PublishError: the store fails.
        """
        there = stored_chunks(self._store)
        for name, (generation, size_bytes) in self._named.items():
            key = chunk_key(name, generation)
            if key not in there:
                raise MissingChunkError(
                    f"{self._store.url_of(key)} was deleted while the others were sent.",
                    "Push again; no version was made.",
                )
            if there[key] != size_bytes:
                raise DamagedChunkError(
                    f"{self._store.url_of(key)}: the store has {there[key]:,} of its {size_bytes:,} bytes.",
                    "Push again; no version was made.",
                )

    def _send(self, chunk: PackedChunk, data: memoryview) -> None:
        key = chunk_key(chunk.digest, chunk.generation)
        self._store.put(key, data)
        with self._lock:
            self.sent_chunks += 1
            self.sent_bytes += chunk.size_bytes
        if self._proves and not is_whole(self._store, key):
            raise DamagedChunkError(
                f"{self._store.url_of(key)} has other bytes than were sent.",
                "The store, or the way to it, changes bytes. Mend that and push again; no version was made.",
            )

    def _is_damaged(self, name: bytes, generation: int) -> bool:
        """Whether a chunk that is there has to be sent again: it is read, once, if it is to be proved.

        Nothing is ever deleted: others may count on it, and a delete that arrives late would hit what was
        sent meanwhile. The right bytes in its place do no harm.
        """
        with self._lock:
            if not self._proves or name in self._proved:
                return False
            self._proved.add(name)
        return not is_whole(self._store, chunk_key(name, generation))

    def _journal_get(self, key: bytes | None) -> Remembered | None:
        if key is None:
            return None
        with self._lock:
            return self._journal.get(key)

    def _place(self, name: bytes, size_bytes: int, *, claim: bool = False) -> tuple[int, bool]:
        """Says where a chunk lies or is to lie, and whether it need not be sent.

        Args:
            name: its digest.
            size_bytes: of it.
            claim: the caller sends it if it is not there.
        """
        if size_bytes == 0:
            return 0, True
        with self._lock:
            have = self._present.get(name)
            is_there = have is not None and have[1] == size_bytes
            if is_there or claim:
                if have is None:
                    have = self._deletions.generation(partial(chunk_key, name)), size_bytes
                self._named[name] = self._present[name] = have[0], size_bytes
                self.shared_chunks += is_there
                if not is_there:  # its sender reads it back
                    self._proved.add(name)
            return have[0] if have else 0, is_there


def _hashed(pieces: Sequence[FilePart], data: memoryview) -> PackedChunk:
    if len(pieces) == 1 and pieces[0].file.size_bytes == len(data):
        digest = chunk_digest(data)
        return PackedChunk(digest, len(data), digest[:FILE_HASH_BYTES])
    hashes = []
    for file, _, length, offset in pieces:
        if length == file.size_bytes:
            hashes.append(file_digest([data[offset : offset + length]]))
    return PackedChunk(chunk_digest(data), len(data), b"".join(hashes))


def stored_chunks(store: ObjectStore) -> dict[str, int]:
    """Lists the chunks of a volume: keys and sizes."""
    return {info.key: info.size_bytes for info in store.list("chunks")}


def _clear_gaps(pieces: Sequence[FilePart], buffer: mmap.mmap) -> None:
    """The same files give the same chunk, whatever the buffer held before."""
    end = 0
    for _, _, length, offset in pieces:
        if offset > end:
            buffer[end:offset] = bytes(offset - end)
        end = offset + length


def _size(pieces: Sequence[FilePart]) -> int:
    return pieces[-1].offset + pieces[-1].length
