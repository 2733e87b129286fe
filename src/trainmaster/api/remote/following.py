"""`follow_run` and `follow_logs`: what a server's stream says of a run, as its driver gets it."""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from trainmaster.api.remote.streaming import ServerMessage
from trainmaster.api.results import Event, LogQuery
from trainmaster.spec.errors import no_such_member
from trainmaster.spec.states import EndReason, State
from trainmaster.spec.topics import MODEL_PROMOTED, NOT_PROMOTED

if TYPE_CHECKING:
    from trainmaster.service.driving.run_news import Happening, RunNews, RunView
    from trainmaster.spec import Recipe

#: More often the server is not asked how far a run is, in seconds.
_VIEW_S: Final = 2.0
_ATTEMPT: Final = ("experiment", "task", "attempt")
_LABEL: Final = re.compile(rb"[^ ]+/\d+#\d+ [^ ]+ \| ")

#: Notes that the last lines of a run have, too.
_AT_THE_END: Final = (MODEL_PROMOTED, NOT_PROMOTED)


def first_members(recipe: Recipe) -> dict[str, str]:
    """By experiment, whose output is shown."""
    from trainmaster.control.task.gangs import member_names

    return {name: "{}-{}".format(*member_names(found)[0]) for name, found in recipe.experiments.items()}


def _is_over(event: Event) -> bool:
    """Of a task: an attempt is over; on the way there, as while it saves, its reason is known already."""
    return event.kind == "task" and event.after in (State.RECOVERING, State.DONE)


def _failed(event: Event) -> bool:
    return _is_over(event) and event.reason is not None and not event.reason.is_success


