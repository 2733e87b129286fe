"""`TrainingWatch`: how well what trains is measured while it runs, and what keeps it from being quoted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from trainmaster.control.task.gangs import checkpoints_of
from trainmaster.control.task.layout import attempt_id
from trainmaster.db import Note
from trainmaster.service.quotes.measured_now import MeasuredNow, RunPlace, TaskLengths
from trainmaster.service.quotes.quote_danger import missing_key
from trainmaster.service.quotes.steadiness import (
    SHOWN_AFTER_S,
    TrainingProgress,
    are_steady,
    has_trained,
    is_at_its_end,
    may_wait,
    share_done,
    waits,
)
from trainmaster.spec import Recipe
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from trainmaster.control.loop.recording import AttemptMachine
    from trainmaster.control.loop.run_state import ExperimentState, RunState, Task
    from trainmaster.control.measure.progress import TaskProgress
    from trainmaster.control.measure.run_phases import PhaseProgress


class TrainingWatch:
    """Of one run.

    Args:
        run: its id.
        recipe: of it.
        known: what was measured, with what it shows now: see `measure`.
        place: its machines.
        where: what an attempt runs on, by its id; None: what its experiment does.
        course: how far an experiment is, and when its steps end, as last foretold.
        elapsed: seconds that the run has been driven at a Unix time.
        told_before: lines of earlier drivers of the run: no warning is given twice.

    Attributes:
        recipe: the same; gangs may get other sizes.
        lengths: of its tasks.
    """

    def __init__(
        self,
        run: str,
        recipe: Recipe,
        known: MeasuredNow,
        place: RunPlace,
        where: Callable[[str], AttemptMachine] | None,
        course: Callable[[str], PhaseProgress | None],
        elapsed: Callable[[float], float],
        told_before: Collection[str],
    ) -> None:
        self._run, self.recipe, self._known, self._place = run, recipe, known, place
        self._where, self._course, self._elapsed, self._told_before = where, course, elapsed, told_before
        self.lengths = TaskLengths(recipe, known)
        #: Warnings are given once, and never for services: they do not train.
        self._warned = {*self.lengths.services}

    def measure(
        self, run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress], now: float
    ) -> None:
        """What the steps of this run say; of tasks without steps, what the store has learnt meanwhile."""
        from trainmaster.control.measure.measuring import WatchedAttempt

        for (name, number), found in progress.items():
            every_s = checkpoints_of(self.recipe.experiments[name]).every_s
            task = run_state.experiments[name].live.get(number)
            if name in self.lengths.unknown or found.trace is None or task is None or task.started_at is None:
                continue
            where = self.of_task(task)
            if where.offer not in self._place.offers(name):
                continue  # it is in another place than what is quoted
            saves_every_s = found.saves_every_s(
                task.started_at, now, every_s, is_sure=name in self._known.saves_none
            )
            measured = WatchedAttempt(
                self.recipe.experiments[name],
                found.directory,
                where.offer,
                where.cores,
                task.started_at,
                now,
                trace=found.trace,
                addresses=found.addresses,
                said_steps=found.said_steps,
                saves_every_s=saves_every_s,
            ).measurement()
            if measured is not None:
                self._known.live.setdefault(name, {})[number] = measured

    def of_task(self, task: Task) -> AttemptMachine:
        """What a task runs on."""
        if self._where is None:
            return self._place.where(task.experiment)
        return self._where(attempt_id(self._run, *task.key, task.attempt))

    def is_time(
        self, run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress], now: float
    ) -> bool:
        """True if a binding quote can be made: what runs is measured well, and the rest is known."""
        if waits(run_state) or is_at_its_end(run_state, progress):
            return False
        tasks = [task for task in run_state.live_tasks() if task.started_at is not None]
        if not any(experiment.ended for experiment in run_state.experiments.values()) and not any(
            has_trained(now - (task.started_at or now), self._share(task, progress, now)) for task in tasks
        ):
            return False
        for name, experiment in run_state.experiments.items():
            if experiment.state is State.DONE:
                continue
            if not self.lengths.is_known(name):
                return False
            if not self._is_measured(experiment, progress, now):
                return False
        return True

    def _share(
        self, task: Task, progress: Mapping[tuple[str, int], TaskProgress], now: float
    ) -> float | None:
        """Of a task's work that is done, by its steps, or by how long such tasks took."""
        found = progress.get(task.key)
        if found is not None and task.experiment not in self.lengths.unknown:
            share = share_done(found)
            return share if share is None else max(share, self._share_to_target(task, now))
        took = [m.duration_s for m in self._known.of(task.experiment)[0] if m.duration_s]
        return (now - (task.started_at or now)) / max(took) if took else None

    def _share_to_target(self, task: Task, now: float) -> float:
        """Of the work until its target is reached, as last foretold: it makes not all of its steps."""
        course = self._course(task.experiment)
        if self.recipe.experiments[task.experiment].ends_at is None or course is None or not course.left_s:
            return 0.0
        left_s = max(course.left_s - (self._elapsed(now) - course.left_at), 0.0)
        trained_s = now - (task.started_at or now)
        return trained_s / max(trained_s + left_s, 1.0)

    def _is_measured(
        self, experiment: ExperimentState, progress: Mapping[tuple[str, int], TaskProgress], now: float
    ) -> bool:
        """True if the steps of what runs of an experiment are known well in each place, or it shows none."""
        name = experiment.name
        if name in self.lengths.unknown:
            return bool(experiment.ended) or not self.lengths.is_one_of_many(name)
        running = [found for (of, _), found in progress.items() if of == name]
        same, similar = self._known.of(name)
        # What other versions of its code have shown says that steps will come, and does not stand for them:
        # until it was warned that none are seen.
        is_silent = name in self._warned and not any(map(_shows_steps, running))
        stepped = any(m.point is not None for m in (same if is_silent else [*same, *similar]))
        if not running or not stepped:
            return True
        places: dict[str, list[TrainingProgress]] = {}
        for (of, number), found in progress.items():
            if of == name and found.trace is not None:
                task = experiment.live.get(number)
                place = "" if task is None else self.of_task(task).offer
                since = now if task is None or task.started_at is None else task.started_at
                share = share_done(found) if task is None else self._share(task, progress, now)
                places.setdefault(place, []).append(TrainingProgress(found.trace, share, now - since))
        return are_steady(places.values())

    def may_wait(
        self, run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress], now: float
    ) -> bool:
        """Whether more is soon known of all that trains, and nothing has ended yet."""
        if any(experiment.ended for experiment in run_state.experiments.values()):
            return False
        tasks = [task for task in run_state.live_tasks() if task.started_at is not None]
        return all(
            may_wait(now - (task.started_at or now), self._share(task, progress, now)) for task in tasks
        )

    def warn(
        self, run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress], now: float
    ) -> list[Note]:
        """Which key to set where no quote can be made, once for each experiment."""
        lines = []
        for (name, number), found in progress.items():
            task = run_state.experiments[name].live.get(number)
            if task is None or task.started_at is None:
                continue
            if name in self._warned or name in self.lengths.endless:
                continue
            same, similar = self._known.of(name)
            by_kin = (
                not same and name not in self.lengths.unknown and any(m.point is not None for m in similar)
            )
            # It may begin as slowly as earlier versions of it did.
            after_s = SHOWN_AFTER_S + (max(m.startup_s for m in similar) if by_kin else 0.0)
            if now - task.started_at < after_s or (self.lengths.is_known(name) and not by_kin):
                continue
            what = f"the quote of {name} is by earlier versions alone" if by_kin else f"no quote for {name}"
            has_length = name not in self.lengths.unknown
            if do := missing_key(shows_steps=_shows_steps(found), has_length=has_length):
                self._warned.add(name)
                lines.append(Note(f"warning: {what}: {do}"))
        return [each for each in lines if each.message not in self._told_before]


def _shows_steps(found: TaskProgress) -> bool:
    return found.trace is not None and found.trace.first_at is not None
