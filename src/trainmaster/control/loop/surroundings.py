"""What a controller needs of its surroundings. The simulation stands in for all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from trainmaster.control.decide.budget import Meter
    from trainmaster.control.decide.effects import MoreMemory
    from trainmaster.control.decide.task import Effect, EffectKind, Job
    from trainmaster.control.loop.reconcile import Reconciliation
    from trainmaster.control.loop.run_state import ExperimentState, RunState, Task
    from trainmaster.control.measure.progress import TaskProgress
    from trainmaster.db import Change, Lease, Note
    from trainmaster.executors.base import GangRequest, GangStatus
    from trainmaster.spec.facts import Approval
    from trainmaster.spec.states import EndReason


class RunRecords(Protocol):
    """What a controller writes to; see `trainmaster.db.Database`."""

    def commit(self, lease: Lease, changes: Sequence[Change], now: float) -> None:
        """Write changes in one transaction."""

    def renew(self, lease: Lease, now: float) -> EndReason | None:
        """Extend the lease."""

    def stop_wanted(self, run: str) -> EndReason | None:
        """Why somebody wants the end of the run."""

    def approvals(self, run: str) -> Mapping[str, Approval]:
        """What people have said of its experiments."""

    def cancelled_tasks(self, run: str) -> Mapping[str, str]:
        """Who wants which of its tasks ended, by names such as ``sweep/3``."""

    def want_stop(self, run: str, reason: EndReason) -> None:
        """Ask for the end of the run."""


class Background(Protocol):
    """Jobs under way; see `trainmaster.control.loop.jobs.Jobs`."""

    @property
    def pending(self) -> int:
        """How many have not ended yet."""

    def of(self, experiment: str, task: int, attempt: int) -> Mapping[EffectKind, Job]:
        """What is known of an attempt's jobs."""

    def collect(self) -> bool:
        """Take in what has ended."""

    def drop(self, experiment: str, task: int, attempt: int) -> None:
        """Forget an attempt's jobs."""


class Watcher(Protocol):
    """Watches a controller at work; must be quick and never raise."""

    def turned(
        self, run_state: RunState, turn: Reconciliation, progress: Mapping[tuple[str, int], TaskProgress]
    ) -> None:
        """Something was decided, or some time has passed."""

    def output(self, task: Task, member: str) -> None:
        """A member of a task's present attempt has written to its log."""

    def say(self, line: str) -> None:
        """Something that belongs to the run, and is no event of it: a line for the user."""


class Forecaster(Protocol):
    """Keeps an eye on the quote; see `trainmaster.service.quotes.quote_tracker.QuoteTracker`."""

    def look(
        self, run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress], now: float
    ) -> list[Note]:
        """Notes about time and cost for the user, if any; quick, and never raises."""


class CostAllowance(Protocol):
    """Lets the run cost less than its cap; see `trainmaster.service.teams.team_budget.Allowance`."""

    def look(self, meter: Meter, now: float) -> None:
        """Give the meter the cap that holds now."""


class Clusters(Protocol):
    """Rents and gives back; see `trainmaster.cluster.cluster_executor.ClusterExecutor`."""

    def find(self, attempts: Sequence[str]) -> bool:
        """Look for where an earlier driver's attempts may run; False while that may still be found.

        Waits a moment.
        """

    def look(self, run_state: RunState, meter: Meter | None, now: float) -> list[Note]:
        """What the user is to be told; tells the meter what has been spent.

        Raises:
            TrainmasterError: there is no way to have the machines that the run needs.
        """

    def more_memory(self, gang: GangStatus, message: str) -> MoreMemory | None:
        """Larger machines for an attempt that ran out of memory; None if there are none to choose."""

    def enlarge(self, gang: GangStatus, message: str) -> None:
        """From now on its cluster has such machines, and gives up the others."""


class OwnMachine:
    """The user's own machine in the place of `Clusters`: it is there, and there is no larger one."""

    def find(self, _attempts: Sequence[str]) -> bool:
        """It is here."""
        return True

    def look(self, _run_state: RunState, _meter: Meter | None, _now: float) -> list[Note]:
        """It costs nothing."""
        return []

    def more_memory(self, _gang: GangStatus, _message: str) -> None:
        """It has no more."""

    def enlarge(self, _gang: GangStatus, _message: str) -> None:
        """It cannot be."""


class Actions(Protocol):
    """What performs decisions; see `trainmaster.control.loop.attempt_actions.AttemptActions`."""

    @property
    def jobs(self) -> Background:
        """Jobs begun by `begin`."""

    def columns(self, experiment: ExperimentState, number: int) -> Mapping[str, object] | None:
        """Columns of a task that gets its row now; None if it has to wait for others."""

    def judge(self, experiment: ExperimentState, running: Mapping[int, TaskProgress]) -> Mapping[int, str]:
        """Which of the running tasks are to be pruned, and why."""

    def request(self, task: Task) -> GangRequest:
        """What the executor is to start."""

    def launch_environment(self, task: Task, gang: GangStatus) -> Mapping[str, Mapping[str, str]]:
        """Variables that are known once the gang holds its ports."""

    def begin(self, kind: EffectKind, task: Task) -> None:
        """Start a background job."""

    def adopt(self, task: Task) -> None:
        """An attempt that an earlier driver began goes on; never waits."""

    def follow(self, task: Task, known: TaskProgress | None) -> TaskProgress:
        """What a running attempt tells."""

    def clean_up(self, effect: Effect) -> None:
        """Remove what an attempt needs no more."""
