"""Notes about tasks that go on: jobs that fail, metrics that nothing reports, silences."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from trainmaster.control.decide.budget import SavingMoney
from trainmaster.control.decide.effects import EffectKind, Job, Policy
from trainmaster.control.loop.run_state import RunState, Task
from trainmaster.control.task.layout import attempt_id
from trainmaster.dataclass import dataclass
from trainmaster.db import Note
from trainmaster.spec.node import nearest
from trainmaster.spec.states import State
from trainmaster.spec.units import dollars, format_duration

if TYPE_CHECKING:
    from pathlib import Path

    from trainmaster.control.loop.surroundings import Background
    from trainmaster.control.measure.progress import TaskProgress

#: What waits to be saved is reported again after so long; sooner only if there is something new.
AGAIN_S: Final = 180.0
NEWS_S: Final = 60.0
#: Saving that takes longer is told: nothing else is heard of the task meanwhile.
LONG_S: Final = 15.0
#: So long a task may report other things before a metric is missed: evaluations are rare.
MISSED_AFTER_S: Final = 60.0
#: So long without a sign of work is told, where the recipe has no `silence`.
TOLD_AFTER_S: Final = 600.0
#: What was told once is told again in so many characters.
_SHORT: Final = 120
#: How long something has taken, and the folder of a try, say nothing new of what is in the way.
_PASSING: Final = re.compile(r"\b\d+(\.\d+)? ?(ms|s)\b|\b\d+ retries\b|/files-[0-9a-f]{8}\b")


@dataclass(frozen=True, slots=True)
class _LastNote:
    """What was said of an attempt: in which state, all that, since when, and when something was last."""

    state: State
    gists: frozenset[str]
    since: float
    at: float


class JobNotes:
    """Notes about jobs that fail without an end of their task: it goes on or waits, but the user must know.

    Args:
        saving: how long what cannot be saved may wait.
    """

    def __init__(self, saving: SavingMoney) -> None:
        self._saving = saving
        self._told: dict[str, _LastNote] = {}
        self._since: dict[str, float] = {}

    def look(
        self, run_state: RunState, jobs: Background, checkpointed: Collection[str], now: float
    ) -> list[Note]:
        """What is new.

        Args:
            run_state: the run.
            jobs: of it.
            checkpointed: attempts whose checkpoints this control process publishes.
            now: Unix seconds.
        """
        notes = []
        for task in run_state.live_tasks():
            attempt = attempt_id(run_state.run, task.experiment, task.number, task.attempt)
            is_saving = task.state in (State.SAVING, State.RECOVERING)
            told = self._told.get(attempt)
            has_failed = told is not None and told.state is task.state  # why it takes long was said
            if task.state is State.RUNNING and attempt in checkpointed:
                form = "no checkpoint: {}"
            elif task.state is State.STAGING and task.try_at:  # else it is not to be tried again
                form = "not ready to start, and tried again: {}"
            elif is_saving and task.try_at:
                form = "it has ended, and saving is tried again: {}"
            elif is_saving and not has_failed and now - self._since.setdefault(attempt, now) >= LONG_S:
                self._since[attempt] = math.inf  # once
                form = "it has ended; what it left is still being saved: many files, or large ones, take long"
                notes.append(Note(form, *task.key, task.attempt))
                continue
            else:
                continue
            job = _job_of(task, jobs.of(task.experiment, task.number, task.attempt))
            if job is None or not job.done or not job.error:
                continue
            text = form.format(job.error)
            gist = _PASSING.sub("", text)
            if not self._is_news(attempt, task.state, gist, now):
                continue
            if has_failed and told is not None and gist in told.gists:
                text = f"still not saved after {format_duration(now - told.since)}: {_shortened(job.error)}"
            elif is_saving:
                text += self._until(run_state.run, job, now)
            notes.append(Note(text, *task.key, task.attempt))
        return notes

    def forget(self, attempt: str) -> None:
        """It is over."""
        self._told.pop(attempt, None)
        self._since.pop(attempt, None)

    def _is_news(self, attempt: str, state: State, gist: str, now: float) -> bool:
        told = self._told.get(attempt)
        if told is None or told.state is not state:
            told = _LastNote(state, frozenset(), now, -math.inf)
        is_saving = state in (State.SAVING, State.RECOVERING)
        since_s = now - told.at if is_saving else math.inf
        if since_s < NEWS_S or (gist in told.gists and not (is_saving and since_s >= AGAIN_S)):
            return False
        self._told[attempt] = _LastNote(state, told.gists | {gist}, told.since, now)
        return True

    def _until(self, run: str, job: Job, now: float) -> str:
        """Where something is that cannot be saved yet, and how long that may go on."""
        place = f" It is {job.place}." if job.place else ""
        left_s = self._saving.left_s()
        if left_s is None:
            return f"{place} This costs nothing: `trainmaster cancel {run}` ends it, and it stays there."
        at = time.strftime("%H:%M", time.localtime(now + left_s))
        return (
            f"{place} Machines wait for it until {dollars(self._saving.limit_usd)} are used (budget.saving), "
            f"not before {at}; then it is fetched to this machine."
        )


def _shortened(error: str) -> str:
    """The beginning of what was told in full.

    >>> _shortened("s3://b cannot be written: timed out. Look at it."), len(_shortened("x" * 500))
    ('s3://b cannot be written: timed out', 121)
    """
    first = error.partition(". ")[0]
    return first if len(first) <= _SHORT else f"{first[:_SHORT]}…"


def _job_of(task: Task, jobs: Mapping[EffectKind, Job]) -> Job | None:
    match task.state:
        case State.RUNNING:
            return jobs.get(EffectKind.CHECKPOINT)
        case State.STAGING:
            return jobs.get(EffectKind.STAGE)
        case _:
            return jobs.get(EffectKind.KEEP) or jobs.get(EffectKind.RECOVER) or jobs.get(EffectKind.SAVE)


class MetricNotes:
    """Notes about what `until` and `search` look at while tasks run; how they ended tells the rest.

    Args:
        policies: by experiment.
    """

    def __init__(self, policies: Mapping[str, Policy]) -> None:
        self._untils = {name: it.until for name, it in policies.items() if it.until is not None}
        self._searched = {name: it.searched for name, it in policies.items() if it.searched}
        self._since: dict[tuple[str, int], float] = {}

    def look(self, progress: Mapping[tuple[str, int], TaskProgress], now: float) -> list[Note]:
        """What is new; nothing of an experiment one of whose tasks has reported the metric."""
        notes = []
        for key, found in progress.items():
            name, metrics = key[0], found.metrics
            if not metrics:
                continue
            is_missed = now - self._since.setdefault(key, now) >= MISSED_AFTER_S
            until, searched = self._untils.get(name), self._searched.get(name)
            if until is not None and (is_missed or until.metric in metrics):
                del self._untils[name]
                if until.metric not in metrics:
                    words = f"{until.missed(metrics)} so far. Nothing ends this training early"
                    notes.append(Note(f"warning: {words}", name, key[1]))
            if searched and (is_missed or searched in metrics):
                del self._searched[name]
                if searched not in metrics:
                    near = nearest(searched, list(metrics))
                    words = f"{searched}, which `search` looks at, is not reported so far; reported are "
                    words += ", ".join(sorted(metrics)[:10]) + (f"; did you mean {near}?" if near else ".")
                    words += " A task that ends without it has failed"
                    notes.append(Note(f"warning: {words}", name, key[1]))
        return notes


class SilenceNotes:
    """One note for each silence of an attempt.

    Args:
        policies: of experiments whose tasks are to end; replicas may wait for requests.
    """

    def __init__(self, policies: Mapping[str, Policy]) -> None:
        self._names = {name for name, policy in policies.items() if policy.silence_s is None}
        self._told: set[Path] = set()

    def look(self, progress: Mapping[tuple[str, int], TaskProgress]) -> list[Note]:
        """What is new."""
        notes = []
        for (name, number), found in progress.items():
            if name not in self._names:
                continue
            if found.silent_s < TOLD_AFTER_S:
                self._told.discard(found.directory)
            elif found.directory not in self._told:
                self._told.add(found.directory)
                words = f"{format_duration(found.silent_s)} without a line, a metric or processor time"
                advice = "`silence: 10m` in the recipe would end it, with its stacks in its log"
                notes.append(Note(f"warning: {words}; {advice}", name, number))
        return notes
