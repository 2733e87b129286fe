"""`ProfileAttempt`: one task, run as in a run, watched closely, and stopped as soon as its speed is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from trainmaster.advisor.model.measurement import Measurement
from trainmaster.advisor.model.step_trace import MIN_SECONDS
from trainmaster.control.decide.outcome import classify
from trainmaster.control.decide.task import EffectKind, PhaseDuration
from trainmaster.control.loop.attempt_actions import AttemptActions
from trainmaster.control.loop.run_state import Task
from trainmaster.control.measure.measuring import MIN_BLOCKS, WatchedAttempt, trace_of
from trainmaster.control.measure.profile_progress import ProfilePhase, ProfileProgress
from trainmaster.control.measure.progress import TaskProgress
from trainmaster.control.task.attempt_end import FAILURE_TAIL_BYTES, explain_failure
from trainmaster.control.task.gangs import helpers_of
from trainmaster.control.task.layout import attempt_id
from trainmaster.dataclass import dataclass
from trainmaster.executors.base import Capacity, Executor, GangStatus, Phase
from trainmaster.executors.telemetry.logs import read_tail
from trainmaster.spec import Experiment, ParameterValue
from trainmaster.spec.errors import ExecutorError, InterruptedByUser, TrainmasterError, UsageError
from trainmaster.spec.states import EndReason, State

#: How often we look; no moment is known better than that.
LOOK_S = 0.02
#: How often it is asked whether that is enough, and the user is told.
JUDGE_S = 0.25
#: A member gets so long to end after SIGTERM, if the recipe grants as much: nothing of it is kept.
GRACE_S = 5.0
#: The first step may take so many times `profile.seconds`; and so may a second one after it.
PATIENCE = 3.0
_LOG_LINES = 15
#: Of a metric that is to come to a target so many reports are waited for, if there are any.
ENOUGH_REPORTS = 24
#: What it writes that measures the gradients' noise: in batches.
NOISE = "trainmaster.gradient_noise"
#: The first one is waited for that share of the window.
_FIRST_REPORT = 0.25


class NoStepsError(UsageError):
    """A task that is measured showed no steps until its time was over."""


@dataclass(frozen=True, slots=True)
class Window:
    """How long an attempt is watched.

    Attributes:
        seconds: since its first step (``profile.seconds``).
        least_s: not less, however regular the steps are.
    """

    seconds: float
    least_s: float = MIN_SECONDS


@dataclass(kw_only=True)
class ProfileAttempt:
    """One attempt at task 0 of an experiment.

    Args:
        actions: of the profile's own place.
        executor: of the user's home.
        run: id of the profile, as tasks see it.
        experiment: with a fixed number of workers.
        parameters: of the task.
        window: how long it is watched.
        cores: of the machine.
        interrupts: how often the user has pressed Ctrl-C so far.
        tell: shows how far it is.

    Attributes:
        took: how long parts of its staging took.
    """

    actions: AttemptActions
    executor: Executor
    run: str
    experiment: Experiment
    parameters: Mapping[str, ParameterValue]
    window: Window
    cores: int
    interrupts: Callable[[], int]
    tell: Callable[[ProfileProgress], None]

    def __post_init__(self) -> None:
        """Nothing is started."""
        self._task = Task(self.experiment.name, 0, State.RUNNING, attempt=1, parameters=self.parameters)
        self._context = self.actions.context(self._task)
        self._id = attempt_id(self.run, self.experiment.name, 0, 1)
        self._progress = TaskProgress.of(self._context)
        self._trace = self._progress.trace = trace_of(self._context.experiment, LOOK_S)
        self._status = GangStatus(self._id, Phase.QUEUED)
        self._launched = False
        self.took: tuple[PhaseDuration, ...] = ()
        self._stopping_since: float | None = None
        self._hurried = False
        self._judged_at = 0.0
        self._where = f"experiments.{self.experiment.name}"

    @property
    def workers(self) -> int:
        """Training processes of the gang."""
        return sum(name.startswith("worker-") for name in self._context.members)

    def measure(self, capacity: Capacity, base: Mapping[str, str]) -> Measurement:
        """Run it and see.

        Args:
            capacity: of this machine.
            base: environment that members inherit.

        Raises:
            UsageError: it cannot be set up, it fails, or it shows no steps.
            InterruptedByUser: its members have ended.
            ExecutorError: the node cannot be reached, or has lost it.
        """
        self.executor.open(self.run, capacity, base)
        self._submit()
        while self._status.phase is not Phase.EXITED:
            for status in self.executor.changes(LOOK_S):
                if status.attempt == self._id:
                    self._status = status
            now = time.time()
            self._obey(now)
            match self._status.phase:
                case Phase.UNKNOWN:  # its supervisor was killed before it began
                    self._submit()
                case Phase.GRANTED if not self._launched:
                    self._stage()
                case Phase.RUNNING:
                    self._progress.update(now)
            if now - self._judged_at >= JUDGE_S:
                self._judged_at = now
                self._judge(now)
        while self._progress.update(self._status.ended_at or time.time()):
            pass
        self.executor.forget([self._id])
        return self._result()

    # --- one look --------------------------------------------------------------------------------

    def _submit(self) -> None:
        self._launched = False
        self._status = GangStatus(self._id, Phase.QUEUED)
        self.executor.submit([self.actions.request(self._task)])

    def _obey(self, now: float) -> None:
        interrupts = self.interrupts()
        if not interrupts:
            return
        if self._status.phase in (Phase.QUEUED, Phase.GRANTED, Phase.UNKNOWN):
            self.executor.stop(self._id, 0.0)
            raise _interrupted()
        if interrupts > 1 and not self._hurried:
            self._hurried = True
            self.executor.stop(self._id, 0.0)
        self._stop(now)

    def _stage(self) -> None:
        key = (self.experiment.name, 0, 1)
        jobs = self.actions.jobs
        jobs.collect()
        job = jobs.of(*key).get(EffectKind.STAGE)
        if job is None:
            self.actions.begin(EffectKind.STAGE, self._task)
        elif job.done and job.error:
            raise UsageError(f"{self._where}: it cannot be measured: {job.error}")
        elif job.done:
            environment = self.actions.launch_environment(self._task, self._status)
            self.executor.launch(self._id, environment)
            self._launched, self.took = True, job.took

    def _judge(self, now: float) -> None:
        """Enough, or too long?"""
        if self._status.phase is not Phase.RUNNING or self._status.started_at is None:
            staging = self._status.phase is Phase.GRANTED and not self._launched
            self._show(ProfilePhase.STAGING if staging else ProfilePhase.WAITING, now)
            return
        if self._stopping_since is not None:
            self._show(ProfilePhase.STOPPING, now)
            return
        trace, limit_s = self._trace, self.window.seconds
        if trace.first_at is None:
            self._show(ProfilePhase.STARTING, now)
            if now - self._status.started_at >= PATIENCE * limit_s:
                self._stop(now)
            return
        seen_s = now - trace.first_at
        self._show(ProfilePhase.MEASURING, now, max(0.0, limit_s - seen_s))
        tight = trace.is_tight(min_seconds=min(self.window.least_s, limit_s)) and self._shows_curve(seen_s)
        over = seen_s >= limit_s and (self._is_measured() or seen_s >= PATIENCE * limit_s)
        if tight or over:
            self._stop(now)

    def _is_measured(self) -> bool:
        found = self._trace.steady()
        return found is not None and found.blocks >= MIN_BLOCKS

    def _shows_curve(self, seen_s: float) -> bool:
        """Whether enough was reported to foretell its target, if it has one and reports of it at all."""
        aimed = self._progress.aimed
        if aimed is None or len(aimed) >= ENOUGH_REPORTS:
            return True
        return not aimed and seen_s >= self.window.seconds * _FIRST_REPORT

    def _stop(self, now: float) -> None:
        if self._stopping_since is None:
            self._stopping_since = now
            self.executor.stop(self._id, min(GRACE_S, self.experiment.grace_s))

    def _show(self, phase: ProfilePhase, now: float, left_s: float | None = None) -> None:
        started_at = self._status.started_at
        found = self._trace.steady()
        self.tell(
            ProfileProgress(
                self.experiment.name,
                self.workers,
                phase,
                max(0.0, now - started_at) if started_at is not None else 0.0,
                left_s,
                round(self._trace.steps),
                found.step_time_s if found is not None else None,
            )
        )

    # --- the result ------------------------------------------------------------------------------

    def _result(self) -> Measurement:
        if self.interrupts():
            raise _interrupted()
        status, now = self._status, time.time()
        ended_by_itself = self._stopping_since is None
        if ended_by_itself:
            helpers = helpers_of(self.experiment, self._context.launcher)
            outcome = classify(status, None, helpers)
            if outcome.reason is not EndReason.SUCCEEDED:
                raise self._failure(outcome.reason, outcome.message)
        seen = WatchedAttempt(
            self.experiment,
            self._context.place.directory,
            "local",
            self.cores,
            status.started_at or now,
            now,
            status.ended_at if ended_by_itself else None,
            self._trace,
            aimed=self._progress.aimed,
            said_steps=self._progress.said_steps,
        )
        measurement = seen.measurement(MIN_BLOCKS if ended_by_itself else 1)
        noise = self._progress.metrics.get(NOISE)
        if measurement is not None and measurement.curve is not None and isinstance(noise, float):
            measurement = replace(measurement, curve=replace(measurement.curve, noise=noise))
        if measurement is None:
            raise self._no_steps((self._stopping_since or now) - (status.started_at or now))
        return measurement

    def _failure(self, reason: EndReason, message: str) -> TrainmasterError:
        if reason in (EndReason.NODE_LOST, EndReason.PREEMPTED):
            return ExecutorError(
                f"{self._where}: its task was lost while it was measured: {message}", "Try again."
            )
        _, better, _ = explain_failure(self._context)
        lines = self._last_lines()
        said = "\n".join(["The last lines of its log:", *lines]) if lines else "It wrote nothing."
        return UsageError(f"{self._where}: its task failed while it was measured: {better or message}", said)

    def _last_lines(self) -> list[str]:
        """Of the member that failed first, or of any that said something."""
        failed = sorted(
            (m for m in self._status.members if m.exit_code or m.signal), key=lambda m: m.ended_at or 0.0
        )
        names = [member.name for member in failed if not member.stopped]
        for name in dict.fromkeys([*names, *self._context.members]):
            tail = read_tail(self._context.place.directory, name, FAILURE_TAIL_BYTES)
            lines = tail.decode("utf-8", "replace").strip().splitlines()
            if lines:
                return [line[:500] for line in lines[-_LOG_LINES:]]
        return []

    def _no_steps(self, seconds: float) -> NoStepsError:
        showed = "only one step" if self._trace.first_at is not None else "no step"
        key = f"{self._where}.metrics"
        return NoStepsError(
            f"{key}: the task ran for {seconds:.0f} s and showed {showed}, so its speed cannot be measured",
            "If it prints its steps, say how: metrics: {pattern: 'step (?P<step>\\d+)'}. Else let it call "
            'trainmaster.report(step=...), or append lines such as {"step": 120} to $TRAINMASTER_METRICS. '
            f"If a step takes longer than that, raise {self._where}.profile.seconds "
            f"({self.window.seconds:g} s now).",
        )


def _interrupted() -> InterruptedByUser:
    return InterruptedByUser("the measurement was interrupted", "Nothing of it is left.")
