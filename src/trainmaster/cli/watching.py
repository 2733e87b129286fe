"""What `run` and `resume` show while they work: plain lines, or a live view on a terminal."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.cli.output import duration, metrics_text, say
from trainmaster.cli.standings import Standings
from trainmaster.control.attempt_words import FAILURE_TAIL_BYTES, last_error
from trainmaster.control.decide_task import EffectKind
from trainmaster.control.gangs import member_names
from trainmaster.control.layout import AttemptPlace
from trainmaster.control.reconcile import Turn
from trainmaster.control.run_state import RunState, Task
from trainmaster.db.changes import ExperimentChange, Note, TaskChange
from trainmaster.executors.logs import line_start, log_end, read_log, read_tail
from trainmaster.service import Service, Session
from trainmaster.spec.states import EndReason, State

if TYPE_CHECKING:
    from trainmaster.control.progress import TaskProgress

#: A run with more tasks than this shows no lines of the tasks' own output.
MAX_ECHOED_TASKS = 4
#: A plain line about progress at most this often.
PLAIN_EVERY_S = 10.0
#: The very same one at most this often.
SAME_EVERY_S = 60.0
#: Failed tasks that are told one by one.
MAX_TOLD_FAILURES = 5
#: So long what an attempt says that ended with its machine waits for the machine's line, which is told of
#: once; and so long after that attempts still end with it, as one that is taken back has time to save.
LOSS_HELD_S = 10.0
LOSS_TOLD_S = 180.0
_LOST = (EndReason.NODE_LOST, EndReason.PREEMPTED)


@contextmanager
def make_watcher(service: Service, session: Session) -> Iterator[PlainWatcher]:
    """A live view if standard error is a terminal, else plain lines."""
    if not sys.stderr.isatty():
        yield PlainWatcher(Echo(service, session), Standings(service, session), PLAIN_EVERY_S)
        return
    from trainmaster.cli.live import LiveWatcher

    with LiveWatcher(Echo(service, session), Standings(service, session)) as watcher:
        yield watcher


class Echo:
    """Shows what the first member of each task writes, for runs of a few tasks."""

    def __init__(self, service: Service, session: Session) -> None:
        recipe = session.recipe
        total = sum(len(e.tasks(recipe.seed)) for e in recipe.experiments.values())
        self.enabled = total <= MAX_ECHOED_TASKS
        self._prefixed = total > 1
        self.rents = recipe.provider != "local"
        self._home = service.home_of(session.run)
        self._run = session.run
        self._first = {name: "{}-{}".format(*member_names(e)[0]) for name, e in recipe.experiments.items()}
        self._unprepared = {name for name, e in recipe.experiments.items() if e.setup is not None}
        self._offsets: dict[tuple[str, int, int], int] = {}
        self._partial: dict[tuple[str, int, int], bytes] = {}
        if self.enabled and session.lease.token > 1:  # somebody has driven it before
            for row in service.database.live_task_rows(session.run):
                key = (row["experiment"], row["number"], row["attempt"])
                log = self._home.attempt(self._run, *key).directory, self._first[row["experiment"]]
                self._offsets[key] = line_start(*log, log_end(*log))

    def lines(self, experiment: str, task: int, attempt: int, *, final: bool = False) -> list[str]:
        """New whole lines; with ``final`` also a last one without its end."""
        if not self.enabled or attempt == 0:
            return []
        key = (experiment, task, attempt)
        place: AttemptPlace = self._home.attempt(self._run, experiment, task, attempt)
        data, self._offsets[key], _ = read_log(
            place.directory, self._first[experiment], self._offsets.get(key, 0)
        )
        *whole, rest = (self._partial.pop(key, b"") + data).split(b"\n")
        if final and rest:
            whole.append(rest)
        else:
            self._partial[key] = rest
        prefix = f"{experiment}/{task} | " if self._prefixed else ""
        # A progress bar rewrites its line with carriage returns: its last state is what counts.
        return [prefix + line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2] for line in whole]

    def last_error(self, experiment: str, task: int, attempt: int, message: str) -> str:
        """Of an attempt that failed and whose output is not shown: what it said last."""
        if self.enabled:
            return ""
        directory = self._home.attempt(self._run, experiment, task, attempt).directory
        named = re.match(r"([a-z]+-\d+): ", message)  # a member of a gang
        member = named[1] if named else self._first[experiment]
        return last_error(read_tail(directory, member, FAILURE_TAIL_BYTES).decode("utf-8", "replace"))

    def newly_staged(self, turn: Turn) -> Iterator[str]:
        """Experiments whose ``setup`` begins with this turn: it may take minutes."""
        for effect in turn.effects:
            if effect.kind is EffectKind.STAGE and effect.experiment in self._unprepared:
                self._unprepared.discard(effect.experiment)
                yield effect.experiment

    def is_first(self, task: Task, member: str) -> bool:
        """True if this member's output is shown."""
        return self.enabled and self._first[task.experiment] == member


