"""What the members of an attempt have used, as observed: read from the samples that its node wrote.

What is counted, and what is not, is told in ``docs/how/observed.md``.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from trainmaster.dataclass import dataclass

SAMPLES_FILE = "samples.jsonl"
#: What the operating system of a node saw, in an attempt's file, has the node's name behind this.
_NODE: Final = "@"
#: Of a file that an attempt of days has written, so much of its end is read unless all is asked for.
TAIL_BYTES = 32 << 10
#: Of a longer file as many pieces are read, evenly from its begin to its end: a node may send gigabytes.
MOST_BYTES: Final = 16 << 20
_PIECE_BYTES: Final = 64 << 10
_REQUIRED: Final = ("seconds", "cpu_seconds", "peak_rss_bytes")
#: What only grows while a member lives.
_GROWING: Final = (
    "bytes_sent",
    "bytes_received",
    "cpu_wait_seconds",
    "machine_cpu_seconds",
    "stolen_seconds",
    "send_busy_seconds",
    "io_wait_seconds",
)
#: Samples say their times to a millisecond.
LEAST_S: Final = 1e-3
#: Of any number of ours; what is made of such is finite, and an integer that databases hold.
_MOST: Final = 1e18
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class Usage:
    """What one member has used, from its start (or the moment asked for) to its last sample.

    Attributes:
        seconds: the time that this covers.
        cpu_seconds: of its whole process tree.
        cpu_share: cores that it kept busy on average; a parameter server at 1.0 with one thread is full.
        peak_rss_bytes: most resident memory of the tree at one look, since its start; pages that several
            of its processes share count for each.
        bytes_sent: in TCP connections, also those on this machine; None where the kernel does not tell.
        bytes_received: the same.
        gpu_utilisation: mean of the sum over its GPUs, 1 for one that was busy all the time; None
            without a GPU.
        gpu_memory_bytes: most memory on its GPUs at one look; None if not told.
        round_trip_ms: of packets between its machine and others that it has connections to: the median of
            their connections' shortest; None if it has none.
        cpu_wait_seconds: for which its threads were ready and had no processor; None if not told.
        machine_cpu_seconds: of its machine's processors that were used, by all; None if not told.
        stolen_seconds: of its machine's processors that the hypervisor gave to other machines.
        send_busy_seconds: for which it was sending to other machines, over all connections; None if to none.
        io_wait_seconds: for which anything on its machine waited for a disk or a mount; None if not told.
    """

    seconds: float
    cpu_seconds: float
    cpu_share: float
    peak_rss_bytes: int
    bytes_sent: int | None = None
    bytes_received: int | None = None
    gpu_utilisation: float | None = None
    gpu_memory_bytes: int | None = None
    round_trip_ms: float | None = None
    cpu_wait_seconds: float | None = None
    machine_cpu_seconds: float | None = None
    stolen_seconds: float | None = None
    send_busy_seconds: float | None = None
    io_wait_seconds: float | None = None

    def as_json(self) -> dict[str, Any]:
        """What there is of it, as plain numbers."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in found.items()
            if value is not None
        }


def read_usage(
    directory: Path,
    since_s: float = 0.0,
    until_s: float = math.inf,
    *,
    whole: bool = True,
    tail_bytes: int = TAIL_BYTES,
) -> dict[str, Usage]:
    """What each member of an attempt has used, by its name; members that ended within a second are missing.

    Args:
        directory: of the attempt.
        since_s: seconds of a member's life that do not count (imports, warming up); the sample nearest
            to that moment, not after it, is the beginning.
        until_s: seconds of a member's life after which nothing counts.
        whole: False reads no more than the file's end: enough for everything but the GPUs of a long attempt.
        tail_bytes: how much that is.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in _rows(directory / SAMPLES_FILE, None if whole else tail_bytes):
        if row["seconds"] <= until_s:
            rows.setdefault(row["member"], []).append(row)
    return {member: _usage(found, since_s) for member, found in rows.items()}


def member_samples(directory: Path) -> dict[str, list[dict[str, Any]]]:
    """All looks at each member of an attempt, by its name, in order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in _rows(directory / SAMPLES_FILE, None):
        found.setdefault(row["member"], []).append(row)
    return found


