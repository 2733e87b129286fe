"""What members write on their nodes, and copies of it for the drivers that want some.

A node is asked for what lies behind given offsets (`read_pieces`, see `Files`); the driver writes each
piece at its own place (`Mirror`). So a copy that was cut short is gone on with from its size, a piece that
comes twice changes nothing, and neither end remembers anything. Several nodes write ``samples.jsonl``: its
lines are merged.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.executors.telemetry.logfile import KEEP_LAST
from trainmaster.executors.telemetry.usage import SAMPLES_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainmaster.executors.gangs.engine import Follow
    from trainmaster.executors.gangs.life import ConductedGang, GangPart
    from trainmaster.executors.gangs.placement import LiveNode
    from trainmaster.executors.wire import Message

#: Most bytes of one file, and of all files, that one answer of a node carries.
PIECE_BYTES = 256 << 10
ANSWER_BYTES = 1 << 20

#: Most bytes that copies of an attempt take here, whatever its nodes send, and so many more per member.
ATTEMPT_BYTES = 4 << 30
MEMBER_BYTES = 256 << 20
#: Left free on the driver's disk.
RESERVE_BYTES = 256 << 20

#: File, offset, bytes that it has, and these in base64: as it goes from the node to the driver.
Piece = tuple[str, int, int, str]
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
#: A longer line is no sample, and not waited for.
_LINE_BYTES = 64 << 10


def identity(directory: str) -> list[object] | None:
    """Tells whether two processes mean the same directory by a path; None when there is none."""
    try:
        found = os.stat(directory)  # noqa: PTH116 - a text comes over the wire
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return [boot, found.st_dev, found.st_ino]


def belongs(name: str, members: Iterable[str]) -> bool:
    """Whether a file of an attempt's directory is one that is copied.

    >>> [belongs(name, ["worker-1"]) for name in ("worker-1.log.2", "worker-10.log", "samples.jsonl", "../x")]
    [True, False, True, False]
    """
    if not _NAME.fullmatch(name) or name.endswith(".sh"):
        return False
    return name == SAMPLES_FILE or any(name.startswith(f"{member}.") for member in members)


def read_pieces(
    directory: str, members: Iterable[str], have: Mapping[str, int], limit_bytes: int
) -> tuple[list[Piece], bool]:
    """What the files of an attempt hold behind what the driver has.

    Args:
        directory: of the attempt, on this node.
        members: whose files.
        have: bytes by file name; files that are missing there are read from their beginning.
        limit_bytes: most bytes to read.

    Returns:
        The pieces, and whether there is more.
    """
    pieces: list[Piece] = []
    more = False
    names = sorted(members)
    try:
        entries = sorted(
            (entry.name, entry.stat(follow_symlinks=False).st_size)
            for entry in os.scandir(directory)
            if belongs(entry.name, names) and entry.is_file(follow_symlinks=False)
        )
    except OSError:
        return [], False
    for name, size in entries:
        offset = have.get(name, 0)
        if size <= offset:
            continue
        count = min(size - offset, PIECE_BYTES, limit_bytes)
        data = read_at(f"{directory}/{name}", offset, count) if count > 0 else b""
        if data:
            pieces.append((name, offset, len(data), base64.b64encode(data).decode("ascii")))
            limit_bytes -= len(data)
        more = more or offset + len(data) < size
    return pieces, more


def read_at(path: str, offset: int, count: int) -> bytes:
    """A part of a regular file; empty when it is gone, no file, or a link."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, count, offset) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)


