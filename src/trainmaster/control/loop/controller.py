"""`Controller`: observes, decides, commits, acts, until its run is over.

One process drives a run, as long as it holds the run's lease. It may be killed at any line:
what is committed is true, and every effect may be repeated by the next controller.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from trainmaster.control.decide.budget import Meter, SavingMoney
from trainmaster.control.decide.effects import Effect, EffectKind, MoreMemory, ObservedTask, Policy
from trainmaster.control.decide.queue_wait import Awaited
from trainmaster.control.loop.reconcile import Reconciliation, reconcile
from trainmaster.control.loop.run_state import RunState, Task
from trainmaster.control.loop.surroundings import (
    Actions,
    Clusters,
    CostAllowance,
    Forecaster,
    OwnMachine,
    RunRecords,
    Watcher,
)
from trainmaster.control.notes.task_notes import JobNotes, MetricNotes, SilenceNotes
from trainmaster.control.task.layout import attempt_id
from trainmaster.dataclass import dataclass, field
from trainmaster.db import Change, Lease, Note
from trainmaster.db.leases import LEASE_S, RENEW_S
from trainmaster.executors.base import Executor, GangStatus, Phase
from trainmaster.spec.clocks import slept_s, steady_s
from trainmaster.spec.errors import (
    InterruptedByUser,
    LeaseLostError,
    StoreError,
    TrainmasterError,
    UsageError,
    one_line,
)
from trainmaster.spec.gate import Gate, GateResult
from trainmaster.spec.states import EndReason, State
from trainmaster.spec.units import format_duration

if TYPE_CHECKING:
    from trainmaster.control.loop.recording import Recorder
    from trainmaster.control.loop.services import Services
    from trainmaster.control.measure.progress import TaskProgress
    from trainmaster.control.notes.store_silence import StoreSilence

#: So long machines are looked for once somebody has asked for the end.
FIND_S = 60.0
#: How often the loop looks whether a background job has ended.
JOB_POLL_S = 0.01
#: Before a run is left all of it is saved once; after so long what was saved is old.
LEAVES_S = 60.0
FORECAST_LOOK_S = 1.0
#: A clock that differs by less was not set.
SET_S = 2.0
MACHINES_LOOK_S = 0.5
#: Ends of a run whose machines cannot be had: they are not waited for.
_WITHOUT_MACHINES = (EndReason.INTERNAL, EndReason.USER_ERROR)
SAVING_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class LoopIntervals:
    """How often a controller does what it does by itself, in seconds.

    Attributes:
        idle_s: longest sleep; also how late a `cancel` of another process or a signal may be seen.
        progress_s: what running tasks report is read.
        stored_s: the last of that is written down.
    """

    idle_s: float = 0.2
    progress_s: float = 0.5
    stored_s: float = 2.0


USUAL_PACE = LoopIntervals()


@dataclass(kw_only=True)
class Controller:
    """Drives one run to its end.

    Args:
        database: the database.
        lease: the right to drive the run.
        run_state: the run as recorded.
        actions: performs what is decided.
        executor: opened for this run.
        policies: per experiment.
        watcher: shows what happens.
        meter: what it costs, and may cost.
        allowance: lets it cost less, where others draw on the same money.
        forecaster: compares it with its quote.
        recorder: keeps what the attempts show of their speed.
        machines: rents what the run needs.
        saving: how long its machines may wait for something to be saved.
        silence: whether the store of its models answers; without it that is taken for granted.
        judge: what a gate says of an experiment of the run by what is recorded; needed where there is one.
        services: look after the experiments that serve; needed where there is one.
        clock: gives Unix seconds that never jump.
        wall: gives Unix seconds as other processes have them, for what they read.
        slept: gives seconds that this machine has been suspended.
        pace: how often it looks.
        leaves: says whether another driver goes on from now on; asked while nothing of ours is under way.

    Attributes:
        is_over: the run is recorded to be DONE. If that cannot be written, another driver goes on with all
            that is there.
    """

    database: RunRecords
    lease: Lease
    run_state: RunState
    actions: Actions
    executor: Executor
    policies: Mapping[str, Policy]
    watcher: Watcher | None = None
    meter: Meter | None = None
    allowance: CostAllowance | None = None
    forecaster: Forecaster | None = None
    recorder: Recorder | None = None
    machines: Clusters = field(default_factory=OwnMachine)
    saving: SavingMoney = field(default_factory=SavingMoney)
    silence: StoreSilence | None = None
    judge: Callable[[str, Gate], GateResult] | None = None
    services: Services | None = None
    clock: Callable[[], float] = steady_s
    wall: Callable[[], float] = time.time
    slept: Callable[[], float] = slept_s
    pace: LoopIntervals = USUAL_PACE
    leaves: Callable[[], bool] | None = None
    interrupts: int = field(default=0, init=False)
    is_over: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Nothing is known of any attempt yet."""
        self.jobs = self.actions.jobs
        self._notes = JobNotes(self.saving)
        self._metric_notes = MetricNotes(self.policies)
        experiments = self.run_state.experiments
        ends = {name: it for name, it in self.policies.items() if not experiments[name].serves}
        self._silence_notes = SilenceNotes(ends)
        self._gangs: dict[str, GangStatus] = {}
        self._launched: dict[str, float] = {}  # when, by our clock
        self._first: tuple[str, float] | None = None  # the first attempt, and when it was submitted
        self._stopping: dict[str, float] = {}
        self._checkpoint_at: dict[str, float] = {}
        self._running_since: dict[str, float] = {}  # by our clock: nodes have their own
        self._progress: dict[tuple[str, int], TaskProgress] = {}
        self._doomed: dict[tuple[str, int], str] = {}
        self._reached: dict[str, str] = {}
        self._wanted: EndReason | None = None
        self._why_wanted = ""
        self._cancelled: Mapping[str, str] = {}
        self._renewed_at = self._forecast_at = self._turned_at = self.clock()
        self._ahead_s, self._slept_s = self.wall() - self._renewed_at, self.slept()
        self._read_at = self._stored_at = self._asked_at = self._machines_at = self._saving_at = 0.0
        self._left_s = math.inf
        self._leaves_at = -math.inf
        self._saved_to_leave: set[str] = set()

    @property
    def is_idle(self) -> bool:
        """True if nothing is remembered of any attempt: all were forgotten as they ended."""
        return not (self._gangs or self._launched or self._stopping or self._checkpoint_at)

    def interrupt(self) -> int:
        """Ctrl-C: the first asks the members to stop, the second does not wait for them. Signal-safe.

        Returns:
            How often that was asked.
        """
        self.interrupts += 1
        return self.interrupts

    def run(self) -> RunState:
        """Drive the run until it is DONE, or left to another driver.

        Raises:
            InterruptedByUser: the user interrupted it; its members have ended, it can be resumed.
            LeaseLostError: another process drives it now.
            StoreError: the database refused a write.
            ExecutorError: the node cannot be reached.
        """
        self._adopt()
        while True:
            now = self.clock()
            told: list[Change] = [*self._look_at_machines(now), *self._watch_budget(now)]
            self._watch_saving(now)
            self._ask_gates()
            wanted = EndReason.CANCELLED if self.interrupts else self._wanted
            if self.services is not None and wanted is None:
                told += self.services.look(self.run_state, self._gangs, now)
            turn = reconcile(self.run_state, self._look, self.policies, self.actions.columns, wanted, now)
            turn.changes += self._progress_changes(now)
            turn.changes += self._notes.look(self.run_state, self.jobs, self._checkpoint_at, now)
            turn.changes += self._metric_notes.look(self._progress, now)
            turn.changes += self._silence_notes.look(self._progress)
            if self.silence is not None:
                turn.changes += self.silence.look(self.run_state, self.jobs.pending, now)
            turn.changes += self._clock_notes(now)
            turn.changes += self._undriven(now) + self._waits(now)
            turn.changes += self._forecasts(now)
            turn.changes += told
            if turn.changes:
                self.database.commit(self.lease, turn.changes, self.wall())
                self._renewed_at = now
            self.is_over = self.run_state.state is State.DONE
            for effect in turn.effects:
                if effect.kind is EffectKind.CHECKPOINT and self._is_saved_to_leave(effect, now):
                    continue
                self._keep_lease()  # a driver that slept while another took over must not act any more
                self._perform(effect)
            if self.watcher:
                self.watcher.turned(self.run_state, turn, self._progress)
            if self.run_state.state is State.DONE:
                break
            is_due = self.leaves is not None and self._is_at_rest() and self.leaves()
            if is_due and self._is_all_saved(now):
                return self.run_state
            self._observe(0.0 if turn.changes else JOB_POLL_S if self.jobs.pending else self.pace.idle_s)
        if self.recorder is not None:
            self.recorder.flush(self.clock())
        if self.interrupts:
            raise self.interrupted
        return self.run_state

    @property
    def interrupted(self) -> InterruptedByUser:
        """What is raised after Ctrl-C."""
        run = self.run_state.run
        return InterruptedByUser(f"{run} was interrupted", f"`trainmaster resume {run}` goes on with it.")

    def _is_at_rest(self) -> bool:
        """Whether nothing is under way, and what was launched is recorded to run."""
        return not self.jobs.pending and not any(
            task.state is State.STAGING and self._id(task) in self._launched
            for task in self.run_state.live_tasks()
        )

    def _is_all_saved(self, now: float) -> bool:
        """Whether all that runs was saved just now; what was not is, and then it is asked again."""
        if now - self._leaves_at > LEAVES_S:
            self._leaves_at = now
            self._saved_to_leave.clear()
        left = [
            Effect(EffectKind.CHECKPOINT, task.experiment, task.number, task.attempt)
            for task in self.run_state.live_tasks()
            if task.state is State.RUNNING and self._id(task) not in self._saved_to_leave
        ]
        for each in left:
            self._saved_to_leave.add(self._attempt(each))
            self._perform(each)
        return not left

    def _is_saved_to_leave(self, effect: Effect, now: float) -> bool:
        """Whether it need not be saved once more: where that takes long, there would never be an end."""
        return now - self._leaves_at <= LEAVES_S and self._attempt(effect) in self._saved_to_leave

    # --- observing ---------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Learn what became of the attempts that an earlier controller had begun."""
        tasks = {self._id(task): task for task in self.run_state.live_tasks() if task.attempt}
        self._find(list(tasks))
        for status in self.executor.observe(list(tasks)):
            if tasks[status.attempt].state is not State.WAITING:
                self._gangs[status.attempt] = status
                if status.started_at is not None:
                    # A node's clock may be behind ours: no member began before its attempt was opened.
                    began = max(status.started_at, tasks[status.attempt].opened_at - self._ahead_s)
                    self._running_since[status.attempt] = min(began, self.clock())
                if State.RUNNING is (task := tasks[status.attempt]).state or status.phase is Phase.RUNNING:
                    self.actions.adopt(task)
            elif status.phase is Phase.EXITED:  # recorded, but its controller died before it said so
                self.executor.forget([status.attempt])
        self._wanted = self.database.stop_wanted(self.run_state.run)
        self._hear_people()

    def _find(self, attempts: list[str]) -> None:
        """Wait for the machines that attempts may run on: of what cannot be asked nothing can be said.

        Who asks once for the end wants saved what has ended meanwhile; but a machine may never answer.
        """
        asked_at = float("inf")
        while not self.machines.find(attempts):
            now = self.clock()
            if notes := [*self._look_at_machines(now), *self._watch_budget(now)]:
                self.database.commit(self.lease, notes, self.wall())
                self._renewed_at = now
            if self.watcher:
                self.watcher.turned(self.run_state, Reconciliation([*notes]), self._progress)
            wanted = self._wanted or self.database.stop_wanted(self.run_state.run)
            if self.interrupts > 1 or wanted in (EndReason.BUDGET, *_WITHOUT_MACHINES):
                return  # that cannot wait
            if self.interrupts or wanted:
                asked_at = min(asked_at, now)
            if now - asked_at > FIND_S:
                return
            self._keep_lease()

    def _observe(self, timeout_s: float) -> None:
        for status in self.executor.changes(timeout_s):
            if status.attempt in self._gangs:  # not news of what is recorded already
                self._gangs[status.attempt] = status
                if status.phase is Phase.RUNNING:
                    self._running_since.setdefault(status.attempt, self.clock())
        self.jobs.collect()
        if self.watcher:
            tasks = {self._id(task): task for task in self.run_state.live_tasks() if task.attempt}
            for attempt, member in self.executor.output():
                if attempt in tasks:
                    self.watcher.output(tasks[attempt], member)
        now = self.clock()
        if now - self._asked_at >= self.pace.idle_s:  # a busy loop must not spend its time on asking
            self._asked_at = now
            self._wanted = self.database.stop_wanted(self.run_state.run)
            self._hear_people()
        self._keep_lease()
        if now - self._read_at >= self.pace.progress_s:
            self._read_at = now
            self._read_progress(now)

    def _waits(self, now: float) -> list[Change]:
        """Nothing of the run goes on, as others hold what it needs, or a person is to say something."""
        place: Awaited | None = None
        if self.run_state.state is not State.DONE:
            place = self.run_state.awaited_approval() or self.executor.queue_place()
        return self.run_state.queue_wait.look(place, now, works=bool(self.run_state.live_tasks()))

    def _undriven(self, now: float) -> list[Change]:
        """What passed with neither a turn nor members at work: the process was stopped, say."""
        before, self._turned_at = self._turned_at, now
        before_s, self._slept_s = self._slept_s, self.slept()
        if now - before < LEASE_S or self.run_state.state is State.DONE:
            return []
        began = [self._id(task) for task in self.run_state.live_tasks() if task.attempt]
        seen = [each for each in self.executor.observe(began) if each.started_at is not None]
        ahead_s = self.wall() - now
        worked = [now if each.ended_at is None else each.ended_at - ahead_s for each in seen]
        apart_s = now - max([before, *worked])
        if isinstance(self.machines, OwnMachine):  # its members slept as well; others went on
            apart_s = max(apart_s, self._slept_s - before_s)
        return self.run_state.queue_wait.undriven(apart_s)

    def _clock_notes(self, now: float) -> list[Note]:
        """Whether what others see of the time was set meanwhile."""
        set_s = self.wall() - now - self._ahead_s
        if abs(set_s) < SET_S:
            return []
        self._ahead_s += set_s
        which = f"{format_duration(abs(set_s))} {'forward' if set_s > 0 else 'back'}"
        return [Note(f"the clock here was set {which}, which is no time of the run", set_s=set_s)]

    def _hear_people(self) -> None:
        """Which tasks people want ended; and what they have said of experiments, once one has asked."""
        self._cancelled = self.database.cancelled_tasks(self.run_state.run)
        if any(each.awaits_approval for each in self.run_state.experiments.values()):
            for name, said in self.database.approvals(self.run_state.run).items():
                self.run_state.experiments[name].approval = said

    def _keep_lease(self) -> None:
        now = self.clock()
        if now - self._renewed_at >= RENEW_S:
            self.database.renew(self.lease, self.wall())
            self._renewed_at = now

    def _look(self, task: Task, wanted: EndReason | None) -> ObservedTask:
        attempt, progress = self._id(task), self._progress.get(task.key)
        if progress is not None and progress.attempt != task.attempt:  # it is read a little later
            progress = None
        gang = self._gangs.get(attempt) or GangStatus(attempt, Phase.UNKNOWN)
        why = self._why_wanted
        if wanted is None and task.key in self._doomed:
            wanted, why = EndReason.PRUNED, self._doomed[task.key]
        elif wanted is None and (by := self._cancelled.get(f"{task.experiment}/{task.number}")):
            wanted, why = EndReason.CANCELLED, f"{by} has ended it"
        elif wanted is None and self.services is not None and task.key in self.services.ends:
            wanted, why = self.services.ends[task.key]
        return ObservedTask(
            gang=gang,
            jobs=self.jobs.of(task.experiment, task.number, task.attempt),
            wanted=wanted,
            why=why,
            hurry=self.interrupts > 1,
            launched=attempt in self._launched,
            running_since=self._running_since.get(attempt),
            last_checkpoint_at=self._checkpoint_at.get(attempt)
            or self._running_since.get(attempt)
            or self.clock(),
            is_wait_over=self.saving.is_used,
            saving_usd=self.saving.spent_usd,
            left_s=self._left_s,
            is_store_silent=self.silence is not None and self.silence.is_silent,
            more_memory=self._more_memory(task, gang),
            reached=self._reached.get(attempt, ""),
            moved_at=progress.moved_at if progress else None,
            longest_pause_s=progress.longest_pause_s if progress else None,
            silent_s=progress.silent_s if progress else 0.0,
        )

    def _more_memory(self, task: Task, gang: GangStatus) -> MoreMemory | None:
        """Larger machines for the next attempt of one that ran out of memory, where they are rented."""
        if task.state is not State.RECOVERING:
            return None
        jobs = self.jobs.of(task.experiment, task.number, task.attempt).values()
        if EndReason.OOM not in (task.end_reason, *(job.reason for job in jobs)):
            return None
        return self.machines.more_memory(gang, self._why_over(task))

    def _why_over(self, task: Task) -> str:
        """What is known of the end of an attempt, for people."""
        jobs = self.jobs.of(task.experiment, task.number, task.attempt).values()
        return next((job.message for job in jobs if job.message), task.message)

    def _read_progress(self, now: float) -> None:
        running = {}
        for task in self.run_state.live_tasks():
            if task.state is State.RUNNING:
                progress = self.actions.follow(task, self._progress.get(task.key))
                progress.update(now)
                gang = self._gangs.get(self._id(task))
                progress.addresses = gang.addresses if gang is not None else {}
                saved = self.jobs.of(*task.key, task.attempt).get(EffectKind.CHECKPOINT)
                if saved is not None and saved.done and saved.progressed:
                    progress.saved(self._checkpoint_at.get(self._id(task)))
                running[task.key] = progress
                if progress.reached:
                    self._reached[self._id(task)] = progress.reached
                if self.recorder is not None:
                    self.recorder.look(task, progress, gang, now)
        self._progress = running
        for experiment in self.run_state.experiments.values():
            if experiment.state is State.RUNNING and experiment.results is not None:
                of_it = {
                    number: found for (name, number), found in running.items() if name == experiment.name
                }
                for number, why in self.actions.judge(experiment, of_it).items():
                    self._doomed[experiment.name, number] = why

    def _progress_changes(self, now: float) -> list[Change]:
        if now - self._stored_at < self.pace.stored_s:
            return []
        self._stored_at = now
        return self.run_state.take_in(self._progress)

    def _watch_budget(self, now: float) -> list[Note]:
        """End the run in time to stay below its cap; written down, so that no other controller forgets it."""
        if self.meter is None or self._wanted is not None:
            return []
        if self.allowance is not None:
            self.allowance.look(self.meter, now)
        if not self.meter.must_end(now):
            return []
        self._machines_at = -math.inf  # what costs may be given back, so that the run goes on elsewhere
        told = self._look_at_machines(now)
        if self._wanted is not None or not self.meter.must_end(now):
            return told
        self.database.want_stop(self.run_state.run, EndReason.BUDGET)
        self._wanted, self._why_wanted = EndReason.BUDGET, self.meter.why_over(now)
        return [*told, Note(f"the run ends: {self._why_wanted}")]

    def _watch_saving(self, now: float) -> None:
        """How long what cannot be saved may wait: at last its money, or that of the run, is used up."""
        if self.meter is None:
            return
        if self._wanted is EndReason.BUDGET:
            self._left_s = self.meter.must_be_over(now) - now
        if now - self._saving_at >= SAVING_LOOK_S:
            self._saving_at = now
            usd_per_hour = self.meter.bill(now + 3600) - self.meter.bill(now)
            self.saving.look(self.run_state.live_tasks(), usd_per_hour, now)

    def _ask_gates(self) -> None:
        """Have what gates say of experiments whose tasks are recorded to have succeeded."""
        for experiment in self.run_state.experiments.values():
            if experiment.awaits_verdict:
                assert self.judge is not None
                assert experiment.gate is not None
                experiment.verdict = self.judge(experiment.name, experiment.gate)

    def _look_at_machines(self, now: float) -> list[Note]:
        """What was rented and given back; if there is no way to have what is needed, the run ends."""
        if now - self._machines_at < MACHINES_LOOK_S or self._wanted in _WITHOUT_MACHINES:
            return []
        self._machines_at = now
        try:
            return self.machines.look(self.run_state, self.meter, now)
        except (LeaseLostError, StoreError):
            raise
        except TrainmasterError as error:
            from trainmaster.providers.base import ProviderGoneError  # what rents nothing never needs it

            is_users = isinstance(error, UsageError) and not isinstance(error, ProviderGoneError)
            self._wanted = EndReason.USER_ERROR if is_users else EndReason.INTERNAL
            self._why_wanted = one_line(error)
            self.database.want_stop(self.run_state.run, self._wanted)
            return [Note(self._why_wanted)]

    def _forecasts(self, now: float) -> list[Note]:
        if self.forecaster is None or now - self._forecast_at < FORECAST_LOOK_S:
            return []
        self._forecast_at = now
        return self.forecaster.look(self.run_state, self._progress, now)

    # --- acting --------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        attempt = self._attempt(effect)
        task = self.run_state.experiments[effect.experiment].live.get(effect.task)
        if effect.kind is EffectKind.FORGET:
            self.actions.clean_up(effect)
            gang = self._gangs.get(attempt)
            if self.recorder is not None:
                jobs = self.jobs.of(effect.experiment, effect.task, effect.attempt)
                place_s = launch_s = None
                if (launched_at := self._launched.get(attempt)) is not None:
                    if self._first is not None and self._first[0] == attempt:
                        place_s = launched_at - self._first[1]
                    if (since := self._running_since.get(attempt)) is not None:
                        launch_s = since - launched_at
                self.recorder.took(effect, jobs, self.clock(), place_s=place_s, launch_s=launch_s)
                self.recorder.ended(effect, gang, self.clock())
            if gang is None or gang.phase is not Phase.EXITED:
                # Given up without having seen its end: the node must not bring it back to life.
                self.executor.stop(attempt, 0.0)
            self.executor.forget([attempt])
            self.jobs.drop(effect.experiment, effect.task, effect.attempt)
            for memory in (self._gangs, self._stopping, self._checkpoint_at, self._running_since):
                memory.pop(attempt, None)
            self._notes.forget(attempt)
            self._launched.pop(attempt, None)
            self._reached.pop(attempt, None)
            self._doomed.pop((effect.experiment, effect.task), None)
            if self.services is not None:
                self.services.forget(effect.experiment, effect.task, effect.attempt)
            return
        if task is None or task.attempt != effect.attempt:
            return  # a later step of the same turn has overtaken it
        match effect.kind:
            case EffectKind.SUBMIT:
                self._launched.pop(attempt, None)
                # What was staged for a place that it has lost says nothing about the next one.
                self.jobs.drop(effect.experiment, effect.task, effect.attempt)
                if self._first is None:
                    self._first = attempt, self.clock()
                elif self._first[0] == attempt:
                    self._first = "", 0.0
                self.executor.submit([self.actions.request(task)])
                self._gangs[attempt] = GangStatus(attempt, Phase.QUEUED)
            case EffectKind.LAUNCH:
                self.executor.launch(attempt, self.actions.launch_environment(task, self._gangs[attempt]))
                self._launched[attempt] = self.clock()
            case EffectKind.STOP:
                if self._stopping.get(attempt, float("inf")) > effect.grace_s:
                    self.executor.stop(attempt, effect.grace_s, stacks=effect.stacks)
                    self._stopping[attempt] = effect.grace_s
            case EffectKind.ENLARGE:
                gang = self._gangs.get(attempt) or GangStatus(attempt, Phase.UNKNOWN)
                self.machines.enlarge(gang, self._why_over(task))
            case EffectKind.CHECKPOINT:
                self._checkpoint_at[attempt] = self.clock()
                self.actions.begin(effect.kind, task)
            case _:
                self.actions.begin(effect.kind, task)

    def _attempt(self, effect: Effect) -> str:
        return attempt_id(self.run_state.run, effect.experiment, effect.task, effect.attempt)

    def _id(self, task: Task) -> str:
        return attempt_id(self.run_state.run, task.experiment, task.number, task.attempt)
