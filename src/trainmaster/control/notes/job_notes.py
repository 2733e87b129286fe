"""`JobNotes`: jobs that fail without an end of their task: it goes on or waits, but the user must know."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trainmaster.control.decide.effects import EffectKind, Job
from trainmaster.control.decide.saving_money import SavingMoney
from trainmaster.control.loop.run_state import RunState, Task
from trainmaster.control.task.layout import attempt_id
from trainmaster.db import Note
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from trainmaster.control.loop.surroundings import Background

#: What waits to be saved is reported again after so long; sooner only if there is something new.
AGAIN_S: Final = 180.0
NEWS_S: Final = 60.0

#: How long something has taken says nothing new of what is in the way.
_DURATION: Final = re.compile(r"\b\d+(\.\d+)? ?(ms|s)\b")


@dataclass(frozen=True, slots=True)
class _Told:
    """What was said of an attempt last: in which state it was, what, and when."""

    state: State
    gist: str
    at: float


class JobNotes:
    """Notes about the jobs of a run.

    Args:
        saving: how long what cannot be saved may wait.
    """

    def __init__(self, saving: SavingMoney) -> None:
        self._saving = saving
        self._told: dict[str, _Told] = {}

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
            if task.state is State.RUNNING and attempt in checkpointed:
                form = "no checkpoint: {}"
            elif task.state is State.STAGING and task.try_at:  # else it is not to be tried again
                form = "not ready to start, and tried again: {}"
            elif is_saving and task.try_at:
                form = "it has ended, and saving is tried again: {}"
            else:
                continue
            job = _job_of(task, jobs.of(task.experiment, task.number, task.attempt))
            if job is None or not job.done or not job.error:
                continue
            text = form.format(job.error)
            if not self._is_news(attempt, task.state, _DURATION.sub("", text), now):
                continue
            until = self._until(run_state.run, job, now) if is_saving else ""
            notes.append(Note(text + until, *task.key, task.attempt))
        return notes

    def forget(self, attempt: str) -> None:
        """It is over."""
        self._told.pop(attempt, None)

    def _is_news(self, attempt: str, state: State, gist: str, now: float) -> bool:
        told = self._told.get(attempt)
        if told is not None and told.state is state:
            is_saving = state in (State.SAVING, State.RECOVERING)
            since_s = now - told.at if is_saving else math.inf
            if since_s < NEWS_S or (told.gist == gist and not (is_saving and since_s >= AGAIN_S)):
                return False
        self._told[attempt] = _Told(state, gist, now)
        return True

    def _until(self, run: str, job: Job, now: float) -> str:
        """Where something is that cannot be saved yet, and how long that may go on."""
        place = f" It is {job.place}." if job.place else ""
        left_s = self._saving.left_s()
        if left_s is None:
            return f"{place} This costs nothing: `trainmaster cancel {run}` ends it, and it stays there."
        at = time.strftime("%H:%M", time.localtime(now + left_s))
        return (
            f"{place} Machines wait for it until ${self._saving.limit_usd:.2f} are used (budget.saving), "
            f"not before {at}; then it is fetched to this machine."
        )


def _job_of(task: Task, jobs: Mapping[EffectKind, Job]) -> Job | None:
    match task.state:
        case State.RUNNING:
            return jobs.get(EffectKind.CHECKPOINT)
        case State.STAGING:
            return jobs.get(EffectKind.STAGE)
        case _:
            return jobs.get(EffectKind.KEEP) or jobs.get(EffectKind.RECOVER) or jobs.get(EffectKind.SAVE)
