"""What performs decisions, in simulated time: background jobs that take a while and may fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from trainmaster.control.decide.outcome import pause_s
from trainmaster.control.decide.task import Effect, EffectKind, Job
from trainmaster.control.loop.run_state import ExperimentState, Task
from trainmaster.control.measure.progress import TaskProgress
from trainmaster.control.task.layout import attempt_id
from trainmaster.executors.base import GangRequest, GangStatus, MemberRequest
from trainmaster.executors.telemetry.member_metrics import MemberMetrics
from trainmaster.spec.states import WHOLE, EndReason
from trainmaster.testing.simulated_plan import SchedulePlan
from trainmaster.testing.simulated_world import ViolationError, World

Key = tuple[str, int, int, EffectKind]
_NOTHING = MemberMetrics(Path("/nonexistent"), "worker-0")


class SimulatedProgress(TaskProgress):
    """A running attempt that always has something new to tell."""

    def update(self, now: float) -> bool:
        """See `TaskProgress.update`."""
        self.metrics, self.changed = {"step": round(now)}, True
        return True


class SimulatedJobs:
    """Background jobs of one control process; they die with it. See `Jobs`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._results: dict[Key, Job] = {}
        self._done: list[tuple[Key, Job, Job]] = []
        self._pending = 0
        self._dead = False

    @property
    def pending(self) -> int:
        """See `Jobs.pending`."""
        return self._pending

    def of(self, experiment: str, task: int, attempt: int) -> dict[EffectKind, Job]:
        """See `Jobs.of`."""
        found = {}
        for kind in (
            EffectKind.STAGE,
            EffectKind.CHECKPOINT,
            EffectKind.RECOVER,
            EffectKind.SAVE,
            EffectKind.KEEP,
        ):
            job = self._results.get((experiment, task, attempt, kind))
            if job is not None:
                found[kind] = job
        return found

    def begin(self, key: Key, work: Callable[[], Job], delay_s: float) -> None:
        """See `Jobs.begin`; a job without delay is quick."""
        known = self._results.get(key)
        if known is not None and not known.done:
            return
        if not delay_s:
            self._results[key] = work()
            return
        begun = self._results[key] = Job()
        self._pending += 1
        self._later(delay_s, lambda: self._finish(key, begun, work))

    def _later(self, delay_s: float, happen: Callable[[], None]) -> None:
        self._world.after(delay_s, happen)

    def collect(self) -> bool:
        """See `Jobs.collect`."""
        any_new = bool(self._done)
        for key, begun, job in self._done:
            self._pending -= 1
            if self._results.get(key) is begun:  # it was not dropped, nor begun again since
                self._results[key] = job
        self._done.clear()
        return any_new

    def drop(self, experiment: str, task: int, attempt: int) -> None:
        """See `Jobs.drop`."""
        for kind in EffectKind:
            self._results.pop((experiment, task, attempt, kind), None)

    def die(self) -> None:
        """The process is gone, and its threads with it."""
        self._dead = True

    @property
    def is_empty(self) -> bool:
        """Nothing is remembered."""
        return not self._results

    def _finish(self, key: Key, begun: Job, work: Callable[[], Job]) -> None:
        if not self._dead:
            self._done.append((key, begun, work()))


