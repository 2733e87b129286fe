"""`RunWatcher`: what happens to a run while this process drives it, as plain data to be shown."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.control.decide.effects import EffectKind
from trainmaster.control.loop.reconcile import Reconciliation
from trainmaster.control.loop.run_state import RUNNING_STATES, ExperimentState, RunState, Task
from trainmaster.control.task.gangs import member_names
from trainmaster.db.changes import ExperimentChange, Note, TaskChange
from trainmaster.executors.telemetry.logs import line_start, log_end, read_noted
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.driving.run_news import (
    LOST,
    MAX_ECHOED_TASKS,
    MAX_SHOWN_TASKS,
    MAX_TOLD_FAILURES,
    AttemptEnded,
    AttemptResumed,
    ExperimentMoved,
    ExperimentView,
    Happening,
    MoreFailures,
    RunNews,
    RunView,
    SetupBegun,
    TaskView,
)
from trainmaster.spec.errors import StoreError
from trainmaster.spec.states import EndReason, State
from trainmaster.spec.units import format_bytes

if TYPE_CHECKING:
    from trainmaster.control.measure.progress import TaskProgress
    from trainmaster.service.driving.execution_backend import Session
    from trainmaster.service.service import Service
    from trainmaster.spec.parameter import ParameterValue

#: What shows a run has things to tell that wait for a while.
_TOLD_EVERY_S = 1.0
#: Of what a task has written while nothing drove it, so much is shown at most.
_MOST_UNSEEN_BYTES = 64 << 10
#: So much is shown at its end of what a task has written faster than it was shown; of more, the last of it.
_MOST_LAST_BYTES = 1 << 20
#: How many of the best tasks are shown.
SHOWN_BEST = 5
#: The best are looked for at most that often, and never for more than a hundredth of the time.
_LOOK_S = 2.0
_MOST_SHARE = 0.01
#: How long the last so many tasks took tells how long the next ones will take.
_DURATIONS = 200
_CUT_SHORT = frozenset({EndReason.CANCELLED, EndReason.SKIPPED, EndReason.BUDGET})


class RunWatcher:
    """Watches the loop that drives a run; fulfils `control.loop.surroundings.Watcher`.

    Args:
        service: of the home.
        session: the run.
        say: takes lines for the user; must be quick.
        tell: takes what happens; must be quick. It is called at least once a second, as nothing is news, too.
        view_every_s: seconds from one look at how far it is to the next.
    """

    def __init__(
        self,
        service: Service,
        session: Session,
        say: Callable[[str], None],
        tell: Callable[[RunNews], None],
        view_every_s: float,
    ) -> None:
        self._echo = LogTail(service, session)
        self._estimates = RunProgress(service, session)
        self.say = say
        self._tell = tell
        self._every_s = view_every_s
        self._viewed_at = self._told_at = time.monotonic()
        self._recipe = session.recipe
        self._rents = not capabilities_of(session.recipe.provider).is_here
        self._told_failures = 0
        self._gone_on: set[Path] = set()

    def turned(
        self, run_state: RunState, turn: Reconciliation, progress: Mapping[tuple[str, int], TaskProgress]
    ) -> None:
        """Tell what changed, and how far it is."""
        happened = (*self._happened(run_state, turn), *self._went_on(progress))
        is_over, now = run_state.state is State.DONE, time.monotonic()
        view = None
        if now - self._viewed_at >= self._every_s:
            self._viewed_at = now
            view = run_view(run_state, progress, self._estimates)
        if happened or view or is_over or now - self._told_at >= _TOLD_EVERY_S:
            self._told_at = now
            self._tell(RunNews(happened, view, is_over))

    def output(self, task: Task, member: str) -> None:
        """Show new lines of a first member."""
        if self._echo.is_first(task, member):
            for line in self._echo.lines(task.experiment, task.number, task.attempt):
                self.say(line)

    def _happened(self, run_state: RunState, turn: Reconciliation) -> Iterator[Happening]:
        yield from self._echo.newly_staged(turn)
        for change in turn.changes:
            if isinstance(change, Note):
                yield change
            elif isinstance(change, ExperimentChange) and change.after is State.WAITING:
                yield Note(f"{change.experiment}: {change.message}", change.experiment)
            elif isinstance(change, ExperimentChange) and change.after in (State.RUNNING, State.DONE):
                found = run_state.experiments[change.experiment]
                moved = (change.experiment, change.after, change.reason, change.message)
                yield ExperimentMoved(*moved, found.total, found.tally())
            elif isinstance(change, TaskChange):
                self._estimates.changed(change)
                yield from self._ended(run_state, change)

    def _ended(self, run_state: RunState, change: TaskChange) -> Iterator[Happening]:
        closes = change.closes
        if closes is None:
            return
        lost = self._rents and is_lost(change)
        if not lost and not closes.reason.is_success:
            self._told_failures += 1
            if self._told_failures > MAX_TOLD_FAILURES:
                if self._told_failures == MAX_TOLD_FAILURES + 1:
                    yield MoreFailures(run_state.run)
                return
        key = (change.experiment, change.task, closes.number)
        output = tuple(self._echo.lines(*key, final=True))
        values = self._parameters(run_state.experiments[change.experiment], change.task)
        yield AttemptEnded(*key, closes.reason, closes.message, output, change.opens, lost, values)

    def _parameters(self, experiment: ExperimentState, number: int) -> Mapping[str, ParameterValue]:
        """Of a task that may be over: what a search has chosen is kept with its results."""
        task = experiment.live.get(number) or (experiment.results or {}).get(number)
        if task is not None:
            return task.parameters
        space = self._recipe.experiments[experiment.name].tasks(self._recipe.seed)
        return (space.parameters(number) if number < len(space) else None) or {}

    def _went_on(self, progress: Mapping[tuple[str, int], TaskProgress]) -> Iterator[AttemptResumed]:
        if self._echo.enabled:
            for key, found in progress.items():
                if found.from_step is not None and found.directory not in self._gone_on:
                    self._gone_on.add(found.directory)
                    yield AttemptResumed(*key, found.from_step, found.came_to, found.has_checkpoint)


def run_view(
    run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress], estimates: RunProgress
) -> RunView:
    """How far a run is."""

    def view(found: ExperimentState) -> ExperimentView:
        is_service = found.name in estimates.services
        # a single task tells that itself
        is_told = found.total > 1 and found.state is State.RUNNING and not is_service
        left_s = estimates.left_s(found, progress, time.time()) if is_told else None
        tally = found.tally()
        return ExperimentView(found.name, found.state, found.reason, found.total, tally, left_s, is_service)

    return RunView(
        run_state.run,
        run_state.state,
        run_state.queue_wait.is_told,
        tuple(view(found) for found in run_state.experiments.values()),
        tuple(
            TaskView(*key, dict(found.metrics), found.steps_per_s, found.examples_per_s, found.eta_s)
            for key, found in islice(progress.items(), MAX_SHOWN_TASKS)
        ),
        dict(estimates.best()),
        run_state.course,
    )


def is_lost(change: TaskChange) -> bool:
    """Whether an attempt has ended with its machine, and another one begins.

    One whose members have all told how they ended has lost something else, such as a mount.
    """
    closes = change.closes
    if not change.opens or closes is None or closes.reason not in LOST:
        return False
    members = json.loads(closes.members)
    return closes.reason is EndReason.PREEMPTED or not members or any(each["lost"] for each in members)


def _shown_until(file: Path, end: int) -> int:
    """How far the last driver has shown a log; its end if that is unknown."""
    try:
        return min(int(file.read_text()), end)
    except (OSError, ValueError):  # it was killed while it wrote that
        return end


class LogTail:
    """New lines of the log of each task's first member, for runs of a few tasks."""

    def __init__(self, service: Service, session: Session) -> None:
        recipe = session.recipe
        total = sum(len(e.tasks(recipe.seed)) for e in recipe.experiments.values())
        self.enabled = total <= MAX_ECHOED_TASKS
        self._prefixed = total > 1
        self._home = service.home_of(session.run)
        self._run = session.run
        self._first = {name: "{}-{}".format(*member_names(e)[0]) for name, e in recipe.experiments.items()}
        self._unprepared = {name for name, e in recipe.experiments.items() if e.setup is not None}
        self._offsets: dict[tuple[str, int, int], int] = {}
        self._partial: dict[tuple[str, int, int], bytes] = {}
        if self.enabled and session.lease.token > 1:  # somebody has driven it before
            for row in service.database.live_task_rows(session.run):
                key = (row["experiment"], row["number"], row["attempt"])
                place = self._home.attempt(self._run, *key)
                log = place.directory, self._first[row["experiment"]]
                end = log_end(*log)
                begin = max(_shown_until(place.shown, end), end - _MOST_UNSEEN_BYTES, 0)
                self._offsets[key] = line_start(*log, begin)

    def lines(self, experiment: str, task: int, attempt: int, *, final: bool = False) -> list[str]:
        """New whole lines; with ``final`` also a last one without its end."""
        if not self.enabled or attempt == 0:
            return []
        key = (experiment, task, attempt)
        place = self._home.attempt(self._run, experiment, task, attempt)
        left_out = self._skip(key, place.directory) if final else ""
        data = self._read(key, place.directory)
        while final and (more := self._read(key, place.directory)):  # a log is in several files
            data += more
        *whole, rest = (self._partial.pop(key, b"") + data).split(b"\n")
        if data:
            with suppress(OSError):  # another driver may go on with it
                place.shown.write_text(str(self._offsets[key] - len(rest)))
        if final and rest:
            whole.append(rest)
        else:
            self._partial[key] = rest
        prefix = f"{experiment}/{task} | " if self._prefixed else ""
        # A progress bar rewrites its line with carriage returns: its last state is what counts.
        shown = [prefix + line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2] for line in whole]
        return [left_out, *shown] if left_out else shown

    def _read(self, key: tuple[str, int, int], directory: Path) -> bytes:
        data, self._offsets[key] = read_noted(directory, self._first[key[0]], self._offsets.get(key, 0))
        return data

    def _skip(self, key: tuple[str, int, int], directory: Path) -> str:
        """If a task that has ended has far more to show: go on at the last of it; the line that says so."""
        log = directory, self._first[key[0]]
        end, seen = log_end(*log), self._offsets.get(key, 0)
        if end - seen <= _MOST_LAST_BYTES:
            return ""
        self._offsets[key] = line_start(*log, end - _MOST_UNSEEN_BYTES)
        self._partial.pop(key, None)
        left_out = format_bytes(self._offsets[key] - seen)
        return f"... {left_out} of output are left out here: `trainmaster logs {self._run}` shows them"

    def newly_staged(self, turn: Reconciliation) -> Iterator[SetupBegun]:
        """Experiments whose ``setup`` begins with this turn."""
        for effect in turn.effects:
            if effect.kind is EffectKind.STAGE and effect.experiment in self._unprepared:
                self._unprepared.discard(effect.experiment)
                yield SetupBegun(effect.experiment)

    def is_first(self, task: Task, member: str) -> bool:
        """True if this member's output is shown."""
        return self.enabled and self._first[task.experiment] == member


