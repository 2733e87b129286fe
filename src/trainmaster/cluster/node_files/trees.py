"""Directories between machines: what lies in them, and streams of their files. Both ends speak it.

A stream is a line of JSON for each file, then its bytes and ``+``, or ``-`` if it changed meanwhile; at the
end comes ``null``.
"""

# ruff: noqa: PTH100, PTH101, PTH103, PTH104, PTH106, PTH108, PTH112, PTH114, PTH115, PTH116, PTH118, PTH120, PTH123, PTH211
# Names are any bytes, and os functions on plain text are exact.
from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

FILE, LINK, FOLDER, OUTWARD = "f", "l", "d", "x"

_PIECE = 1 << 18
_LINE_BYTES = 1 << 20  # a path and a link's target, each byte of them escaped
# The kernel stamps files with the time of its last tick: of two writes within one the second leaves no trace.
_TICK_NS = 10_000_000


class TreeError(Exception):
    """What is wrong with a directory, or with a stream, in words."""


def read_line(line: bytes) -> Any:  # noqa: ANN401 - JSON
    """What a line says.

    Raises:
        TreeError: it is no JSON.
    """
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise TreeError("it says a line that cannot be read") from None


class TreeEntry(NamedTuple):
    """Something in a directory.

    Attributes:
        path: relative.
        kind: FILE, LINK, FOLDER (an empty one; others need no entry), OUTWARD (a link that leads outside).
        size: of a file, in bytes.
        mtime_ns: of a file.
        mode: permissions.
        target: of a link; relative, unless it leads outside.
        inode: on its own machine.
    """

    path: str
    kind: str
    size: int = 0
    mtime_ns: int = 0
    mode: int = 0o644
    target: str = ""
    inode: int = 0

    @classmethod
    def read(cls, said: Any) -> TreeEntry:  # noqa: ANN401 - JSON
        """An entry as another machine wrote it.

        Raises:
            TreeError: it is none.
        """
        try:
            entry = cls(*said)
        except TypeError:
            raise TreeError("it says something that is no entry") from None
        texts, numbers = (entry.path, entry.kind, entry.target), (entry.size, entry.mtime_ns, entry.inode)
        whole = all(type(each) is int and abs(each) < 1 << 63 for each in (*numbers, entry.mode))
        if not whole or not all(type(each) is str for each in texts) or entry.size < 0:
            raise TreeError("it says something that is no entry")
        return entry._replace(mode=entry.mode & 0o777)  # nothing of another machine's is setuid here

    @property
    def content(self) -> TreeEntry:
        """Without what differs from machine to machine."""
        return self._replace(inode=0)


def scan(root: str, *, follow: bool = False) -> list[TreeEntry]:
    """What lies in a directory; nothing if there is none. What vanishes meanwhile is left out.

    Args:
        root: the directory.
        follow: links that lead outside stand for what they lead to.

    Raises:
        OSError: it cannot be read.
    """
    found: list[TreeEntry] = []
    top = os.path.realpath(root)
    pending: list[tuple[str, frozenset[str]]] = [("", frozenset((top,)))]
    while pending:
        folder, above = pending.pop()
        place = os.path.join(root, folder) if folder else root
        try:
            with os.scandir(place) as entries:
                names = sorted(entry.name for entry in entries)
        except FileNotFoundError:
            continue
        is_away = follow and not is_below(os.path.realpath(place), top)
        for name in names:
            path = f"{folder}/{name}" if folder else name
            with contextlib.suppress(FileNotFoundError):
                entry = _look(root, path, follow, is_away)
                if entry is None:
                    continue
                if entry.kind != FOLDER:
                    found.append(entry)
                    continue
                real = os.path.realpath(os.path.join(root, path))
                if real not in above:  # a link to a directory above it
                    pending.append((path, above | {real}))
        if folder and not names:
            found.append(TreeEntry(folder, FOLDER, mode=_mode(os.stat(place))))
    found.sort()
    return found


def is_below(path: str, top: str) -> bool:
    """Whether an absolute path is a directory or in it."""
    return path == top or path.startswith(top.rstrip("/") + "/")


def _look(root: str, path: str, follow: bool, is_away: bool) -> TreeEntry | None:
    place = os.path.join(root, path)
    status = os.lstat(place)
    if stat.S_ISLNK(status.st_mode):
        text = os.readlink(place)
        # a link that was come to through another one, which leads outside, is meant as it is there
        target = None if is_away else inward(root, path, text)
        if target is not None:
            return TreeEntry(path, LINK, mode=0o777, target=target, inode=status.st_ino)
        if not follow:
            return TreeEntry(path, OUTWARD, mode=0o777, target=text, inode=status.st_ino)
        status = os.stat(place)
    if stat.S_ISDIR(status.st_mode):
        return TreeEntry(path, FOLDER)
    if not stat.S_ISREG(status.st_mode):
        return None  # sockets and the like are no data
    return TreeEntry(path, FILE, status.st_size, status.st_mtime_ns, _mode(status), "", status.st_ino)


