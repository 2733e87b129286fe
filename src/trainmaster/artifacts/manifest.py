"""The manifest of an artifact: what it consists of, and the proof that it is whole."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypeVar

from trainmaster.dataclass import dataclass, field
from trainmaster.objects.errors import DamagedObjectError
from trainmaster.objects.names import link_stays_inside, stays_inside
from trainmaster.spec.errors import PublishError


class DamagedArtifactError(DamagedObjectError):
    """It is not what was published, and will not be so later; an earlier one may do."""


class WithdrawnError(DamagedArtifactError):
    """Nothing was ever published there, and never will be: see :data:`WITHDRAWN`."""


JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
Kind: TypeAlias = Literal["file", "symlink", "directory"]

MANIFEST_KEY = "manifest.json"
#: Some five million files.
MANIFEST_BYTES = 1 << 30
#: Stands where a manifest would, so that an upload which was given up can never be committed. Earlier
#: versions read it as a damaged manifest.
WITHDRAWN = b'{"version":1,"withdrawn":true}\n'
_VERSION = 1
_T = TypeVar("_T")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file, symbolic link or empty directory of an artifact.

    Attributes:
        path: where it lies in the artifact; bytes that are not UTF-8 are lone surrogates.
        kind: ``file``, ``symlink`` or ``directory`` (recorded only when empty).
        size_bytes: of a file.
        sha256: of a file's bytes, in hexadecimal.
        mode: permission bits, 0 to 0o777.
        mtime_ns: of a file, since 1970; restored, for scripts that look for the newest file.
        target: of a symbolic link, relative to the link's directory.
        object: the key of a file's bytes, relative to the artifact.
    """

    path: str
    kind: Kind = "file"
    size_bytes: int = 0
    sha256: str = ""
    mode: int = 0o644
    mtime_ns: int = 0
    target: str = ""
    object: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an artifact consists of. It is written last: without it, the artifact does not exist.

    Attributes:
        kind: what the artifact is, such as ``model`` or ``checkpoint``.
        created_at: when it was published, in UTC.
        files: sorted by path.
        extra: whatever the publisher wanted to keep with it.
        notes: what was left out and why, for the user.
        version: of this format.
    """

    kind: str
    created_at: datetime
    files: tuple[FileEntry, ...]
    extra: Mapping[str, JSON] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    version: int = _VERSION

    @property
    def total_bytes(self) -> int:
        """The size of all files together."""
        return sum(entry.size_bytes for entry in self.files)

    def lost(self, sizes_bytes: Mapping[str, int]) -> list[FileEntry]:
        """Gives the files that are not there, or not in their size.

        Args:
            sizes_bytes: of the objects that a listing shows, by key relative to the artifact.
        """
        return [
            entry
            for entry in self.files
            if entry.kind == "file" and sizes_bytes.get(entry.object) != entry.size_bytes
        ]

    def same_content(self, files: Iterable[FileEntry]) -> bool:
        """Says whether ``files`` are the same, wherever their bytes lie and whatever their age."""
        return {_essence(entry) for entry in self.files} == {_essence(entry) for entry in files}

    def to_json(self) -> bytes:
        """Gives the bytes of ``manifest.json``: pure ASCII, lone surrogates escaped."""
        document = {
            "version": self.version,
            "kind": self.kind,
            "created_at": self.created_at.isoformat(),
            "total_bytes": self.total_bytes,
            "extra": self.extra,
            "notes": self.notes,
            "files": [_entry_document(entry) for entry in self.files],
        }
        return json.dumps(document, separators=(",", ":")).encode("ascii") + b"\n"

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "Manifest":
        """Reads and checks a manifest that may come from anybody.

        Args:
            data: the bytes of ``manifest.json``.
            where: the artifact's URI, for the messages.

        Raises:
            PublishError: it is no manifest, is of a later version, or names something outside
                the artifact or the same thing twice.
        """
        if data == WITHDRAWN:
            raise WithdrawnError(f"{where}: it was never completed.", "Use another one.")
        try:
            document = json.loads(data)
            version = document["version"]
            if version != _VERSION:
                raise PublishError(
                    f"{where}: its manifest has version {version!r}; this Trainmaster reads {_VERSION}.",
                    "Read it with the Trainmaster that wrote it, or upgrade.",
                )
            files = tuple(entry_of(item) for item in document["files"])
            manifest = cls(
                kind=_typed(document["kind"], str),
                created_at=datetime.fromisoformat(document["created_at"]),
                files=files,
                extra=_typed(document["extra"], dict),
                notes=tuple(_typed(note, str) for note in document["notes"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DamagedArtifactError(
                f"{where}: {MANIFEST_KEY} is damaged ({type(error).__name__}: {error}).",
                "Publish the artifact again, or use an earlier one.",
            ) from error
        check_entries(files, where)
        return manifest


def check_entries(files: Sequence[FileEntry], where: str) -> None:
    """Refuses entries that lie outside the artifact, twice in it, or below something that is no directory.

    Args:
        files: the entries.
        where: the artifact's URI or directory, for the messages.

    Raises:
        PublishError: naming the entry.
    """
    by_path: dict[str, FileEntry] = {}
    for entry in files:
        if not stays_inside(entry.path):
            raise _refused(where, entry, "lies outside the artifact")
        if entry.path in by_path:
            raise _refused(where, entry, "is named twice")
        by_path[entry.path] = entry
        if entry.kind == "file" and not (stays_inside(entry.object) and entry.object != MANIFEST_KEY):
            raise _refused(where, entry, f"has its bytes outside the artifact, at {entry.object!r}")
    links = {entry.path: entry.target for entry in files if entry.kind == "symlink"}
    checked: set[str] = set()
    for entry in files:
        parent = entry.path.rpartition("/")[0]
        while parent and parent not in checked:
            if parent in by_path and by_path[parent].kind != "directory":
                raise _refused(where, entry, f"lies below {parent!r}, which is no directory")
            checked.add(parent)
            parent = parent.rpartition("/")[0]
        if entry.kind == "symlink" and not link_stays_inside(entry.path, links):
            raise _refused(where, entry, f"is a symbolic link that leads outside, to {entry.target!r}")


def _refused(where: str, entry: FileEntry, fault: str) -> DamagedArtifactError:
    return DamagedArtifactError(f"{where}: {entry.path!r} {fault}.", "Nothing was written.")


def _essence(entry: FileEntry) -> tuple[str, str, str, bool, str]:
    return (entry.path, entry.kind, entry.sha256, bool(entry.mode & 0o100), entry.target)


def _entry_document(entry: FileEntry) -> dict[str, JSON]:
    if entry.kind == "file":
        return {
            "path": entry.path,
            "size_bytes": entry.size_bytes,
            "sha256": entry.sha256,
            "mode": entry.mode,
            "mtime_ns": entry.mtime_ns,
            "object": entry.object,
        }
    if entry.kind == "symlink":
        return {"path": entry.path, "kind": "symlink", "target": entry.target}
    return {"path": entry.path, "kind": "directory", "mode": entry.mode}


def entry_of(document: Mapping[str, Any]) -> FileEntry:
    """What a document says of a file.

    Raises:
        ValueError, TypeError, KeyError: nothing that could be.
    """
    path = _typed(document["path"], str)
    path.encode("utf-8", "surrogateescape")  # a surrogate that stands for no byte is a ValueError
    kind = document.get("kind", "file")
    if kind == "symlink":
        target = _typed(document["target"], str)
        target.encode("utf-8", "surrogateescape")
        return FileEntry(path, "symlink", target=target)
    if kind == "directory":
        return FileEntry(path, "directory", mode=_within(document["mode"], 0o777))
    if kind != "file":
        raise ValueError(f"{path!r} is a {kind!r}")
    sha256 = _typed(document["sha256"], str)
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"{path!r} has no SHA-256")
    return FileEntry(
        path=path,
        size_bytes=_within(document["size_bytes"], 1 << 62),
        sha256=sha256,
        mode=_within(document["mode"], 0o777),
        mtime_ns=_within(document["mtime_ns"], 1 << 62),
        object=_typed(document["object"], str),
    )


def _typed(value: Any, kind: type[_T]) -> _T:  # noqa: ANN401 - it comes from outside
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} should be a {kind.__name__}")
    return value


def _within(value: Any, limit: int) -> int:  # noqa: ANN401
    if type(value) is not int or not 0 <= value <= limit:
        raise ValueError(f"{value!r} should be a number from 0 to {limit}")
    return value
