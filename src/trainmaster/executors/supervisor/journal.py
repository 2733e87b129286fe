"""What must survive the supervisor: which attempts were started and how their members ended.

One JSON object per line, appended by one ``write`` per turn. Nothing is synced: it survives
``kill -9`` of any process, not a power cut, after which no process lives either.

==========  ==================================================================================
start       before the first member is started: ``attempt run directory members grace_s places``
pids        after: ``pids``, one ``[pid, start_ticks, started_at]`` per member
exit        a member ended: ``member`` (its place) and ``status`` (see `_gangs.Member.status`)
end         no process of the attempt is left: ``ended_at``
forget      the control process has stored these: ``attempts``
==========  ==================================================================================
"""

# ruff: noqa: PTH104, PTH123, SIM105 - pathlib and contextlib would slow down the supervisor's start
from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Record = dict[str, Any]

COMPACT_BYTES = 1 << 20


class Journal:
    """An append-only file of records that is rewritten when most of it is of no use any more."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._pending: list[bytes] = []
        self._descriptor = -1
        self._size_bytes = 0
        self._rewritten_bytes = 0

    def replay(self) -> dict[str, list[Record]]:
        """The records of every attempt that was not forgotten, oldest first; leaves a compact journal.

        A torn last line (the machine or the disk gave up in it) is left out.
        """
        attempts = parse(_read(self.path))
        self.rewrite([record for records in attempts.values() for record in records])
        return attempts

    def add(self, record: Record) -> None:
        """Append at the next `flush`."""
        self._pending.append(_line(record))

    def flush(self) -> None:
        """Write what was added.

        Raises:
            OSError: it cannot be written now; it stays pending for the next flush.
        """
        if not self._pending:
            return
        data = b"".join(self._pending)
        try:
            written = os.write(self._descriptor, data)
        except OSError:
            self._cut()
            raise
        if written < len(data):
            self._cut()
            raise OSError(28, "No space left on device", self.path)
        self._size_bytes += written
        self._pending.clear()

    def write(self, record: Record) -> None:
        """Append now, or not at all.

        Raises:
            OSError: it cannot be written, and will not be.
        """
        self._pending.append(_line(record))
        try:
            self.flush()
        except OSError:
            self._pending.pop()
            raise

    def is_large(self) -> bool:
        """It is time to `rewrite` it."""
        return self._size_bytes > COMPACT_BYTES + 2 * self._rewritten_bytes

    def rewrite(self, records: list[Record]) -> None:
        """Replace the whole journal, at once or not at all.

        Raises:
            OSError: it cannot be written; the old one stays.
        """
        data = b"".join([_line(record) for record in records] + self._pending)
        new = self.path + ".new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.rename(new, self.path)
        except OSError:
            os.close(descriptor)
            raise
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor
        self._size_bytes = self._rewritten_bytes = len(data)
        self._pending.clear()

    def _cut(self) -> None:
        """Take half a line back, so that the next one does not continue it."""
        try:
            os.ftruncate(self._descriptor, self._size_bytes)
        except OSError:
            pass


def parse(data: bytes) -> dict[str, list[Record]]:
    """Records by attempt, without what was forgotten; unreadable lines are left out."""
    attempts: dict[str, list[Record]] = {}
    for line in data.split(b"\n"):
        try:
            record = json.loads(line)
            if record["r"] == "forget":
                for attempt in record["attempts"]:
                    attempts.pop(attempt, None)
            elif record["r"] == "start" and _is_start(record):
                attempts[record["attempt"]] = [record]
            elif _may_follow(record, attempts[record["attempt"]][0]):
                attempts[record["attempt"]].append(record)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue  # torn by a full disk or a power cut
    return attempts


def worked_until(home: str, run: str, now: float) -> float | None:
    """Until when members of a run have worked that nothing has driven since; None if that is not known.

    Args:
        home: whose supervisor it is.
        run: its id.
        now: Unix seconds: of members that live.
    """
    from trainmaster.spec.processes import is_alive

    found: list[float] = []
    for start, *others in parse(_read(f"{home}/supervisor/journal")).values():
        if start["run"] != run:
            continue
        ends = [record["ended_at"] for record in others if record["r"] == "end"]
        pids = [process[:2] for record in others if record["r"] == "pids" for process in record["pids"]]
        is_working = not ends and any(pid is not None and is_alive(pid, ticks) for pid, ticks in pids)
        found += [now] if is_working else ends
    return max(found, default=None)


def _is_start(record: Record) -> bool:
    engine = record["engine"]
    return (
        all(isinstance(record[name], str) for name in ("attempt", "run", "directory"))
        and record["grace_s"] is not None
        and _is_time(record["grace_s"])
        and all(isinstance(name, str) and type(essential) is bool for name, essential in record["members"])
        and all(isinstance(place, str) for place in record.get("places", ()))
        and (engine is None or all(isinstance(engine[name], str) for name in ("program", "kind")))
        and (engine is None or all(isinstance(text, str) for text in engine["settings"].values()))
    )


def _may_follow(record: Record, start: Record) -> bool:
    kind, members = record["r"], start["members"]
    if kind == "pids":
        return len(record["pids"]) == len(members) and all(
            _is_process(pid) and _is_count(ticks) and _is_time(at) for pid, ticks, at in record["pids"]
        )
    if kind == "exit":
        name, pid, started_at, ended_at, code, number, stopped, lost, oom, error, *log = record["status"]
        return (
            type(record["member"]) is int
            and name == members[record["member"]][0]
            and record["member"] >= 0
            and _is_process(pid)
            and _is_time(started_at)
            and ended_at is not None
            and _is_time(ended_at)
            and _is_count(code)
            and _is_count(number)
            and all(type(each) is bool for each in (stopped, lost, oom))
            and (error is None or isinstance(error, str))
            and len(log) <= 1  # an older supervisor's has none
            and all(type(lost_bytes) is int for lost_bytes in log)
        )
    return kind == "end" and record["ended_at"] is not None and _is_time(record["ended_at"])


def _is_process(value: object) -> bool:
    """Signals go there: 0, 1 and negative numbers mean something else."""
    return value is None or (type(value) is int and 1 < value < 1 << 31)


def _is_count(value: object) -> bool:
    return value is None or (type(value) is int and -(1 << 63) <= value < 1 << 63)


def _is_time(value: object) -> bool:
    return value is None or (type(value) in (int, float) and -1e15 < value < 1e15)  # type: ignore[operator]


def _line(record: Record) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n"


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
