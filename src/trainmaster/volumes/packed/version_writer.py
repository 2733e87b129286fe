"""The tables of a version that is being made."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainmaster.volumes.packed.hashes import FILE_HASH_BYTES
from trainmaster.volumes.packed.head import Head, new_nonce, now_utc
from trainmaster.volumes.packed.parquet import DIRECTORY, FILE, SYMLINK, TableName, TableWriter
from trainmaster.volumes.packed.releasing import stored_table
from trainmaster.volumes.packed.sources import Folder

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
            created_at=now_utc(),
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
