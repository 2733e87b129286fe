"""`StoredVolume`: what can be done with a volume where it lies; and the files of one that is open.

What ``--json`` and REST say of versions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from trainmaster.dataclass import dataclass
from trainmaster.objects import ObjectStore
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.volumes.packed.addresses import volume_address
from trainmaster.volumes.packed.garbage import Collected, collect_garbage, remove_volume
from trainmaster.volumes.packed.getting import file_blocks, files_blocks
from trainmaster.volumes.packed.head import Head, alive_heads, head_numbers, remove_version
from trainmaster.volumes.packed.opening import OpenVolume
from trainmaster.volumes.packed.table import Entry, FileTable, resolved
from trainmaster.volumes.packed.verifying import VersionCheck, verified


def head_document(head: Head, uri: str | None = None) -> dict[str, Any]:
    """Gives what ``--json`` says of a version."""
    return {
        **({"uri": uri} if uri else {}),
        "version": head.version,
        "created_at": head.created_at.isoformat(),
        "kind": head.kind,
        "files": head.file_count,
        "bytes": head.total_bytes,
        "chunks": head.chunk_count,
        "notes": list(head.notes),
    }


def verdict_document(verdict: VersionCheck) -> dict[str, Any]:
    """Gives what `fsck --json` says of a version."""
    head = {} if verdict.head is None else head_document(verdict.head)
    damage = [{"what": one.what, "advice": one.advice} for one in verdict.damage]
    return {**head, "version": verdict.version, "damage": damage}


@dataclass(frozen=True, slots=True)
class VolumeInfo:
    """A volume: its URL, and its versions in order."""

    url: str
    versions: tuple[Head, ...]


@dataclass(frozen=True, slots=True)
class RemovedVolume:
    """What was removed.

    Attributes:
        url: of the volume.
        name: as it was asked for.
        removed: the version, or ``all``; None: nothing, as the whole volume was not named.
    """

    url: str
    name: str
    removed: int | str | None


class StoredVolume:
    """A volume, or one version of it.

    Args:
        text: ``URL[@VERSION]`` or ``NAME[@VERSION]``.

    Attributes:
        address: what the text means.
        url: of the volume.

    Raises:
        UsageError: that is no address of a volume.
        PublishError: (every method) the store fails.
    """

    def __init__(self, text: str) -> None:
        self.address = volume_address(text)
        self._store = ObjectStore(self.address.url)
        self.url = self._store.url

    def info(self) -> VolumeInfo:
        """All versions of it that were not removed, in order.

        Raises:
            NotFoundError: there never was one.
        """
        if not head_numbers(self._store)[1]:
            raise NotFoundError(f"{self.url}: there is no volume.", "Look at the URL.")
        return VolumeInfo(self.url, tuple(alive_heads(self._store)))

    def numbers(self) -> Collection[int]:
        """Numbers of its versions that were not removed, whatever state they are in.

        Raises:
            NotFoundError: there never was one.
        """
        alive, newest = head_numbers(self._store)
        if not newest:
            raise NotFoundError(f"{self.url}: there is no volume.", "Look at the URL.")
        return alive

    def remove(self, *, whole: bool = False) -> RemovedVolume:
        """Remove the version; without one the whole volume, if ``whole`` says so, too."""
        version = self.address.version
        if version is not None:
            remove_version(self._store, version)
        elif whole:
            remove_volume(self._store)
        return RemovedVolume(self.url, str(self.address), version or ("all" if whole else None))

    def collect_garbage(self, grace_s: float, *, now: bool) -> Collected:
        """Mark what no version names, and free what was marked; see `packed.garbage`."""
        return collect_garbage(self._store, grace_s, now=now)

    def verified(self, *, deep: bool, jobs: int) -> Iterator[VersionCheck]:
        """Look whether all is there, version by version; see `packed.verifying`."""
        return verified(self._store, self.address.version, deep=deep, jobs=jobs)


def content(opened: OpenVolume, path: str) -> Iterator[memoryview]:
    """The bytes of a file, proved; links are followed.

    Raises:
        NotFoundError: there is none.
        UsageError: it is a directory.
        PublishError: something is missing or damaged, or the store fails.
    """
    row = _row_at(opened, path)
    if opened.table.kind(row) != "file":
        raise UsageError(
            f"{opened.uri}: {path!r} is a directory.", f"List it: trainmaster volume ls {opened.uri} {path}"
        )
    return file_blocks(opened, row)


def contents(opened: OpenVolume, path: str, begin: int, end: int | None) -> Iterator[memoryview]:
    """The bytes of all files in a directory, proved, one after another in the order of `entries`.

    Args:
        opened: the volume.
        path: of the directory, or of one file.
        begin: of all these bytes, the first that is wanted.
        end: the first that is not wanted any more; None for all.

    Raises:
        NotFoundError: there is no such path.
        PublishError: something is missing or damaged, or the store fails.
    """
    table, place, skipped = opened.table, 0, None
    rows = []
    for row in _listed(opened, path, recursive=True):
        if table.kind(row) != "file":
            continue
        after = place + table.sizes[row]
        if after > begin and (end is None or place < end):
            skipped = begin - place if skipped is None else skipped
            rows.append(row)
        place = after
    return _between(
        files_blocks(opened, rows), max(0, skipped or 0), None if end is None else max(0, end - begin)
    )


def _between(blocks: Iterator[memoryview], skipped: int, most: int | None) -> Iterator[memoryview]:
    for block in blocks:
        found = block[skipped:]
        skipped = max(0, skipped - len(block))
        if most is not None:
            found = found[:most]
            most -= len(found)
        if found:
            yield found


def entries(opened: OpenVolume, path: str, *, recursive: bool) -> Iterator[Entry]:
    """What is in a directory by name, with ``recursive`` all below it; or the file itself.

    Raises:
        NotFoundError: there is no such path.
    """
    return map(opened.table.entry, _listed(opened, path, recursive=recursive))


def entry_document(entry: Entry) -> dict[str, Any]:
    """What ``trainmaster volume ls --json`` says of a file."""
    return {
        "path": entry.path,
        "kind": entry.kind,
        "bytes": entry.size_bytes,
        "mode": f"{entry.mode:o}",
        "mtime_ns": entry.mtime_ns,
        **({"target": entry.target} if entry.kind == "symlink" else {}),
        **({"hash": entry.hash.hex()} if entry.hash else {}),
    }


def _listed(opened: OpenVolume, path: str, *, recursive: bool) -> Iterator[int]:
    row = _listed_row(opened, path)
    is_directory = opened.table.kind(row) == "directory"
    return _rows_below(opened.table, row, recursive) if is_directory else iter([row])


def _row_at(opened: OpenVolume, path: str) -> int:
    """The row of what lies at a path that a user has given; links are followed."""
    row = resolved(opened.table, path)
    if row < 0:
        raise NotFoundError(
            f"{opened.uri}: there is no {path!r}.", f"List it: trainmaster volume ls {opened.uri}"
        )
    return row


def _listed_row(opened: OpenVolume, path: str) -> int:
    """The row that is to be listed: a link that leads to no directory is shown as it is."""
    row = opened.table.row_of(path.strip("/"))
    if row >= 0 and opened.table.kind(row) == "symlink":
        there = resolved(opened.table, path)
        return there if there >= 0 and opened.table.kind(there) == "directory" else row
    return _row_at(opened, path)


def _rows_below(table: FileTable, row: int, recursive: bool) -> Iterator[int]:
    stack = [iter(sorted(table.children(row), key=table.path_bytes))]
    while stack:
        found = next(stack[-1], None)
        if found is None:
            stack.pop()
            continue
        yield found
        if recursive and table.kind(found) == "directory":
            stack.append(iter(sorted(table.children(found), key=table.path_bytes)))
