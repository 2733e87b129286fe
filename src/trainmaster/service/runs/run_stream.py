"""`RunStream`: what happens to a run, in pieces that can be gone on with after any of them."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from trainmaster.control.task.gangs import member_names
from trainmaster.control.task.layout import SYSTEM
from trainmaster.dataclass import dataclass, field
from trainmaster.db import queries
from trainmaster.executors.telemetry.logs import line_start, log_end, read_log
from trainmaster.executors.telemetry.member_metrics import MemberMetrics
from trainmaster.executors.telemetry.metrics import json_safe
from trainmaster.executors.telemetry.usage import logged_bytes
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.service.runs.summary import run_brief
from trainmaster.spec.errors import UsageError
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from pathlib import Path

    from trainmaster.service.service import Service
    from trainmaster.spec import Experiment

#: Of one log at once; a line that is longer comes in pieces.
PIECE_BYTES: Final = 64 << 10
#: A cursor of more attempts at once than this is refused, in bytes.
_MAX_CURSOR: Final = 64 << 10
#: No database and no file has a larger one.
_MAX_NUMBER: Final = (1 << 63) - 1
_KEY: Final = re.compile(r"[0-9]{1,18}/")


@dataclass(frozen=True, slots=True)
class StreamCursor:
    """How far a run was told.

    Attributes:
        event: id of the last event.
        done: attempts with ids up to this are told whole.
        files: of later attempts, by ``ATTEMPT/log/MEMBER`` and ``ATTEMPT/metrics``, the next byte to tell.
    """

    event: int = 0
    done: int = 0
    files: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> str:
        """As text for an HTTP header.

        >>> StreamCursor.decode(StreamCursor(7, 2, {"3/log/worker-0": 99}).encode()).files
        {'3/log/worker-0': 99}
        """
        plain = json.dumps([self.event, self.done, self.files], separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(zlib.compress(plain)).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> StreamCursor:
        """The other way; an empty text is the beginning.

        Raises:
            UsageError: it is none of ours.
        """
        if not text:
            return cls()
        try:
            packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            event, done, files = json.loads(zlib.decompressobj().decompress(packed, _MAX_CURSOR))
            found = cls(int(event), int(done), {key: max(0, int(value)) for key, value in files.items()})
            if max(found.event, found.done, *found.files.values()) > _MAX_NUMBER:
                raise ValueError
            if not all(map(_KEY.match, found.files)):
                raise ValueError
            return found
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, zlib.error):
            raise UsageError(f"{text[:40]!r} is no place in a stream", "Begin anew without it.") from None


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A piece.

    Attributes:
        kind: ``state`` (the line of the run in a list, and new events), ``point`` (rows that a task
            reported) or ``log`` (what a member wrote).
        data: as JSON has it.
        cursor: where to go on after it.
    """

    kind: str
    data: Mapping[str, Any]
    cursor: StreamCursor


@dataclass(slots=True)
class _AttemptMetrics:
    metrics: MemberMetrics
    at: dict[str, Any]
    ended_at: float | None
    is_over: bool = False

    def reported(self, rows: Sequence[Mapping[str, object]]) -> dict[str, Any]:
        """What a message of new reports says: NaN is null, which browsers can read."""
        return {**self.at, "points": [json_safe(row) for row in rows]}


