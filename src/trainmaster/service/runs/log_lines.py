"""`LogLines`: the log of one member as numbered lines, which can be shown, found and followed."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.control.task.layout import SYSTEM
from trainmaster.dataclass import dataclass
from trainmaster.db import queries
from trainmaster.executors.telemetry.logs import READ_BYTES, read_log
from trainmaster.service.runs.curves import tasks_of

if TYPE_CHECKING:
    from trainmaster.service.service import Service

#: Of a longer line only its end is kept: a progress bar is one.
LINE_BYTES: Final = 8 << 10
#: With its end, if that is there: of Python's ends of lines only this one counts.
_LINE: Final = re.compile(rb"[^\n]*\n|[^\n]+")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line.

    Attributes:
        number: from 1, of what is kept of the log.
        text: without its end.
    """

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Some lines of a log that follow each other.

    Attributes:
        lines: in order.
        next_offset, next_number: where to go on: at the last line, if that is not whole yet.
        is_end: it ends where the log ends now.
    """

    lines: tuple[LogLine, ...]
    next_offset: int
    next_number: int
    is_end: bool


@dataclass(frozen=True)
class LogLines:
    """The log of one member of one attempt.

    Attributes:
        experiment, task, attempt, member: whose.
        directory: of the attempt.
        read_bytes: so much is read at once.
    """

    experiment: str
    task: int
    attempt: int
    member: str
    directory: Path
    read_bytes: int = READ_BYTES

    @property
    def key(self) -> str:
        """Its place, as one word."""
        return f"{self.experiment}/{self.task}/{self.attempt}/{self.member}"

    @cached_property
    def _marks(self) -> list[tuple[int, int]]:
        """Where some lines begin, each with how many are before it."""
        found, lines = [(0, 0)], 0
        for data, end in self._pieces(0):
            if whole := data.rfind(b"\n") + 1:
                lines += data.count(b"\n")
                found.append((end - len(data) + whole, lines))
        return found

    @property
    def count(self) -> int:
        """How many lines there are that are whole."""
        return self._marks[-1][1]

    def last(self, most: int) -> LogPiece:
        """The last lines."""
        return self.since_line(max(1, self.count - most + 2), most)

    def since_line(self, first: int, most: int) -> LogPiece:
        """Lines from a number on."""
        first = max(1, first)
        offset, before = max(mark for mark in self._marks if mark[1] < first)
        return self._piece(offset, before + 1, first, most)

    def after(self, offset: int, number: int, most: int) -> LogPiece:
        """Lines from the beginning of one on, as a piece has told it."""
        return self._piece(offset, number, number, most)

    def found(self, pattern: re.Pattern[bytes], most: int) -> tuple[list[LogLine], int]:
        """The last lines of those in which a pattern is found, and how many these are in all."""
        kept: deque[LogLine] = deque(maxlen=most)
        count, number, rest = 0, 1, b""
        for data, _ in chain(self._pieces(0), ((b"\n", 0),)):
            data, at = rest + data, 0
            whole = data.rfind(b"\n") + 1
            while match := pattern.search(data, at, whole):
                begin = data.rfind(b"\n", at, match.start()) + 1 or at
                end = data.find(b"\n", match.end()) + 1
                number += data.count(b"\n", at, begin)
                kept.append(_line(number, data[begin:end]))
                count, number, at = count + 1, number + 1, end
            number += data.count(b"\n", at)
            rest = data[whole:][-LINE_BYTES:]
        return list(kept), count

    def _piece(self, offset: int, number: int, first: int, most: int) -> LogPiece:
        lines: list[LogLine] = []
        for at, begin, line in self._lines(offset, number):
            offset, number = begin, at
            if len(lines) == most:
                return LogPiece(tuple(lines), begin, at, is_end=False)
            if at >= first and line:
                lines.append(_line(at, line.removesuffix(b"\n")))
        return LogPiece(tuple(lines), offset, number, is_end=True)

    def _lines(self, offset: int, number: int) -> Iterator[tuple[int, int, bytes]]:
        """Each with its number and where it begins; the last one, maybe empty, has no end."""
        begin, partial = offset, b""
        for data, end in self._pieces(offset):
            at = end - len(data)
            if begin < at - len(partial) and not partial:  # something was dropped
                begin = at
            for line in _LINE.findall(data):
                at += len(line)
                partial = partial + line if len(partial) < LINE_BYTES else partial[-LINE_BYTES:] + line
                if line.endswith(b"\n"):
                    yield number, begin, partial
                    begin, number, partial = at, number + 1, b""
        yield number, begin, partial

    def _pieces(self, offset: int) -> Iterator[tuple[bytes, int]]:
        while True:
            data, offset, _ = read_log(self.directory, self.member, offset, self.read_bytes)
            if not data:
                return
            yield data, offset


def logs_of(
    service: Service,
    run: str,
    experiment: str | None = None,
    task: int | None = None,
    attempt: int | None = None,
    member: str | None = None,
) -> Iterator[LogLines]:
    """The logs of a run's members: of attempts that go on, then of those that ended, the last one first.

    Args:
        service: of the home.
        run: its id.
        experiment: only of this one.
        task: only of this number.
        attempt: only of this number.
        member: only of this name.

    Raises:
        NotFoundError: it has no such experiment or task.
        UsageError: they are in a home that cannot be read from here.
    """
    tasks_of(service.database, run, experiment, task)
    files = service.files_of(run)
    rows = queries.attempts(service.database, run, experiment, task)
    going = [row for row in rows if row["ended_at"] is None]
    ended = sorted((row for row in rows if row["ended_at"] is not None), key=lambda row: -row["ended_at"])
    for row in (*going, *ended):
        if attempt not in (None, row["number"]):
            continue
        directory = files.attempt(run, row["experiment"], row["task"], row["number"]).directory
        for path in sorted(directory.glob("*.log")):
            name = path.name.removesuffix(".log")
            if member in (None, name) and not name.startswith(SYSTEM):
                yield LogLines(row["experiment"], row["task"], row["number"], name, directory)


def _line(number: int, line: bytes) -> LogLine:
    return LogLine(number, line.removesuffix(b"\n").decode("utf-8", "replace"))
