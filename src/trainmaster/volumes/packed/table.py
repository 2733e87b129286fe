"""The files of a version: found by row or by path, without an object per row.

The tables of a version that is being made.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from trainmaster.artifacts.manifest import Kind
from trainmaster.spec.plain_json import parsed_json
from trainmaster.volumes.errors import DamagedVolumeError
from trainmaster.volumes.packed.finding import PADDING_BYTES, bucket_bits
from trainmaster.volumes.packed.flat import CODES, mapped_columns
from trainmaster.volumes.packed.hashes import CHUNK_HASH_BYTES, FILE_HASH_BYTES, path_hash
from trainmaster.volumes.packed.head import Head, new_nonce
from trainmaster.volumes.packed.materialising import META_NAME
from trainmaster.volumes.packed.parquet import DIRECTORY, FILE, SYMLINK, TableName, TableWriter
from trainmaster.volumes.packed.push_source import Folder
from trainmaster.volumes.packed.releasing import stored_table

_NO_HASH = bytes(FILE_HASH_BYTES)


class VersionWriter:
    """Writes rows as they become known: files in their order, then directories, then links.

    Args:
        scratch: where the tables are written.
        names: which there are.
        limit_bytes: of a chunk.

    Attributes:
        paths: of the tables, by name.
        tables: their writers.
        limit_bytes: of a chunk.
    """

    def __init__(self, scratch: Path, names: Sequence[TableName], limit_bytes: int) -> None:
        self.paths = {name: scratch / f"{name}.parquet" for name in names}
        self.tables = {name: TableWriter(path, name) for name, path in self.paths.items()}
        self.limit_bytes = limit_bytes
        self._parents: set[bytes] = set()
        self._total_bytes = 0

    @property
    def chunk_count(self) -> int:
        """How many chunks there are by now."""
        return self.tables["chunks"].row_count

    def add_file(
        self,
        path: bytes,
        size_bytes: int,
        mode: int,
        mtime_ns: int,
        chunk: int,
        offset: int,
        digest: bytes = _NO_HASH,
    ) -> None:
        """Adds a file that begins at an offset of a chunk."""
        row = (path, FILE, size_bytes, mode, mtime_ns, chunk, offset, digest, b"")
        self.tables["files"].append(*row)
        self._parents.add(path.rpartition(b"/")[0])
        self._total_bytes += size_bytes

    def head(
        self,
        folders: Mapping[bytes, Folder] | None = None,
        links: Iterable[tuple[bytes, bytes, int]] = (),
        **more: Any,  # noqa: ANN401 - the rest of a head
    ) -> Head:
        """Adds what is beside files, ends the tables and describes them; the number is still to come."""
        files, folders = self.tables["files"], folders or {}
        file_count = files.row_count
        by_path = {path: (path, target, mtime_ns) for path, target, mtime_ns in links}
        known = [*folders, *(path.rpartition(b"/")[0] for path in by_path), *self._parents]
        for path in (b"", *with_parents(known)):
            mode, mtime_ns = folders.get(path, (0o755, 0))
            files.append(path, DIRECTORY, 0, mode, mtime_ns, 0, 0, _NO_HASH, b"")
        for path, target, mtime_ns in sorted(by_path.values()):
            files.append(path, SYMLINK, 0, 0o777, mtime_ns, 0, 0, _NO_HASH, target)
        for table in self.tables.values():
            table.close()
        stored: dict[str, Any] = {name: stored_table(path) for name, path in self.paths.items()}
        return Head(
            version=0,
            created_at=datetime.now(UTC),
            chunk_limit_bytes=self.limit_bytes,
            file_count=file_count,
            row_count=files.row_count,
            total_bytes=self._total_bytes,
            chunk_count=self.chunk_count,
            nonce=new_nonce(),
            **stored,
            **more,
        )


def with_parents(folders: Iterable[bytes]) -> list[bytes]:
    """Gives directories and all above them but the top, sorted.

    >>> with_parents([b"a/b/c", b"a/d", b""])
    [b'a', b'a/b', b'a/b/c', b'a/d']
    """
    found: set[bytes] = set()
    for folder in folders:
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition(b"/")[0]
    return sorted(found)


class Extent(NamedTuple):
    """Where some bytes of a file are.

    Attributes:
        chunk: number of the chunk.
        offset: of the first byte in it.
        length: in bytes, at least 1.
    """

    chunk: int
    offset: int
    length: int


class Entry(NamedTuple):
    """One file, directory or symbolic link.

    Attributes:
        row: its number.
        path: relative to the volume's top, which is ``""``; bytes that are not UTF-8 are lone surrogates.
        kind: ``file``, ``directory`` or ``symlink``.
        size_bytes: of a file.
        mode: permission bits, 0 to 0o777.
        mtime_ns: since 1970.
        target: of a symbolic link.
        hash: of a file, as :func:`~trainmaster.volumes.packed.hashes.file_digest` gives it; None if unknown.
    """

    row: int
    path: str
    kind: Kind
    size_bytes: int
    mode: int
    mtime_ns: int
    target: str
    hash: bytes | None


class FileTable:
    """Flat columns mapped into memory, shared by all processes of the node.

    Rows 0 to ``file_count - 1`` are the files in the order in which they are packed, so the
    number of a sample is a row. Then come the root, the other directories, the links.

    Attributes:
        directory: where the columns lie.
        file_count: rows that are files.
        row_count: rows in all.
        root: the row of the top directory.
        link_count: rows that are symbolic links, the last ones.
        chunk_count: chunks of this version.
        total_bytes: of all files.
        sizes: bytes of each row (``Q``); 0 where it is no file.
        first_chunks: chunk of the first byte of each file (``I``); never decreases.
        offsets: of the first byte in that chunk, of each file (``I``).
        chunk_sizes: bytes of each chunk (``I``).
        modes: permission bits of each row (``H``).
        mtimes: time of each row's last change, in ns since 1970 (``q``).
    """

    def __init__(self, directory: Path) -> None:
        try:
            meta = parsed_json((directory / META_NAME).read_bytes())
            self.file_count, folders, self.link_count, self.chunk_count, self.total_bytes = _counts(meta)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedVolumeError(
                f"{directory} holds no columns of a volume ({error}).", "Remove it; it is made again."
            ) from error
        self.directory = directory
        self.root = self.file_count
        self._first_link = self.file_count + folders
        self.row_count = self._first_link + self.link_count
        columns = mapped_columns(directory, CODES)
        self.sizes = columns["sizes"]
        self.first_chunks = columns["first_chunks"]
        self.offsets = columns["offsets"]
        self.chunk_sizes = columns["chunk_sizes"]
        self.modes, self.mtimes = columns["modes"], columns["mtimes"]
        self._columns = columns
        self._paths, self._path_starts = columns["paths"], columns["path_starts"]
        self._buckets, self._hashed_rows = columns["bucket_starts"], columns["hashed_rows"]
        self._hashed_low = columns["hashed_low"]
        self._shift = 64 - bucket_bits(self.row_count)
        self._check_lengths(folders)

    def __reduce__(self) -> tuple[type["FileTable"], tuple[Path]]:
        return FileTable, (self.directory,)

    def _check_lengths(self, folders: int) -> None:
        """A disk that was full, or has lost its power, may have kept less than all of a column."""
        rows, files, chunks, have = self.row_count, self.file_count, self.chunk_count, self._columns
        parts = len(have["part_offsets"])
        expected = {
            **dict.fromkeys(("sizes", "modes", "mtimes", "parents", "hashed_rows", "hashed_low"), rows),
            "first_chunks": files,
            "offsets": files,
            "hashes": files * FILE_HASH_BYTES,
            "children": rows - 1,
            "child_starts": folders + 1,
            "bucket_starts": (1 << 64 - self._shift) + 1,
            "chunk_sizes": chunks,
            "chunk_hashes": chunks * CHUNK_HASH_BYTES,
            "part_starts": chunks + 1 if parts or have["part_starts"] else 0,
            "part_lengths": parts,
        }
        ends = {"path": rows, "target": self.link_count, "part_key": parts, "part_etag": parts}
        for name, count in ends.items():
            starts = have[f"{name}_starts"]
            if starts or parts or not name.startswith("part"):
                expected[f"{name}_starts"] = count + 1
                padding = PADDING_BYTES if name == "path" else 0
                expected[f"{name}s"] = starts[-1] + padding if starts else 0
        for name, length in expected.items():
            if len(have[name]) != length:
                raise DamagedVolumeError(
                    f"{self.directory / name} has {len(have[name]):,} values, not {length:,}.",
                    f"Remove {self.directory}; it is made again.",
                )

    def row_of(self, path: str | bytes) -> int:
        """Gives the row at a path, ``""`` for the root; -1 if there is none."""
        name = path if isinstance(path, bytes) else os.fsencode(path)
        value = path_hash(name)
        bucket, low = value >> self._shift, value & 0xFFFFFFFF
        for place in range(self._buckets[bucket], self._buckets[bucket + 1]):
            if self._hashed_low[place] == low:
                row: int = self._hashed_rows[place]
                if self._paths[self._path_starts[row] : self._path_starts[row + 1]] == name:
                    return row
        return -1

    def path_bytes(self, row: int) -> bytes:
        """Gives the path of a row."""
        return bytes(self._paths[self._path_starts[row] : self._path_starts[row + 1]])

    def path(self, row: int) -> str:
        """Gives the path of a row as text; bytes that are not UTF-8 are lone surrogates."""
        return os.fsdecode(self.path_bytes(row))

    def kind(self, row: int) -> Kind:
        """Says what a row is."""
        if row < self.file_count:
            return "file"
        return "directory" if row < self._first_link else "symlink"

    def entry(self, row: int) -> Entry:
        """Gives all that is known of a row."""
        kind = self.kind(row)
        return Entry(
            row,
            self.path(row),
            kind,
            self.sizes[row],
            self._columns["modes"][row],
            self._columns["mtimes"][row],
            os.fsdecode(self.target_bytes(row)) if kind == "symlink" else "",
            self.file_hash(row) if kind == "file" else None,
        )

    def mode(self, row: int) -> int:
        """Gives the permission bits of a row."""
        mode: int = self._columns["modes"][row]
        return mode

    def mtime_ns(self, row: int) -> int:
        """Gives the time of a row's last change, since 1970."""
        time_ns: int = self._columns["mtimes"][row]
        return time_ns

    def target_bytes(self, row: int) -> bytes:
        """Gives where a symbolic link leads."""
        link = row - self._first_link
        starts = self._columns["target_starts"]
        return bytes(self._columns["targets"][starts[link] : starts[link + 1]])

    def children(self, row: int) -> memoryview:
        """Gives the rows directly in a directory (``I``): files, directories, links, each by path."""
        folder = row - self.file_count
        starts = self._columns["child_starts"]
        if not 0 <= folder < len(starts) - 1:
            return memoryview(b"").cast("I")
        return self._columns["children"][starts[folder] : starts[folder + 1]]

    def parent(self, row: int) -> int:
        """Gives the directory that a row lies in; the root lies in itself."""
        parent: int = self._columns["parents"][row]
        return parent

    def extents(self, row: int) -> list[Extent]:
        """Gives where the bytes of a file are, in their order; an empty file has none."""
        left: int = self.sizes[row]
        if left == 0:
            return []
        chunk: int = self.first_chunks[row]
        offset: int = self.offsets[row]
        room: int = self.chunk_sizes[chunk] - offset
        if left <= room:
            return [Extent(chunk, offset, left)]
        extents = [Extent(chunk, offset, room)]
        left -= room
        while left:
            chunk += 1
            length = min(left, self.chunk_sizes[chunk])
            extents.append(Extent(chunk, 0, length))
            left -= length
        return extents

    def chunk_hash(self, chunk: int) -> bytes | None:
        """Gives the hash of a chunk; None if it is not known, as in most indexed volumes."""
        start = chunk * CHUNK_HASH_BYTES
        digest = bytes(self._columns["chunk_hashes"][start : start + CHUNK_HASH_BYTES])
        return digest if any(digest) else None

    def file_hash(self, row: int) -> bytes | None:
        """Gives the hash of a file; None if it is not known."""
        start = row * FILE_HASH_BYTES
        digest = bytes(self._columns["hashes"][start : start + FILE_HASH_BYTES])
        return digest if any(digest) else None

    def rows_of_chunk(self, chunk: int) -> range:
        """Gives the files whose first byte is in a chunk."""
        from bisect import bisect_left, bisect_right

        return range(
            bisect_left(self.first_chunks, chunk),
            bisect_right(self.first_chunks, chunk),
        )

    def parts(self, chunk: int) -> "list[ForeignRange]":
        """Gives the ranges of foreign objects that a chunk of an indexed volume consists of."""
        starts = self._columns["part_starts"]
        return [self._part(number) for number in range(starts[chunk], starts[chunk + 1])]

    def _part(self, number: int) -> "ForeignRange":
        texts = []
        for name in ("key", "etag"):
            starts = self._columns[f"part_{name}_starts"]
            texts.append(bytes(self._columns[f"part_{name}s"][starts[number] : starts[number + 1]]))
        return ForeignRange(
            os.fsdecode(texts[0]),
            self._columns["part_offsets"][number],
            self._columns["part_lengths"][number],
            texts[1].decode("utf-8", "replace"),
        )