class RunStream:
    """Reads on in a run.

    Args:
        service: of the home.
        run: its id.
        cursor: where to begin.
        tail_bytes: of logs that are there already at most so much, and of points none; None for all.
        since: of logs that are there only what was written since then, Unix seconds, as exactly as the
            samples say, and of points none; None for all.

    Raises:
        NotFoundError: there is no such run.
    """

    def __init__(
        self,
        service: Service,
        run: str,
        cursor: StreamCursor | None = None,
        tail_bytes: int | None = None,
        since: float | None = None,
    ) -> None:
        self._service = service
        self._run = run
        self._files = service.files_of(run)
        self.cursor = cursor or StreamCursor()
        self.tail_bytes, self.since = tail_bytes, since
        self._open: dict[int, _AttemptMetrics] = {}
        self._last = self.cursor.done
        self._brief: dict[str, Any] = {}
        self._is_first_look = True

    @cached_property
    def _experiments(self) -> dict[str, Experiment]:
        return stored_recipe(self._service.database.run_row(self._run)).experiments

    def read(self, until: StreamCursor | None = None) -> Iterator[StreamMessage]:
        """What is new, up to a place (None: to the present).

        That it is over is told last: a client that listens no longer has missed nothing.
        """
        events, brief = self._news(until)  # looked at first: what was written before them is there
        ended = self._attempts()
        for number in ended:
            self._open[number].is_over = True
        self._look_for_files()  # after that: of what has ended, all is there
        for number, attempt in sorted(self._open.items()):
            yield from self._points(number, attempt, until)
            yield from self._logs(number, attempt, until)
        self._is_first_look = False
        for number in ended & self._open.keys():  # they had ended before we looked: all they wrote is told
            if until is None or number <= until.done:
                del self._open[number]
        if events or brief:
            if events:
                self.cursor = replace(self.cursor, event=events[-1]["id"])
            self._brief = _shown(brief)
            yield StreamMessage("state", {"run": brief, "events": events}, self.cursor)
        done = min(self._open, default=self._last + 1) - 1
        if done > self.cursor.done:
            files = {key: at for key, at in self.cursor.files.items() if int(key.partition("/")[0]) > done}
            self.cursor = replace(self.cursor, done=done, files=files)

    def jump(self, cursor: StreamCursor) -> None:
        """Go on at another place: somebody else has told what is before it."""
        self.cursor, self._is_first_look = cursor, False
        self._open = {number: found for number, found in self._open.items() if number > cursor.done}

    def is_at(self, other: StreamCursor) -> bool:
        """Whether exactly that is told that was told there."""
        return (
            self.cursor.event == other.event and _covers(self.cursor, other) and _covers(other, self.cursor)
        )

    def _news(self, until: StreamCursor | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """New events, and the line of the run; that is empty if there is nothing to tell."""
        brief = run_brief(
            self._service.database, self._run
        )  # first: of what is over, the last event is there
        rows: list[dict[str, Any]] = []
        while page := self._service.events(self._run, rows[-1]["id"] if rows else self.cursor.event):
            rows += page
        wanted = [row for row in rows if until is None or row["id"] <= until.event]
        if len(wanted) < len(rows) and brief["state"] == State.DONE:
            return [], {}  # that it is over is told with what was written up to then
        if not wanted and (_shown(brief) == self._brief or until is not None):
            return [], {}
        return wanted, brief

    def _look_for_files(self) -> None:
        """Another server may have the files, and yet another one since."""
        before, self._files = self._files, self._service.files_of(self._run)
        if self._files.root != before.root:
            for attempt in self._open.values():
                where = attempt.metrics.directory.relative_to(before.root)
                attempt.metrics.directory = self._files.root / where

    def _attempts(self) -> set[int]:
        database = self._service.database
        for row in queries.attempts(database, self._run, after=self._last):
            number, name = row["id"], row["experiment"]
            if number <= self.cursor.done:
                continue
            experiment = self._experiments[name]
            self._open[number] = _AttemptMetrics(
                MemberMetrics(
                    self._files.attempt(self._run, name, row["task"], row["number"]).directory,
                    "{}-{}".format(*member_names(experiment)[0]),
                    experiment.metrics_pattern,
                ),
                {"experiment": name, "task": row["task"], "attempt": row["number"]},
                row["ended_at"],
            )
            self._last = max(self._last, number)  # at last: a database that is away now is asked again
        return queries.ended_attempts(database, list(self._open))

    def _points(
        self, number: int, attempt: _AttemptMetrics, until: StreamCursor | None
    ) -> Iterator[StreamMessage]:
        key = f"{number}/metrics"
        bound = _bound(until, number, key)
        offset = self.cursor.files.get(key, 0)
        if not offset and self._skips:
            with suppress(OSError):
                offset = last_line_start(attempt.metrics.path)
            self._go_to(key, offset)
        for rows, end in attempt.metrics.reported(offset, bound):
            yield self._message("point", attempt.reported(rows), key, end)

    def _logs(
        self, number: int, attempt: _AttemptMetrics, until: StreamCursor | None
    ) -> Iterator[StreamMessage]:
        metrics, directory = attempt.metrics, attempt.metrics.directory
        for path in sorted(directory.glob("*.log")):
            member = path.name.removesuffix(".log")
            if member.startswith(SYSTEM):
                continue
            key = f"{number}/log/{member}"
            bound = _bound(until, number, key)
            offset = self.cursor.files.get(key)
            if offset is None:
                offset = self._begin(attempt, member)
                self._go_to(key, offset)
            while bound is None or offset < bound:
                most = PIECE_BYTES if bound is None else min(PIECE_BYTES, bound - offset)
                data, end, dropped = read_log(directory, member, offset, most)
                if not data:
                    break
                whole = data.rfind(b"\n") + 1
                if whole and bound is None:  # characters are not cut where lines end
                    data, end = data[:whole], end - (len(data) - whole)
                at = {**attempt.at, "member": member}
                if member == metrics.member and (rows := metrics.printed(data, end)):
                    yield StreamMessage("point", attempt.reported(rows), self.cursor)
                offset = end
                said = {"text": data.decode("utf-8", "replace"), "next": end, "dropped_bytes": dropped}
                yield self._message("log", {**at, **said}, key, end)
            is_whole = attempt.is_over and bound is None and member == metrics.member
            if is_whole and (rows := metrics.finish()):
                yield StreamMessage("point", attempt.reported(rows), self.cursor)

    @property
    def _skips(self) -> bool:
        return (self.tail_bytes, self.since) != (None, None) and self._is_first_look

    def _begin(self, attempt: _AttemptMetrics, member: str) -> int:
        if not self._skips:
            return 0
        directory, begin = attempt.metrics.directory, 0
        end = log_end(directory, member)
        if self.since is not None:
            if attempt.ended_at is not None and attempt.ended_at < self.since:
                return end
            begin = logged_bytes(directory, member, self.since)
        if self.tail_bytes is not None:
            begin = max(begin, end - self.tail_bytes)
        return line_start(directory, member, begin)

    def _go_to(self, key: str, offset: int) -> None:
        if offset:  # also when nothing is there now
            self.cursor = replace(self.cursor, files={**self.cursor.files, key: offset})

    def _message(self, kind: str, data: Mapping[str, Any], key: str, offset: int) -> StreamMessage:
        self._go_to(key, offset)
        return StreamMessage(kind, data, self.cursor)


def _shown(brief: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds and dollars grow all the time: they are told with what happens, and each ten seconds."""
    return {**brief, "seconds": int(brief["seconds"] / 10), "driver": None}


def last_line_start(file: Path) -> int:
    """Where the last line of a file begins, in bytes; 0 of a file with one line longer than 64 KiB."""
    with file.open("rb") as stream:
        begin = max(0, stream.seek(0, 2) - PIECE_BYTES)
        stream.seek(begin)
        return begin + stream.read().rstrip(b"\n").rfind(b"\n") + 1


def _covers(one: StreamCursor, other: StreamCursor) -> bool:
    return all(
        int(key.partition("/")[0]) <= one.done or one.files.get(key, 0) >= at
        for key, at in other.files.items()
    )


def _bound(until: StreamCursor | None, number: int, key: str) -> int | None:
    """Up to which byte a file is told: None for all of it."""
    if until is None or number <= until.done:
        return None
    return until.files.get(key, 0)
