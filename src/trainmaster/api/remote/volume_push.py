"""`push`: a directory or an archive becomes a version of a volume of the team, by the server's uploads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from trainmaster.api.remote.connection import RestConnection
from trainmaster.api.remote.directory_tar import DirectoryTar
from trainmaster.api.remote.uploads import PieceUpload
from trainmaster.api.remote.volumes import info_of
from trainmaster.artifacts.unpacking import ARCHIVE_SUFFIXES
from trainmaster.objects.errors import explaining
from trainmaster.spec.errors import NotFoundError, PublishError, UsageError
from trainmaster.volumes.packed.addresses import is_short_name
from trainmaster.volumes.packed.head import Head
from trainmaster.volumes.packed.pushing import PushProgress

_PIECE_BYTES: Final = 8 << 20


class Pushed(NamedTuple):
    """What a push has done.

    Attributes:
        uri: name and version.
        head: what the version is.
        sent_bytes: sent to the server, this time.
        notes: what was left out and why.
    """

    uri: str
    head: Head
    sent_bytes: int
    notes: tuple[str, ...]


class _Source(Protocol):
    size_bytes: int
    digest: str
    notes: list[str]

    def read(self, offset: int, size: int) -> bytes: ...


class _LocalArchive:
    """A tar or zip that is there already; known by its name, size and date."""

    def __init__(self, path: Path) -> None:
        self._path = path
        status = path.stat()
        self.size_bytes = status.st_size
        self._mtime_ns = status.st_mtime_ns
        self.digest = hashlib.sha256(f"{path.name} {self.size_bytes} {self._mtime_ns}".encode()).hexdigest()
        self.notes: list[str] = []

    def read(self, offset: int, size: int) -> bytes:
        with explaining("read", str(self._path)):
            with self._path.open("rb") as file:
                file.seek(offset)
                data = file.read(size)
            status = self._path.stat()
        if (status.st_size, status.st_mtime_ns) != (self.size_bytes, self._mtime_ns):
            raise PublishError(f"{self._path} changed while it was pushed.", "Push it again.")
        return data


def push(
    connection: RestConnection,
    source: str,
    volume: str,
    progress: PushProgress,
    say: Callable[[str], None],
    made_by: str = "",
) -> Pushed:
    """Send files to a server, which makes a version of a volume of them.

    It goes on where the server is: after a connection broke, and when it is asked for again with the same
    files. What is under way is known by the files' names, sizes and times.

    Args:
        connection: to the server.
        source: a directory, or a tar or zip.
        volume: its name in the team.
        progress: filled in on the way.
        say: told when the server does not answer.
        made_by: the run whose task pushes it.

    Raises:
        UsageError: that is no directory or archive, or no name of a volume.
        PublishError: a file changed meanwhile, or cannot be read; or there is no room for it.
        UnreachableError: the server has not answered for minutes.
    """
    if not is_short_name(volume):
        raise UsageError(
            f"{volume!r} is no name of a volume", "A push makes a new version: write a name, such as pets."
        )
    files, suffix = _source_of(source)
    progress.total_bytes = files.size_bytes
    upload = PieceUpload(connection, f"{volume}.{files.digest[:32]}{suffix}", files.size_bytes, "volume", say)
    before = None
    for offset in upload.pieces(files.read, _PIECE_BYTES):
        progress.sent_bytes += 0 if before is None else offset - before
        progress.done_bytes = before = offset
    version = upload.finish({"volume": volume} | ({"made_by": made_by} if made_by else {}))["version"]
    versions = info_of(upload.patiently(lambda: connection.get(f"/volumes/{volume}"))).versions
    head = next((each for each in versions if each.version == version), None)
    if head is None:
        raise NotFoundError(f"{volume}@{version} was made, and removed since", "Push it again.")
    return Pushed(f"{volume}@{version}", head, progress.sent_bytes, tuple(files.notes))


def _source_of(source: str) -> tuple[_Source, str]:
    if "://" in source:
        raise UsageError(
            f"{source}: files of this machine are sent to a server.",
            "Fetch it first, or push it to a store: `trainmaster --local volume push`.",
        )
    place = Path(source).expanduser()
    if place.is_dir():
        return DirectoryTar(place), ".tar"
    suffix = next((each for each in ARCHIVE_SUFFIXES if place.name.endswith(each)), None)
    if suffix is None or not place.is_file():
        raise UsageError(
            f"{source} is neither a directory nor an archive.",
            f"Name a directory, or a file that ends with {', '.join(ARCHIVE_SUFFIXES)}.",
        )
    return _LocalArchive(place), suffix
