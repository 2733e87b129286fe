"""`RemoteVolume`: the files of a team's volume on a server; `info_of`: its versions."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from trainmaster.api.remote.asking import asked
from trainmaster.api.remote.connection import RestConnection
from trainmaster.api.remote.following import rows_of
from trainmaster.artifacts.scratch import is_occupied, move_into_place, occupied, scratch_directory
from trainmaster.objects.errors import explaining
from trainmaster.objects.names import link_stays_inside, stays_inside
from trainmaster.service.volumes import Collected, VersionCheck
from trainmaster.service.volumes.stored import VolumeInfo
from trainmaster.spec.errors import NotFoundError, PublishError, UsageError
from trainmaster.volumes.packed.addresses import is_short_name
from trainmaster.volumes.packed.getting import GetProgress
from trainmaster.volumes.packed.hashes import joined_digest, new_digest
from trainmaster.volumes.packed.head import Head, StoredTable, VolumeKind
from trainmaster.volumes.packed.table import Entry
from trainmaster.volumes.packed.verifying import Damage

#: A server does not tell where its tables lie.
UNTOLD: Final = StoredTable("", 0)
#: Less is not worth a request of its own.
_PART_BYTES: Final = 8 << 20
Say = Callable[[str], None]


def is_name(text: str) -> bool:
    """Whether a text names a volume, maybe with a version, and is no URL or directory.

    >>> [is_name(each) for each in ("pets", "pets@3", "./pets", "s3://bucket/pets")]
    [True, True, False, False]
    """
    return is_short_name(text.partition("@")[0])


def info_of(found: Mapping[str, Any]) -> VolumeInfo:
    """From the object of ``GET /api/v1/volumes/{name}``."""
    return VolumeInfo(
        found["volume"],
        tuple(
            _head(row, datetime.fromtimestamp(row["created_at"], UTC), "packed", row["size_bytes"])
            for row in found["versions"]
        ),
    )


def _head(row: Mapping[str, Any], created_at: datetime, kind: VolumeKind, total_bytes: int) -> Head:
    return Head(
        version=row["version"],
        created_at=created_at,
        kind=kind,
        order="path",
        chunk_limit_bytes=0,
        file_count=row["files"],
        row_count=row["files"],
        total_bytes=total_bytes,
        chunk_count=row["chunks"],
        files=UNTOLD,
        chunks=UNTOLD,
        notes=tuple(row["notes"]),
    )


class RemoteVolume:
    """A version of a volume of the team.

    Args:
        connection: to the server.
        text: ``NAME`` or ``NAME@VERSION``.

    Attributes:
        uri: name and version.
        head: what the version is.

    Raises:
        NotFoundError: there is no such volume or version.
        UsageError: that is no version.
    """

    def __init__(self, connection: RestConnection, text: str) -> None:
        name, mark, version = text.partition("@")
        if mark and not version.isdecimal():
            raise UsageError(f"{text} is no version of a volume", f"Write such as {name}@3.")
        self._to, self._name = connection, quote(name)
        versions = info_of(connection.get(f"/volumes/{self._name}")).versions
        found = [head for head in versions if not mark or head.version == int(version)]
        if not found:
            raise NotFoundError(
                f"{name} has no version {version}", f"List them: trainmaster volume versions {name}"
            )
        self.head = found[-1]
        self._parts: dict[str, list[int]] = {}
        self.uri = f"{name}@{self.head.version}"

    def entries(self, path: str, *, recursive: bool) -> Iterator[Entry]:
        """What is in a directory by name, with ``recursive`` all below it; or the file itself.

        Raises:
            NotFoundError: there is no such path.
        """
        query = {"version": self.head.version, "path": path, "recursive": recursive}
        return map(self._entry, rows_of(self._to.pieces(f"/volume-files/{self._name}", query)))

    def _entry(self, row: Mapping[str, Any]) -> Entry:
        if row.get("parts"):
            self._parts[row["path"]] = row["parts"]
        return Entry(
            row=0,
            path=row["path"],
            kind=row["kind"],
            size_bytes=row["bytes"],
            mode=int(row["mode"], 8),
            mtime_ns=row["mtime_ns"],
            target=row.get("target", ""),
            hash=bytes.fromhex(row["hash"]) if "hash" in row else None,
        )

    def content(self, path: str) -> Iterator[bytes]:
        """The bytes of a file; the server proves them, and links are followed.

        Raises:
            NotFoundError: there is none.
            UsageError: it is a directory.
        """
        query = {"version": self.head.version, "path": path}
        return self._to.pieces(f"/volume-content/{self._name}", query)

    def get(self, directory: Path, *, only: Sequence[str], jobs: int, progress: GetProgress) -> None:
        """Write files below a directory, which appears when it is complete.

        Args:
            directory: absent or empty.
            only: paths of files and folders, which keep their places; empty: everything.
            jobs: how many files are fetched at the same time.
            progress: filled in on the way.

        Raises:
            UsageError: the directory is not empty.
            NotFoundError: at one of the paths is nothing.
            PublishError: a file came damaged, or the disk is full; nothing was changed.
        """
        target = Path(os.path.abspath(directory))  # noqa: PTH100 - of a link, not of what it points to
        if is_occupied(target):
            raise occupied(target)
        found: dict[str, Entry] = {}
        parts: list[_Batch] = []
        for path in only or ("",):
            new = list(self.entries(path, recursive=True))
            # What another path has brought already comes once more, and is not written.
            parts += _parts(
                path, [(each, each.path not in found) for each in new if each.kind == "file"], jobs
            )
            found |= {entry.path: entry for entry in new}
        links = {entry.path: entry.target for entry in found.values() if entry.kind == "symlink"}
        for path in found:
            if not stays_inside(path) or (path in links and not link_stays_inside(path, links)):
                raise PublishError(f"{self.uri}: {path!r} leads out of the volume.", "Nothing was changed.")
        files = [entry for entry in found.values() if entry.kind == "file"]
        progress.file_count, progress.file_bytes = len(files), sum(entry.size_bytes for entry in files)
        progress.total_bytes = progress.file_bytes
        with explaining("write", str(target)), scratch_directory(target) as scratch:
            self._fill(scratch, list(found.values()), parts, jobs, progress)
            if not move_into_place(scratch, target):
                raise occupied(target)

    def _fill(
        self, root: Path, found: Collection[Entry], parts: Sequence[_Batch], jobs: int, progress: GetProgress
    ) -> None:
        """Files first, links last: nothing is written through one."""
        for entry in found:
            place = root / entry.path
            (place if entry.kind == "directory" else place.parent).mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(jobs, "get") as pool:
            try:
                for _ in pool.map(lambda part: self._write(part, root, progress), parts):
                    pass
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        for entry in found:
            if entry.kind == "symlink":
                (root / entry.path).symlink_to(entry.target)
                os.utime(root / entry.path, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)
        for entry in sorted(found, key=lambda entry: entry.path, reverse=True):
            if entry.kind == "directory":
                (root / entry.path).chmod(entry.mode & 0o777 | 0o700)

    def _write(self, part: _Batch, root: Path, progress: GetProgress) -> None:
        pieces = _Pieces(self._bytes_of(part)) if part.end > part.begin else _Pieces(iter(()))
        for entry, is_wanted in part.files:
            digests, left = _Digests(self._parts.get(entry.path, ())), entry.size_bytes
            with (root / entry.path).open("xb") if is_wanted else nullcontext() as file:
                while left and (piece := pieces.take(left)):
                    left -= len(piece)
                    digests.update(piece)
                    if file is not None:
                        progress.done_bytes += len(piece)
                        file.write(piece)
                if left or (entry.hash and digests.whole() != entry.hash):
                    raise PublishError(
                        f"{self.uri}: {entry.path!r} came damaged.", "Get it again; nothing was changed."
                    )
                if file is not None:
                    file.flush()
                    os.fchmod(file.fileno(), entry.mode & 0o777 | 0o600)
                    os.utime(file.fileno(), ns=(entry.mtime_ns, entry.mtime_ns))

    def _bytes_of(self, part: _Batch) -> Iterator[bytes]:
        query = {"version": self.head.version, "path": part.path, "end": part.end}
        return self._to.pieces(f"/volume-contents/{self._name}", query, begin=part.begin)


class _Batch(NamedTuple):
    """Files that are fetched by one request: the bytes from ``begin`` to ``end`` of all below a path.

    Attributes:
        files: in their order, and whether they are written.
    """

    path: str
    begin: int
    end: int
    files: list[tuple[Entry, bool]]


def _parts(path: str, files: Sequence[tuple[Entry, bool]], jobs: int) -> Iterator[_Batch]:
    """So many that they are worth their requests, of about the same size."""
    total_bytes = sum(entry.size_bytes for entry, _ in files)
    each_bytes = max(_PART_BYTES, total_bytes / jobs)
    begin = end = 0
    held: list[tuple[Entry, bool]] = []
    for entry, is_wanted in files:
        held.append((entry, is_wanted))
        end += entry.size_bytes
        if end - begin >= each_bytes:
            yield _Batch(path, begin, end, held)
            begin, held = end, []
    if held:
        yield _Batch(path, begin, end, held)


class _Pieces:
    """Bytes as they come, cut to what is asked for."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def take(self, most: int) -> memoryview:
        """The next ones; none at the end."""
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        found, self._rest = self._rest[:most], self._rest[most:]
        return found


