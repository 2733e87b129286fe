"""What a push remembers on this machine, so that files need not be read again.

One SQLite file per source, with a row for each chunk: which files (by inode, size and times) have given which
content. What is damaged is forgotten.
"""

import hashlib
import os
import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from trainmaster.volumes.packed.packing import FilePart

#: What is wrong with a damaged file is told with what stands there, which need not be text.
_TROUBLE: Final = (sqlite3.Error, UnicodeDecodeError)
# One process alone has it, and a killed one leaves it whole. What a lost machine damages is found by sums.
_SCHEMA = """
PRAGMA synchronous=OFF; PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; BEGIN EXCLUSIVE;
CREATE TABLE IF NOT EXISTS chunks (key BLOB PRIMARY KEY, digest BLOB, size INT, hashes BLOB, sum INT); COMMIT
"""


class Remembered(NamedTuple):
    """What the pieces of a chunk were.

    Attributes:
        digest: names the chunk.
        size_bytes: of the chunk.
        hashes: of each file, 16 bytes each, joined; for a part of a large file nothing.
    """

    digest: bytes
    size_bytes: int
    hashes: bytes


def plan_key(pieces: Sequence[FilePart]) -> bytes | None:
    """Gives a name for what pieces are read from; None if they come from a stream."""
    digest = hashlib.sha256()
    for file, start, length, offset in pieces:
        if not file.stamp:
            return None
        plan = repr((file.place, file.start, file.stamp, start, length, offset))
        digest.update(plan.encode("utf-8", "surrogateescape"))
    return digest.digest()


class PushJournal:
    """The memory of pushes from one source; for one process at a time.

    A second process gets one that remembers nothing. A disk that is full costs the
    memory, not the push.
    """

    def __init__(self, directory: Path, label: str) -> None:
        self._used: set[bytes] = set()
        self._rows: sqlite3.Connection | None = None
        with suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            name = hashlib.sha256(os.fsencode(label)).hexdigest()[:32]
            self._rows = _opened(directory / f"{name}.journal")

    def get(self, key: bytes) -> Remembered | None:
        """Gives what is remembered of a plan."""
        with suppress(*_TROUBLE):
            asked = "SELECT digest, size, hashes, sum FROM chunks WHERE key = ?"
            row = self._rows.execute(asked, (key,)).fetchone() if self._rows is not None else None
            if row is not None and row[3] == _sum(key, found := Remembered(*row[:3])):
                self._used.add(key)
                return found
        return None

    def put(self, key: bytes, value: Remembered) -> None:
        """Remembers a plan."""
        if self._rows is not None:
            with suppress(*_TROUBLE):
                row = (key, *value, _sum(key, value))
                self._rows.execute("INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?, ?)", row)
                self._used.add(key)

    def close(self, *, forget_unused: bool = False) -> None:
        """Ends it.

        Args:
            forget_unused: drop what this push had no use for, if that is most of it.
        """
        rows, self._rows = self._rows, None
        if rows is None:
            return
        with suppress(*_TROUBLE):
            if forget_unused:
                unused = {key for (key,) in rows.execute("SELECT key FROM chunks")} - self._used
                if len(unused) > len(self._used):
                    rows.execute("BEGIN")
                    rows.executemany("DELETE FROM chunks WHERE key = ?", ((key,) for key in unused))
                    rows.execute("COMMIT")
                    rows.execute("VACUUM")
        rows.close()


def _sum(key: bytes, value: Remembered) -> int:
    return zlib.crc32(repr((key, *value)).encode())


def _opened(path: Path) -> sqlite3.Connection | None:
    """The rows of a file, which begins again if it is damaged; None while another process has it."""
    for _ in range(2):
        rows = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            rows.executescript(_SCHEMA)
            rows.execute("SELECT key, digest, size, hashes, sum FROM chunks LIMIT 1")
            if rows.execute("PRAGMA quick_check").fetchone() == ("ok",):
                return rows
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                rows.close()
                return None
        except UnicodeDecodeError:
            pass  # it is damaged
        rows.close()
        for left in path.parent.glob(f"{path.name}*"):
            left.unlink()
    return None
