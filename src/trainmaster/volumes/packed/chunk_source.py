"""Getting the bytes of chunks from the store, in parallel ranges.

Memory for chunks.
"""

import mmap
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

from trainmaster.objects.object_store import ObjectChangedError, ObjectStore
from trainmaster.objects.parallel import all_done
from trainmaster.spec.errors import PublishError
from trainmaster.volumes.errors import DamagedChunkError, MissingChunkError, SourceChangedError
from trainmaster.volumes.packed.hashes import Data, chunk_digest, new_digest
from trainmaster.volumes.packed.head import Head, name_suffix
from trainmaster.volumes.packed.table import FileTable, ForeignRange


def chunk_buffer(size_bytes: int) -> mmap.mmap:
    """Gives memory that counts only as far as it is written to; a `bytearray` is filled with zeros first.

    Not in large pages: to find room for them, a machine whose memory is full of files takes longer
    than they save.
    """
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


_RANGE_BYTES = 8 << 20
_THREADS = 16
_CHUNK = re.compile(r"chunks/[0-9a-f]{2}/([0-9a-f]{64})(?:\.([1-9]\d{0,8}))?")
_Item = TypeVar("_Item")
_HINT = "Somebody deleted or damaged it: use another version, or push again."


def chunk_key(digest: bytes, generation: int = 0) -> str:
    """Gives where a chunk with this content lies in its volume."""
    name = digest.hex()
    return f"chunks/{name[:2]}/{name}{name_suffix(generation)}"


def chunk_name(key: str) -> tuple[bytes, int] | None:
    """Gives the content and the generation that the key of a chunk names; None if it is none."""
    found = _CHUNK.fullmatch(key)
    return None if found is None else (bytes.fromhex(found[1]), int(found[2] or 0))


def is_whole(store: ObjectStore, key: str) -> bool:
    """Reads a chunk and says whether it has the content that its key names."""
    digest, name = new_digest(), chunk_name(key)
    try:
        for block in store.blocks(key):
            digest.update(block)
    except FileNotFoundError:  # deleted a moment ago
        return False
    return name is not None and digest.digest() == name[0]


