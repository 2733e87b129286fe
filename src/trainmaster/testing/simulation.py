"""Deterministic simulation: the real controller in simulated time, with everything that may befall it.

A seed draws a recipe and a schedule of faults. The real `Controller`, `tick` and `decide_*` drive
it over a simulated node, store and background jobs. Whatever an invariant forbids raises; the seed
then replays it line by line::

    python -m trainmaster.testing.simulation --seed 17 --verbose
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from trainmaster.control.decide.budget import Meter, SavingMoney
from trainmaster.control.loop.controller import Controller
from trainmaster.control.task.layout import attempt_id
from trainmaster.dataclass import dataclass, field
from trainmaster.db.changes import Change, ExperimentChange
from trainmaster.db.leases import LEASE_S, Lease
from trainmaster.executors.base import Capacity, GangRequest, Phase
from trainmaster.spec.errors import InterruptedByUser, LeaseLostError, StoreError
from trainmaster.spec.facts import Approval
from trainmaster.spec.gate import Baseline, Gate, GateResult, Requirement, judge
from trainmaster.spec.states import EndReason, State
from trainmaster.spec.topics import APPROVAL_WANTED
from trainmaster.testing.simulated_bench import SimulatedActions
from trainmaster.testing.simulated_executor import SimulatedExecutor
from trainmaster.testing.simulated_node import Ending, SimulatedNode
from trainmaster.testing.simulated_plan import PlannedFault, SchedulePlan
from trainmaster.testing.simulated_store import SimulatedStore
from trainmaster.testing.simulated_verdict import check_end, check_run_state
from trainmaster.testing.simulated_world import Killed, ViolationError, World

_GATE: Final = Gate(Requirement(metric="accuracy", at_least=0.5, goal="max"), "accuracy")


class SimulatedSession:
    """One control process: its steps are counted, so that it can be killed between any two.

    Attributes:
        robbed: another process took the lease while this one slept.
        turns_left: before it leaves the run to the next one; fewer than 0 if it does not.
    """

    def __init__(self, simulation: Simulation, number: int) -> None:
        self.number = number
        self.robbed = False
        self.turns_left = -1 if number > 3 else Random(f"{simulation.seed}/{number}").randrange(60)  # noqa: S311
        self.controller: Controller | None = None
        self._simulation = simulation
        plan = simulation.plan
        self._kill_after = plan.kill_after.pop() if plan.kill_after else None
        self._break_after = plan.break_after.pop() if plan.break_after else None
        self._pause_after = plan.pause_after.pop() if plan.pause_after and number < 9 else None

    def leaves(self) -> bool:
        """Whether another driver goes on from now on."""
        self.turns_left -= self.turns_left > 0
        return self.turns_left == 0

    def step(self, where: str) -> None:
        """Between two steps: it may die here, or sleep: also between a look at its lease and what follows."""
        if self._break_after is not None:
            self._break_after -= 1
            if self._break_after <= 0:
                self._break_after = None
                self._simulation.strike(PlannedFault.KILL_SUPERVISOR)
                self._simulation.kills += 1  # an attempt given up unseen may leave its record
                if self._simulation.world.chance(0.3):  # troubles come together
                    self._simulation.strike(PlannedFault.CANCEL)
        if self._kill_after is not None:
            self._kill_after -= 1
            if self._kill_after <= 0:
                self._simulation.world.note(f"control {self.number} is killed {where}")
                raise Killed(where)
        if self._pause_after is not None:
            self._pause_after -= 1
            if self._pause_after <= 0:
                self._pause_after = None
                self._simulation.rob(self, where)


class SessionRecords:
    """The store as one control process sees it; see `Records`."""

    def __init__(self, simulation: Simulation, session: SimulatedSession) -> None:
        self._simulation = simulation
        self._session = session

    def commit(self, lease: Lease, changes: Sequence[Change], now: float) -> None:
        """See `Database.commit`."""
        simulation, session = self._simulation, self._session
        session.step("before commit")
        if simulation.disk_is_full:
            simulation.disk_is_full = False
            raise StoreError("the disk is full")
        simulation.database.commit(lease, changes, now)
        for change in changes:
            if isinstance(change, ExperimentChange) and change.topic == APPROVAL_WANTED:
                simulation.is_asked(change.experiment)
        if simulation.world.verbose:
            for change in changes:
                simulation.world.note(f"control {session.number}: {change}")
        assert session.controller is not None
        if simulation.world.chance(0.2):
            check_run_state(session.controller.run_state, simulation.database)
        session.step("after commit")

    def renew(self, lease: Lease, now: float) -> EndReason | None:
        """See `Database.renew`."""
        self._session.step("before renew")
        return self._simulation.database.renew(lease, now)

    def stop_wanted(self, run: str) -> EndReason | None:
        """See `Database.stop_wanted`."""
        self._session.step("before reading")
        return self._simulation.database.stop_wanted(run)

    def approvals(self, run: str) -> dict[str, Approval]:
        """See `Database.approvals`."""
        self._session.step("before hearing people")
        return self._simulation.database.approvals(run)

    def cancelled_tasks(self, run: str) -> dict[str, str]:
        """See `Database.cancelled_tasks`."""
        return self._simulation.database.cancelled_tasks(run)

    def want_stop(self, run: str, reason: EndReason) -> None:
        """See `Database.want_stop`."""
        self._session.step("before a wish")
        self._simulation.database.want_stop(reason)


class Simulation:
    """One schedule.

    Args:
        seed: of the schedule.
        verbose: print it.
        make_store: keeps its rows.
    """

    def __init__(
        self, seed: int, *, verbose: bool = False, make_store: type[SimulatedStore] = SimulatedStore
    ) -> None:
        self.world = World(seed, verbose=verbose)
        self.plan = SchedulePlan.draw(self.world.rng)
        self.seed = seed
        if seed % 5 == 0:  # other draws stay as they are
            first = self.plan.experiments["a"]
            self.plan.experiments["a"] = replace(first, shape=replace(first.shape, gate=_GATE))
        experiments = self.plan.experiments
        if seed % 3 == 0:
            last = [*experiments][-1]
            experiments[last] = replace(
                experiments[last], shape=replace(experiments[last].shape, needs_approval=True)
            )
        self.database = make_store(
            self.plan.run,
            {name: experiment.shape for name, experiment in experiments.items()},
            {name: experiment.total for name, experiment in experiments.items()},
            {name: experiment.policy.retries for name, experiment in experiments.items()},
        )
        if seed % 10 == 7:  # a person wants a task ended, at any moment
            chance = Random(f"{seed}/cancelled")  # noqa: S311
            name = chance.choice([*experiments])
            task, at_s = chance.randrange(experiments[name].total), chance.uniform(0.0, 120.0)
            self.world.after(at_s, lambda: self.database.cancel_task(f"{name}/{task}"))
        self.node = SimulatedNode(self.world, self.plan.slots, self._behave, self._starts)
        self.meter = self._new_meter()
        self.disk_is_full = False
        self.kills = 0
        self._sessions = 0
        self._running: list[SimulatedSession] = []
        self._stopped = False

    def run(self) -> Counter[str]:
        """Run the schedule to its end; what was reached.

        Raises:
            ViolationError: an invariant does not hold.
        """
        if self.world.verbose:
            self.world.note(str(self.plan))
        for at_s, fault in self.plan.faults:
            self.world.after(at_s, lambda fault=fault: self.strike(fault))  # type: ignore[misc]
        dead = self._drive("begin", dead=False)
        while True:
            if self.database.run["state"] is State.DONE:
                good = self.database.run["reason"] is EndReason.SUCCEEDED
                if good or not self.plan.resumes:
                    break
                self.plan.resumes -= 1
                mode = "resume"
            else:
                wanted = self.database.run["stop_wanted"] is not None
                mode = "take" if wanted or self.world.chance(0.3) else "resume"
            self.world.wait(self.world.rng.uniform(0, 5))
            dead = self._drive(mode, dead=dead)
        self.world.pass_time(self.world.now)  # what was killed in this very moment is gone after it
        check_end(self.database, self.node, self.plan, self.world, kills=self.kills)
        return self.database.seen

    # --- control processes ---------------------------------------------------------------------

    def _drive(self, mode: str, *, dead: bool) -> bool:
        """One control process from its start to its end; True if it was killed."""
        self._sessions += 1
        session = SimulatedSession(self, self._sessions)
        now = self.world.now
        lease = self.database.acquire(f"control-{session.number}", now, dead=dead)
        if lease is None:
            return dead
        self.world.note(f"control {session.number} begins ({mode})")
        if mode == "resume":
            if not self._save_kept() or self.database.run["reason"] is EndReason.SUCCEEDED:
                self.database.release(lease, now)
                return False
            self.meter = self._new_meter()
            self.database.requeue(lease, now)
            if self.plan.faults and self.world.chance(0.2):  # the user thinks better of it
                fault = self.world.rng.choice((PlannedFault.CANCEL, PlannedFault.INTERRUPT))
                delay_s = self.world.rng.choice((0.0, 1.0)) * self.world.rng.random()
                self.world.after(delay_s, lambda: self.strike(fault))
        bench = SimulatedActions(self.world, self.plan, session.step)
        executor = SimulatedExecutor(self.node, session.step, self.plan.slow)
        executor.open(self.plan.run, Capacity(self.plan.slots), {}, lease.token)
        controller = session.controller = Controller(
            database=SessionRecords(self, session),
            lease=lease,
            run_state=self.database.run_state(),
            actions=bench,
            executor=executor,
            policies={name: experiment.policy for name, experiment in self.plan.experiments.items()},
            meter=self.meter,
            saving=SavingMoney(self.plan.saving_usd),
            judge=lambda experiment, gate: self._judge(session, experiment, gate),
            clock=lambda: self.world.now,
            wall=lambda: self.world.now,
            leaves=session.leaves if self.seed % 4 == 1 else None,
        )
        self._running.append(session)
        killed = False
        try:
            controller.run()
        except Killed:
            killed = True
            self.kills += 1
        except LeaseLostError:
            self.kills += 1  # what it committed last may be without its effects
            if not session.robbed:
                raise ViolationError(f"control {session.number} lost its lease to nobody") from None
        except StoreError:
            self.kills += 1
        except InterruptedByUser:
            if self.database.run["state"] is not State.DONE and not session.robbed:
                raise ViolationError("interrupted, but the run is not DONE") from None
        else:
            is_left = session.turns_left == 0 and controller.run_state.state is not State.DONE
            if is_left:
                self._check_left(controller)
            elif (
                self.database.run["state"] is not State.DONE and not session.robbed
            ):  # else: resumed meanwhile
                raise ViolationError("the controller ended, but the run is not DONE")
            elif not controller.is_idle:
                raise ViolationError("the controller ended, but remembers attempts that are over")
        finally:
            self._running.remove(session)
        if not session.robbed and controller.is_over and self.database.run["state"] is not State.DONE:
            raise ViolationError("machines are given back, but the run is not recorded to be DONE")
        self.world.note(f"control {session.number} ends")
        if not killed:
            self.database.release(lease, self.world.now)
        bench.jobs.die()
        executor.close()
        return killed

    def _check_left(self, controller: Controller) -> None:
        """A controller has left the run to another driver: nothing that it began is known to it alone."""
        self.database.seen["left"] += 1
        if controller.jobs.pending:
            raise ViolationError("the controller has left, but jobs of its are under way")
        for task in controller.run_state.live_tasks():
            gang = self.node.gangs.get(attempt_id(self.plan.run, task.experiment, task.number, task.attempt))
            if task.state is State.RUNNING and not controller.jobs.of(
                task.experiment, task.number, task.attempt
            ):
                raise ViolationError(f"the controller has left {task.key}, which was never saved")
            if task.state is State.STAGING and gang is not None and gang.phase is Phase.RUNNING:
                raise ViolationError(f"the controller has left {gang.request.attempt}, which runs unrecorded")

    def _judge(self, session: SimulatedSession, experiment: str, gate: Gate) -> GateResult:
        """What a gate says is the same until the user resumes: a killed driver changes nothing."""
        session.step("before a gate")
        for (name, number), row in self.database.tasks.items():
            if name == experiment and row["state"] is not State.DONE:
                raise ViolationError(f"the gate of {name} is asked before {number} is DONE")
        value = Random(f"{self.seed}/{self.plan.resumes}").random()  # noqa: S311
        return judge(gate.requirement, {gate.metric: value}, Baseline())

    def _new_meter(self) -> Meter:
        cap_usd, rate = self.world.rng.uniform(2, 5), self.plan.usd_per_hour
        if not rate:
            return Meter(cap_usd=cap_usd)
        return Meter(bill=lambda until: rate * (until - self.world.started_at) / 3600)

    def _save_kept(self) -> bool:
        """What `resume` does first; False if a model that is kept here cannot be published now."""
        for key, row in self.database.tasks.items():
            if row["state"] is State.DONE and row["kept_model"] is not None:
                if self.plan.is_away(self.world.now - self.world.started_at):
                    self.world.wait(600)
                    return False
                self.world.models[key] = row["kept_model"]
                self.database.record_saved(key, f"memory://{key[0]}/{key[1]}")
        return True

    def rob(self, session: SimulatedSession, where: str) -> None:
        """A control process sleeps so long that another one takes over, and wakes up later."""
        self.world.note(f"control {session.number} sleeps {where}")
        token = self.database.run["lease_token"]
        self.world.pass_time(self.world.now + self.world.rng.uniform(LEASE_S + 1, 2 * LEASE_S))
        self._sessions += 8  # it does not sleep itself
        dead = self._drive(self.world.rng.choice(("take", "resume")), dead=False)
        if dead:
            self.database.run["lease_owner"] = None  # found dead at once
        session.robbed = session.robbed or self.database.run["lease_token"] != token
        self.world.note(f"control {session.number} wakes up")

    # --- what befalls the run --------------------------------------------------------------------

    def is_asked(self, experiment: str) -> None:
        """A person is asked whether an experiment may begin, and answers some time later."""
        chance = Random(f"{self.seed}/{self._sessions}/approval")  # noqa: S311
        said = Approval(chance.random() < 0.8, "ada", self.world.now)

        def answer() -> None:
            self.database.answer(experiment, said)

        self.world.after(chance.choice((0.0, 1.0, 300.0)), answer)

    def strike(self, fault: PlannedFault) -> None:
        """Let something befall the run."""
        self.world.note(f"fault: {fault}")
        over = self.database.run["state"] is State.DONE
        match fault:
            case PlannedFault.KILL_SUPERVISOR:
                self.node.kill_supervisor()
            case PlannedFault.LOSE_NODE:
                self.node.lose()
            case PlannedFault.PREEMPT:
                self.node.preempt()
            case PlannedFault.FULL_DISK:
                self.disk_is_full = True
            case PlannedFault.CANCEL if not over:
                self.database.want_stop(EndReason.CANCELLED)
            case PlannedFault.BUDGET if not over:
                paid_until = self.world.now + self.meter.ending_s  # the cap is a few seconds away
                self.meter.cap_usd, self.meter.bill = 3.0, lambda until: max(until - paid_until, 0.0)
            case PlannedFault.INTERRUPT if self._running:
                controller = self._running[-1].controller
                if controller is not None:
                    controller.interrupt()
            case _:
                pass

    def _behave(self, request: GangRequest) -> list[Ending]:
        if self.plan.strikes:
            self.plan.strikes -= 1
            how = self.world.rng.choice((self.node.kill_supervisor, self.node.lose, self.node.preempt))
            self.world.after(0.3, how)
            return [Ending(10.0) for _ in request.members]
        return self.plan.endings(request, self.world.rng)

    def _starts(self, attempt: str) -> None:
        """The members of an attempt start: may they?"""
        _, experiment, task, number = attempt.split("/")
        row = self.database.tasks.get((experiment, int(task)))
        if row is None or row["state"] is State.DONE:
            raise ViolationError(f"{attempt} starts, but its task is {row and row['reason']}")
        if self.database.shapes[experiment].needs_approval:
            said = self.database.answers.get(experiment)
            if said is None or not said.is_given:
                raise ViolationError(f"{attempt} starts, but nobody has approved it: {said}")
        if row["attempt"] != int(number):
            raise ViolationError(f"{attempt} starts, but attempt {row['attempt']} is under way")
        if row["state"] not in (State.ACQUIRING, State.STAGING, State.STOPPING):
            raise ViolationError(f"{attempt} starts, but its task is {row['state']}")
        for earlier in range(1, int(number)):
            gang = self.node.gangs.get(attempt_id(self.plan.run, experiment, int(task), earlier))
            if gang is not None and gang.phase is not Phase.EXITED:
                raise ViolationError(f"{attempt} starts, but attempt {earlier} still lives")


@dataclass(slots=True)
class SimulationReport:
    """What many schedules gave: failures by seed, and how often what was reached."""

    schedules: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)


def report_of(seeds: Iterable[int], run: Callable[[int], Iterable[str]]) -> SimulationReport:
    """Run many schedules.

    Args:
        seeds: of them.
        run: runs one, and gives what it has reached.
    """
    report = SimulationReport()
    for seed in seeds:
        report.schedules += 1
        try:
            report.seen.update(run(seed))
        except Exception as error:  # noqa: BLE001 - each is a finding, the others go on
            where = traceback.extract_tb(error.__traceback__)[-1]
            report.failures[seed] = f"{type(error).__name__}: {error} ({where.name}:{where.lineno})"
    return report


def replayed(run: Callable[..., Iterable[str]], name: str, arguments: Sequence[str] | None = None) -> int:
    """Replay one seed, or run many, as a command line says.

    Args:
        run: runs a seed, and prints it if it is ``verbose``.
        name: of its module.
        arguments: of the command line.
    """
    parser = argparse.ArgumentParser(prog=f"python -m trainmaster.testing.{name}")
    parser.add_argument("--seed", type=int, default=0, help="the schedule, or the first of them")
    parser.add_argument("--schedules", type=int, default=1, help="how many")
    parser.add_argument("--verbose", action="store_true", help="print what happens")
    options = parser.parse_args(arguments)
    if options.verbose:
        run(options.seed, verbose=True)
        return 0
    report = report_of(range(options.seed, options.seed + options.schedules), run)
    for seed, failure in report.failures.items():
        print(f"seed {seed}: {failure}")  # noqa: T201
    print(f"{report.schedules} schedules, {len(report.failures)} failures")  # noqa: T201
    return 1 if report.failures else 0


def _run(seed: int, *, verbose: bool = False) -> Counter[str]:
    return Simulation(seed, verbose=verbose).run()


def simulate(seeds: Iterable[int]) -> SimulationReport:
    """Run many schedules.

    >>> simulate(range(20)).failures
    {}
    """
    return report_of(seeds, _run)


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay one seed, or run many."""
    return replayed(_run, "simulation", arguments)


if __name__ == "__main__":
    sys.exit(main())
