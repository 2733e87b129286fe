"""`Resizer`: has a gang go on with more or fewer workers or servers, where a recipe leaves that open.

The new size is in the facts of the run before the members are stopped; the next attempt has it, whoever
drives the run by then. What was only asked for until then is for the next driver to decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainmaster.control.decide.adapting import SEEN_S, ChangeTiming
from trainmaster.control.decide.resizing import SizeForecast, Sizing, best_size, moment_for
from trainmaster.control.task.gangs import may_resize, resized, sized, sized_recipe
from trainmaster.control.task.layout import attempt_id
from trainmaster.dataclass import dataclass
from trainmaster.db import Note
from trainmaster.service.quotes.adaptations import ReportedReasons, adaptable, adapted
from trainmaster.spec import Experiment, Recipe
from trainmaster.spec.facts import Fact, GangSize, RunFacts
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from trainmaster.cluster.cluster_executor import ClusterExecutor
    from trainmaster.cluster.cluster_loop import ClusterLoop
    from trainmaster.cluster.renting.plan import RolePlan
    from trainmaster.control.loop.run_state import RunState, Task
    from trainmaster.control.measure.progress import TaskProgress
    from trainmaster.executors.base import Executor
    from trainmaster.service.cluster_costs import ClusterCosts
    from trainmaster.service.quotes.quote_tracker import QuoteTracker

#: Of an attempt so many reasons to change nothing are shown.
_TOLD_MOST: Final = 2


@dataclass(slots=True)
class _PendingSize:
    """A size that an attempt's successor is to have; ready_at: since when its machines are there."""

    size: SizeForecast
    ready_at: float | None = None


