# ruff: noqa: PTH116
# Names are any bytes and files are many: os functions on plain text are exact, and four times as fast.
"""A compressed tar, or one on the web or a store, as a source: read once, from its beginning to its end."""

import os
import tarfile
from collections.abc import Iterator, Sequence
from functools import partial
from typing import IO

from trainmaster.artifacts.unpacking import Header, is_damage
from trainmaster.objects.object_store import ObjectDetail, ObjectStore
from trainmaster.spec.errors import PublishError
from trainmaster.volumes.packed.archive_file import ArchiveFile
from trainmaster.volumes.packed.packing import FilePart, SourceFile
from trainmaster.volumes.packed.push_source import changed, stamp_of
from trainmaster.volumes.packed.tar_members import TarContents, damaged, members, time_ns, understood


class TarStream:
    """The members of a tar in the order of the archive.

    Small members are kept until their chunk is full, large ones are read piece by piece, so
    pieces must be loaded in the order in which they were planned. A name that comes twice
    is refused: its first content would be in a chunk already.

    Args:
        place: a path or a URL.
        stored: the object of a store that ``place`` names, if it does.
    """

    order = "archive"
    is_stream = True

    def __init__(self, place: str, stored: tuple[ObjectStore, ObjectDetail] | None = None) -> None:
        self.label = self._place = place
        self._stored = stored
        self.extras = TarContents(place)
        self._stamp = () if "://" in place else stamp_of(os.stat(place))
        self._current: IO[bytes] | None = None
        self._file: ArchiveFile | None = None

    @property
    def bytes_read(self) -> tuple[int, int | None]:
        """How much of the archive as it lies there was read, and how much it is."""
        return (0, None) if self._file is None else (self._file.position, self._file.size_bytes)

    def survey(self) -> None:
        """Knows nothing before the end."""

    def files(self, limit_bytes: int) -> Iterator[SourceFile]:
        """Gives the files in the order of the archive."""
        with ArchiveFile(self._place, self._stored) as self._file:
            try:
                unpacked = self._file.unpacked()
                archive = tarfile.open(  # noqa: SIM115 - closed below
                    fileobj=unpacked, mode="r|", errors="surrogateescape", tarinfo=Header
                )
            except Exception as error:
                # `tarfile` takes `ord` of what is not there
                if not (is_damage(error) or isinstance(error, TypeError)):
                    raise
                raise PublishError(
                    f"{self.label} is no tar, or a damaged one ({error}).",
                    "A volume is made from a directory or a tar (also by gzip, bzip2, xz or zstd): "
                    "put a single file into a directory and push that.",
                ) from error
            with archive:
                yield from self._files(archive, limit_bytes)
            # Checksums stand at the end of what is packed: only who reads that far compares them.
            while understood(self.label, partial(unpacked.read, 1 << 20)):
                pass
        self.extras.check_links()

    def load(self, pieces: Sequence[FilePart], target: memoryview) -> None:
        """Takes the bytes of small members, and reads the next ones of a large one."""
        for file, _, length, offset in pieces:
            view = target[offset : offset + length]
            if file.data is not None:
                view[:] = file.data
            else:
                self._read_into(view, file)

    def confirm(self) -> None:
        """Looks whether the tar was written to; on the web there is no such sign."""
        if self._stored is not None:
            store, detail = self._stored
            if store.info(detail.key) != detail:
                raise changed(self._place)
        elif self._stamp and stamp_of(os.stat(self._place)) != self._stamp:
            raise changed(self._place)

    def _files(self, archive: tarfile.TarFile, limit_bytes: int) -> Iterator[SourceFile]:
        for member in members(self.label, archive):
            if member.islnk():
                raise PublishError(
                    f"{self.label}: {member.name!r} is a hard link, which a stream cannot follow back.",
                    "Unpack the tar and push the directory; no version was made.",
                )
            path = self.extras.take(member)
            if path is None:
                continue
            self._current = archive.extractfile(member)
            is_small = member.size <= limit_bytes
            data = self._read(member.size, path) if is_small else None
            name = os.fsencode(path)
            yield SourceFile(name, member.size, member.mode & 0o777, time_ns(member), data=data)

    def _read(self, size_bytes: int, path: str) -> bytes:
        buffer = bytearray(size_bytes)
        self._read_into(memoryview(buffer), path)
        return bytes(buffer)

    def _read_into(self, target: memoryview, file: SourceFile | str) -> None:
        done = 0
        while done < len(target):
            current, room = self._current, min(1 << 20, len(target) - done)
            data = understood(self.label, partial(current.read, room)) if current else b""
            if not data:
                raise damaged(self.label, EOFError(f"it ends in the middle of {file!r:.80}"))
            target[done : done + len(data)] = data
            done += len(data)
