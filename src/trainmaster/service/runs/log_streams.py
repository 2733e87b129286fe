"""`LogStreams`: the logs of a run's members as one stream of bytes, read from the files."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from trainmaster.control.task.gangs import member_names
from trainmaster.control.task.layout import SYSTEM
from trainmaster.dataclass import dataclass
from trainmaster.db import queries
from trainmaster.executors.telemetry.logs import READ_BYTES, line_start, log_end, read_noted
from trainmaster.executors.telemetry.usage import logged_bytes
from trainmaster.service.runs.curves import tasks_of
from trainmaster.service.runs.stored_recipe import experiments_in_all_sizes
from trainmaster.service.runs.summary import is_driven
from trainmaster.service.service import Service
from trainmaster.spec.errors import NotFoundError, UsageError, fails_as, no_such_member
from trainmaster.spec.states import State
from trainmaster.spec.units import parse_duration

FOLLOW_POLL_S = 0.1
#: How often to look for new attempts while following.
FIND_POLL_S = 0.5
#: Following ends when the run was undriven for this long.
UNDRIVEN_S = 3.0


@dataclass(slots=True)
class _AttemptLogs:
    """An attempt whose logs are not read to their end."""

    experiment: str
    task: int
    number: int
    ended_at: float | None


@dataclass(slots=True)
class _Stream:
    attempt: int
    label: bytes
    directory: Path
    member: str
    offset: int = 0
    partial: bytes = b""


@dataclass(frozen=True, slots=True)
class LineChoice:
    """Which lines of each member's log are shown.

    Attributes:
        tail: only so many of the last ones that are there when reading begins; None for all.
        pattern: only those in which it is found; None for all.
        since: only those written since then, Unix seconds, by the clock of their node and as exactly as the
            samples say; None for all.
    """

    tail: int | None = None
    pattern: re.Pattern[bytes] | None = None
    since: float | None = None

    @classmethod
    def of(cls, tail: int | None, grep: str | None, since: str | None, now: float) -> LineChoice | None:
        """As the command line has it; None for all.

        Args:
            tail: see the class.
            grep: a regular expression.
            since: how long ago, such as ``5m``.
            now: Unix seconds.

        Raises:
            UsageError: no regular expression, time or number of lines.
        """
        if tail is None and grep is None and since is None:
            return None
        if tail is not None and tail < 0:
            raise UsageError(f"--tail {tail}: no number of lines", "Give 0 or more.")
        with fails_as("--since", on=ValueError):
            at = None if since is None else now - parse_duration(since)
        with fails_as(
            f"--grep {grep}", "It is a regular expression; precede . * ( [ and the like by a \\.", on=re.error
        ):
            return cls(tail, None if grep is None else re.compile(grep.encode()), at)

    def of_lines(self, lines: list[bytes]) -> list[bytes]:
        """Those in which the pattern is found."""
        return lines if self.pattern is None else [line for line in lines if self.pattern.search(line)]


class LogStreams:
    """Logs of every member and attempt of a run, or a part of them.

    Where only one stream can come, the bytes come as they were written; else each line is
    preceded by ``experiment/task#attempt member | ``. Nothing is held in memory but one piece.

    Attributes:
        abandoned: `read` has stopped to follow, because the run is undriven.

    Args:
        service: the home.
        run: its id.
        experiment: only this one.
        task: only this number.
        member: only this name.
        choice: only these lines; None for all bytes as they are.
        attempt: only this number.
        system: only what operating systems of machines said, `member` being a machine; None: that, too.
        is_enough: asked now and then; when it is so, reading ends.

    Raises:
        NotFoundError: the run has no such experiment, task or member.
        UsageError: the logs are in a home that cannot be read from here.
    """

    def __init__(
        self,
        service: Service,
        run: str,
        experiment: str | None,
        task: int | None,
        member: str | None,
        choice: LineChoice | None = None,
        attempt: int | None = None,
        *,
        system: bool | None = False,
        is_enough: Callable[[], bool] = lambda: False,
    ) -> None:
        self._service = service
        self._run = run
        self._files = service.files_of(run)
        self._experiment = experiment
        self._task = task
        self._member = member
        self._attempt = attempt
        self._system, self._is_enough = system, is_enough
        self._streams: dict[tuple[int, str], _Stream] = {}
        self._open: dict[int, _AttemptLogs] = {}
        self._last_attempt = 0
        self._numbers: set[int] = set()
        self._any = False
        self._choice = choice
        self._is_first_look = True
        self.abandoned = False
        totals = tasks_of(service.database, run, experiment, task)
        sizes = experiments_in_all_sizes(service.database, run)
        chosen = {e.name: e for e in sizes if experiment in (None, e.name)}.values()
        names = {e.name: [f"{role}-{index}" for role, index in member_names(e)] for e in chosen}
        self._members = {name: 1 if member is not None else len(found) for name, found in names.items()}
        self._names = {one for found in names.values() for one in found}
        streams = sum((1 if task is not None else totals[e.name]) * self._members[e.name] for e in chosen)
        self._may_retry = any(e.retries for e in chosen)
        self._many = streams > 1 or system is not False

    def read(self, *, follow: bool) -> Iterator[bytes]:
        """The logs so far; with ``follow``, until the run has ended or is not driven any more."""
        self._many = self._many or (follow and self._may_retry)
        find_at = undriven_since = 0.0
        while True:
            row = self._service.database.run_row(self._run)  # first: what came before it is still read
            over = not follow or row["state"] == State.DONE
            now = time.monotonic()
            if over or now >= find_at:
                find_at = now + FIND_POLL_S
                self._find()
                driven = is_driven(row, self._service.database.clock_s())
                undriven_since = 0.0 if driven else undriven_since or now
            self.abandoned = not over and bool(undriven_since) and now - undriven_since > UNDRIVEN_S
            for key, stream in list(self._streams.items()):
                ended = stream.attempt not in self._open
                if self._is_enough():
                    return
                yield from self._drain(stream, final=ended or over or self.abandoned)
                if ended:
                    del self._streams[key]
            self._is_first_look = False
            if over or self.abandoned:
                break
            time.sleep(FOLLOW_POLL_S)
        if not self._any and self._system:
            raise NotFoundError(
                f"nothing is kept of what operating systems of {self._run} said"
                + (f" about {self._member}" if self._member else ""),
                "It is where a machine was lost or ran out of memory; `trainmaster logs RUN --system --now` "
                "asks a machine that is there.",
            )
        if self._attempt is not None and self._numbers and self._attempt not in self._numbers:
            there = f"There are attempts 1 to {max(self._numbers)}."
            raise NotFoundError(f"{self._run} has no attempt {self._attempt} there", there)
        if not self._any and self._member is not None and self._member not in self._names:
            raise no_such_member(self._run, self._member, self._names)

    def _find(self) -> None:
        database = self._service.database
        rows = queries.attempts(database, self._run, self._experiment, self._task, after=self._last_attempt)
        if (
            self._last_attempt == 0
            and len(rows) > 1
            and len({(r["experiment"], r["task"]) for r in rows}) < len(rows)
        ):
            self._many = True  # there was more than one attempt at a task
        for row in rows:
            self._numbers.add(row["number"])
            self._last_attempt = max(self._last_attempt, row["id"])
            if self._attempt not in (None, row["number"]):
                continue
            self._open[row["id"]] = _AttemptLogs(
                row["experiment"], row["task"], row["number"], row["ended_at"]
            )
        ended = queries.ended_attempts(database, list(self._open))
        before, self._files = (
            self._files,
            self._service.files_of(self._run),
        )  # another server may have the files
        if self._files.root != before.root:
            for stream in self._streams.values():
                stream.directory = self._files.root / stream.directory.relative_to(before.root)
        for key, attempt in list(self._open.items()):
            self._find_streams(key, attempt)
            if key in ended:  # asked before we looked: all its files are there
                del self._open[key]

    def _find_streams(self, key: int, attempt: _AttemptLogs) -> None:
        place = self._files.attempt(self._run, attempt.experiment, attempt.task, attempt.number)
        for path in sorted(place.directory.glob("*.log")):
            member = path.name.removesuffix(".log")
            if self._system is not None and member.startswith(SYSTEM) != self._system:
                continue
            if (key, member) not in self._streams and self._member in (None, member.removeprefix(SYSTEM)):
                label = f"{attempt.experiment}/{attempt.task}#{attempt.number} {member} | ".encode()
                begin = self._begin(place.directory, member, attempt.ended_at)
                self._streams[key, member] = _Stream(key, label, place.directory, member, begin)
                self._any = True

    def _begin(self, directory: Path, member: str, ended_at: float | None) -> int:
        """Where to begin to read: what is found later is new."""
        since = self._choice.since if self._choice is not None else None
        if since is None or not self._is_first_look:
            return 0
        if ended_at is not None and ended_at < since:
            return log_end(directory, member)
        return line_start(directory, member, logged_bytes(directory, member, since))

    def _drain(self, stream: _Stream, *, final: bool) -> Iterator[bytes]:
        if self._choice is not None:
            yield from self._drain_lines(stream, self._choice, final=final)
            return
        while True:
            data = self._next(stream)
            if not data:
                break
            if not self._many:
                yield stream.partial + data
                stream.partial = b""
                continue
            *lines, stream.partial = (stream.partial + data).split(b"\n")
            if lines:
                yield self._labelled(stream, lines)
        if final and stream.partial:
            yield self._labelled(stream, [stream.partial])
            stream.partial = b""

    def _drain_lines(self, stream: _Stream, choice: LineChoice, *, final: bool) -> Iterator[bytes]:
        last: deque[bytes] | None = None
        if self._is_first_look and choice.tail is not None:
            last = deque(maxlen=choice.tail)
        while not self._is_enough() and (data := self._next(stream)):
            *lines, stream.partial = (stream.partial + data).split(b"\n")
            if chosen := choice.of_lines(lines):
                if last is None:
                    yield self._labelled(stream, chosen)
                else:
                    last.extend(chosen)
            if len(stream.partial) > READ_BYTES:  # no line: it is not looked through again with each piece
                stream.partial = b""
        if final and stream.partial:
            chosen = choice.of_lines([stream.partial])
            stream.partial = b""
            if last is None and chosen:
                yield self._labelled(stream, chosen)
            elif last is not None:
                last.extend(chosen)
        if last:
            yield self._labelled(stream, list(last))

    def _next(self, stream: _Stream) -> bytes:
        data, stream.offset = read_noted(stream.directory, stream.member, stream.offset)
        return data

    def _labelled(self, stream: _Stream, lines: list[bytes]) -> bytes:
        label = stream.label if self._many else b""
        return b"".join(label + line + b"\n" for line in lines)