class Resizer:
    """Of one run.

    Args:
        quote: of the run.
        run: its id. recipe: its recipe.
        executor: starts and stops members.
        nodes: the same where they are on rented machines; None on this one.
        costs: what it has cost.
        facts: what was found out of it.
        most_usd_per_hour: what its machines may cost at a time.
        told_before: lines of earlier drivers, with the experiment of each.
    """

    def __init__(
        self,
        quote: QuoteTracker,
        run: str,
        recipe: Recipe,
        executor: Executor,
        nodes: ClusterExecutor | None,
        costs: ClusterCosts | None,
        facts: RunFacts,
        most_usd_per_hour: float = math.inf,
        told_before: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._quote, self._run, self._recipe = quote, run, recipe
        self._executor, self._nodes = executor, nodes
        self._costs, self._facts = costs, facts
        self._most_usd_per_hour = most_usd_per_hour
        self._names = [name for name, each in recipe.experiments.items() if may_resize(each)]
        self._attempts: dict[str, int] = {}
        self._pending: dict[str, _PendingSize] = {}
        self._told = ReportedReasons(_TOLD_MOST, told_before)

    def begin(self, run_state: RunState) -> None:
        """Before anything is asked for: machines that the present sizes do not need are not."""
        for name in self._names:
            for task in run_state.experiments[name].live.values():
                self._attempts[name] = task.attempt
                self._keep_machines(task)
        if self._attempts:
            self._quote.resized(sized_recipe(self._recipe, self._facts, self._attempts))

    def is_changing(self, task: Task) -> bool:
        """Whether a task is about to go on with another size."""
        return self._id(task) in self._pending or self._is_decided(task)

    def look(
        self, run_state: RunState, progress: Mapping[tuple[str, int], TaskProgress], now: float
    ) -> list[Note]:
        """Decide, and go on with what was decided; lines for the user."""
        notes: list[Note] = []
        live = {self._id(task) for name in self._names for task in run_state.experiments[name].live.values()}
        self._pending = {attempt: each for attempt, each in self._pending.items() if attempt in live}
        for name in self._names:
            for task in run_state.experiments[name].live.values():
                if self._attempts.get(name) != task.attempt:
                    self._attempts[name] = task.attempt
                    if self._facts.sizes(name):
                        self._quote.resized(sized_recipe(self._recipe, self._facts, self._attempts))
                        self._quote.tell_again()
                found = progress.get(task.key)
                if task.state is State.RUNNING and found is not None and task.started_at is not None:
                    notes += self._look_at_task(run_state, task, found, now)
                else:
                    self._keep_machines(task)
        return notes

    def _look_at_task(self, run_state: RunState, task: Task, found: TaskProgress, now: float) -> list[Note]:
        attempt = self._id(task)
        experiment = self._recipe.experiments[task.experiment]
        if self._is_decided(task):
            self._executor.stop(attempt, experiment.grace_s)
            return []
        pending = self._pending.get(attempt)
        sizing = self._sizing(run_state, task, found, now)
        if sizing is None:
            if pending is None:
                self._keep_machines(task)
            return []
        if pending is None:
            size, why = best_size(sizing)
            if size is None:
                self._have_machines(self._present(task))
                return self._told.tell(task, attempt, why)
            self._pending[attempt] = _PendingSize(size)
            self._have_machines(self._with(task, size))
            return [adapted(task, why)]
        return self._go_on(task, pending, sizing, now)

    def _go_on(self, task: Task, pending: _PendingSize, sizing: Sizing, now: float) -> list[Note]:
        """Once there are machines for it and a checkpoint is new, the members are stopped."""
        attempt, size = self._id(task), pending.size
        wanted = (size.workers, size.servers)
        size = next((each for each in sizing.others if (each.workers, each.servers) == wanted), size)
        if not self._have_machines(self._with(task, size)) and size.machines > 0:
            pending.ready_at = None
            return []
        pending.ready_at = now if pending.ready_at is None else pending.ready_at
        what = moment_for(sizing, size, now - pending.ready_at)
        if what is ChangeTiming.WAIT:
            return []
        del self._pending[attempt]
        if what is ChangeTiming.KEEP:
            self._told.enough(attempt)
            return [adapted(task, f"{sizing.now.stays}: a change no longer pays")]
        words = f"it goes on with {size.words} from its newest checkpoint"
        found = GangSize(size.workers, size.servers, now, words)
        self._facts.settled(Fact.SIZE, f"{task.experiment}/{task.attempt + 1}", found.to_json)
        self._executor.stop(attempt, self._recipe.experiments[task.experiment].grace_s)
        return [adapted(task, words)]

    # --- what the decision rests on ----------------------------------------------------------------

    def _sizing(self, run_state: RunState, task: Task, found: TaskProgress, now: float) -> Sizing | None:
        """None while too little is known."""
        outlooks = self._quote.sizes.get(task.experiment, ())
        shape = self._present(task).distributed
        assert shape is not None
        at = (shape.workers, shape.parameter_servers)
        own = next((each for each in outlooks if (each.workers, each.servers) == at), None)
        is_young = now - (task.started_at or now) < SEEN_S
        if own is None or is_young or found.eta_s is None or not self._has_own_machines(run_state, task):
            return None
        changed = [each.at for each in self._facts.sizes(task.experiment).values()]
        sizing = adaptable(
            Sizing, self._recipe, run_state, task, found, self._costs, changed, now,
            now=self._priced(task, own),
            others=tuple(self._priced(task, each) for each in outlooks if each is not own),
            most_usd_per_hour=self._most_usd_per_hour,
        )  # fmt: skip
        if sum(each.state is not State.DONE for each in run_state.experiments.values()) > 1:
            return sizing  # what comes after it is late, or not
        due_s, due_usd = self._quote.due(now)
        due_usd += sizing.now.usd_per_hour * sizing.end_s / 3600  # a promise has no end beside it
        most_usd = min(sizing.most_usd, due_usd) if due_s < found.eta_s else sizing.most_usd
        return replace(sizing, due_s=due_s, most_usd=most_usd)

    def _has_own_machines(self, run_state: RunState, task: Task) -> bool:
        """Whether no other experiment works on its machines, and none of them is being replaced."""
        if self._nodes is None:
            return True
        record = self._nodes.loop_of(self._id(task)).record
        others = set(record.plan.experiments) - {task.experiment}
        is_alone = all(run_state.experiments[name].state is State.DONE for name in others)
        return is_alone and not any(each.is_slow or each.is_leaving for each in record.live)

    def _priced(self, task: Task, size: SizeForecast) -> SizeForecast:
        """With how many machines more it needs, and what all of them cost."""
        if self._nodes is None:
            return size
        plan = self._nodes.loop_of(self._id(task)).record.plan
        now, then = self._present(task), self._with(task, size)
        more = [_count(role, then) - _count(role, now) for role in plan.roles]
        return replace(
            size,
            machines=sum(max(each, 0) for each in more) or sum(more),  # workers' are of no use to servers
            usd_per_hour=sum(_count(role, then) * role.rentals[0].usd_per_hour for role in plan.roles),
        )

    # --- machines -----------------------------------------------------------------------------------

    def _have_machines(self, experiment: Experiment) -> bool:
        """Ask for the machines of a size, and for no more; whether they are nodes."""
        if self._nodes is None:
            return True
        loop: ClusterLoop = self._nodes.loop_of(f"{self._run}/{experiment.name}/0/0")
        plan = loop.record.plan
        if len(plan.experiments) > 1 and not self._pending and not self._facts.sizes(experiment.name):
            return True
        wanted = [(role, _count(role, experiment)) for role in plan.roles]
        larger = [replace(role, count=count) for role, count in wanted if count > role.count]
        left_usd = self._most_usd_per_hour - sum(role.count * role.rentals[0].usd_per_hour for role in larger)
        for role, count in wanted:
            if count <= role.count:  # it may have to be had in the dearest of its ways
                left_usd -= count * max(rental.usd_per_hour for rental in role.rentals)
        for role in larger:
            loop.grow(role.within(left_usd / len(larger)))
        if self._pending:
            loop.want()  # another driver may have sent the members that run there
        elif loop.scaling.needed is None and all(count == role.count for role, count in wanted):
            return True
        loop.scaling.needed = needed = {role.role: count for role, count in wanted}
        return all(role.count >= needed[role.role] for role in loop.record.plan.roles) and not loop.awaits

    def _keep_machines(self, task: Task) -> None:
        """Those of the size that is decided, if it was changed, or if any driver has asked for more.

        What an earlier driver has asked for while its members run is to be decided again.
        """
        attempt = task.attempt + self._is_decided(task)
        present = sized(self._recipe.experiments[task.experiment], self._facts, attempt)
        nodes = None if task.state is State.RUNNING else self._nodes
        plan = None if nodes is None else nodes.loop_of(self._id(task)).record.plan
        is_larger = plan is not None and any(role.count > _count(role, present) for role in plan.roles)
        if self._facts.sizes(task.experiment) or (is_larger and plan and len(plan.experiments) == 1):
            self._have_machines(present)

    def _present(self, task: Task) -> Experiment:
        return sized(self._recipe.experiments[task.experiment], self._facts, task.attempt)

    def _with(self, task: Task, size: SizeForecast) -> Experiment:
        return resized(self._recipe.experiments[task.experiment], size.workers, size.servers)

    def _is_decided(self, task: Task) -> bool:
        return task.attempt + 1 in self._facts.sizes(task.experiment)

    def _id(self, task: Task) -> str:
        return attempt_id(self._run, task.experiment, task.number, task.attempt)


def _count(role: RolePlan, experiment: Experiment) -> int:
    """Machines of a role that a gang of that size needs."""
    from trainmaster.service.quotes.forecast_inputs import machines_of_workers

    shape = experiment.distributed
    assert shape is not None
    if role.role == "ps":
        return shape.parameter_servers
    return machines_of_workers(experiment, role.rentals[0].gpus)