def _mode(status: os.stat_result) -> int:
    return stat.S_IMODE(status.st_mode) & 0o777


def inward(root: str, path: str, target: str) -> str | None:
    """A link's target as it is anywhere else: relative; None if it leads outside.

    >>> inward("/data", "a/b", "../c"), inward("/data", "a/b", "/data/c"), inward("/data", "a/b", "../../c")
    ('../c', '../c', None)
    """
    parent = os.path.dirname(path)
    if not target.startswith("/"):
        return None if os.path.normpath(os.path.join(parent, target)).split("/")[0] == ".." else target
    absolute = os.path.normpath(target)
    for top in (os.path.abspath(root), os.path.realpath(root)):
        if is_below(absolute, top):
            return os.path.relpath(absolute, os.path.join(top, parent))
    return None


def settle(entries: Iterable[TreeEntry]) -> bool:
    """Wait out the tick in which a file was last written; whether that was needed."""
    now_ns = time.time_ns()
    youngest = max((each.mtime_ns for each in entries if each.mtime_ns <= now_ns), default=0)
    if now_ns - youngest >= _TICK_NS:
        return False
    time.sleep((_TICK_NS - (now_ns - youngest)) / 1e9)
    return True


def digest(entries: Iterable[TreeEntry]) -> str:
    """A short text that is equal for equal directories."""
    import hashlib  # to load it, and shutil, takes longer than to list a directory

    text = json.dumps([each.content for each in entries])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def pack(root: str, entries: Iterable[TreeEntry]) -> Iterator[bytes]:
    """The stream of some files of a directory, in pieces that are worth a call."""
    gathered = bytearray()
    for entry in entries:
        gathered += json.dumps(entry).encode() + b"\n"
        for piece in _file(os.path.join(root, entry.path), entry):
            gathered += piece
            if len(gathered) >= _PIECE:
                yield bytes(gathered)
                gathered.clear()
    yield bytes(gathered) + b"null\n"


def _file(place: str, entry: TreeEntry) -> Iterator[bytes]:
    left = entry.size
    same = False
    try:
        with open(place, "rb", buffering=0) as file:
            while left > 0 and (piece := file.read(min(_PIECE, left))):
                left -= len(piece)
                yield piece
            status = os.fstat(file.fileno())
            same = (status.st_size, status.st_mtime_ns) == (entry.size, entry.mtime_ns)
    except FileNotFoundError:
        pass
    while left > 0:  # so much was announced
        yield bytes(min(_PIECE, left))
        left -= _PIECE
        same = False
    yield b"+" if same else b"-"


