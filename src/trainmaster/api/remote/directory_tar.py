"""`DirectoryTar`: a directory as a tar that can be read from any place on, and is written nowhere.

`pack`: the code of a recipe as the tar that a server takes: the same code is the same tar.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import tempfile
from bisect import bisect_right
from pathlib import Path
from typing import IO, Final, NamedTuple

from trainmaster.artifacts import take_snapshot
from trainmaster.artifacts.code_tree import not_sent_note
from trainmaster.control.checks.preflight import check_sent
from trainmaster.objects.errors import explained, explaining
from trainmaster.objects.names import link_stays_inside
from trainmaster.spec import Recipe
from trainmaster.spec.errors import PublishError


def pack(recipe: Recipe, packed: IO[bytes]) -> tuple[str, tuple[str, ...]]:
    """Write a recipe's code into a file, links as what they lead to.

    Returns:
        The SHA-256 of the tar, and what was left out that the user may miss.

    Raises:
        UsageError: there is no such code, it is over 100 MB, it cannot be read, or data are outside of it.
    """
    with tempfile.TemporaryDirectory(prefix="trainmaster-code-") as place:
        snapshot = take_snapshot(
            recipe.code,
            recipe.directory,
            Path(place),
            exclude=recipe.secret_files,
            include=recipe.include,
        )
        check_sent(recipe, snapshot.path)
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT, dereference=True) as archive:
            for path in sorted(snapshot.path.rglob("*")):
                archive.add(path, str(path.relative_to(snapshot.path)), recursive=False, filter=_plain)
    packed.seek(0)
    digest = hashlib.file_digest(packed, "sha256").hexdigest()  # type: ignore[arg-type]
    return digest, (*snapshot.notes, *filter(None, [not_sent_note(snapshot.not_sent)]))


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nothing of who packs it, and when."""
    if member.islnk():  # the second name of a file: servers take files only
        member.type = tarfile.REGTYPE
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


_BLOCK: Final = tarfile.BLOCKSIZE


class _Member(NamedTuple):
    path: str
    mode: int
    size_bytes: int
    mtime_ns: int
    target: str

    @property
    def header(self) -> bytes:
        found = tarfile.TarInfo(self.path)
        found.mode, found.size = stat.S_IMODE(self.mode) & 0o777, self.size_bytes
        # In whole seconds: a part of one needs a header of its own, which is ten times a small file's size.
        found.mtime = self.mtime_ns // 1_000_000_000
        found.type, found.linkname = tarfile.REGTYPE, self.target
        if stat.S_ISDIR(self.mode):
            found.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(self.mode):
            found.type = tarfile.SYMTYPE
        return found.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


class DirectoryTar:
    """Files, links and directories below a directory, sorted by path.

    The same names, sizes, modes and times are the same tar, so what was sent of it before counts.

    Args:
        directory: whose.

    Attributes:
        size_bytes: of the tar.
        digest: of all but the files' bytes.
        file_count: files in it.
        notes: what was left out and why.

    Raises:
        PublishError: a link leads outside, or something cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self._root = directory
        self._members: list[_Member] = []
        self._starts: list[int] = []
        self.size_bytes, self.file_count = 0, 0
        self.notes: list[str] = []
        digest = hashlib.sha256()
        links: dict[str, str] = {}
        try:
            for member in self._walk(""):
                header = member.header
                digest.update(header + member.mtime_ns.to_bytes(12, "big", signed=True))
                self._members.append(member)
                self._starts.append(self.size_bytes)
                self.size_bytes += len(header) + _padded(member.size_bytes)
                self.file_count += stat.S_ISREG(member.mode)
                if member.target:
                    links[member.path] = member.target
        except OSError as error:
            raise explained(error, "read", str(error.filename or directory)) from error
        self.size_bytes += 2 * _BLOCK
        self.digest = digest.hexdigest()
        for path in links:
            if not link_stays_inside(path, links):
                raise PublishError(
                    f"{directory / path}: the link leads out of {directory}.",
                    "Remove it, or put a copy there.",
                )

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the tar, from a place on; fewer only at its end.

        Raises:
            PublishError: a file has changed, or cannot be read.
        """
        found = bytearray()
        size = min(size, self.size_bytes - offset)
        number = max(0, bisect_right(self._starts, offset) - 1)
        while len(found) < size and number < len(self._members):
            at = offset + len(found) - self._starts[number]
            found += self._part(self._members[number], at, size - len(found))
            number += 1
        return bytes(found) + bytes(size - len(found))

    def _part(self, member: _Member, at: int, size: int) -> bytes:
        header = member.header
        found = header[at : at + size]
        first, last = max(0, at - len(header)), min(member.size_bytes, at + size - len(header))
        if first < last:
            found += self._content(member, first, last - first)
        whole = len(header) + _padded(member.size_bytes)
        return found + bytes(max(0, min(size, whole - at) - len(found)))

    def _content(self, member: _Member, first: int, size: int) -> bytes:
        place = self._root / member.path
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with explaining("read", str(place)), open(os.open(place, flags), "rb") as file:  # noqa: PTH123
            status = os.fstat(file.fileno())
            file.seek(first)
            data = file.read(size)
        if (status.st_size, status.st_mtime_ns) != (member.size_bytes, member.mtime_ns) or len(data) != size:
            raise PublishError(
                f"{place} changed while it was pushed.", "Push again when nothing writes there."
            )
        return data

    def _walk(self, folder: str) -> list[_Member]:
        found = []
        with os.scandir(self._root / folder) as entries:
            names = sorted(entry.name for entry in entries)
        for name in names:
            path = f"{folder}/{name}" if folder else name
            status = (self._root / path).lstat()
            mode, is_file = status.st_mode, stat.S_ISREG(status.st_mode)
            if stat.S_ISLNK(mode):
                target = os.readlink(self._root / path)  # noqa: PTH115 - as it is written
                found.append(_Member(path, mode, 0, status.st_mtime_ns, target))
            elif is_file or stat.S_ISDIR(mode):
                size_bytes = status.st_size if is_file else 0
                found.append(_Member(path, mode, size_bytes, status.st_mtime_ns if is_file else 0, ""))
                if not is_file:
                    found += self._walk(path)
            else:
                self.notes.append(f"left out: {path!r} is neither a file nor a link nor a directory")
        return found


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // _BLOCK) * _BLOCK