def node_samples(directory: Path, tail_bytes: int | None = None) -> dict[str, list[dict[str, Any]]]:
    """The looks at the nodes of an attempt themselves, by their name, in order; those that it has.

    Args:
        directory: of the attempt.
        tail_bytes: of the file's end so much is read; None: all of it.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for row in _lines(directory / SAMPLES_FILE, tail_bytes):
        member = row.get("member")
        if isinstance(member, str) and member.startswith(_NODE) and _is_finite(row.get("time")):
            numbers = {key: value for key, value in row.items() if _is_finite(value)}
            gpus = [gpu for gpu in row.get("gpus", ()) if isinstance(gpu, dict)]
            for key, name in (("utilisation", "gpus_busy"), ("memory_used_bytes", "gpu_memory_bytes")):
                known = [gpu[key] for gpu in gpus if _is_finite(gpu.get(key))]
                numbers |= {name: sum(known)} if known else {}
            found.setdefault(member.removeprefix(_NODE), []).append(numbers)
    return found


def node_members(directory: Path) -> dict[str, str]:
    """A member of an attempt on each of its nodes, by the node's name: one look sees both at once."""
    seen: dict[str, Counter[str]] = {}
    looks = _lines(directory / SAMPLES_FILE, None)
    rows = [row for row in looks if isinstance(row.get("member"), str) and _is_finite(row.get("time"))]
    members = {row["time"]: row["member"] for row in rows if not row["member"].startswith(_NODE)}
    for row in rows:
        if row["member"].startswith(_NODE) and row["time"] in members:
            seen.setdefault(row["member"].removeprefix(_NODE), Counter())[members[row["time"]]] += 1
    return {node: found.most_common(1)[0][0] for node, found in seen.items()}


def machine_samples(home: Path) -> list[dict[str, Any]]:
    """The looks at the machine itself that the supervisor of a home has kept, in order."""
    directory = home / "supervisor"
    files = (directory / f"{SAMPLES_FILE}.1", directory / SAMPLES_FILE)
    return [row for file in files for row in _lines(file, None) if _is_finite(row.get("time"))]