class RunProgress:
    """Of one run, in one control process.

    Args:
        service: knows the results.
        session: the run.

    Attributes:
        services: experiments whose tasks are replicas.
    """

    def __init__(self, service: Service, session: Session) -> None:
        self._database = service.database
        self._run = session.run
        experiments = session.recipe.experiments
        self.services = {name for name, experiment in experiments.items() if experiment.serve is not None}
        self._searches = {
            name: experiment.search
            for name, experiment in experiments.items()
            if experiment.search is not None
        }
        self._best: dict[str, tuple[str, list[dict[str, Any]]]] = {}
        self._look_at = 0.0
        self._durations: dict[str, deque[float]] = {}

    def changed(self, change: TaskChange) -> None:
        """A task went on, or ended."""
        closes = change.closes
        if closes is None or change.opens or closes.started_at is None or closes.reason in _CUT_SHORT:
            return
        known = self._durations.setdefault(change.experiment, deque(maxlen=_DURATIONS))
        known.append(max(closes.ended_at - closes.started_at, 0.0))

    def left_s(
        self, experiment: ExperimentState, progress: Mapping[tuple[str, int], TaskProgress], now: float
    ) -> float | None:
        """Seconds until all of its tasks will be over; None if unknown.

        Args:
            experiment: that runs.
            progress: of its tasks.
            now: Unix seconds.
        """
        known = self._durations.get(experiment.name)
        running = []
        for task in experiment.live.values():
            if task.state is State.RUNNING and task.started_at is not None:
                found = progress.get(task.key)
                running.append((max(now - task.started_at, 0.0), found.eta_s if found is not None else None))
        begun = sum(task.state in RUNNING_STATES for task in experiment.live.values())
        waiting = experiment.total - sum(experiment.ended.values()) - begun
        return left_s(running, waiting, known or ())

    def best(self) -> Mapping[str, tuple[str, Sequence[dict[str, Any]]]]:
        """Metric and best tasks of each search, the best one first; what runs counts with its last value."""
        if not self._searches:
            return self._best
        from trainmaster.service.runs.search_results import best_tasks

        began = time.monotonic()
        if began >= self._look_at:
            with suppress(StoreError):  # the picture is of what was known before
                for name, search in self._searches.items():
                    asked = search.model_dump(mode="json")
                    found = best_tasks(self._database, self._run, name, asked, SHOWN_BEST)
                    self._best[name] = search.metric, found
            took_s = time.monotonic() - began
            self._look_at = began + max(_LOOK_S, took_s / _MOST_SHARE)
        return self._best


def left_s(
    running: Sequence[tuple[float, float | None]], waiting: int, durations: Sequence[float]
) -> float | None:
    """Seconds until all tasks of an experiment will be over, as many at a time as now; None if unknown.

    >>> left_s([(10.0, 20.0), (5.0, None)], 4, [30.0, 30.0])
    82.5
    >>> left_s([(10.0, None)], 4, []) is None
    True

    Args:
        running: for how long tasks have run, and how long they will as they tell themselves, if they do.
        waiting: how many have not begun.
        durations: of tasks that have ended.
    """
    told = [age_s + rest_s for age_s, rest_s in running if rest_s is not None]
    each = list(durations) or told
    if not running or not each:
        return None
    mean_s = sum(each) / len(each)
    rests = [max(mean_s - age_s, 0.0) if rest_s is None else rest_s for age_s, rest_s in running]
    return max(max(rests), (sum(rests) + max(waiting, 0) * mean_s) / len(running))
