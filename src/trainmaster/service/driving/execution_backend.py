"""`ExecutionBackend`: what a run's members work on: this machine, or rented ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from trainmaster.control.attempt.local_site import LocalSite
from trainmaster.control.decide.budget import Meter
from trainmaster.control.decide.task import Policy
from trainmaster.control.loop.loading import load_policies
from trainmaster.control.loop.recording import AttemptMachine
from trainmaster.control.loop.surroundings import Clusters, OwnMachine
from trainmaster.control.task.environment import base_environment
from trainmaster.control.task.gangs import slots_of
from trainmaster.control.task.job_context import Site
from trainmaster.dataclass import dataclass, field
from trainmaster.db import Database, Lease
from trainmaster.executors.base import Capacity, Executor
from trainmaster.executors.capacity import NodeCapacity, detect_capacity
from trainmaster.service.quotes.history import histories
from trainmaster.service.teams.team_budget import Allowance, Budgets
from trainmaster.spec import Experiment, Recipe
from trainmaster.spec.clocks import steady_s
from trainmaster.spec.places import IN_TIME_S
from trainmaster.spec.recipe_parts import named_places
from trainmaster.spec.states import EndReason

if TYPE_CHECKING:
    from trainmaster.cluster.cluster_executor import ClusterExecutor
    from trainmaster.control.loop.controller import Controller
    from trainmaster.service.cluster_costs import ClusterCosts
    from trainmaster.service.driving.replication import Replication
    from trainmaster.service.driving.run_clusters import RunClusters
    from trainmaster.service.open_home import OpenHome


class HandOver(Protocol):
    """Has another driver go on with a run; see `trainmaster.service.on_cluster.hand_over`."""

    def watch(self, executor: ClusterExecutor) -> None:
        """Look at its machines from now on."""

    def is_due(self) -> bool:
        """Whether the other one can go on; never False again once it was True."""


@dataclass(slots=True)
class Session:
    """A run that this process has accepted or taken over, see `sessions`, and holds the lease of.

    Attributes:
        secrets: per experiment, names and values; never written anywhere.
        notes: what the user may want to know.
    """

    run: str
    lease: Lease
    recipe: Recipe
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ExecutionBackend:
    """What is asked once, when a driver is put together.

    Attributes:
        executor: starts members.
        machine: this one.
        capacity: what it may use at once.
        recipe: as attempts have it.
        policies: per experiment.
        meter: the billing clock.
        base: what all members inherit.
        site: what happens to attempts, where they are.
        machines: what rents.
        nodes: what services are reached by; None on this machine.
        allowance: what the team's other runs leave.
        costs: of clusters; None on this machine.
        where: see `make_recorder`.
        finish: gives machines back, once the run is over.
    """

    executor: Executor
    machine: NodeCapacity
    capacity: Capacity
    recipe: Recipe
    policies: Mapping[str, Policy]
    meter: Meter
    site: Site
    base: Mapping[str, str] = field(default_factory=dict)
    machines: Clusters = field(default_factory=OwnMachine)
    nodes: ClusterExecutor | None = None
    allowance: Allowance | None = None
    costs: ClusterCosts | None = None
    where: Callable[[str], AttemptMachine] | None = None
    finish: Callable[[Controller], None] = lambda _: None


def local_backend(opened: OpenHome, session: Session, environ: Mapping[str, str]) -> ExecutionBackend:
    """Members are on this machine; those of a team are kept apart from it.

    Raises:
        UsageError: a team's do not run here.
    """
    recipe, machine, isolation = session.recipe, detect_capacity(), None
    home, row = opened.home_of(session.run), opened.database.run_row(session.run)
    policies, base = load_policies(recipe), base_environment(environ)
    slots = max([machine.cores, *(_slots_at_once(each) for each in recipe.experiments.values())])
    capacity = Capacity(slots, machine.gpus)
    if row["team"] is not None:  # whatever has accepted it
        from trainmaster.service.driving.local_runs import close_metadata, isolation_of

        isolation = isolation_of(home, row["team"], is_ending=row["stop_wanted"] is not None)
        if not isolation.image:
            close_metadata(home)
        policies, base = isolation.bounded(policies), isolation.base_environment()
        most = Budgets(opened.database.read, opened.database.clock_s())[row["team"]].cpus_at_once
        # A gang that is larger than the machine has it for itself, and makes no more room for others.
        capacity = Capacity(machine.cores, machine.gpus, row["team"], most or 0)
    return ExecutionBackend(
        executor=opened.executor_of(home),
        machine=machine,
        capacity=capacity,
        recipe=recipe if isolation is None else isolation.applied(recipe),
        policies=policies,
        meter=meter_of(recipe, policies),
        site=LocalSite(base, isolation, capacity),
        base=base,
    )


@contextmanager
def rented_backend(
    opened: OpenHome,
    session: Session,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
    files: Replication | None,
    hand_over: HandOver | None,
    was_asked: bool = False,
) -> Iterator[ExecutionBackend]:
    """Members are on machines that are rented, or in an inventory; they are let go of at the end.

    ``was_asked``: no other place of the run would do, so that it ends when `budget.wait` is over.
    """
    from trainmaster.cluster.baking import Baking
    from trainmaster.service.cluster_costs import RecordedClusterCosts, where_on
    from trainmaster.service.driving.run_clusters import RunClusters
    from trainmaster.service.quotes.phase_records import brought_seconds, phases_of, waited_for

    database, recipe = opened.database, session.recipe
    home, row = opened.home_of(session.run), database.run_row(session.run)
    code, wait_s = opened.replicas.code(row), recipe.budget.wait_s if recipe.budget else None
    machines = RunClusters(
        database,
        home,
        session.lease,
        code,
        named_places(recipe),
        environ,
        lambda name: opened.of_team(row["team"]).place(name, environ, home),
        tell,
        recipe.budget.usd_per_hour if recipe.budget else None,
        saved=_nothing if files is None else files.save_private,
        own_cluster="" if files is None else files.own_cluster,
        wait_s=wait_s,
        elsewhere_s=(wait_s or IN_TIME_S) if recipe.places_left else math.inf,
        was_asked=was_asked,
        contents_of=lambda kept: kept.contents(opened),
        baking=Baking.of(recipe, code, row["team"] or "", partial(brought_seconds, database)),
    )

    def finish(controller: Controller) -> None:
        try:
            # Of machines that go on: those that are kept, and one's own.
            is_over = controller.run_state.reason is EndReason.SUCCEEDED
            if any(each.data or (each.setup and not is_over) for each in recipe.experiments.values()):
                machines.site.withdraw_data(recipe.experiments)
        finally:  # nothing may leave machines rented
            machines.finish(
                succeeded=controller.run_state.reason is EndReason.SUCCEEDED,
                hurried=lambda: controller.interrupts > 1,
            )

    try:
        executor, machine, policies = machines.executor, detect_capacity(), load_policies(recipe)
        if hand_over is not None:
            hand_over.watch(executor)
        meter = meter_of(recipe, policies, machines.lease_s)
        executor.costs.pay_by(meter, steady_s())
        allowance = _allowance(database, session, meter.cap_usd, machines)
        allowance.look(meter, steady_s())
        executor.costs.pay_by(meter, steady_s())
        if recipe.budget is not None and recipe.budget.total_usd is not None:
            known = histories(database, opened.home, recipe, code, row["team"]).values()
            sizes = [(m.output_bytes or 0) + (m.checkpoint_bytes or 0) for each in known for m in each.same]
            meter.publishing.most_bytes = max(sizes, default=0.0)
        phases = phases_of(opened.of_team(row["team"]), recipe, environ, code)
        waits = (waited_for(database, name, engine=recipe.engine) for name in named_places(recipe))
        waited = [each for of_place in waits for each in of_place]
        gave_back_s = {name: database.gave_back_s(name) for name in named_places(recipe)}
        costs = RecordedClusterCosts(
            recipe.provider,
            executor.records,
            waited,
            phases,
            gave_back_s,
            executor.costs.spent_usd,
            executor.own_cluster,
        )
        yield ExecutionBackend(
            executor=executor,
            machine=machine,
            capacity=Capacity(executor.slots, machine.gpus),
            recipe=recipe,
            policies=policies,
            meter=meter,
            site=machines.site,
            machines=executor,
            nodes=executor,
            allowance=allowance,
            costs=costs,
            where=lambda attempt: where_on(executor.loop_of(attempt).record),
            finish=finish,
        )
    finally:
        machines.close()


def meter_of(recipe: Recipe, policies: Mapping[str, Policy], lease_s: float = 0.0) -> Meter:
    """The billing clock; members may take their grace before anything can be saved."""
    meter = Meter.of(recipe.budget)
    meter.usual_lease_s = lease_s
    meter.stopping_s = max((policy.grace_s for policy in policies.values()), default=0.0)
    return meter


def _slots_at_once(experiment: Experiment) -> int:
    """What is wanted of this machine whatever it has: one gang as a whole, or all replicas."""
    at_once = 1 if experiment.serve is None else experiment.serve.most_at_once
    return slots_of(experiment) * at_once


def _allowance(database: Database, session: Session, cap_usd: float, machines: RunClusters) -> Allowance:
    from trainmaster.cluster.renting.plan import dearest_usd_per_hour

    def usd_per_hour() -> float:
        return sum(dearest_usd_per_hour(record.plan) for record in machines.executor.records())

    return Allowance(
        database, session.run, database.run_row(session.run)["team"] or "", cap_usd, usd_per_hour
    )


def _nothing() -> None:
    """Of a run that stays here, nothing is kept elsewhere."""
