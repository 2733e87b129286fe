"""What is taken from a tar, whoever wrote it, and what is refused."""

import math
import os
import tarfile
from collections.abc import Callable, Iterator
from typing import TypeVar

from trainmaster.artifacts.unpacking import is_damage
from trainmaster.objects.names import link_stays_inside, stays_inside
from trainmaster.spec.errors import PublishError
from trainmaster.volumes.packed.sources import Folder, SourceExtras

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