class PlainWatcher:
    """Plain lines on standard error, for logs and pipes."""

    def __init__(self, echo: Echo, standings: Standings, every_s: float) -> None:
        self._echo = echo
        self._standings = standings
        self._every_s = every_s
        self._told_at = time.monotonic()
        self._said: dict[str, float] = {}
        self._told_failures = 0
        self._gone_on: set[Path] = set()
        self._losses = Losses(waits=echo.rents)

    def turned(
        self, run_state: RunState, turn: Turn, progress: Mapping[tuple[str, int], TaskProgress]
    ) -> None:
        """Tell what changed, and now and then how far it is."""
        for name in self._echo.newly_staged(turn):
            self.say(f"{name}: preparing its environment (`setup`)")
        now = time.monotonic()
        for change in turn.changes:
            if isinstance(change, TaskChange):
                self._standings.changed(change)
            is_lost = isinstance(change, TaskChange) and _is_lost(change) and self._losses.waits
            failed = (
                not is_lost
                and isinstance(change, TaskChange)
                and change.closes
                and not change.closes.reason.is_success
            )
            self._told_failures += bool(failed)
            if failed and self._told_failures > MAX_TOLD_FAILURES:
                if self._told_failures == MAX_TOLD_FAILURES + 1:
                    self.say(
                        f"further failures are not told: `trainmaster status {run_state.run}` shows them"
                    )
                continue
            lines = list(told(change, run_state, self._echo))
            if isinstance(change, Note) and change.reason is EndReason.NODE_LOST:
                self._losses.machine(now)
            elif is_lost:
                lines[-1:] = self._losses.attempt(lines[-1], now)
            for line in lines:
                self.say(line)
        for line in self._losses.due(now, is_over=run_state.state is State.DONE):
            self.say(line)
        if self._echo.enabled:
            for (name, number), found in progress.items():
                if found.from_step is not None and found.directory not in self._gone_on:
                    self._gone_on.add(found.directory)
                    self.say(f"{name}/{number}: {goes_on_text(found.from_step, found.came_to)}")
        if now - self._told_at >= self._every_s and run_state.state is not State.DONE:
            self._told_at = now
            for line in fresh(progress_lines(run_state, progress, self._standings), self._said, now):
                self.say(line)

    def output(self, task: Task, member: str) -> None:
        """Show new lines of a first member."""
        if self._echo.is_first(task, member):
            for line in self._echo.lines(task.experiment, task.number, task.attempt):
                self.say(line)

    def say(self, line: str) -> None:
        """Print one line."""
        say(line)


def told(change: object, run_state: RunState, echo: Echo) -> Iterator[str]:
    """What a change is worth telling, in lines."""
    if isinstance(change, ExperimentChange):
        experiment = run_state.experiments[change.experiment]
        if change.after is State.RUNNING:
            tasks = "1 task" if experiment.total == 1 else f"{experiment.total} tasks"
            yield f"{change.experiment}: {tasks}"
        elif change.after is State.DONE:
            counts = ", ".join(f"{n} {key}" for key, n in experiment.tally().items() if n and key != "total")
            shown = f" ({counts})" if experiment.total > 1 else ""
            why = f": {change.message}" if change.message else ""
            yield f"{change.experiment}: {change.reason}{shown}{why}"
    elif isinstance(change, Note):
        yield (
            change.message if change.task is None else f"{change.experiment}/{change.task}: {change.message}"
        )
    elif isinstance(change, TaskChange):
        where = f"{change.experiment}/{change.task}"
        if change.closes is not None:
            yield from echo.lines(change.experiment, change.task, change.closes.number, final=True)
            if not change.closes.reason.is_success:
                again = "; trying again" if change.opens else ""
                why = f": {change.closes.message}" if change.closes.message else ""
                if "exit code" in why:  # else it is explained already
                    said = echo.last_error(change.experiment, change.task, change.closes.number, why[2:])
                    why += f" ({said})" if said else ""
                yield f"{where}: attempt {change.closes.number} {change.closes.reason}{why}{again}"


