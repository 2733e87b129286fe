"""Which files of a version are wanted, and what has to be fetched for them."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from trainmaster.spec.errors import NotFoundError
from trainmaster.volumes.packed.opening import OpenVolume
from trainmaster.volumes.packed.table import FileTable, resolved

# Less than this between two files is fetched with them: another request would cost more.
NEAR_BYTES = 256 << 10


class FileExtent(NamedTuple):
    """Bytes of a file in a chunk.

    Attributes:
        row: of the file.
        offset: of its first byte in the chunk.
        length: in bytes, at least 1.
        begun: bytes of the file that lie in earlier chunks.
        is_all: whether that is the whole file.
    """

    row: int
    offset: int
    length: int
    begun: int
    is_all: bool


class FetchPlan(NamedTuple):
    """What is fetched of a chunk.

    Attributes:
        pieces: of wanted files, in their order.
        ranges: of bytes, as start and end; one for a whole chunk.
        is_whole: whether the chunk's own hash proves it, or else the hash of each file.
    """

    pieces: list[FileExtent]
    ranges: list[tuple[int, int]]
    is_whole: bool

    @property
    def size_bytes(self) -> int:
        """How many bytes are fetched."""
        return sum(end - start for start, end in self.ranges)


class Selection:
    """Some files of a version, or all.

    Attributes:
        wanted: a byte for each row, 1 if it is wanted.
        name: differs for other files; empty for all.
        file_count: how many are wanted.
        total_bytes: of them.
        chunks: those that have to be looked into.
    """

    def __init__(self, volume: OpenVolume, only: Sequence[str] = ()) -> None:
        """Looks the paths up.

        Args:
            volume: what they lie in.
            only: files, folders with all that is in them, and links with all they lead to; empty: all.

        Raises:
            NotFoundError: at one of them is nothing.
        """
        self._table: FileTable = volume.table
        self._is_all = not only
        if self._is_all:
            self.wanted = bytearray(b"\1") * self._table.row_count
            self.name = ""
            self.file_count, self.total_bytes = self._table.file_count, self._table.total_bytes
            self.chunks: Sequence[int] = range(self._table.chunk_count)
            return
        self.wanted = bytearray(self._table.row_count)
        for path in only:
            self._add(volume.uri, path)
        self.name = hashlib.sha256(self.wanted).hexdigest()[:8]
        rows = self._files()
        self.file_count = len(rows)
        self.total_bytes = sum(self._table.sizes[row] for row in rows)
        self.chunks = sorted({extent.chunk for row in rows for extent in self._table.extents(row)})

    def plan(self, chunk: int) -> FetchPlan:
        """Says what to fetch of a chunk: all of it where much is wanted or its hash is the only proof."""
        pieces = self._pieces(chunk)
        size_bytes: int = self._table.chunk_sizes[chunk]
        whole = FetchPlan(pieces, [(0, size_bytes)], True)
        if self._is_all or 2 * sum(piece.length for piece in pieces) >= size_bytes:
            return whole
        if self._table.chunk_hash(chunk) is not None and not all(
            piece.is_all and self._table.file_hash(piece.row) is not None for piece in pieces
        ):
            return whole
        ranges: list[tuple[int, int]] = []
        for piece in sorted(pieces, key=lambda piece: piece.offset):
            end = piece.offset + piece.length
            if ranges and piece.offset - ranges[-1][1] <= NEAR_BYTES:
                ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
            else:
                ranges.append((piece.offset, end))
        return FetchPlan(pieces, ranges, False)

    def _pieces(self, chunk: int) -> list[FileExtent]:
        table = self._table
        rows = table.rows_of_chunk(chunk)
        # What began in an earlier chunk may go on in this one; only the last file with bytes can.
        first = rows.start - 1
        while first >= 0 and table.sizes[first] == 0:
            first -= 1
        found = []
        for row in (*((first,) if first >= 0 else ()), *rows):
            if not self.wanted[row]:
                continue
            begun = 0
            extents = table.extents(row)
            for number, offset, length in extents:
                if number == chunk:
                    found.append(FileExtent(row, offset, length, begun, len(extents) == 1))
                begun += length
        return found

    def _files(self) -> list[int]:
        """The rows of wanted files; found without looking at each of a hundred million."""
        found, row = [], self.wanted.find(1, 0, self._table.file_count)
        while row >= 0:
            found.append(row)
            row = self.wanted.find(1, row + 1, self._table.file_count)
        return found

    def _add(self, uri: str, path: str) -> None:
        table = self._table
        links: list[int] = []
        row = resolved(table, path, links)
        for link in links:
            self._mark(link)
        if row < 0:
            if links and table.row_of(path.strip("/")) == links[0]:  # a link that leads to nothing
                return
            raise NotFoundError(f"{uri}: there is no {path!r}.", f"List it: trainmaster volume ls {uri} -r")
        self._mark(row)
        pending = [row]
        while pending:
            for child in table.children(pending.pop()):
                self.wanted[child] = 1
                if table.kind(child) == "directory":
                    pending.append(child)

    def _mark(self, row: int) -> None:
        """A row and the directories it lies in."""
        self.wanted[row] = 1
        while row != self._table.root:
            row = self._table.parent(row)
            self.wanted[row] = 1
