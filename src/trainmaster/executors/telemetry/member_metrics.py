"""`MemberMetrics`: what a member reports of itself, read on while it runs or long after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.executors.telemetry.logs import log_end, read_log
from trainmaster.executors.telemetry.metrics import Metrics, MetricsReader

if TYPE_CHECKING:
    from trainmaster.executors.telemetry.log_metrics import LogMetrics
    from trainmaster.spec.search import TaskValue


class MemberMetrics:
    """A member's metrics file; as long as that says nothing, its log. Each row is read once.

    Attributes:
        directory: of the attempt.
        member: ``worker-0``.
        value: of the task in its search; None if that is the last one.

    Args:
        directory: of the attempt.
        member: ``worker-0``.
        pattern: how its log is read; None tries the common ones.
        value: given each row that is read; what it makes of them is the last value of its metric.
    """

    def __init__(
        self, directory: Path, member: str, pattern: str | None = None, value: TaskValue | None = None
    ) -> None:
        self.directory = directory
        self.member = member
        self._pattern = pattern
        self.value = value
        self._file = MetricsReader(self.path)
        self._began_at = 0
        self._log: LogMetrics | None = None
        self._log_offset = 0

    @property
    def path(self) -> Path:
        """Its metrics file."""
        return self.directory / f"{self.member}.metrics.jsonl"

    @property
    def offset(self) -> int:
        """Bytes of the metrics file that are dealt with."""
        return self._file.offset

    @property
    def place(self) -> tuple[str, int]:
        """What a sample calls that which is read, and how many bytes of it are dealt with."""
        return ("reported_bytes", self.offset) if self.is_in_file else ("log_bytes", self._log_offset)

    @property
    def has_more(self) -> bool:
        """Whether it has written what was not read."""
        if not self.is_in_file:
            return log_end(self.directory, self.member) > self._log_offset
        return self.path.is_file() and self.path.stat().st_size > self.offset

    @property
    def is_rewritten(self) -> bool:
        """Whether its metrics file has other lines than those that were read."""
        return self._file.is_rewritten

    @property
    def is_in_file(self) -> bool:
        """Whether the metrics file says something, so that the log counts no more."""
        return bool(self._file.last) or self._began_at > 0

    @property
    def last(self) -> Metrics:
        """The last value of each name; of a search's metric the one that counts."""
        last = self._file.last or (self._log.last if self._log else {})
        return {**last, **self.value.metrics} if self.value is not None else last

    @property
    def per_epoch(self) -> dict[str, int]:
        """How much an epoch has, if it prints that: ``{"step": 938}``, or ``examples``."""
        return self._log.per_epoch if self._log else {}

    @property
    def totals(self) -> dict[str, int]:
        """How many steps or epochs it makes in all, as far as it prints that; see `LogMetrics`."""
        return self._log.totals if self._log and not self.is_in_file else {}

    def read(self, *, final: bool = False) -> tuple[list[Metrics], int]:
        """New rows, and how many bytes were looked at for them: few at a time, 0 at the end.

        Args:
            final: the member has ended: a last line without its newline counts too.
        """
        before = self.offset
        rows = self._file.read(final=final)
        size = max(self.offset - before, len(rows))
        if not self.is_in_file:
            data, end, _ = read_log(self.directory, self.member, self._log_offset)
            rows = self.printed(data, end) if data else self.finish() if final else []
            size += len(data)
        if self.value is not None:
            for row in rows:
                self.value.add(row)
        return rows, size

    def rows(self, *, final: bool = False) -> Iterator[Metrics]:
        """All rows to the present end."""
        size = 1
        while size:
            rows, size = self.read(final=final)
            yield from rows

    def skip(self, tail_bytes: int) -> None:
        """Read only the end of the log."""
        self._log_offset = max(0, log_end(self.directory, self.member) - tail_bytes)

    def reported(self, offset: int, until: int | None) -> Iterator[tuple[list[Metrics], int]]:
        """Rows of the metrics file between two offsets, each with the offset behind them.

        Args:
            offset: where a line begins.
            until: where one ends; None for the present end.
        """
        self._file, self._began_at = MetricsReader(self.path, offset, until), offset
        while rows := self._file.read():
            yield rows, self.offset

    def printed(self, data: bytes, end: int) -> list[Metrics]:
        """Rows of a piece of the log; none if the metrics file has some.

        Args:
            data: read by whoever needs the log, too.
            end: its offset behind the piece. If that before it was not seen, its line and epoch are unknown.
        """
        from trainmaster.executors.telemetry.log_metrics import LogMetrics

        if self.is_in_file:
            return []
        if self._log is None or end - len(data) != self._log_offset:
            self._log = LogMetrics(self._pattern)
        self._log_offset = end
        return self._log.feed(data)

    def finish(self) -> list[Metrics]:
        """The member has ended: the row of a last line of its log without a newline."""
        return self._log.finish() if self._log and not self.is_in_file else []
