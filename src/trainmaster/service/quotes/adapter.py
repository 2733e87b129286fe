"""`Adapter`: tells what makes steps slow, and has another machine for it where a recipe says `adapt: true`.

What is decided is in the record of the cluster before anything is done; the next driver goes on from there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from trainmaster.control.decide.adapting import (
    SEEN_S,
    ChangeTiming,
    SlowTask,
    moment,
    why_not_replace,
    why_replace,
)
from trainmaster.control.measure.drift import Drift, DriftMeter
from trainmaster.control.task.layout import attempt_id
from trainmaster.db import Note
from trainmaster.service.quotes.adaptations import ReportedReasons, adaptable, adapted
from trainmaster.spec.states import State
from trainmaster.spec.units import format_duration

if TYPE_CHECKING:
    from trainmaster.cluster.cluster_executor import ClusterExecutor
    from trainmaster.cluster.cluster_loop import ClusterLoop
    from trainmaster.cluster.record import Machine
    from trainmaster.control.loop.run_state import RunState, Task
    from trainmaster.control.measure.progress import TaskProgress
    from trainmaster.service.cluster_costs import ClusterCosts
    from trainmaster.service.quotes.quote_tracker import QuoteTracker
    from trainmaster.service.quotes.resizer import Resizer
    from trainmaster.spec import Recipe

_LOOK_S: Final = 2.0
#: Of an attempt so many reasons to change nothing are shown.
_TOLD_MOST: Final = 3
#: Where nothing is changed it is told once of an attempt, if steps take so many times as long, for so long;
#: and that is looked for so seldom, of so many tasks at a time, one after the other.
_TOLD_FROM: Final = 1.5
_TOLD_AFTER_S: Final = 30.0
_TELL_EVERY_S: Final = 10.0
_TASKS_MOST: Final = 8


class Adapter:
    """Of one run; a `Forecaster` around its quote.

    Args:
        quote: of the run.
        recipe: of the run.
        executor: of its machines; None on this one, where there is no other.
        costs: what it has cost.
        resizer: changes the size of its gangs; None where the recipe leaves none open.
        told_before: lines of earlier drivers, with the experiment of each.
    """

    def __init__(
        self,
        quote: QuoteTracker,
        run: str,
        recipe: Recipe,
        executor: ClusterExecutor | None,
        costs: ClusterCosts | None,
        resizer: Resizer | None = None,
        told_before: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._resizer = resizer
        self._quote = quote
        self._run = run
        self._recipe = recipe
        self._names = {name for name, each in recipe.experiments.items() if each.adapt}
        self._tell_at = 0.0
        self._tell_turn = 0
        self._has_told: set[str] = set()
        self._executor = executor
        self._costs = costs
        self._meter = DriftMeter()
        self._since: dict[str, tuple[str, float]] = {}
        self._told = ReportedReasons(_TOLD_MOST, told_before)
        self._ready_at: dict[str, float] = {}
        self._asked: set[str] = set()
        self._left: set[str] = set()
        self._look_at = 0.0
        self._live: list[str] = []

    def look(
        self, run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress], now: float
    ) -> list[Note]:
        """See `Forecaster`."""
        notes = self._quote.look(run_state, progress, now)
        if now < self._look_at or run_state.state is not State.RUNNING:
            return notes
        self._look_at = now + _LOOK_S
        try:
            tasks = [
                (task, found)
                for (name, number), found in progress.items()
                if (task := run_state.experiments[name].live.get(number)) is not None
                and task.started_at is not None
            ]
            if now >= self._tell_at:
                self._tell_at = now + _TELL_EVERY_S
                others = [each for each in tasks if each[0].experiment not in self._names]
                turn = self._tell_turn % max(len(others), 1)
                self._tell_turn = turn + _TASKS_MOST
                for task, found in (others[turn:] + others[:turn])[:_TASKS_MOST]:
                    notes += self._only_tell(task, found, now)
            tasks = [each for each in tasks if each[0].experiment in self._names]
            self._live = [attempt_id(self._run, it.experiment, it.number, it.attempt) for it, _ in tasks]
            if self._left and not self._left & set(self._live) and self._live:
                self._left.clear()
                self._quote.tell_again()
            if self._resizer is not None:
                notes += self._resizer.look(run_state, progress, now)
            for task, found in tasks:
                if self._resizer is None or not self._resizer.is_changing(task):
                    notes += self._look_at_task(run_state, task, found, now)
        except Exception as error:  # noqa: BLE001 - a run must not end because it cannot be made quicker
            self._look_at = math.inf
            notes.append(Note(f"adapt: internal error: {type(error).__name__}: {error}"))
        return notes

    def _only_tell(self, task: Task, found: TaskProgress, now: float) -> list[Note]:
        """What makes steps of a task slow whose recipe leaves its machines alone, once, if it is much."""
        attempt = attempt_id(self._run, task.experiment, task.number, task.attempt)
        if found.trace is None or task.started_at is None or attempt in self._has_told:
            return []
        drift = self._meter.look(found.trace, found.directory, task.started_at, now)
        if drift is None or drift.is_own or drift.step_s < _TOLD_FROM * drift.usual_s:
            self._since.pop(attempt, None)
            return []
        _, since = self._since.setdefault(attempt, (drift.member, now))
        if now - since < _TOLD_AFTER_S:
            return []
        self._has_told.add(attempt)
        machine = self._machine(attempt, drift.member)
        words = drift.words
        if machine is not None and self._executor is not None:
            words = drift.on(_name(self._executor.loop_of(attempt), machine))
            words += "; with `adapt: true` in the recipe that is done at a checkpoint, if it pays"
        return [Note(f"{task.experiment}: {words}", task.experiment)]

    def _look_at_task(self, run_state: RunState, task: Task, found: TaskProgress, now: float) -> list[Note]:
        attempt = attempt_id(self._run, task.experiment, task.number, task.attempt)
        if found.trace is None or found.eta_s is None or task.started_at is None:
            return []
        drift = self._meter.look(found.trace, found.directory, task.started_at, now)
        loop = None if self._executor is None else self._executor.loop_of(attempt)
        if loop is not None:
            for each in loop.record.rented:
                if not each.is_slow or each.is_leaving or not self._decides(attempt, each):
                    continue
                told = [adapted(task, each.slow_why)] if each.id in self._asked else []
                self._asked.discard(each.id)  # it is written down: whoever drives the run from now on knows
                return told + self._swap(run_state, task, found, loop, each, drift, now)
        if drift is None:
            self._since.pop(attempt, None)
            return []
        member, since = self._since.get(attempt, (drift.member, now))
        if member != drift.member:
            since = now
        self._since[attempt] = (drift.member, since)
        if now - since < SEEN_S:
            return []
        machine = self._machine(attempt, drift.member)
        slow = self._slow(run_state, task, found, machine, drift, now)
        why_not = why_not_replace(slow)
        if why_not or machine is None or loop is None:
            words = drift.on(slow.machine) if machine is not None else drift.words
            return self._told.tell(task, attempt, f"{words}; nothing is changed: {why_not}")
        words = f"{drift.words}; another machine is asked for in place of {slow.machine}: {why_replace(slow)}"
        loop.replace(machine.id, words, drift.step_s / drift.usual_s)
        self._asked.add(machine.id)
        self._since.pop(attempt, None)
        return []

    def _swap(
        self,
        run_state: RunState,
        task: Task,
        found: TaskProgress,
        loop: ClusterLoop,
        machine: Machine,
        drift: Drift | None,
        now: float,
    ) -> list[Note]:
        """Go on with the machine that was asked for, once it is there and a checkpoint is new."""
        loop.want()  # another driver may have sent the members that run there
        if not loop.successor_is_there(machine):
            self._ready_at.pop(machine.id, None)
            return []
        ready_s = now - self._ready_at.setdefault(machine.id, now)
        rate = found.steps_per_s
        if drift is None and rate and found.trace is not None:
            first_at = found.trace.first_at
            # A driver that came later has not seen how quick the steps were.
            has_seen = first_at is not None and first_at < (machine.slow_at or 0.0)
            drift = Drift("", 1 / rate / (1.0 if has_seen else machine.slowdown), 1 / rate)
        if drift is None:
            return []
        slow = self._slow(run_state, task, found, machine, drift, now)
        what = moment(slow, ready_s)
        if what is ChangeTiming.WAIT:
            return []
        loop.swap(machine.id, keep=what is ChangeTiming.KEEP)
        if what is ChangeTiming.KEEP:
            left = format_duration(slow.left_s)
            return [adapted(task, f"{slow.machine} stays: a change no longer shortens the last {left}")]
        self._left.add(attempt_id(self._run, task.experiment, task.number, task.attempt))
        return [adapted(task, f"it goes on without {slow.machine}, from its newest checkpoint")]

    def _decides(self, attempt: str, machine: Machine) -> bool:
        """Whether a task is to judge a slow machine: one that works there, if any does."""
        assert self._executor is not None
        there = [each for each in self._live if machine.id in self._executor.machines_of(each)]
        return attempt in there or not there

    def _machine(self, attempt: str, member: str) -> Machine | None:
        """What a member runs on, if another machine may take its place."""
        if self._executor is None or not member:
            return None
        return self._executor.machine_of(attempt, member)

    def _slow(
        self,
        run_state: RunState,
        task: Task,
        found: TaskProgress,
        machine: Machine | None,
        drift: Drift,
        now: float,
    ) -> SlowTask:
        """All that the decision rests on."""
        attempt = attempt_id(self._run, task.experiment, task.number, task.attempt)
        more: dict[str, str | float] = {"usual_s": drift.usual_s, "step_s": drift.step_s}
        changed: list[float | None] = []
        if self._executor is None or machine is None:
            more["machine"] = "its machine" if drift.member else ""
            more["kept"] = "there is no other machine to go on with"
        else:
            loop = self._executor.loop_of(attempt)
            changed = [each.slow_at for each in loop.record.machines]
            more["machine"], more["kept"] = _name(loop, machine), self._executor.why_kept(machine)
            more["usd_per_hour"] = loop.record.usd_per_hour()
            more["machine_usd_per_hour"] = machine.rental.usd_per_hour
        return adaptable(SlowTask, self._recipe, run_state, task, found, self._costs, changed, now, **more)


def _name(loop: ClusterLoop, machine: Machine) -> str:
    """Of a machine, for people.

    >>> from types import SimpleNamespace as Some
    >>> _name(Some(record=Some(name_of=lambda _: "node-2")), Some(seat="worker-1", id="i-1"))
    'node-2 (i-1)'
    """
    return f"{loop.record.name_of(machine.seat)} ({machine.id})"
