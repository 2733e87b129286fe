"""What is taken from a tar, whoever wrote it, and what is refused."""

import math
import os
import tarfile
from collections.abc import Callable, Iterator
from typing import Self, TypeVar

from trainmaster.artifacts.unpacking import DAMAGE
from trainmaster.objects.names import link_stays_inside, stays_inside
from trainmaster.spec.errors import PublishError
from trainmaster.volumes.packed.sources import Folder

_Type = TypeVar("_Type")
_LONG_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
# `tarfile` reads them whole.
_MOST_HEADER_BYTES = 16 << 20
_HINT = "Nothing was pushed. Unpack it yourself into a directory and push that."


class TarContents:
    """The directories and links of a tar, collected while its members pass.

    Attributes:
        folders: by path.
        links: path, target and time.
        notes: what was left out and why.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self.folders: dict[bytes, Folder] = {}
        self.links: list[tuple[bytes, bytes, int]] = []
        self.notes: list[str] = []

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


class Header(tarfile.TarInfo):
    """A header, which `tarfile` would believe whatever it says of itself; give it to ``tarfile.open``."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> Self:
        """Reads one.

        Raises:
            TarError: it is none, or says that more headers belong to it than ever do.
        """
        found = super().frombuf(buf, encoding, errors)  # type: ignore[arg-type]
        if found.size < 0 or (found.type in _LONG_HEADERS and found.size > _MOST_HEADER_BYTES):
            raise tarfile.ReadError("one of its headers is out of all measure")
        return found


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
    except DAMAGE as error:
        raise damaged(label, error) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise damaged(label, error) from error  # gzip's BadGzipFile, bz2, lzma


def damaged(label: str, error: BaseException) -> PublishError:
    """Gives the error for a tar that cannot be read to its end."""
    return PublishError(f"{label} is damaged, or no tar ({error}).", "Fetch or make it again.")