class Mirror:
    """The driver's copies of attempts' files; pieces of the same file come in order.

    Args:
        place: where the copy of an attempt's directory goes.

    Attributes:
        full: words about attempts whose files have no room here, as long as they are followed.
    """

    def __init__(self, place: Callable[[str], Path]) -> None:
        self._place = place
        self.full: dict[str, str] = {}
        self._places: dict[str, tuple[Path, tuple[str, ...]]] = {}
        self._rests: dict[tuple[str, str], bytes] = {}
        self._last: dict[str, dict[str, tuple[float, bytes]]] = {}
        self._sizes: dict[str, dict[str, int]] = {}
        self._full: set[str] = set()

    def follow(
        self, attempt: str, directory: str, members: Iterable[str]
    ) -> tuple[list[object] | None, dict[str, int]]:
        """Copy an attempt's files, if they can be written here.

        Returns:
            What its parent directory is here, see `identity`; bytes that are there already, by file.
        """
        place = self._place(directory)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None, {}
        self._places[attempt] = (place, tuple(members))
        self._sizes.pop(attempt, None)
        here: list[object] | None = ["elsewhere", str(place), directory]
        if str(place) == directory:
            here = identity(str(place.parent))
        try:
            found = [entry for entry in os.scandir(place) if belongs(entry.name, self._places[attempt][1])]
            return here, {
                entry.name: entry.stat(follow_symlinks=False).st_size
                for entry in found
                if entry.name != SAMPLES_FILE and entry.is_file(follow_symlinks=False)
            }
        except OSError:
            return here, {}

    def forget(self, attempt: str) -> None:
        """It is copied no more."""
        self._places.pop(attempt, None)
        self._last.pop(attempt, None)
        self._sizes.pop(attempt, None)
        self._full.discard(attempt)
        self.full.pop(attempt, None)
        self._rests = {key: rest for key, rest in self._rests.items() if key[0] != attempt}

    def take(self, node: str, pieces: Iterable[tuple[str, Piece]]) -> set[str]:
        """Write pieces of attempts' files; those attempts whose pieces could not be written."""
        broken: set[str] = set()
        for attempt, (name, offset, _, text) in pieces:
            if attempt in broken:
                continue
            try:
                self.write(attempt, node, name, offset, base64.b64decode(text))
            except OSError as error:  # such as a full disk: it is asked for again
                broken.add(attempt)
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    self.full[attempt] = _no_room(error.filename)
        return broken

    def write(self, attempt: str, node: str, name: str, offset: int, data: bytes) -> None:
        """Put a piece to its place, if it is one of the attempt's and there is still room for it.

        Raises:
            OSError: it could not be written, or does not follow what is here.
        """
        place = self._places.get(attempt)
        if place is None or attempt in self._full or not belongs(name, place[1]):
            return
        directory, members = place
        directory.mkdir(parents=True, exist_ok=True)
        if not self._has_room(attempt, directory, len(members), name, offset, len(data)):
            return
        if name == SAMPLES_FILE:
            self._merge(attempt, node, directory / name, offset, data)
            return
        _write_at(directory / name, offset, data)
        if not offset and (dropped := _drop_old_segment(directory, name)):
            self._sizes[attempt].pop(dropped, None)

    def _has_room(
        self, attempt: str, directory: Path, members: int, name: str, offset: int, count: int
    ) -> bool:
        """Return whether the size limit allows a piece; log the first refusal in the member's log."""
        sizes = self._sizes.get(attempt)
        if sizes is None:
            sizes = {entry.name: entry.stat().st_size for entry in os.scandir(directory)}
            self._sizes[attempt] = sizes
        size = sizes.get(name, 0)
        if name == SAMPLES_FILE:  # the lines of several nodes: offsets are theirs
            end = size + count
        elif not 0 <= offset <= size:
            raise OSError(errno.ESPIPE, f"a piece at {offset}, of {size} bytes that are here", name)
        else:
            end = max(size, offset + count)
        most = ATTEMPT_BYTES + MEMBER_BYTES * members
        from shutil import disk_usage  # no agent of a node needs it, nor asyncio below

        if disk_usage(directory).free < count + RESERVE_BYTES:
            raise OSError(errno.ENOSPC, "no room left", str(directory))
        if sum(sizes.values()) - size + end > most:
            self._full.add(attempt)
            log = directory / f"{name.partition('.log')[0]}.log" if ".log" in name else None
            if log is not None and log.exists():
                with log.open("a") as file:
                    file.write(f"\n[trainmaster: more than {most:,} bytes came; the rest is on the node]\n")
            return False
        sizes[name] = end
        return True

    def _merge(self, attempt: str, node: str, path: Path, offset: int, data: bytes) -> None:
        """Append the lines that are not there yet: each member has its own, in the order of time."""
        rest = b"" if not offset else self._rests.pop((attempt, node), b"")
        *lines, rest = (rest + data).split(b"\n")
        self._rests[attempt, node] = rest if len(rest) <= _LINE_BYTES else b""
        most = 2 * len(self._places[attempt][1])  # with the nodes that they are on
        last = self._last.get(attempt)
        if last is None:
            last = self._last[attempt] = _last_lines(path)
        fresh = []
        for line in lines:
            key = _key(line)
            if key is None:
                continue
            member, time = key
            known = last.get(member)
            if known is None and len(last) >= most:
                continue
            if known is not None and (time < known[0] or line == known[1]):
                continue
            last[member] = (time, line)
            fresh.append(line + b"\n")
        if fresh:
            with path.open("ab") as file:
                file.write(b"".join(fresh))


def _last_lines(path: Path) -> dict[str, tuple[float, bytes]]:
    found: dict[str, tuple[float, bytes]] = {}
    with contextlib.suppress(OSError), path.open("rb") as file:
        for line in file:
            stripped = line.rstrip(b"\n")
            if key := _key(stripped):
                found[key[0]] = (key[1], stripped)
    return found


def _key(line: bytes) -> tuple[str, float] | None:
    try:
        row: Any = json.loads(line)
        return str(row["member"]), float(row["time"])
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None


def _write_at(path: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, offset)
            offset += written
            view = view[written:]
    finally:
        os.close(descriptor)


def _drop_old_segment(directory: Path, name: str) -> str:
    """A log is bounded here as it is on its node: its first segment and the last ones; the one dropped."""
    stem, _, number = name.rpartition(".")
    if stem.endswith(".log") and number.isdigit() and int(number) > KEEP_LAST:
        old = f"{stem}.{int(number) - KEEP_LAST}"
        (directory / old).unlink(missing_ok=True)
        return old
    return ""