class RunFollower:
    """Makes of a server's messages what a driver tells.

    Args:
        recipe: of the run.
        status: the object of ``status --json``, of now.
        view_every_s: seconds from one look at how far it is to the next.
        before: what had happened when it was resumed: neither that is told again, nor what those attempts
            have written that were over.
    """

    def __init__(
        self,
        recipe: Recipe,
        status: Callable[[], Mapping[str, Any]],
        view_every_s: float,
        before: Sequence[Event] = (),
    ) -> None:
        from trainmaster.executors.telemetry.metrics import StepRate
        from trainmaster.service.driving.run_news import MAX_ECHOED_TASKS

        self._status = status
        self._every_s = max(view_every_s, _VIEW_S)
        self._viewed_at = time.monotonic()
        self._spaces = {name: found.tasks(recipe.seed) for name, found in recipe.experiments.items()}
        tasks = sum(map(len, self._spaces.values()))
        self._first = first_members(recipe) if tasks <= MAX_ECHOED_TASKS else {}
        self._is_prefixed = tasks > 1
        self._partial: dict[tuple[str, int, int], str] = {}
        self._metrics: dict[tuple[str, int], dict[str, Any]] = {}
        self._rates: dict[tuple[str, int], StepRate] = {}
        self._new_rate = StepRate
        self._failures = 0
        self._last_event = before[-1].id if before else 0
        self._over = {(e.experiment, e.task, e.attempt) for e in before if _is_over(e)}

    def follow(self, messages: Iterator[ServerMessage]) -> Iterator[RunNews | str]:
        """Lines for the user, and what happens, until the run is over."""
        from trainmaster.service.driving.run_news import RunNews

        for message in messages:
            happened: list[Happening] = []
            is_over = False
            if message.kind == "away":
                yield str(message.data["message"])
            elif self._over.issuperset([tuple(map(message.data.get, _ATTEMPT))]):
                continue
            elif message.kind == "log":
                yield from self._lines(message.data)
            elif message.kind == "point":
                self._note(message.data)
            elif message.kind == "state":
                is_over = message.data.get("run", {}).get("state") == State.DONE
                events = message.data.get("events", ())
                happened = list(self._happened(row for row in events if row["id"] > self._last_event))
            if is_over:
                yield from self._rest()
            view = None if is_over else self._view()
            if happened or view is not None or is_over or message.kind == "quiet":
                yield RunNews(tuple(happened), view, is_over)
            if is_over:
                return

    def _lines(self, data: Mapping[str, Any]) -> Iterator[str]:
        if self._first.get(data["experiment"]) != data["member"]:
            return
        key = (data["experiment"], data["task"], data["attempt"])
        *whole, self._partial[key] = (self._partial.pop(key, "") + data["text"]).split("\n")
        for line in whole:
            yield self._shown(key, line)

    def _rest(self) -> Iterator[str]:
        """Last lines without their ends."""
        for key, line in self._partial.items():
            if line:
                yield self._shown(key, line)

    def _shown(self, key: tuple[str, int, int], line: str) -> str:
        # A progress bar rewrites its line with carriage returns: its last state is what counts.
        text = line.rstrip("\r").rpartition("\r")[2]
        return f"{key[0]}/{key[1]} | {text}" if self._is_prefixed else text

    def _note(self, data: Mapping[str, Any]) -> None:
        key = (data["experiment"], data["task"])
        rate = self._rates.setdefault(key, self._new_rate())
        for row in data["points"]:
            self._metrics.setdefault(key, {}).update(row)
            rate.observe(time.monotonic(), row.get("step"), row.get("examples"))

    def _happened(self, rows: Any) -> Iterator[Happening]:  # noqa: ANN401 - JSON
        from trainmaster.service import Note
        from trainmaster.service.driving.run_news import (
            LOST,
            MAX_TOLD_FAILURES,
            AttemptEnded,
            ExperimentMoved,
            MoreFailures,
        )

        status: Mapping[str, Any] | None = None
        for row in rows:
            event = Event.of(row)
            if event.kind == "experiment" and event.after is State.WAITING and event.message:
                yield Note(f"{event.experiment}: {event.message}", event.experiment)
            elif event.kind == "note" and row.get("topic") not in _AT_THE_END:
                yield Note(event.message, event.experiment, event.task, event.attempt, event.reason)
            elif event.kind == "experiment" and event.after in (State.RUNNING, State.DONE):
                status = status or self._status()
                tally = dict(status["experiments"][event.experiment]["tasks"])
                name, total = event.experiment or "", tally.pop("total")
                yield ExperimentMoved(name, event.after, event.reason, event.message, total, tally)
            elif event.kind == "task" and event.attempt and _failed(event):
                is_again = event.after is State.RECOVERING
                is_lost = event.reason in LOST and is_again
                if not is_lost:
                    self._failures += 1
                if self._failures > MAX_TOLD_FAILURES and not is_lost:
                    if self._failures == MAX_TOLD_FAILURES + 1:
                        yield MoreFailures(row["run_id"] if "run_id" in row else row.get("run", ""))
                    continue
                at = (event.experiment or "", event.task or 0, event.attempt or 0)
                assert event.reason is not None
                space = self._spaces[at[0]]
                values = (
                    space.parameters(at[1]) if at[1] < len(space) else None
                )  # what a search chose is there
                yield AttemptEnded(*at, event.reason, event.message, (), is_again, is_lost, values or {})

    def _view(self) -> RunView | None:
        from trainmaster.service.driving.run_news import MAX_SHOWN_TASKS, ExperimentView, RunView, TaskView

        if time.monotonic() - self._viewed_at < self._every_s:
            return None
        self._viewed_at = time.monotonic()
        status = self._status()
        services = {each["experiment"] for each in status.get("services", ())}
        views = []
        for name, found in status["experiments"].items():
            tally = dict(found["tasks"])
            reason = None if found["reason"] is None else EndReason(found["reason"])
            total, state = tally.pop("total"), State(found["state"])
            views.append(ExperimentView(name, state, reason, total, tally, None, name in services))
        going = {view.name for view in views if view.state is State.RUNNING}
        told = [(key, found) for key, found in self._metrics.items() if key[0] in going]
        tasks = tuple(
            TaskView(*key, dict(found), rate.steps_per_s, rate.examples_per_s, _left_s(status, key[0]))
            for key, found in told[-MAX_SHOWN_TASKS:]
            for rate in (self._rates[key],)
        )
        best = {
            name: (str(found.get("search", {}).get("metric", "value")), found["top"])
            for name, found in status["experiments"].items()
            if found.get("top")
        }
        state, is_queued = State(status["state"]), "queued" in status
        return RunView(status["run"], state, is_queued, tuple(views), tasks, best, status)


