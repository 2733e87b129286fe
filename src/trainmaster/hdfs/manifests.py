"""`Manifests`: only what they name is whole in an HDFS; files lie in their places before they are."""

from __future__ import annotations

import io
import secrets
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from trainmaster.hdfs.capacity import block_bytes
from trainmaster.hdfs.sharding import Listed, Staged, staged
from trainmaster.objects.webhdfs import WebHdfsBackend

_START: Final = "manifest-"
_TABLE: Final = "CREATE TABLE files (path TEXT PRIMARY KEY, version TEXT, etag TEXT) WITHOUT ROWID"


class Manifests:
    """Those of one data set, of all nodes.

    What they name and is there is kept on the disk here: it may be many millions of files.

    Args:
        target: where the files are.
        notes: where the manifests are.
    """

    def __init__(self, target: WebHdfsBackend, notes: WebHdfsBackend) -> None:
        self._notes = notes
        self._files = sqlite3.connect("")  # a file that goes with us
        self._files.execute(_TABLE)
        there = ((each.key, each.etag) for each in target.details(""))
        self._files.executemany("INSERT INTO files VALUES (?, ?, NULL)", there)
        self._files.executemany("UPDATE files SET etag = ? WHERE path = ? AND version = ?", self._named())

    def close(self) -> None:
        """Forget what there is."""
        self._files.close()

    def name(self, each: Listed) -> bool:
        """Whether a whole copy of this version is in its place."""
        look = "SELECT 1 FROM files WHERE path = ? AND etag = ?"
        return self._files.execute(look, (each.key, each.etag)).fetchone() is not None

    def add(self, files: Collection[Staged]) -> None:
        """Write down files that are whole; all of them or none."""
        if files:
            lines = io.BytesIO(b"".join(each.line() for each in files))
            block = str(block_bytes(lines.getbuffer().nbytes))
            self._notes.put_file_if_absent(f"{_START}{secrets.token_hex(8)}.jsonl", lines, blocksize=block)

    def _named(self) -> Iterator[tuple[str, str, str]]:
        if self._files.execute("SELECT 1 FROM files").fetchone() is None:
            return
        for manifest in self._notes.files(""):
            if manifest.key.startswith(_START):
                for line in _lines(self._notes.blocks(manifest.key)):
                    found = staged(line)
                    yield found.etag, found.path, found.version


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        yield from whole
