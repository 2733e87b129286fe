# ruff: noqa: PTH116, PTH123
# Names are any bytes and files are many: os functions on plain text are exact, and four times as fast.
"""A tar on this machine, not compressed, as a source: its members are read where they lie, in parallel."""

import os
import tarfile
from collections.abc import Iterator, Sequence

from trainmaster.artifacts.unpacking import Header
from trainmaster.spec.errors import PublishError
from trainmaster.volumes.packed.hashes import path_hash
from trainmaster.volumes.packed.packing import FilePart, SourceFile
from trainmaster.volumes.packed.sources import Survey, changed, load_pieces, stamp_of
from trainmaster.volumes.packed.tar_members import TarContents, members, time_ns, understood


class TarSource:
    """The members of a tar in the order of the archive; of two with one name the later one counts.

    Attributes:
        is_plain: whether it is a tar that is not compressed.
    """

    order = "archive"
    is_stream = False

    def __init__(self, place: str) -> None:
        self.label = self._place = place
        self.extras = TarContents(place)
        self._dropped: frozenset[int] = frozenset()
        status = os.stat(place)
        self._stamp, self._size_bytes = stamp_of(status), status.st_size
        with open(place, "rb") as file:
            header = file.read(512)
        self.is_plain = header[257:262] == b"ustar" or not any(header)

    def survey(self) -> Survey:
        """Reads all headers; finds members that later ones replace."""
        import numpy as np

        hashes = np.fromiter((path_hash(member.path) for member in self._members()), np.uint64)
        self.extras.check_links()
        _, last = np.unique(hashes[::-1], return_index=True)
        self._dropped = frozenset(np.setdiff1d(np.arange(len(hashes)), len(hashes) - 1 - last).tolist())
        sizes = [
            member.size_bytes for number, member in enumerate(self._members()) if number not in self._dropped
        ]
        return Survey(len(sizes), sum(sizes))

    def files(self, limit_bytes: int) -> Iterator[SourceFile]:
        """Gives the files in the order of the archive."""
        return (file for number, file in enumerate(self._members()) if number not in self._dropped)

    def load(self, pieces: Sequence[FilePart], target: memoryview) -> None:
        """Reads pieces of members."""
        load_pieces(pieces, target)

    def confirm(self) -> None:
        """Looks whether the tar was written to."""
        if stamp_of(os.stat(self._place)) != self._stamp:
            raise changed(self._place)

    def _members(self) -> Iterator[SourceFile]:
        self.extras = TarContents(self.label)
        places: dict[bytes, tuple[int, int]] | None = None
        with self._archive() as archive:
            for member in members(self.label, archive, self._size_bytes):
                if member.islnk():
                    places = self._places() if places is None else places
                    yield self._hard_link(member, places)
                    continue
                path = self.extras.take(member)
                if path is not None:
                    yield self._file(path, member, member.size, member.offset_data)

    def _file(self, path: str, member: tarfile.TarInfo, size_bytes: int, start: int) -> SourceFile:
        mode, mtime_ns = member.mode & 0o777, time_ns(member)
        return SourceFile(os.fsencode(path), size_bytes, mode, mtime_ns, self._place, start, self._stamp)

    def _archive(self) -> tarfile.TarFile:
        return understood(
            self.label,
            lambda: tarfile.open(self._place, "r:", errors="surrogateescape", tarinfo=Header),
        )

    def _hard_link(self, member: tarfile.TarInfo, places: dict[bytes, tuple[int, int]]) -> SourceFile:
        target = tarfile.TarInfo(member.linkname)
        found = places.get(os.fsencode(self.extras.path_of(target)))
        if found is None:
            raise PublishError(
                f"{self.label}: {member.name!r} is a hard link to {member.linkname!r}, no file in it.",
                "Nothing was pushed. Make the tar again.",
            )
        return self._file(self.extras.path_of(member), member, *found)

    def _places(self) -> dict[bytes, tuple[int, int]]:
        """Finds where the contents of files lie; only asked for if there are hard links."""
        contents = TarContents(self.label)
        places = {}
        with self._archive() as archive:
            for member in members(self.label, archive, self._size_bytes):
                if member.isreg():
                    places[os.fsencode(contents.path_of(member))] = (member.size, member.offset_data)
        return places
