"""What `run` and `resume` show while they work, in plain lines."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator

from trainmaster.api import Event
from trainmaster.cli.output import best_text, duration, metrics_text, parameters_text, say
from trainmaster.service import Note
from trainmaster.service.driving.run_news import (
    LOST,
    AttemptEnded,
    AttemptResumed,
    ExperimentMoved,
    Happening,
    MoreFailures,
    RunNews,
    RunView,
    SetupBegun,
    TaskView,
)
from trainmaster.spec.states import FINISHED, EndReason, State
from trainmaster.spec.units import counted

#: The very same one at most this often.
SAME_EVERY_S = 60.0
#: So long what an attempt says that ended with its machine waits for the machine's line, which is shown
#: once; and so long after that attempts still end with it, as one that is taken back has time to save.
LOSS_HELD_S = 10.0
LOSS_TOLD_S = 180.0
#: On the way there, as while it saves, the reason of an attempt is known already.
_ENDED = (State.RECOVERING, State.DONE)


class PlainDisplay:
    """Plain lines on standard error, for logs and pipes.

    Args:
        rents: the run has machines that say themselves when they are lost.
    """

    #: How often it wants to know how far the run is.
    view_every_s = 10.0

    def __init__(self, *, rents: bool) -> None:
        self._said: dict[str, float] = {}
        self._losses = MachineLossFilter(waits=rents)

    def show(self, news: RunNews) -> None:
        """Tell what happened, and now and then how far it is."""
        now = time.monotonic()
        for each in news.happened:
            lines = list(told(each))
            if isinstance(each, Note) and each.reason is EndReason.NODE_LOST:
                self._losses.machine(now)
            elif isinstance(each, AttemptEnded) and each.is_lost:
                lines[-1:] = self._losses.attempt(lines[-1], now)
            for line in lines:
                self.say(line)
        for line in self._losses.due(now, is_over=news.is_over):
            self.say(line)
        if not news.is_over:
            self.show_view(news.view, now)

    def show_view(self, view: RunView | None, now: float) -> None:
        """Tell how far it is, if that is news."""
        for line in fresh(progress_lines(view), self._said, now) if view else ():
            self.say(line)

    def say(self, line: str) -> None:
        """Print one line."""
        say(line)


def told(each: Happening) -> Iterator[str]:
    """What has happened, in lines."""
    match each:
        case SetupBegun():
            yield f"{each.experiment}: preparing its environment (`setup`), if it is not there yet"
        case MoreFailures():
            yield f"further failures are not told: `trainmaster status {each.run}` shows them"
        case AttemptResumed():
            where = goes_on_text(each.from_step, each.came_to, each.has_checkpoint)
            yield f"{each.experiment}/{each.task}: {where}"
        case Note():
            yield each.message if each.task is None else f"{each.experiment}/{each.task}: {each.message}"
        case ExperimentMoved(state=State.DONE):
            counts = ", ".join(f"{n} {key}" for key, n in each.tally.items() if n and key != "total")
            shown = f" ({counts})" if each.total > 1 else ""
            message = each.message.removeprefix(f"{each.reason.lower()} ") if each.reason else each.message
            why = f": {message}" if message else ""
            yield f"{each.experiment}: {each.reason}{shown}{why}"
        case ExperimentMoved():
            tasks = counted(each.total, "task")
            yield f"{each.experiment}: {tasks if each.total else 'begins'}"
        case AttemptEnded():
            yield from each.output
            if not each.reason.is_success:
                why = f": {each.message}" if each.message else ""
                again = "; trying again" if each.is_again else ""
                values = f" ({parameters_text(each.parameters)})" if each.parameters else ""
                task = f"{each.experiment}/{each.task}{values}"
                yield f"{task}: attempt {each.attempt} {each.reason}{why}{again}"


class MachineLossFilter:
    """Leaves out lines of attempts that ended because their machine was lost: the machine has a line.

    Either may be seen first, so the line of an attempt is held back for a moment.

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
        """An attempt is lost; what the user reads about it at once."""
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


def told_events(events: Iterable[Event], losses: MachineLossFilter) -> list[str]:
    """What of some events is worth telling, in lines."""
    now = time.monotonic()
    lines = []
    for event in events:
        if event.kind == "experiment" and event.after is State.STOPPING:
            continue  # told once, when it has ended
        message = event.message.removeprefix(f"{event.reason.lower()} ") if event.reason else event.message
        why = f": {message}" if message else ""
        if event.kind == "experiment":
            lines.append(f"{event.experiment}: {event.reason or event.after}{why}")
        elif event.kind == "note":
            about = "" if event.task is None else f"{event.experiment}/{event.task}: "
            lines.append(about + event.message)
            if event.reason is EndReason.NODE_LOST:
                losses.machine(now)
        elif event.kind == "task" and event.after in _ENDED and event.reason not in (None, *FINISHED):
            line = f"{event.experiment}/{event.task}: attempt {event.attempt} {event.reason}{why}"
            is_lost = event.reason in LOST and event.after is State.RECOVERING
            lines += losses.attempt(line, now) if is_lost else [line]
    return lines + losses.due(now)


def progress_lines(view: RunView) -> Iterator[str]:
    """How far the experiments and their running tasks are."""
    for each in view.experiments:
        if each.state is State.RUNNING and each.total > 1 and not each.is_service:
            counts = each.tally
            done = counts["succeeded"] + counts["pruned"]  # what failed is no progress
            failed = f", {counts['failed']} failed" if counts["failed"] else ""
            left = "" if each.left_s is None else f", about {duration(each.left_s)} left"
            yield f"{each.name}: {done}/{each.total} tasks done, {counts['running']} running{failed}{left}"
    yield from best_lines(view, 1)
    for task in view.tasks[:4]:
        if text := task_text(task):
            yield f"{task.experiment}/{task.task}: {text}"


def best_lines(view: RunView, most: int | None = None) -> Iterator[str]:
    """A line for each of the best tasks of searches, or only for so many."""
    for name, (metric, found) in view.best.items():
        for place, each in enumerate(found[:most], 1):
            yield best_text(name, each, metric, place)


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


def goes_on_text(from_step: float, came_to: float | None, has_checkpoint: bool = True) -> str:
    """Where an attempt has begun that is not the first one, as it says itself.

    Args:
        from_step: the first step that it has shown.
        came_to: the last one of the attempt before it; None if unknown.
        has_checkpoint: there was one for it to go on from.

    >>> goes_on_text(240, 251)
    'goes on from step 240 (the attempt before had come to step 251)'
    >>> goes_on_text(10, None, has_checkpoint=False)
    'begins again without a checkpoint: the first step that it shows is 10'
    """
    was = f" (the attempt before had come to step {came_to:g})" if came_to and came_to > from_step else ""
    if not has_checkpoint:
        return f"begins again without a checkpoint: the first step that it shows is {from_step:g}{was}"
    return f"goes on from step {from_step:g}{was}"


def task_text(progress: TaskView) -> str:
    """Metrics, step rate and time left of one task."""
    parts = [metrics_text(progress.metrics)] if progress.metrics else []
    if progress.steps_per_s:
        parts.append(f"{progress.steps_per_s:.3g} steps/s")
    elif progress.examples_per_s:
        parts.append(f"{progress.examples_per_s:.3g} examples/s")
    if progress.eta_s is not None:
        parts.append(f"{duration(progress.eta_s)} left")
    return "  ".join(parts)
