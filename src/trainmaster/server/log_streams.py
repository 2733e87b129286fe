"""`LogStreams`: the logs of a run's members as one stream of bytes, read from the files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainmaster.executors.logs import read_log
from trainmaster.server.service import Service
from trainmaster.spec.errors import NotFoundError
from trainmaster.spec.states import State
from trainmaster.store import queries

FOLLOW_POLL_S = 0.1


@dataclass(slots=True)
class _Stream:
    label: bytes
    directory: Path
    member: str
    offset: int = 0
    partial: bytes = b""


class LogStreams:
    """Logs of every member and attempt of a run, or a part of them.

    With a single stream the bytes come as they were written; with several, each line is
    preceded by ``experiment/task#attempt member | ``. Nothing is held in memory but one piece.

    Args:
        service: the home.
        run: its id.
        experiment: only this one.
        task: only this number.
        member: only this name.

    Raises:
        NotFoundError: the run has no such experiment, task or member.
        UsageError: the logs are in a home that cannot be read from here.
    """

    def __init__(
        self, service: Service, run: str, experiment: str | None, task: int | None, member: str | None
    ) -> None:
        self._service = service
        self._run = run
        self._home = service.home_of(run)
        self._experiment = experiment
        self._task = task
        self._member = member
        self._streams: dict[tuple[str, int, int, str], _Stream] = {}
        totals = {row["name"]: row["tasks_total"] for row in service.store.experiment_rows(run)}
        if experiment is not None and experiment not in totals:
            raise NotFoundError(
                f"{run} has no experiment {experiment!r}", f"It has {', '.join(sorted(totals))}."
            )
        total = totals[experiment] if experiment is not None else max(totals.values(), default=0)
        if task is not None and not 0 <= task < total:
            raise NotFoundError(f"{run} has no task {task} there", f"Its tasks are 0 to {total - 1}.")

    def read(self, *, follow: bool) -> Iterator[bytes]:
        """The logs so far; with ``follow``, until the run has ended."""
        while True:
            over = not follow or self._is_over()  # looked at first: what came before it is still read
            self._find()
            many = len(self._streams) > 1
            for stream in self._streams.values():
                yield from self._drain(stream, many=many, final=over)
            if over:
                break
            time.sleep(FOLLOW_POLL_S)
        if not self._streams and self._member is not None:
            raise NotFoundError(f"{self._run} has no member {self._member!r} there", "Try without --member.")

    def _is_over(self) -> bool:
        return bool(self._service.store.run_row(self._run)["state"] == State.DONE)

    def _find(self) -> None:
        for experiment, task, attempt in queries.attempts(
            self._service.store, self._run, self._experiment, self._task
        ):
            place = self._home.attempt(self._run, experiment, task, attempt)
            for path in sorted(place.directory.glob("*.log")):
                member = path.name.removesuffix(".log")
                key = (experiment, task, attempt, member)
                if key not in self._streams and self._member in (None, member):
                    label = f"{experiment}/{task}#{attempt} {member} | ".encode()
                    self._streams[key] = _Stream(label, place.directory, member)

    def _drain(self, stream: _Stream, *, many: bool, final: bool) -> Iterator[bytes]:
        while True:
            data, stream.offset, dropped = read_log(stream.directory, stream.member, stream.offset)
            if dropped:
                yield stream.label + f"[trainmaster: {dropped} bytes of log were dropped here]\n".encode()
            if not data:
                break
            if not many:
                yield stream.partial + data
                stream.partial = b""
                continue
            *lines, stream.partial = (stream.partial + data).split(b"\n")
            if lines:
                yield b"".join(stream.label + line + b"\n" for line in lines)
        if final and stream.partial:
            yield (stream.label if many else b"") + stream.partial + b"\n"
            stream.partial = b""
