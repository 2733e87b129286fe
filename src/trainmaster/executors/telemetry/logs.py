"""Reading a member's log while it is written, or long after; no supervisor is needed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trainmaster.executors.telemetry.logfile import SEGMENT_BYTES, segment_path

READ_BYTES = 1 << 20
#: Longer lines are not looked for.
_LINE_BYTES = 4 << 10


class LogChunk(NamedTuple):
    """A piece of a log.

    Attributes:
        data: bytes as the member wrote them, of any encoding; empty at the present end.
        next_offset: where to go on reading.
        dropped_bytes: output before ``data`` that was dropped, because the log is bounded.
    """

    data: bytes
    next_offset: int
    dropped_bytes: int


def read_log(
    directory: Path,
    member: str,
    offset: int,
    limit_bytes: int = READ_BYTES,
    segment_bytes: int = SEGMENT_BYTES,
) -> LogChunk:
    """Read on from an offset in everything the member has written.

    Args:
        directory: of the attempt.
        member: ``worker-0``.
        offset: 0, or ``next_offset`` of the last call.
        limit_bytes: most bytes to read.
        segment_bytes: as it was written (tests use small ones).
    """
    path = str(directory / f"{member}.log")
    index, place = divmod(offset, segment_bytes)
    data = _read(segment_path(path, index), place, limit_bytes)
    if data is None:  # dropped, or not there yet
        later = [number for number in _segments(directory, member) if number > index]
        if not later:
            return LogChunk(b"", offset, 0)
        start = min(later) * segment_bytes
        data = _read(segment_path(path, min(later)), 0, limit_bytes)
        if data is None:  # dropped at this very moment
            return LogChunk(b"", start, start - offset)
        return LogChunk(data, start + len(data), start - offset)
    return LogChunk(data, offset + len(data), 0)


def read_noted(directory: Path, member: str, offset: int) -> tuple[bytes, int]:
    """What `read_log` reads, for people: where output was dropped a line says so; and the next offset."""
    data, end, dropped = read_log(directory, member, offset)
    note = b"\n[trainmaster: %d bytes of log were dropped here]\n" % dropped if dropped else b""
    return note + data, end


def read_tail(directory: Path, member: str, limit_bytes: int) -> bytes:
    """The last bytes of everything the member has written, out of its newest segment.

    Args:
        directory: of the attempt.
        member: ``worker-0``.
        limit_bytes: most bytes to read.
    """
    end = log_end(directory, member)
    offset = max(end - limit_bytes, (end - 1) // SEGMENT_BYTES * SEGMENT_BYTES, 0)
    return read_log(directory, member, offset, limit_bytes).data


def log_end(directory: Path, member: str, segment_bytes: int = SEGMENT_BYTES) -> int:
    """How many bytes the member has written.

    Args:
        directory: of the attempt.
        member: ``worker-0``.
        segment_bytes: as it was written (tests use small ones).
    """
    newest = max(_segments(directory, member), default=0)
    try:
        return (
            newest * segment_bytes
            + Path(segment_path(str(directory / f"{member}.log"), newest)).stat().st_size
        )
    except OSError:
        return 0


def line_start(directory: Path, member: str, offset: int, segment_bytes: int = SEGMENT_BYTES) -> int:
    """Where the line begins that an offset lies in: one that was not whole when the log ended there.

    Args:
        directory: of the attempt.
        member: ``worker-0``.
        offset: in everything that the member has written.
        segment_bytes: as it was written (tests use small ones).
    """
    begin = max(offset - _LINE_BYTES, offset - offset % segment_bytes, 0)
    data = read_log(directory, member, begin, offset - begin, segment_bytes)
    whole = data.next_offset == offset and not data.dropped_bytes
    return offset - len(data.data.rpartition(b"\n")[2]) if whole else offset


def _segments(directory: Path, member: str) -> list[int]:
    prefix = f"{member}.log."
    try:
        names = [path.name for path in directory.iterdir()]
    except OSError:
        return []
    return [
        int(name[len(prefix) :])
        for name in names
        if name.startswith(prefix) and name[len(prefix) :].isdigit()
    ]


def _read(path: str, place: int, limit_bytes: int) -> bytes | None:
    try:
        with Path(path).open("rb") as file:
            file.seek(place)
            return file.read(limit_bytes)
    except FileNotFoundError:
        return None