def _left_s(status: Mapping[str, Any], experiment: str) -> float | None:
    """Seconds that the steps of an experiment with one task take still, as its driver expects."""
    if status["experiments"][experiment]["tasks"]["total"] != 1:
        return None
    for each in status.get("phases", {}).get(experiment, ()):
        if each["phase"] == "steps" and each["state"] == "now" and each["expected_s"]:
            left_s: float = each["expected_s"]["p50"] - each["seconds"]
            return left_s if left_s > 0 else None
    return None


def follow_logs(
    messages: Iterator[ServerMessage], query: LogQuery, run: str, names: Collection[str], *, is_labelled: bool
) -> Iterator[bytes]:
    """What members write, until the run is over, as `service.log_streams.LogStreams` words it.

    Args:
        messages: from the beginning of the run on, or from near its end with ``tail``.
        query: which lines; from ``since`` on is where the messages begin.
        run: its id.
        names: of the members that the recipe has there.
        is_labelled: several streams may come: each line says whose it is.

    Raises:
        NotFoundError: the recipe has no member of that name, nor has one written anything.
    """
    choice = re.compile(query.grep.encode()) if query.grep is not None else None
    is_plain = not is_labelled and choice is None and query.tail is None
    held: dict[bytes, deque[bytes]] | None = {} if query.tail is not None else None
    partial: dict[bytes, bytes] = {}
    is_any = False

    def take(label: bytes, lines: list[bytes]) -> Iterator[bytes]:
        chosen = [line for line in lines if choice is None or choice.search(line)]
        if held is not None:
            held.setdefault(label, deque(maxlen=query.tail)).extend(chosen)
        elif chosen:
            yield b"".join((label if is_labelled else b"") + line + b"\n" for line in chosen)

    for message in messages:
        data = message.data
        if message.kind == "log" and _is_wanted(data, query):
            is_any = True
            text = str(data["text"]).encode()
            if is_plain:
                yield text
                continue
            label = f"{data['experiment']}/{data['task']}#{data['attempt']} {data['member']} | ".encode()
            *lines, partial[label] = (partial.pop(label, b"") + text).split(b"\n")
            yield from take(label, lines)
        elif message.kind == "state":
            is_over = data.get("run", {}).get("state") == State.DONE
            for label in list(partial) if is_over else ():
                if rest := partial.pop(label):
                    yield from take(label, [rest])
            if held is not None:  # all that was there is told
                known, held = held, None
                for label, last in known.items():
                    if last:
                        yield b"".join((label if is_labelled else b"") + line + b"\n" for line in last)
            if is_over:
                break
    if not is_any and query.member is not None and query.member not in names and query.since is None:
        raise no_such_member(run, query.member, names)


def _is_wanted(data: Mapping[str, Any], query: LogQuery) -> bool:
    return (
        query.experiment in (None, data["experiment"])
        and query.task in (None, data["task"])
        and query.member in (None, data["member"])
        and query.attempt in (None, data["attempt"])
    )


def searched(pieces: Iterator[bytes], pattern: re.Pattern[bytes], tail: int | None) -> Iterator[bytes]:
    r"""Only lines in which a pattern is found: here, as a pattern of others can keep a server busy for ever.

    Args:
        pieces: logs, whose lines may begin with whose they are.
        pattern: is not looked for in that.
        tail: only so many last ones of each member.

    >>> b"".join(searched(iter([b"a/0#1 worker-0 | x", b"\na/0#1 worker-0 | y\n"]), re.compile(b"x"), 1))
    b'a/0#1 worker-0 | x\n'
    """
    last: dict[bytes, deque[bytes]] = {}
    for line in _whole_lines(pieces):
        found = _LABEL.match(line)
        label = found[0] if found else b""
        if not pattern.search(line[len(label) :].rstrip(b"\n")):
            continue
        if tail is None:
            yield line
        else:
            last.setdefault(label, deque(maxlen=tail)).append(line)
    for lines in last.values():
        yield from lines


def _whole_lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest + b"\n"


def rows_of(pieces: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """Lines of JSON."""
    for line in _whole_lines(pieces):
        yield json.loads(line)