def _no_room(path: str | None) -> str:
    return (
        f"what its members write is kept{f' at {path}' if path else ''} on the machine that drives the run, "
        f"where less than {RESERVE_BYTES >> 20} MiB are free; they go on, but their logs, metrics and ends "
        "are not seen before there is more"
    )


class Files:
    """Which driver lacks what.

    Args:
        parts: gangs and their parts, by the part's name, as they will be then.
        tell: has a part's node do something.
        announce: tells the driver of a gang's status.
        is_there: whether a part's node is alive.
        grew: tells the driver that a member of an attempt has written something.

    Attributes:
        mirror: of the driver that is served, None while there is none.
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[ConductedGang, GangPart]],
        tell: Callable[[GangPart, Message], None],
        announce: Callable[[ConductedGang], None],
        is_there: Callable[[GangPart], bool],
        grew: Callable[[str, str], None],
    ) -> None:
        self.mirror: Mirror | None = None
        self._tell_grew = grew
        self._parts = parts
        self._tell = tell
        self._announce = announce
        self._is_there = is_there
        self._shared: dict[tuple[str, str, str], bool] = {}

    def probe(self, gang: ConductedGang, part: GangPart) -> None:
        """Find out whether the driver sees the part's directory itself."""
        if part.shared is not None:
            return
        parent = _parent(gang.directory)
        known = self._shared.get((part.node_id, parent, str(gang.here)))
        if known is not None:
            self._set_shared(gang, part, known)
        else:
            self._tell(part, {"do": "probe", "directory": parent, "here": gang.here})

    def probed(self, node: LiveNode, shared: Mapping[str, bool]) -> None:
        """Whether directories on a node are the driver's own, by the directory above them."""
        for gang, part in list(self._parts.values()):
            parent = _parent(gang.directory)
            if part.node_id == node.node_id and part.shared is None and parent in shared:
                self._shared[node.node_id, parent, str(gang.here)] = shared[parent]
                self._set_shared(gang, part, shared[parent])

    def take_up(self, gang: ConductedGang) -> None:
        """A driver that has taken over wants an attempt's files, or goes on behind what it has of them."""
        if self.mirror is None:
            return
        gang.here, have = self.mirror.follow(gang.attempt, gang.directory, gang.essential)
        gang.is_followed = True
        for part in gang.parts:
            # What ended before its node did is not lost; nothing more can be read there all the same.
            can_be_read = gang.here and part.lost_at is None and self._is_there(part)
            part.shared = None if can_be_read else True
            part.complete = part.shared is True
            part.have = {name: size for name, size in have.items() if belongs(name, part.members)}
            self.probe(gang, part)

    def wanted(self, node: LiveNode) -> Follow:
        """Whose files on a node the driver lacks."""
        return {
            name: (gang.directory, part.members, part.have)
            for name, (gang, part) in self._parts.items()
            if part.node_id == node.node_id
            and part.shared is False
            and not part.complete
            and part.status is not None
            and gang.is_followed
        }

    async def read_on(
        self, node: LiveNode, asked: Follow, pieces: Sequence[tuple[str, Piece]], behind: Sequence[str]
    ) -> None:
        """Pass pieces on to the driver; those parts that are behind have more."""
        own = [
            (gang.attempt, piece)
            for name, piece in pieces
            if (gang := self._parts.get(name, (None,))[0]) is not None and gang.is_followed
        ]
        broken: set[str] = set()
        if own and self.mirror is not None:
            import asyncio

            broken = await asyncio.to_thread(self.mirror.take, node.key, own)
        for name, (file, offset, count, _) in pieces:
            gang, part = self._parts.get(name, (None, None))
            if gang is None or part is None or gang.attempt in broken:
                continue
            part.have[file] = offset + count
            for member in part.members:
                if file.startswith(f"{member}.log"):
                    self._tell_grew(gang.attempt, member)
        for name in asked:
            gang, part = self._parts.get(name, (None, None))
            if gang is None or part is None or name in behind:
                continue
            if gang.attempt in broken:
                if gang.is_followed:
                    self.take_up(gang)
                continue
            if part.over and not part.complete:
                part.complete = True
                self._announce(gang)

    def grew(self, written: Sequence[tuple[str, str]]) -> None:
        """Members wrote something; those whose files are copied are reported when the copy is there."""
        for name, member in written:
            gang, part = self._parts.get(name, (None, None))
            if gang is not None and part is not None:
                gang.wrote[member] = None
                if part.shared:
                    self._tell_grew(gang.attempt, member)

    def _set_shared(self, gang: ConductedGang, part: GangPart, shared: bool) -> None:
        part.shared = shared
        if shared and not part.complete:
            part.complete = True
            self._announce(gang)
            for member in part.members:
                if member in gang.wrote:
                    self._tell_grew(gang.attempt, member)


def _parent(directory: str) -> str:
    return directory.rpartition("/")[0] or "/"