def _is_lost(change: TaskChange) -> bool:
    """Whether an attempt has ended with its machine, and another one begins.

    One whose members have all told how they ended has lost something else, such as a mount.
    """
    closes = change.closes
    if not change.opens or closes is None or closes.reason not in _LOST:
        return False
    members = json.loads(closes.members)
    return closes.reason is EndReason.PREEMPTED or not members or any(each["lost"] for each in members)


class Losses:
    """Attempts that end with their machine need no line of their own: that of the machine is enough.

    Which of both is seen first depends: what an attempt would say waits a moment for what the machine says.

    Args:
        waits: False where there are no machines that could say anything.
    """

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits
        self._held: list[tuple[float, str]] = []
        self._machine_at = -math.inf

    def machine(self, now: float) -> None:
        """A machine is lost, and that is told."""
        self._held.clear()
        self._machine_at = now

    def attempt(self, line: str, now: float) -> list[str]:
        """An attempt is lost; what is to be told of it at once."""
        if not self.waits:
            return [line]
        if now - self._machine_at > LOSS_TOLD_S:
            self._held.append((now, line))
        return []

    def due(self, now: float, *, is_over: bool = False) -> list[str]:
        """What has waited in vain; all of it when the run is over."""
        due = [line for at, line in self._held if is_over or now - at >= LOSS_HELD_S]
        self._held = [] if is_over else [(at, line) for at, line in self._held if now - at < LOSS_HELD_S]
        return due


def told_events(service: Service, run: str, seen: int, losses: Losses) -> tuple[int, list[str]]:
    """What events after ``seen`` are worth telling; the id of the last one, and lines."""
    now = time.monotonic()
    lines = []
    for event in service.events(run, after=seen):
        seen = event["id"]
        why = f": {event['message']}" if event["message"] else ""
        if event["kind"] == "experiment":
            lines.append(f"{event['experiment']}: {event['reason'] or event['after']}{why}")
        elif event["kind"] == "note":
            about = "" if event["task"] is None else f"{event['experiment']}/{event['task']}: "
            lines.append(about + event["message"])
            if event["reason"] == EndReason.NODE_LOST:
                losses.machine(now)
        elif event["kind"] == "task" and event["reason"] not in (None, "SUCCEEDED", "PRUNED"):
            line = f"{event['experiment']}/{event['task']}: attempt {event['attempt']} {event['reason']}{why}"
            is_lost = event["reason"] in _LOST and event["after"] == State.RECOVERING
            lines += losses.attempt(line, now) if is_lost else [line]
    return seen, lines + losses.due(now)


def progress_lines(
    run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress], standings: Standings
) -> Iterator[str]:
    """How far the experiments and their running tasks are."""
    for name, experiment in run_state.experiments.items():
        if experiment.state is State.RUNNING and experiment.total > 1:
            counts = experiment.tally()
            done = counts["succeeded"] + counts["pruned"]  # what failed is no progress
            failed = f", {counts['failed']} failed" if counts["failed"] else ""
            left_s = standings.left_s(experiment, progress, time.time())
            left = "" if left_s is None else f", about {duration(left_s)} left"
            yield f"{name}: {done}/{experiment.total} tasks done, {counts['running']} running{failed}{left}"
    yield from standings.best_lines(1)
    for (name, number), found in list(progress.items())[:4]:
        text = task_text(found)
        if text:
            yield f"{name}/{number}: {text}"


def fresh(lines: Iterable[str], said: dict[str, float], now: float) -> Iterator[str]:
    """Those that are new, or were last said a minute ago.

    Args:
        lines: what could be said.
        said: when lines were said; kept up to date.
        now: of a steady clock.
    """
    for line in [line for line, at in said.items() if now - at >= SAME_EVERY_S]:
        del said[line]
    for line in lines:
        if line not in said:
            said[line] = now
            yield line


def goes_on_text(from_step: float, came_to: float | None) -> str:
    """Where an attempt has begun that is not the first one, as it says itself.

    >>> goes_on_text(240, 251)
    'goes on from step 240 (the attempt before had come to step 251)'
    """
    was = f" (the attempt before had come to step {came_to:g})" if came_to and came_to > from_step else ""
    return f"goes on from step {from_step:g}{was}"


def task_text(progress: TaskProgress) -> str:
    """Metrics, step rate and time left of one task."""
    parts = [metrics_text(progress.metrics)] if progress.metrics else []
    if progress.steps_per_s:
        parts.append(f"{progress.steps_per_s:.3g} steps/s")
    elif progress.examples_per_s:
        parts.append(f"{progress.examples_per_s:.3g} examples/s")
    if progress.eta_s is not None:
        parts.append(f"{duration(progress.eta_s)} left")
    return "  ".join(parts)
