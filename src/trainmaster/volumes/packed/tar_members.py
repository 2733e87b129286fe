"""What is taken from a tar, whoever wrote it, and what is refused."""

import os
import tarfile
from collections.abc import Callable

from trainmaster.spec.errors import PublishError
from trainmaster.volumes.names import link_stays_inside, stays_inside
from trainmaster.volumes.packed.sources import Folder

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
    return max(-limit, min(limit, int(member.mtime * 1_000_000_000)))


def readable(label: str, read: Callable[[], tarfile.TarInfo | None]) -> tarfile.TarInfo | None:
    """Reads the next header.

    Raises:
        PublishError: there is none that can be read.
    """
    try:
        return read()
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise damaged(label, error) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise damaged(label, error) from error  # gzip's BadGzipFile, bz2, lzma


def damaged(label: str, error: Exception) -> PublishError:
    """Gives the error for a tar that cannot be read to its end."""
    return PublishError(f"{label} is damaged, or no tar ({error}).", "Fetch or make it again.")
