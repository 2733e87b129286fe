"""When a binding quote may be made: what runs goes on as it will, and enough of it is left. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from trainmaster.advisor.model.step_trace import StepTrace
    from trainmaster.control.loop.run_state import ExperimentState, RunState, Task
    from trainmaster.control.measure.progress import TaskProgress

    Progresses = Mapping[tuple[str, int], TaskProgress]

#: A binding quote is made when steps are steady, and no sooner; of short runs after less, and such a share.
BINDING_AFTER_S: Final = 10.0
_SHORT_AFTER_S: Final = 3.0
_SHORT_SHARE: Final = 1 / 6
#: Of a short run a quote that is wider than this (p95 by median) is put off: each second makes it narrower.
NARROW: Final = 1.25
#: One that is wider than this promises nothing: none is bound then.
WIDEST: Final = 4.0
_SHARE_TO_WAIT_FOR: Final = 0.4
#: An estimate that leaves less than this share of what a run has taken is of another kind of run.
_LITTLE_MORE: Final = 0.2
#: It is made at the latest when steady steps were measured for so long, or for such a share.
_ENOUGH_S: Final = 30.0
_ENOUGH_SHARE: Final = 0.35
_TIGHT: Final = 0.05
_TIGHT_S: Final = 2.5
#: A task that has run for so long and shows no steps may never show any.
SHOWN_AFTER_S: Final = 60.0
#: A quote of less says nothing that its reader could still use.
LEAST_LEFT_S: Final = 5.0
LEAST_LEFT_SHARE: Final = 0.1
#: Tasks of which more is done are at their end.
_AT_ITS_END: Final = 0.95
#: Reports come every so often, so that of an earlier one the last steps may not have been seen.
_BEYOND: Final = 0.05
_BEGUN_AGAIN: Final = frozenset(
    {State.WAITING, State.PLANNED, State.ACQUIRING, State.STAGING, State.RECOVERING}
)


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """What a task has shown.

    Attributes:
        trace: of its steps.
        share: of its work that is done; None if unknown.
        trained_s: since its members started.
    """

    trace: StepTrace
    share: float | None
    trained_s: float

    @property
    def is_steady(self) -> bool:
        """Whether its steps are known well."""
        from trainmaster.control.measure.measuring import MIN_BLOCKS  # most runs show no steps

        trace, found = self.trace, self.trace.steady()
        return (found is not None and found.blocks >= MIN_BLOCKS) and (  # else they are not measured
            trace.is_tight(_TIGHT, min_seconds=_TIGHT_S)
            or (trace.last_at or 0) - (trace.first_at or 0) >= _ENOUGH_S
            or (self.share is not None and self.share >= _ENOUGH_SHARE)
        )

    @property
    def is_silent(self) -> bool:
        """Whether it has long had the time to show steps, and nothing follows from what it has shown."""
        return self.trained_s >= SHOWN_AFTER_S and self.trace.steady() is None


def are_steady(places: Collection[Sequence[TrainingProgress]]) -> bool:
    """Whether steps are known well in each place of an experiment.

    A place whose tasks show none is quoted by the others and by published figures: they do not wait for it.
    """
    known = [any(task.is_steady for task in tasks) for tasks in places]
    return any(known) and all(
        good or any(task.is_silent for task in tasks) for good, tasks in zip(known, places, strict=True)
    )


def is_upset(run_state: RunState, progress: Progresses, now: float, stepless: Collection[str]) -> bool:
    """Whether something has to begin again, and does not train steadily yet: a machine was lost, say.

    A task that only waits for its turn beside others of its sweep upsets nothing.

    Args:
        run_state: of the run.
        progress: of its tasks.
        now: Unix seconds.
        stepless: experiments that need not show steps: they are where they were as soon as one of them runs.
    """
    for name, experiment in run_state.experiments.items():
        tasks = experiment.live.values()
        running = [task for task in tasks if task.state is State.RUNNING]
        if name in stepless and running:
            continue
        goes_on = any(not _begins_again(task, progress, now) for task in running)
        under_way = [task for task in tasks if not (goes_on and task.state is State.WAITING)]
        if any(_begins_again(task, progress, now) for task in under_way):
            return True
    return False


def begins_again(tasks: Sequence[Task], progress: Progresses, now: float) -> bool:
    """Whether all that is under way of an experiment has to begin again."""
    return bool(tasks) and all(_begins_again(task, progress, now) for task in tasks)


def is_saving(experiment: ExperimentState) -> bool:
    """Whether all that is left of an experiment is being saved."""
    is_last = sum(experiment.ended.values()) + len(experiment.live) == experiment.total
    states = {task.state for task in experiment.live.values()}
    return is_last and bool(states) and states <= {State.SAVING, State.STOPPING}


def waits(run_state: RunState) -> bool:
    """Whether an experiment that could go on has nothing that runs: it waits, or its ``setup`` is made."""
    return any(_waits(experiment) for experiment in run_state.experiments.values())


def is_at_its_end(run_state: RunState, progress: Progresses) -> bool:
    """Whether all that is left are last steps, and what comes after them."""
    left = [each for each in run_state.experiments.values() if each.state is not State.DONE]
    return all(each.state is State.RUNNING and _is_at_its_end(each, progress) for each in left)


def matters(time_s: float, elapsed_s: float) -> bool:
    """Whether enough of a run is left for a quote.

    >>> matters(100.0, 20.0), matters(100.0, 95.0), matters(1000.0, 920.0)
    (True, False, False)

    Args:
        time_s: that it will have taken in all.
        elapsed_s: that it has taken.
    """
    return time_s - elapsed_s >= max(LEAST_LEFT_S, LEAST_LEFT_SHARE * time_s)


def has_outlived(time_s: float, elapsed_s: float) -> bool:
    """Whether a run goes on when it should be over, so that what is known of such runs is not true of it.

    >>> has_outlived(1.3, 1.1), has_outlived(3.7, 1.1)
    (True, False)

    Args:
        time_s: that it should take in all; what is late is given a little more.
        elapsed_s: that it has taken.
    """
    return time_s - elapsed_s < _LITTLE_MORE * elapsed_s


def has_trained(trained_s: float, share: float | None) -> bool:
    """Whether enough was seen of a training: 10 s, or of one that will be short a sixth, and 3 s.

    >>> has_trained(4.0, 0.2), has_trained(4.0, 0.05), has_trained(10.0, None), has_trained(4.0, None)
    (True, False, True, False)

    Args:
        trained_s: since its members started.
        share: of its work that is done; None if unknown.
    """
    return trained_s >= BINDING_AFTER_S or (
        trained_s >= _SHORT_AFTER_S and share is not None and share >= _SHORT_SHARE
    )


def may_wait(trained_s: float, share: float | None) -> bool:
    """Whether a quote that is still wide may be put off: until 10 s of training, or two fifths of it.

    >>> may_wait(4.0, 0.2), may_wait(4.0, 0.5), may_wait(10.0, 0.2), may_wait(4.0, None)
    (True, False, False, False)

    Args:
        trained_s: since its members started.
        share: of its work that is done; None if unknown.
    """
    return trained_s < BINDING_AFTER_S and share is not None and share < _SHARE_TO_WAIT_FOR


def share_done(found: TaskProgress, now: float | None = None) -> float | None:
    """Fraction of a task's steps that are done; None if unknown.

    A script that goes on from a checkpoint counts on: its own number tells more than what was seen of it.
    One that numbers the steps of each epoch from the start tells less.

    Args:
        found: how far the task is.
        now: Unix seconds: until then it has gone on since its newest report, at most as far as to the next.
    """
    step, trace = found.metrics.get("step"), found.trace
    seen = trace.steps_done if trace is not None and trace.first_at is not None else None
    if isinstance(step, int | float) and math.isfinite(step):
        seen = max(float(step), seen or 0.0)
    if seen is not None and now is not None and trace is not None:
        seen += trace.steps_since(now)
    return None if seen is None or not found.total_steps else max(seen, 0.0) / found.total_steps


def has_passed(steps: float, most: int) -> bool:
    """Whether a task goes on beyond the steps that such tasks made until now.

    >>> has_passed(201, 200), has_passed(212, 200), has_passed(50, 0)
    (False, True, False)

    Args:
        steps: that it has made.
        most: of them; 0 if unknown.
    """
    return most > 0 and steps > most * (1 + _BEYOND) + 1


def _begins_again(task: Task, progress: Progresses, now: float) -> bool:
    if task.state is State.RECOVERING:
        return True
    if task.attempt < 2:  # the first one begins as it was quoted
        return False
    if task.state is State.RUNNING:
        found, since = progress.get(task.key), now if task.started_at is None else task.started_at
        shows_none = found is None or found.trace is None or found.trace.steady() is None
        return shows_none and now - since < SHOWN_AFTER_S
    return task.state in _BEGUN_AGAIN


def _waits(experiment: ExperimentState) -> bool:
    states = {task.state for task in experiment.live.values()}
    return (
        experiment.state is State.RUNNING
        and bool(states & {State.WAITING, State.PLANNED, State.ACQUIRING, State.STAGING})
        and not states & {State.RUNNING, State.SAVING}
    )


def _is_at_its_end(experiment: ExperimentState, progress: Progresses) -> bool:
    if sum(experiment.ended.values()) + len(experiment.live) < experiment.total:
        return False
    for task in experiment.live.values():
        if task.state is State.SAVING:
            continue
        found = progress.get(task.key)
        if task.state is not State.RUNNING or found is None or (share_done(found) or 0.0) < _AT_ITS_END:
            return False
    return True
