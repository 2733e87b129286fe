"""What is taken from a tar, whoever wrote it, and what is refused.

A tar on this machine, not compressed, as a source: its members are read where they lie, in parallel.
"""
# ruff: noqa: PTH116, PTH123

import math
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from trainmaster.artifacts.unpacking import Header, is_damage
from trainmaster.objects.names import link_stays_inside, stays_inside
from trainmaster.spec.errors import PublishError
from trainmaster.volumes.packed.hashes import path_hash
from trainmaster.volumes.packed.packing import FilePart, SourceFile
from trainmaster.volumes.packed.push_source import (
    Folder,
    SourceExtras,
    changed,
    load_pieces,
    stamp_of,
)

# Names are any bytes and files are many: os functions on plain text are exact, and four times as fast.


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

    def survey(self) -> int:
        """Reads all headers; finds members that later ones replace."""
        import numpy as np

        hashes = np.fromiter((path_hash(member.path) for member in self._members()), np.uint64)
        self.extras.check_links()
        _, last = np.unique(hashes[::-1], return_index=True)
        self._dropped = frozenset(np.setdiff1d(np.arange(len(hashes)), len(hashes) - 1 - last).tolist())
        sizes = [
            member.size_bytes for number, member in enumerate(self._members()) if number not in self._dropped
        ]
        return sum(sizes)

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


_Type = TypeVar("_Type")
_HINT = "Nothing was pushed. Unpack it yourself into a directory and push that."


class TarContents(SourceExtras):
    """The directories and links of a tar, collected while its members pass."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self._label = label

    def path_of(self, member: tarfile.TarInfo) -> str:
        """Gives the path of a member in the volume; ``""`` for the top.

        Raises:
            PublishError: it leads outside.
        """
        name = member.name.rstrip("/") or "/"
        while name.startswith("./"):
            name = name[2:].lstrip("/")
        if name in (".", ""):
            return ""
        if not stays_inside(name):
            raise PublishError(f"{self._label}: the member {member.name!r} lies outside the tar.", _HINT)
        return name

    def take(self, member: tarfile.TarInfo) -> str | None:
        """Takes note of a member.

        Returns:
            The path if it is a file, whose content is to be read; None otherwise.

        Raises:
            PublishError: it cannot be part of a volume.
        """
        path = self.path_of(member)
        if member.isdir():
            self.folders[os.fsencode(path)] = Folder(member.mode & 0o777, time_ns(member))
        elif member.issym():
            self.links.append((os.fsencode(path), os.fsencode(member.linkname), time_ns(member)))
        elif member.issparse():
            raise PublishError(f"{self._label}: {path!r} is a sparse file.", _HINT)
        elif member.isreg():
            if not path:
                raise PublishError(f"{self._label}: the member {member.name!r} has no name.", _HINT)
            return path
        elif not member.islnk():
            self.notes.append(f"left out: {path!r} is neither a file nor a link nor a directory")
        return None

    def check_links(self) -> None:
        """Refuses links that lead outside.

        Raises:
            PublishError: naming the link.
        """
        links = {os.fsdecode(path): os.fsdecode(target) for path, target, _ in self.links}
        for path, target in links.items():
            if not link_stays_inside(path, links):
                raise PublishError(
                    f"{self._label}: {path!r} is a symbolic link that leads outside, to {target!r}.", _HINT
                )


def time_ns(member: tarfile.TarInfo) -> int:
    """Gives the time of a member's last change."""
    limit = 1 << 62
    seconds = limit / 1_000_000_000
    return int(max(-seconds, min(seconds, member.mtime)) * 1_000_000_000)


def members(label: str, archive: tarfile.TarFile, size_bytes: int | None = None) -> Iterator[tarfile.TarInfo]:
    """Reads one header after the other.

    Args:
        label: names the archive.
        archive: opened with :class:`Header`.
        size_bytes: of the archive, if its members must be whole already.

    Raises:
        PublishError: there is one that cannot be read, or none that anybody writes.
    """
    offset = -1
    while (member := understood(label, archive.next)) is not None:
        archive.members.clear()  # type: ignore[attr-defined] # it would keep them all
        if member.size < 0 or member.offset <= offset:
            raise damaged(label, tarfile.ReadError("its headers lie in a circle"))
        if not math.isfinite(member.mtime):
            raise damaged(label, tarfile.ReadError(f"{member.name!r} has a time that is none"))
        if size_bytes is not None and member.isreg() and member.offset_data + member.size > size_bytes:
            raise damaged(label, EOFError(f"it ends in the middle of {member.name!r}"))
        offset = member.offset
        yield member


def understood(label: str, read: Callable[[], _Type]) -> _Type:
    """Does what may find that an archive is none.

    Raises:
        PublishError: it does.
    """
    try:
        return read()
    except Exception as error:
        if not is_damage(error):
            raise
        raise damaged(label, error) from error


def damaged(label: str, error: BaseException) -> PublishError:
    """Gives the error for a tar that cannot be read to its end."""
    return PublishError(f"{label} is damaged, or no tar ({error}).", "Fetch or make it again.")