class _Digests:
    """The hash of a file, of which each part has one of its own.

    Args:
        parts: bytes of each; none: it is one.
    """

    def __init__(self, parts: Sequence[int]) -> None:
        self._left = list(parts)
        self._digest = new_digest()
        self._done: list[bytes] = []

    def update(self, data: bytes | memoryview) -> None:
        while self._left and len(data) >= self._left[0]:
            size = self._left.pop(0)
            self._digest.update(data[:size])
            self._done.append(self._digest.digest())
            self._digest, data = new_digest(), data[size:]
        self._digest.update(data)
        if self._left:
            self._left[0] -= len(data)

    def whole(self) -> bytes:
        return joined_digest(self._done or [self._digest.digest()])


def check_volume(
    connection: RestConnection, volume: str, *, deep: bool, jobs: int, say: Say
) -> list[VersionCheck]:
    """Look whether all that versions promise is there.

    Args:
        connection: to the server.
        volume: ``NAME`` or ``NAME@VERSION``.
        deep: every chunk is read, too.
        jobs: so many at the same time.
        say: told how far it is.

    Raises:
        NotFoundError: there is no such volume or version.
        PublishError: the store fails.
    """
    answer = _answer(connection, "volume-fsck", {"volume": volume, "deep": deep, "jobs": jobs}, say)
    return [_verdict(each) for each in answer["versions"]]