class SimulatedActions:
    """Stands in for `AttemptActions`.

    Args:
        world: its time.
        plan: what the recipe says, and how likely jobs fail.
        step: called before and after each act: here the control process may be killed.
    """

    def __init__(self, world: World, plan: SchedulePlan, step: Callable[[str], None]) -> None:
        self.jobs = SimulatedJobs(world)
        self._world = world
        self._plan = plan
        self._step = step
        self._tried_at: dict[Key, float] = {}
        self._begun: dict[Key, object] = {}
        self._cared_for: set[tuple[str, int, int]] = set()

    def columns(self, experiment: ExperimentState, number: int) -> Mapping[str, object] | None:
        """See `AttemptActions.columns`."""
        generation = self._plan.experiments[experiment.name].generation
        if generation and any(other < number - number % generation for other in experiment.live):
            return None
        over = sum(task.end_reason in WHOLE for task in (experiment.results or {}).values())
        return {"parameters": {"lr": number, "seen": over}}

    def judge(self, experiment: ExperimentState, running: Mapping[int, TaskProgress]) -> Mapping[int, str]:
        """See `AttemptActions.judge`."""
        pruned = self._plan.experiments[experiment.name].pruned
        return {number: "hopeless" for number in running if self._world.chance(pruned)}

    def request(self, task: Task) -> GangRequest:
        """See `AttemptActions.request`."""
        shape = self._plan.experiments[task.experiment]
        members = tuple(
            MemberRequest(name, "true", "/", essential=not name.startswith("ps")) for name in shape.members
        )
        return GangRequest(
            attempt=attempt_id(self._plan.run, task.experiment, task.number, task.attempt),
            directory="/",
            members=members,
            slots=len(members),
            group=f"{self._plan.run}/{task.experiment}",
            group_slots=shape.group_slots,
            hold=shape.hold or task.attempt > 1,
            grace_s=shape.policy.grace_s,
        )

    def launch_environment(self, task: Task, gang: GangStatus) -> Mapping[str, Mapping[str, str]]:
        """See `AttemptActions.launch_environment`; a gang is launched with the ports it holds."""
        return {name: {"PORT": str(ports[0])} for name, ports in gang.ports.items()}

    def adopt(self, task: Task) -> None:
        """See `AttemptActions.adopt`."""
        self._cared_for.add((task.experiment, task.number, task.attempt))

    def follow(self, task: Task, known: TaskProgress | None) -> TaskProgress:
        """See `AttemptActions.follow`; this process has prepared the data of what runs, or adopted it."""
        key = (task.experiment, task.number, task.attempt)
        if self.request(task).hold and key not in self._cared_for:
            raise ViolationError(f"{task.experiment}/{task.number}/{task.attempt}: nobody renews its keys")
        found = known or SimulatedProgress(_NOTHING, None)
        until = self._plan.experiments[task.experiment].until
        if until and self._world.chance(until):
            found.reached = "until step >= 1: it held"
        return found

    def begin(self, kind: EffectKind, task: Task) -> None:
        """See `AttemptActions.begin`."""
        self._step(f"before {kind}")
        name, number, attempt = task.experiment, task.number, task.attempt
        if kind is EffectKind.STAGE:
            self.adopt(task)
        if kind in (EffectKind.STAGE, EffectKind.SAVE, EffectKind.RECOVER):
            self._require_pause(kind, task)
        self._world.note(f"{kind} {name}/{number}/{attempt} begins")
        bad, kept = task.bad_checkpoints, task.kept_checkpoint
        jobs = self.jobs.of(name, number, attempt)
        if kind is EffectKind.KEEP and not any(job.unsaved or not job.done for job in jobs.values()):
            raise ViolationError(f"{name}/{number}/{attempt} is kept though it was saved")
        has_won = EffectKind.RECOVER not in jobs
        begun = object()
        if kind not in jobs or jobs[kind].done:
            self._begun[name, number, attempt, kind] = begun
        delay_s = 0.0 if self._world.chance(self._plan.quick) else self._world.rng.expovariate(0.5)

        def work() -> Job:
            if self._begun[name, number, attempt, kind] is begun:  # else it was for a place that is lost
                self._tried_at[name, number, attempt, kind] = self._world.now
            if kind is EffectKind.KEEP:
                job = self._keep((name, number), attempt, has_won=has_won)
                if job.unsaved and not self._is_away():
                    then = EffectKind.SAVE if has_won else EffectKind.RECOVER
                    job = self._work(then, (name, number), attempt, bad, kept)
            else:
                job = self._work(kind, (name, number), attempt, bad, kept)
            self._world.note(f"{kind} {name}/{number}/{attempt} ends: {job.error or 'done'}")
            return job

        self.jobs.begin((name, number, attempt, kind), work, delay_s)
        self._step(f"after {kind}")

    def _require_pause(self, kind: EffectKind, task: Task) -> None:
        key = (task.experiment, task.number, task.attempt, kind)
        before = self.jobs.of(*key[:3]).get(kind)
        if before is None:  # for the first time, or for other nodes
            return
        if not before.error:
            raise ViolationError(f"{key} begins again though it ended well")
        if kind is not EffectKind.STAGE and not before.unsaved:
            raise ViolationError(f"{key} begins again though it was over")
        waited_s = self._world.now - self._tried_at[key]
        if waited_s < pause_s(task.tries):
            raise ViolationError(f"{key} begins again after {waited_s:g} s")

    def clean_up(self, effect: Effect) -> None:
        """See `AttemptActions.clean_up`."""
        self._step("before clean-up")
        key = (effect.experiment, effect.task, effect.attempt)
        may_go = self._plan.loses_nodes or self._plan.experiments[effect.experiment].pruned
        if key in self._world.unsaved and not may_go:
            raise ViolationError(f"{key}: its last checkpoint is given up")

    def _is_away(self) -> bool:
        return self._plan.is_away(self._world.now - self._world.started_at)

    def _keep(self, key: tuple[str, int], attempt: int, *, has_won: bool) -> Job:
        self._world.unsaved.discard((*key, attempt))
        if not self._world.chance(self._plan.keeps):
            if has_won:
                self._world.unkept.add((*key, attempt))
            return Job(done=True, error="this machine's disk is full", unsaved=True, place="on a node")
        if has_won:
            self._world.kept[key] = attempt
            self._world.unkept.discard((*key, attempt))
        kept = {"kept_model" if has_won else "kept_checkpoint": attempt}
        return Job(done=True, error="it is kept here", fields=kept)

    def _work(
        self, kind: EffectKind, key: tuple[str, int], attempt: int, bad: tuple[int, ...], kept: int | None
    ) -> Job:
        rng = self._world.rng
        if self._is_away():
            what = "its model could not be saved: " if kind is EffectKind.SAVE else ""
            error = f"{what}the store did not answer for {self._world.now:.3f} s"
            if kind is EffectKind.RECOVER:
                self._world.unsaved.add((*key, attempt))
            if kind is not EffectKind.STAGE:
                return Job(done=True, error=error, unsaved=kind is not EffectKind.CHECKPOINT)
            if attempt > 1 and kept is None:
                return Job(done=True, error=error, reason=EndReason.NODE_LOST)
        fails = self._world.chance(self._plan.job_failures)
        match kind:
            case EffectKind.STAGE:
                if fails:
                    why = rng.random()
                    lost = EndReason.NODE_LOST if why > 0.7 else None  # a node, or a store, does not answer
                    return Job(done=True, error="no data", users_fault=why < 0.35, reason=lost)
                if kept is not None:
                    return Job(done=True, fields={"restored": None})
                numbers = [number for number in range(attempt - 1) if number not in bad]
                return Job(done=True, fields={"restored": numbers[-1] if numbers else None})
            case EffectKind.SAVE:
                fields: dict[str, object] = {"metrics": {"accuracy": 0.5}}
                if fails and rng.random() < 0.5:
                    why = rng.random()
                    lost = EndReason.NODE_LOST if why < 0.35 else None
                    return Job(
                        done=True,
                        error=f"its files, or their store, are out of reach for {self._world.now:.3f} s",
                        fields=fields,
                        reason=lost,
                        unsaved=why > 0.65,
                    )
                self._world.models[key] = attempt
                fields["model_uri"] = f"memory://{key[0]}/{key[1]}"
                error = "its checkpoint is lost" if fails else ""
                return Job(done=True, error=error, fields=fields, unsaved=fails and rng.random() < 0.5)
            case EffectKind.RECOVER:
                self._world.unsaved.discard((*key, attempt))
                reason = EndReason.OOM if rng.random() < 0.1 else None
                error = "disk full" if fails else ""
                saved: dict[str, object] = {} if error or kept is None else {"kept_checkpoint": None}
                progressed = rng.random() < 0.5
                return Job(done=True, error=error, fields=saved, reason=reason, progressed=progressed)
            case _:
                return Job(done=True, error="unstable" if fails else "", progressed=not fails)
