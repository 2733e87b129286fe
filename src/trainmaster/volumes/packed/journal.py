"""What a push remembers on this machine, so that files need not be read again.

One file per source, to which a record is appended for each chunk: which files (by inode,
size and times) have given which content. A record that was cut off by a crash is dropped.
"""

import fcntl
import hashlib
import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trainmaster.volumes.packed.hashes import FILE_HASH_BYTES
from trainmaster.volumes.packed.packing import Piece

_FRAME = struct.Struct("<4sII")
_MAGIC = b"TMJ2"
_RECORD = struct.Struct("<32s32sQ")
_COMPACT_FROM_BYTES = 1 << 16


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


def plan_key(pieces: Sequence[Piece]) -> bytes | None:
    """Gives a name for what pieces are read from; None if they come from a stream."""
    digest = hashlib.sha256()
    for file, start, length, offset in pieces:
        if not file.stamp:
            return None
        plan = repr((file.place, file.start, file.stamp, start, length, offset))
        digest.update(plan.encode("utf-8", "surrogateescape"))
    return digest.digest()


class Journal:
    """The memory of pushes from one source; for one process at a time.

    A second process gets one that remembers nothing. A disk that is full costs the
    memory, not the push.
    """

    def __init__(self, directory: Path, label: str) -> None:
        self._path = directory / f"{hashlib.sha256(os.fsencode(label)).hexdigest()[:32]}.journal"
        self._places: dict[bytes, tuple[int, int]] = {}
        self._used: set[bytes] = set()
        self._descriptor = -1
        with suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = self._locked()
            self._load()

    def get(self, key: bytes) -> Remembered | None:
        """Gives what is remembered of a plan."""
        place = self._places.get(key)
        if place is None:
            return None
        self._used.add(key)
        data = os.pread(self._descriptor, place[1], place[0])
        _, digest, size_bytes = _RECORD.unpack_from(data)
        return Remembered(digest, size_bytes, data[_RECORD.size :])

    def put(self, key: bytes, value: Remembered) -> None:
        """Remembers a plan."""
        if self._descriptor < 0 or key in self._places:
            return
        payload = _RECORD.pack(key, value.digest, value.size_bytes) + value.hashes
        with suppress(OSError):
            end = os.fstat(self._descriptor).st_size
            record = _FRAME.pack(_MAGIC, len(payload), zlib.crc32(payload)) + payload
            if os.pwrite(self._descriptor, record, end) == len(record):
                self._places[key] = (end + _FRAME.size, len(payload))
                self._used.add(key)
            else:
                os.ftruncate(self._descriptor, end)

    def close(self, *, forget_unused: bool = False) -> None:
        """Ends it.

        Args:
            forget_unused: drop what this push had no use for, if that is most of it.
        """
        if self._descriptor < 0:
            return
        try:
            if forget_unused:
                with suppress(OSError):
                    self._compact()
        finally:
            os.close(self._descriptor)
            self._descriptor = -1
            self._places.clear()

    def _locked(self) -> int:
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), self._path.stat()):
                    return descriptor
            except OSError:
                os.close(descriptor)
                raise
            os.close(descriptor)  # it was compacted between the two calls

    def _load(self) -> None:
        end = os.fstat(self._descriptor).st_size
        position = 0
        while position + _FRAME.size <= end:
            magic, length, checksum = _FRAME.unpack(os.pread(self._descriptor, _FRAME.size, position))
            is_whole = magic == _MAGIC and position + _FRAME.size + length <= end
            payload = os.pread(self._descriptor, length, position + _FRAME.size) if is_whole else b""
            well_formed = len(payload) == length >= _RECORD.size
            if (
                not well_formed
                or zlib.crc32(payload) != checksum
                or (length - _RECORD.size) % FILE_HASH_BYTES
            ):
                break
            self._places[payload[:32]] = (position + _FRAME.size, length)
            position += _FRAME.size + length
        os.ftruncate(self._descriptor, position)

    def _compact(self) -> None:
        kept_bytes = sum(_FRAME.size + self._places[key][1] for key in self._used)
        if os.fstat(self._descriptor).st_size < max(2 * kept_bytes, _COMPACT_FROM_BYTES):
            return
        scratch = self._path.with_suffix(".new")
        with scratch.open("wb") as file:
            for key in self._used:
                start, length = self._places[key]
                file.write(os.pread(self._descriptor, _FRAME.size + length, start - _FRAME.size))
        scratch.rename(self._path)