class ChunkSource:
    """The chunks of one version as the store has them; keeps nothing.

    Safe to use from several threads, and in another process after pickling.

    Attributes:
        chunk_count: how many there are.
    """

    def __init__(self, url: str, head: Head, table: FileTable) -> None:
        self._url = url
        self._head = head
        self._table = table
        self._store = ObjectStore(head.source_url if head.kind == "indexed" else url)
        self._pool: ThreadPoolExecutor | None = None
        self.chunk_count = table.chunk_count

    def __reduce__(self) -> tuple[type["ChunkSource"], tuple[str, Head, FileTable]]:
        return ChunkSource, (self._url, self._head, self._table)

    def size_bytes(self, chunk: int) -> int:
        """Gives the size of a chunk."""
        size: int = self._table.chunk_sizes[chunk]
        return size

    def fetch(self, chunk: int, start: int = 0, length: int | None = None) -> memoryview:
        """Reads a chunk, or a part of it, without proving it.

        Args:
            chunk: which.
            start: of the first byte.
            length: in bytes; None for all the rest.

        Raises:
            MissingChunkError: it is not there.
            DamagedChunkError: it has another size.
            SourceChangedError: it belongs to a foreign object that was written again.
            PublishError: the store fails.
        """
        length = self._length(chunk, start, length)
        ranges = self._ranges(chunk, start, length)
        if len(ranges) == 1:
            return self._one(chunk, ranges[0][1])
        target = memoryview(bytearray(length))
        self._fill(chunk, target, ranges)
        return target.toreadonly()

    def blocks(self, chunk: int, start: int, length: int) -> Iterator[memoryview]:
        """Reads a part of a chunk without proving it, block by block.

        Yields:
            The bytes in their order; an empty block may come first, when the store answers.

        Raises:
            The same as :meth:`fetch`.
        """
        ranges = self._ranges(chunk, start, self._length(chunk, start, length))
        if len(ranges) > 1:  # many small objects: at the same time
            yield self.fetch(chunk, start, length)
            return
        part = ranges[0][1]
        left = part.length
        with self._explained(chunk, part):
            for block in self._store.range_blocks(part.key, part.start, part.length, part.etag):
                left -= len(block)
                yield block
        if left:
            raise self._damaged(chunk, "is shorter than it was")

    def fetch_into(
        self,
        chunk: int,
        target: memoryview,
        start: int = 0,
        arrived: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Reads as much of a chunk as a writable buffer has room for, without proving it.

        Args:
            chunk: which.
            target: as long as what is wanted.
            start: of the first byte.
            arrived: called with bytes that have come, by several threads.

        Raises:
            The same as :meth:`fetch`. Then the buffer holds anything.
        """
        length = self._length(chunk, start, len(target))
        self._fill(chunk, target, self._ranges(chunk, start, length), arrived)

    def verify(self, chunk: int, data: Data) -> None:
        """Proves the bytes of a whole chunk; where no hash is known only their number.

        Raises:
            DamagedChunkError: they are others.
        """
        size_bytes = memoryview(data).nbytes
        if size_bytes != self.size_bytes(chunk):
            raise self._damaged(chunk, f"has {size_bytes:,} bytes instead of {self.size_bytes(chunk):,}")
        expected = self._table.chunk_hash(chunk)
        if expected is not None and chunk_digest(data) != expected:
            raise self._damaged(chunk, "has another hash")

    def fetch_verified(self, chunk: int) -> memoryview:
        """Reads a whole chunk and proves it; one that is damaged is read once more.

        Raises:
            The same as :meth:`fetch`.
        """
        try:
            data = self.fetch(chunk)
            self.verify(chunk, data)
        except DamagedChunkError:
            data = self.fetch(chunk)
            self.verify(chunk, data)
        return data

    def close(self) -> None:
        """Ends its threads; it may be used again."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _length(self, chunk: int, start: int, length: int | None) -> int:
        if not 0 <= chunk < self.chunk_count:
            raise IndexError(f"there is no chunk {chunk}; there are {self.chunk_count}")
        length = self.size_bytes(chunk) - start if length is None else length
        if start < 0 or length < 1 or start + length > self.size_bytes(chunk):
            raise ValueError(f"chunk {chunk} has no bytes {start} to {start + length}")
        return length

    def _ranges(self, chunk: int, start: int, length: int) -> list[tuple[int, ForeignRange]]:
        """Divides a part of a chunk into requests: where in the answer, and what of which object."""
        if self._head.kind == "packed":
            digest = self._table.chunk_hash(chunk)
            if digest is None:
                raise self._damaged(chunk, "has no name")
            whole = [ForeignRange(self._key(chunk, digest), 0, self.size_bytes(chunk), "")]
        else:
            whole = self._table.parts(chunk)
        ranges = []
        position = 0
        for part in whole:
            first = max(start, position)
            last = min(start + length, position + part.length)
            while first < last:
                piece = min(_RANGE_BYTES, last - first)
                ranges.append(
                    (first - start, part._replace(start=part.start + first - position, length=piece))
                )
                first += piece
            position += part.length
        return ranges

    def _key(self, chunk: int, digest: bytes) -> str:
        return chunk_key(digest, self._head.generation(chunk))

    def _fill(
        self,
        chunk: int,
        target: memoryview,
        ranges: list[tuple[int, ForeignRange]],
        arrived: Callable[[int], None] = lambda _: None,
    ) -> None:
        def one(item: tuple[int, ForeignRange]) -> None:
            at, part = item
            target[at : at + part.length] = self._one(chunk, part)
            arrived(part.length)

        self._each(one, ranges)

    def _one(self, chunk: int, part: ForeignRange) -> memoryview:
        with self._explained(chunk, part):
            data = self._store.get_range(part.key, part.start, part.length, part.etag)
        if len(data) != part.length:
            raise self._damaged(chunk, "is shorter than it was")
        return data

    @contextmanager
    def _explained(self, chunk: int, part: ForeignRange) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if self._head.kind == "indexed":
                raise self._changed(part, "is no longer there") from error
            raise MissingChunkError(f"{self._where(chunk)} is missing.", _HINT) from error
        except ObjectChangedError as error:
            raise self._changed(part, "was written again since") from error
        except PublishError as error:
            # A range that begins behind the end is refused, each server in its own words.
            info = None
            with suppress(PublishError):
                info = self._store.info(part.key)
            if info is not None and info.size_bytes <= part.start:
                raise self._damaged(chunk, f"has only {info.size_bytes:,} bytes") from error
            raise

    def _each(self, work: Callable[[_Item], None], items: list[_Item]) -> None:
        if len(items) == 1:
            work(items[0])
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, "chunks")
        # The buffer belongs to the caller again when this returns.
        all_done(self._pool.submit(work, item) for item in items)

    def _damaged(self, chunk: int, fault: str) -> DamagedChunkError:
        return DamagedChunkError(f"{self._where(chunk)} {fault}.", _HINT)

    def _changed(self, part: ForeignRange, fault: str) -> SourceChangedError:
        return SourceChangedError(
            f"{self._store.url_of(part.key)} {fault} it was indexed (ETag {part.etag}).",
            f"Index it again: trainmaster volume index {self._head.source_url} {self._url}",
        )

    def _where(self, chunk: int) -> str:
        digest = self._table.chunk_hash(chunk)
        place = ""
        if digest and self._head.kind == "packed":
            place = f" ({self._store.url_of(self._key(chunk, digest))})"
        return f"{self._url}@{self._head.version}: chunk {chunk}{place}"
