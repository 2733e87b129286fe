"""`Recorder`: the attempts of a run are measurements too; it keeps them beside those of profiles.

Cheap, because every task of every run passes by: of tasks without steps only the first few are kept, and
what it takes to make a measurement is imported when the first one is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.control.task.gangs import sized
from trainmaster.control.task.layout import attempt_id
from trainmaster.dataclass import dataclass, field
from trainmaster.executors.base import GangStatus, Phase
from trainmaster.spec.facts import RunFacts

if TYPE_CHECKING:
    from trainmaster.advisor.model.measurement import Measurement
    from trainmaster.control.decide.task import Effect, EffectKind, Job, PhaseDuration, Policy
    from trainmaster.control.loop.run_state import Task
    from trainmaster.control.measure.progress import TaskProgress
    from trainmaster.spec import Recipe

#: Per experiment, kind of machine and control process: tasks without steps whose duration is kept, attempts
#: with steps, and how often a phase of the same content.
MOST_DURATIONS = 20
MOST_TRACES = 100
MOST_PHASES = 3
#: A long attempt is kept that often while it runs.
KEEP_EVERY_S = 60.0
#: A driver that follows an attempt only later than that has not seen its first steps.
LATE_S = 5.0
#: What is left of a file when an attempt has ended: at most so many pieces of it are read.
_LAST_READS = 4


@dataclass(frozen=True, slots=True)
class Recorded:
    """A measurement of an attempt.

    Attributes:
        attempt: its id; a later one with it takes its place.
        experiment: name.
        measurement: what it showed.
    """

    attempt: str
    experiment: str
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class AttemptMachine:
    """The kind of machine that attempts run on.

    Attributes:
        offer: name of the instance type, or ``local``.
        cores: of one machine.
        was_there: an earlier run has kept it.
    """

    offer: str
    cores: int
    was_there: bool = False


@dataclass(frozen=True, slots=True)
class RecordedPhase:
    """A phase of an attempt that comes once, such as its ``setup``.

    Attributes:
        attempt, experiment: whose. took: how long it took. offer: as in `AttemptMachine`. at: Unix seconds.
    """

    attempt: str
    experiment: str
    took: PhaseDuration
    offer: str
    at: float


@dataclass(slots=True)
class _Followed:
    """An attempt that was seen to run long enough to be looked at."""

    progress: TaskProgress
    kept_at: float
    late: bool


@dataclass(kw_only=True)
class Recorder:
    """Of one run, in one control process.

    Args:
        run: its id.
        recipe: of the run.
        policies: tell which members' ends say nothing.
        where: what an attempt runs on, by its id; until it is forgotten.
        attempt_directory: of an experiment, task and attempt.
        keep: stores measurements; must not raise.
        keep_phases: stores phases that come once; must not raise.
        facts: what was found out of the run: attempts may have other sizes than the recipe says.
    """

    run: str
    recipe: Recipe
    policies: Mapping[str, Policy]
    where: Callable[[str], AttemptMachine]
    attempt_directory: Callable[[str, int, int], Path]
    keep: Callable[[Sequence[Recorded]], None]
    keep_phases: Callable[[Sequence[RecordedPhase]], None] = lambda _: None
    facts: RunFacts = field(default_factory=RunFacts)
    _followed: dict[str, _Followed] = field(default_factory=dict, init=False)
    _durations: list[tuple[Effect, GangStatus, AttemptMachine]] = field(default_factory=list, init=False)
    _short: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)
    _traced: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)
    _phases: Counter[tuple[str, str, str, str]] = field(default_factory=Counter, init=False)

    def look(self, task: Task, progress: TaskProgress, gang: GangStatus | None, now: float) -> None:
        """A task runs, and this is what it has told so far; what a service does is no measure of anything."""
        if self.recipe.experiments[task.experiment].serve is not None:
            return
        attempt = attempt_id(self.run, task.experiment, task.number, task.attempt)
        known = self._followed.get(attempt)
        if known is None:
            started_at = gang.started_at if gang is not None else None
            late = started_at is None or now - started_at > LATE_S
            self._followed[attempt] = _Followed(progress, now, late)
        elif now - known.kept_at >= KEEP_EVERY_S:
            known.kept_at = now
            where = self.where(attempt)
            if gang is not None and self._traced[task.experiment, where.offer] < MOST_TRACES:
                found = self._measure(task, known, progress.directory, gang, where, None, now)
                if found is not None:
                    self.keep([Recorded(attempt, task.experiment, found)])

    def took(
        self,
        effect: Effect,
        jobs: Mapping[EffectKind, Job],
        now: float,
        *,
        place_s: float | None = None,
        launch_s: float | None = None,
    ) -> None:
        """An attempt is over: how long what was done for it took.

        What is brought to a machine is there for those that come later: the first one of each kind counts.

        Args:
            effect: forgets it.
            jobs: what was done for it.
            now: by the clock of whoever drives it.
            place_s: from asking for its place until it was launched; None: others may have been in its way.
                Machines that were there before the run are waited for that long, less the staging.
            launch_s: from then on until it ran, which is staging, too; None: that was not seen.
        """
        attempt = attempt_id(self.run, effect.experiment, effect.task, effect.attempt)
        took = [each for job in jobs.values() for each in job.took]
        if not took:
            return
        where, found = self.where(attempt), []
        if where.was_there and place_s is not None:
            from trainmaster.control.decide.task import PhaseDuration

            staged_s = sum(each.seconds for each in took if each.phase != "saving")
            took.append(PhaseDuration("machines", "", max(place_s - staged_s, 0.0)))
        for each in took:
            offer, most = where.offer, 1 if each.content else MOST_PHASES
            key = effect.experiment, offer, each.phase, each.content
            if self._phases[key] < most:
                self._phases[key] += 1
                more_s = max(launch_s or 0.0, 0.0) if each.phase == "staging" else 0.0
                whole = replace(each, seconds=each.seconds + more_s)
                found.append(RecordedPhase(attempt, effect.experiment, whole, offer, now))
        if found:
            self.keep_phases(found)

    def ended(self, effect: Effect, gang: GangStatus | None, now: float) -> None:
        """An attempt is over, and its end is recorded."""
        if self.recipe.experiments[effect.experiment].serve is not None:
            return
        attempt = attempt_id(self.run, effect.experiment, effect.task, effect.attempt)
        known = self._followed.pop(attempt, None)
        if gang is None or gang.phase is not Phase.EXITED or gang.started_at is None or gang.ended_at is None:
            return
        known, where = known or self._unseen(effect, now), self.where(attempt)
        kind = effect.experiment, where.offer
        if known is not None and self._traced[kind] < MOST_TRACES:
            for _ in range(_LAST_READS):
                if not known.progress.update(gang.ended_at):
                    break
            # What was stopped as it had come to its target is whole, whatever its script made of that.
            end = gang.ended_at if known.progress.reached else self._end_of(effect, gang)
            directory = known.progress.directory
            found = self._measure(effect, known, directory, gang, where, end, now)
            if found is not None and (found.point is not None or found.curve is not None):
                self._traced[kind] += 1
                self.keep([Recorded(attempt, effect.experiment, found)])
                return
        if self._short[kind] < MOST_DURATIONS and self._end_of(effect, gang) is not None:
            self._short[kind] += 1
            self._durations.append((effect, gang, where))
            if self._short[kind] == MOST_DURATIONS:
                self.flush(now)

    def _unseen(self, effect: Effect, now: float) -> _Followed | None:
        """What ended before it was looked at: its reports count where they are to come to a target."""
        experiment = self.recipe.experiments[effect.experiment]
        if experiment.ends_at is None:
            return None
        from trainmaster.control.measure.progress import progress_left

        directory = self.attempt_directory(effect.experiment, effect.task, effect.attempt)
        return _Followed(progress_left(experiment, directory), now, late=True)

    def flush(self, now: float) -> None:
        """Keep what was put by."""
        found, self._durations = self._durations, []
        recorded = []
        for effect, gang, where in found:
            directory = self.attempt_directory(effect.experiment, effect.task, effect.attempt)
            end = self._end_of(effect, gang)
            measured = self._measure(effect, None, directory, gang, where, end, now)
            if measured is not None:
                attempt = attempt_id(self.run, effect.experiment, effect.task, effect.attempt)
                recorded.append(Recorded(attempt, effect.experiment, measured))
        if recorded:
            self.keep(recorded)

    def _end_of(self, effect: Effect, gang: GangStatus) -> float | None:
        """When it ended, if it ended by itself and well."""
        from trainmaster.control.decide.outcome import classify

        outcome = classify(gang, None, self.policies[effect.experiment].helpers)
        return gang.ended_at if outcome.reason.is_success else None

    def _measure(
        self,
        of: Task | Effect,
        followed: _Followed | None,
        directory: Path,
        gang: GangStatus,
        where: AttemptMachine,
        ended_at: float | None,
        now: float,
    ) -> Measurement | None:
        from trainmaster.control.measure.measuring import WatchedAttempt

        started_at = gang.started_at or now
        experiment = sized(self.recipe.experiments[of.experiment], self.facts, of.attempt)
        seen = WatchedAttempt(
            experiment,
            directory,
            where.offer,
            where.cores,
            started_at,
            now,
            ended_at,
            addresses=gang.addresses,
        )
        if followed is None:
            return seen.measurement()
        progress, every_s = followed.progress, self.policies[of.experiment].checkpoint_every_s
        saves_every_s = progress.saves_every_s(
            started_at, ended_at or now, every_s, is_sure=ended_at is not None
        )
        trace = progress.trace
        if followed.late and trace is not None and not trace.knows_start(started_at):
            trace = None
        told = replace(seen, trace=trace, aimed=progress.aimed, said_steps=progress.said_steps)
        return replace(told, saves_every_s=saves_every_s).measurement()