def collect_garbage(connection: RestConnection, volume: str, grace_s: float, *, now: bool) -> Collected:
    """Mark what no version of a volume names, and free what was marked.

    Raises:
        NotFoundError: there is no such volume.
        AccessError: that is for managers.
        PublishError: the store fails.
    """
    body = {"volume": volume, "grace_s": grace_s, "now": now}
    answer = _answer(connection, "volume-gc", body, lambda _: None)
    return Collected(
        **{name: answer[name] for name in Collected.__slots__} | {"owners": tuple(answer["owners"])}
    )


def check_models(connection: RestConnection, runs: Sequence[str], *, deep: bool, say: Say) -> dict[str, Any]:
    """Look whether models and checkpoints of runs are there; of all that one sees without any.

    Raises:
        NotFoundError: there is no such run.
    """
    return _answer(connection, "models-fsck", {"runs": list(runs), "deep": deep}, say)


def _answer(connection: RestConnection, kind: str, body: Mapping[str, Any], say: Say) -> dict[str, Any]:
    def sent() -> Generator[str, None, dict[str, Any]]:
        yield from ()
        return dict(body)

    found: dict[str, Any] = {}
    for each in asked(connection, f"/operations/{kind}", sent, {}, dict, "/operations"):
        if isinstance(each, dict):
            found = each
        else:
            say(str(each))
    return found


def _verdict(found: Mapping[str, Any]) -> VersionCheck:
    damage = [Damage(each["what"], each["advice"]) for each in found["damage"]]
    if more := found.get("more_damage"):
        damage.append(Damage(f"and {more:,} more faults", "Mend those that are told first."))
    head = None
    if "kind" in found:
        head = _head(found, datetime.fromisoformat(found["created_at"]), found["kind"], found["bytes"])
    return VersionCheck(found["version"], head, tuple(damage))