def _counts(meta: Any) -> tuple[int, int, int, int, int]:  # noqa: ANN401 - it is judged here
    files, folders, links, chunks, total_bytes = (
        meta[name] for name in ("file_count", "directory_count", "link_count", "chunk_count", "total_bytes")
    )
    rows = (files, folders, links, chunks)
    is_sane = all(type(count) is int and 0 <= count < 1 << 32 for count in rows) and folders
    if not is_sane or type(total_bytes) is not int or total_bytes < 0:
        raise ValueError(f"its {META_NAME} has counts that are none")
    return files, folders, links, chunks, total_bytes


class ForeignRange(NamedTuple):
    """A range of a foreign object.

    Attributes:
        key: of the object, relative to the volume's source.
        start: of the first byte.
        length: in bytes.
        etag: of the object that was indexed.
    """

    key: str
    start: int
    length: int
    etag: str


_MOST_LINKS = 40


def resolved(table: "FileTable", path: str | bytes, passed: "list[int] | None" = None) -> int:
    """Gives the row of the file or directory at a path.

    Links are followed as long as they stay in the volume. ``.``, ``..`` and slashes too many
    are understood; nothing lies above the top.

    Args:
        table: of the volume.
        path: in it.
        passed: gets the rows of the links that were followed.

    Returns:
        The row; -1 if there is none, or the links go round in a circle.
    """
    name = path if isinstance(path, bytes) else os.fsencode(path)
    row = table.row_of(name)
    if row >= 0 and table.kind(row) != "symlink":
        return row
    pending = name.split(b"/")[::-1]
    here: list[bytes] = []
    links = 0
    while pending:
        part = pending.pop()
        if part in (b"", b"."):
            continue
        if part == b"..":
            del here[-1:]
            continue
        here.append(part)
        row = table.row_of(b"/".join(here))
        if row < 0:
            return -1
        kind = table.kind(row)
        if kind == "symlink":
            links += 1
            if passed is not None:
                passed.append(row)
            target = table.target_bytes(row)
            if links > _MOST_LINKS or target.startswith(b"/"):
                return -1
            here.pop()
            pending.extend(target.split(b"/")[::-1])
        elif kind == "file" and any(rest not in (b"", b".") for rest in pending):
            return -1
    return table.row_of(b"/".join(here))
