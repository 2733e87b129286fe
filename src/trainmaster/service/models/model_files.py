"""`ModelFiles`: the files of a model, one at a time or as a zip, straight from its object store."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from trainmaster.artifacts import FileEntry, Manifest
from trainmaster.objects import ObjectStore
from trainmaster.spec.errors import NotFoundError, PublishError

#: So long a link to a file is good for.
_LINK_S: Final = 600.0


class ModelFiles:
    """The files of a model; its links are only named, and empty directories are left out.

    Args:
        uri: of the model.
        manifest: of the model; its paths were checked when it was read.
    """

    def __init__(self, uri: str, manifest: Manifest) -> None:
        self.uri = uri
        self.files = [entry for entry in manifest.files if entry.kind == "file"]
        self.links = [entry for entry in manifest.files if entry.kind == "symlink"]
        self._store = ObjectStore(uri)

    def find(self, path: str) -> FileEntry:
        """One of them, by the path that the manifest has.

        Raises:
            NotFoundError: there is none.
        """
        for entry in self.files:
            if entry.path == path:
                return entry
        raise NotFoundError(f"the model has no file {path!r}", "Its listing has the paths.")

    def read(self, entry: FileEntry) -> Iterator[bytes]:
        """The bytes of a file.

        Raises:
            PublishError: it is missing, or the store fails.
        """
        try:
            yield from self._store.blocks(entry.object)
        except FileNotFoundError as error:
            raise PublishError(f"{self.uri}: {entry.path!r} is missing", "Somebody deleted it.") from error

    def link(self, entry: FileEntry) -> str | None:
        """A URL by which anybody may read a file from its store, for some minutes; None: read it here.

        A store by plain http is one that is near this machine, and perhaps only this machine reaches it.
        """
        try:
            url = self._store.signed_url(entry.object, _LINK_S)
        except PublishError:  # keys that can read, and cannot sign
            return None
        return url if url is not None and url.startswith("https://") else None

    def zipped(self) -> Iterator[bytes]:
        """All of them as one zip, not compressed: weights hardly shrink, and it costs the server nothing."""
        into = _Pipe()
        with zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as archive:
            for entry in self.files:
                at = datetime.fromtimestamp(max(entry.mtime_ns / 1e9, 315532800), UTC)  # zips begin in 1980
                info = zipfile.ZipInfo(entry.path, at.timetuple()[:6])
                with archive.open(info, "w", force_zip64=True) as file:
                    for block in self.read(entry):
                        file.write(block)
                        yield into.taken()
        yield into.taken()


class _Pipe(io.RawIOBase):
    """Keeps what is written until it is taken; a zip that cannot seek in it says sizes behind each file."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Keep it."""
        self._parts.append(bytes(data))
        return len(data)

    def taken(self) -> bytes:
        """What was written since."""
        found, self._parts = b"".join(self._parts), []
        return found