class Unpacker:
    """Takes a stream, piece by piece, and writes its files below a directory in which there are no links.

    Attributes:
        changed: a file was not as it had been listed.
        complete: the stream has ended.
    """

    def __init__(self, root: str, wanted: Mapping[str, TreeEntry], name: str = "part") -> None:
        self.changed = False
        self.complete = False
        self._root = root
        self._wanted = wanted
        self._part = f"{root}.{name}"
        self._line = bytearray()
        self._entry: TreeEntry | None = None
        self._file: BinaryIO | None = None
        self._left = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            TreeError: the other end says so, or sends what was not asked for.
            OSError: there is no room.
        """
        view = memoryview(data)
        while view and not self.complete:
            if self._file is not None and self._left:
                piece = view[: self._left]
                self._file.write(piece)
                self._left -= len(piece)
                view = view[len(piece) :]
            elif self._file is not None:
                self._end_file(bytes(view[:1]) == b"+")
                view = view[1:]
            else:
                end = bytes(view).find(b"\n")
                self._line += view if end < 0 else view[:end]
                if len(self._line) > _LINE_BYTES:
                    raise TreeError("it says a line that has no end")
                view = view[len(view) if end < 0 else end + 1 :]
                if end >= 0:
                    line, self._line = bytes(self._line), bytearray()
                    self._begin(read_line(line))

    def close(self) -> None:
        """Leave nothing half open."""
        if self._file is not None:
            self._file.close()
            self._file = None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._part)

    def _begin(self, said: Any) -> None:  # noqa: ANN401 - JSON
        if said is None:
            self.complete = True
            return
        entry = TreeEntry.read(said)
        wanted = self._wanted.get(entry.path)
        if entry.kind != FILE or wanted is None or wanted.content != entry.content:
            raise TreeError(f"{entry.path!r} came unasked, or is not what it was")
        self._entry = entry
        self._left = entry.size
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._part)
        descriptor = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(descriptor, "wb")

    def _end_file(self, good: bool) -> None:
        assert self._file is not None
        assert self._entry is not None
        self._file.close()
        self._file = None
        if not good:
            self.changed = True
            os.unlink(self._part)
            return
        place = os.path.join(self._root, self._entry.path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.chmod(self._part, self._entry.mode)
        os.utime(self._part, ns=(self._entry.mtime_ns, self._entry.mtime_ns))
        os.rename(self._part, place)


class TreeDraft:
    """A directory that is to take another one's place, made beside it. What was begun before is used.

    Args:
        target: the directory, which need not be there.
        wanted: all that it is to hold.

    Raises:
        TreeError: something would lie, or lead, outside of it.
    """

    def __init__(self, target: str, wanted: Iterable[TreeEntry]) -> None:
        self.wanted = {entry.path: entry.content for entry in wanted}
        self.target = target
        parent, name = os.path.split(target)
        self.root = os.path.join(parent, f".{name}.draft")
        self._old = os.path.join(parent, f".{name}.old")
        for entry in self.wanted.values():
            _check(target, entry)
        self._mend()

    @property
    def is_same(self) -> bool:
        """The directory holds just that already."""
        there = {entry.path: entry.content for entry in scan(self.target)}
        return there == self.wanted and os.path.isdir(self.target)

    def missing(self) -> list[TreeEntry]:
        """The files that have to be sent; the others are put in place."""
        self._prune()
        missing = []
        for entry in self.wanted.values():
            if entry.kind != FILE or _is(os.path.join(self.root, entry.path), entry):
                continue
            if not self._adopt(entry):
                missing.append(entry)
        return missing

    def exchange(self) -> None:
        """Take the directory's place.

        Raises:
            TreeError: something is still missing.
        """
        for entry in self.wanted.values():
            place = os.path.join(self.root, entry.path)
            if entry.kind == FILE and not _is(place, entry):
                raise TreeError(f"{entry.path} is missing")
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if entry.kind == FOLDER:
                os.makedirs(place, exist_ok=True)
                os.chmod(place, entry.mode | 0o700)
        for entry in self.wanted.values():  # the last of all, so that nothing was written through one
            if entry.kind == LINK:
                os.symlink(entry.target, os.path.join(self.root, entry.path))
        if os.path.lexists(self.target):
            os.rename(self.target, self._old)
        os.rename(self.root, self.target)
        remove(self._old)

    def _mend(self) -> None:
        """Somebody was killed in the middle of an exchange."""
        if os.path.lexists(self._old):
            if os.path.lexists(self.target):
                remove(self._old)
            else:
                os.rename(self._old, self.target)

    def _prune(self) -> None:
        """Of an earlier draft only files that are wanted stay."""
        if os.path.lexists(self.root) and not os.path.isdir(self.root):
            remove(self.root)
        os.makedirs(self.root, exist_ok=True)
        for folder, folders, files in os.walk(self.root, topdown=False):
            for name in [*files, *folders]:
                place = os.path.join(folder, name)
                entry = self.wanted.get(os.path.relpath(place, self.root))
                if os.path.isdir(place) and not os.path.islink(place):
                    with contextlib.suppress(OSError):
                        os.rmdir(place)
                elif entry is None or not _is(place, entry):
                    os.unlink(place)

    def _adopt(self, entry: TreeEntry) -> bool:
        """Take a file over from the directory that is there."""
        old, new = (os.path.join(root, entry.path) for root in (self.target, self.root))
        if not _is(old, entry):
            return False
        os.makedirs(os.path.dirname(new), exist_ok=True)
        try:
            os.link(old, new, follow_symlinks=False)
        except OSError:
            import shutil

            shutil.copy2(old, new)
        return _is(new, entry)


def _check(target: str, entry: TreeEntry) -> None:
    parts = entry.path.split("/")
    good = entry.kind in (FILE, LINK, FOLDER) and not {"", ".", ".."} & set(parts) and "\0" not in entry.path
    if entry.kind == LINK:
        good = (
            good and not entry.target.startswith("/") and inward(target, entry.path, entry.target) is not None
        )
    if not good:
        leads = f", which leads to {entry.target!r}," if entry.target else ""
        raise TreeError(f"{entry.path!r}{leads} would lie, or lead, outside of {target}")


def _is(place: str, entry: TreeEntry) -> bool:
    try:
        status = os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        return False
    seen = (status.st_size, status.st_mtime_ns, _mode(status))
    return stat.S_ISREG(status.st_mode) and seen == (entry.size, entry.mtime_ns, entry.mode)


def remove(place: str) -> None:
    """Remove whatever is there, as far as possible."""
    if os.path.isdir(place) and not os.path.islink(place):
        import shutil

        shutil.rmtree(place, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place)