class SilenceMeter:
    """For how long no member of an attempt has shown a sign of work: a line, or time of a processor or GPU.

    Traffic counts, too, where it is more than connections need to stay open. Time is that of the samples:
    while a node cannot be heard nothing is known of it, which is no silence.

    Args:
        directory: of the attempt.
    """

    #: Less is what idle threads need.
    CORES: Final = 0.02
    BYTES_PER_S: Final = 10_000

    def __init__(self, directory: Path) -> None:
        self._path = directory / SAMPLES_FILE
        self._offset = 0
        self._last: dict[str, dict[str, Any]] = {}
        self._work_at: float | None = None
        self._seen_at = 0.0

    @property
    def silent_s(self) -> float:
        """Seconds, as of the last `look`."""
        return 0.0 if self._work_at is None else max(0.0, self._seen_at - self._work_at)

    def look(self) -> float:
        """Read what is new; seconds."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._offset, size - TAIL_BYTES))
                data = file.read()
        except OSError:
            return self.silent_s
        whole = data.rpartition(b"\n")[0]
        self._offset = size - len(data) + len(whole)
        for row in filter(_is_sample, _parsed(whole)):
            if _is_finite(row.get("time")):
                self._take(row)
        return self.silent_s

    def _take(self, row: dict[str, Any]) -> None:
        last, self._last[row["member"]] = self._last.get(row["member"]), row
        self._seen_at = max(self._seen_at, row["time"])
        if last is None or self._is_at_work(last, row):
            self._work_at = max(self._work_at or 0.0, row["time"])

    def _is_at_work(self, last: dict[str, Any], row: dict[str, Any]) -> bool:
        def more(key: str) -> float:
            return float((row.get(key) or 0) - (last.get(key) or 0))

        seconds = max(row["time"] - last["time"], 0.1)
        return (
            more("log_bytes") > 0
            or more("cpu_seconds") > self.CORES * seconds
            or (row.get("gpu_utilisation") or 0.0) > self.CORES
            or more("bytes_sent") + more("bytes_received") > self.BYTES_PER_S * seconds
        )


def logged_bytes(directory: Path, member: str, at: float) -> int:
    """How long the log of a member was at some time: by its last sample until then, 0 if there was none yet.

    Args:
        directory: of the attempt.
        member: ``worker-0``.
        at: Unix seconds, by the clock of its node.
    """
    sizes = [
        size
        for row in _rows(directory / SAMPLES_FILE, None)
        if row["member"] == member and _is_finite(row.get("time")) and row["time"] <= at
        if isinstance(size := row.get("log_bytes"), int) and size >= 0
    ]
    return max(sizes, default=0)


def total_usage(usages: Iterable[Usage]) -> Usage | None:
    """Of all members together: sums, over the longest time; peaks add up. None without any."""
    found = list(usages)
    if not found:
        return None
    return Usage(
        seconds=max(each.seconds for each in found),
        cpu_seconds=sum(each.cpu_seconds for each in found),
        cpu_share=sum(each.cpu_share for each in found),
        peak_rss_bytes=sum(each.peak_rss_bytes for each in found),
        bytes_sent=_sum(each.bytes_sent for each in found),
        bytes_received=_sum(each.bytes_received for each in found),
        gpu_utilisation=_sum(each.gpu_utilisation for each in found),
        gpu_memory_bytes=_sum(each.gpu_memory_bytes for each in found),
    )


def _usage(rows: list[dict[str, Any]], since_s: float) -> Usage:
    before = [row for row in rows if row["seconds"] <= since_s]
    counted = [row for row in rows if row["seconds"] > since_s] or rows[-1:]
    first: Mapping[str, Any] = before[-1] if before else {}
    last = counted[-1]
    seconds = max(0.0, last["seconds"] - first.get("seconds", 0.0))
    cpu_seconds = max(0.0, last["cpu_seconds"] - first.get("cpu_seconds", 0.0))
    utilisations = [value for row in counted if (value := row.get("gpu_utilisation")) is not None]
    memories = [value for row in counted if (value := row.get("gpu_memory_bytes")) is not None]
    return Usage(
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        cpu_share=cpu_seconds / seconds if seconds >= LEAST_S else 0.0,
        peak_rss_bytes=max(row["peak_rss_bytes"] for row in rows),
        gpu_utilisation=sum(utilisations) / len(utilisations) if utilisations else None,
        gpu_memory_bytes=max(memories, default=None),
        round_trip_ms=next((trip for row in reversed(rows) if (trip := row.get("round_trip_ms"))), None),
        **{name: _difference(first, last, name) for name in _GROWING},
    )


def _difference(first: Mapping[str, Any], last: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - int or float
    value = last.get(name)
    return None if value is None else max(type(value)(0), value - type(value)(first.get(name) or 0))


def _sum(values: Iterable[_Number | None]) -> _Number | None:
    """Of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None


def _rows(path: Path, tail_bytes: int | None) -> list[dict[str, Any]]:
    """The looks at members in a file."""
    return [row for row in _lines(path, tail_bytes) if _is_sample(row)]


def _lines(path: Path, tail_bytes: int | None) -> list[dict[str, Any]]:
    """Lines that are whole: a supervisor that was killed, or a full disk, may leave half of one."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if tail_bytes is None:
                return [row for piece in _pieces(file, size) for row in _parsed(piece)]
            file.seek(max(0, size - tail_bytes))
            if size > tail_bytes:
                file.readline(tail_bytes)
            data = file.read(tail_bytes)
    except OSError:
        return []
    return _parsed(data)


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """All of a file; of one that is too long pieces with whole lines, the first and the last among them."""
    if size <= MOST_BYTES:
        file.seek(0)
        yield file.read(size)
        return
    count = MOST_BYTES // _PIECE_BYTES
    for number in range(count):
        file.seek(number * (size - _PIECE_BYTES) // (count - 1))
        if number:
            file.readline(_PIECE_BYTES)
        yield file.read(_PIECE_BYTES).rpartition(b"\n")[0]


def _parsed(data: bytes) -> list[dict[str, Any]]:
    """What lines say, but for what ours never say: a node may send anything."""
    found = []
    for line in data.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            found.append({name: value for name, value in row.items() if _is_ours(name, value)})
    return found


def _is_ours(name: str, value: object) -> bool:
    kind = {"member": str, "gpus": list}.get(name)
    return value is None or _is_finite(value) if kind is None else isinstance(value, kind)


def _is_sample(row: dict[str, Any]) -> bool:
    """Whether a line is of a member."""
    return "member" in row and all(row.get(name) is not None for name in _REQUIRED)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and -_MOST < value < _MOST
