"""`drive`: puts together what a run needs, and drives it to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trainmaster.control.attempt_actions import AttemptActions
from trainmaster.control.budget import Meter
from trainmaster.control.controller import USUAL_PACE, Controller, Pace
from trainmaster.control.environment import base_environment
from trainmaster.control.gangs import slots_of
from trainmaster.control.loading import load_policies, load_run_state
from trainmaster.control.run_facts import RunFacts
from trainmaster.control.saving_money import SavingMoney
from trainmaster.control.store_silence import StoreSilence
from trainmaster.db.run_facts import facts_of, put_fact
from trainmaster.executors import Capacity, detect_capacity
from trainmaster.executors.core_dumps import forbid_core_dumps
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.models.model_names import find_models
from trainmaster.service.notifications.delivery import Delivery
from trainmaster.service.quotes.history import histories, make_recorder
from trainmaster.service.quotes.quote_record import record_truth
from trainmaster.service.quotes.quote_tracker import QuoteTracker
from trainmaster.service.quotes.score import score_line
from trainmaster.service.runs.run_names import owner_of
from trainmaster.service.runs.summary import queued_seconds, run_seconds
from trainmaster.spec.clocks import steady_s
from trainmaster.spec.errors import StoreError
from trainmaster.spec.facts import Fact
from trainmaster.spec.states import EndReason, State

if TYPE_CHECKING:
    from trainmaster.cluster.cluster_executor import ClusterExecutor
    from trainmaster.control.controller import Watcher
    from trainmaster.control.decide_task import Policy
    from trainmaster.db import Database, Lease
    from trainmaster.executors.base import Executor
    from trainmaster.service.cluster_costs import ClusterCosts
    from trainmaster.service.driving.replication import Replication
    from trainmaster.service.driving.run_clusters import RunClusters
    from trainmaster.service.open_home import OpenHome
    from trainmaster.service.sinks.sink_thread import SinkThread
    from trainmaster.service.teams.allowance import Allowance
    from trainmaster.spec import Experiment, Recipe


class HandOver(Protocol):
    """Has another driver go on with a run; see `trainmaster.service.on_cluster.hand_over`."""

    def watch(self, executor: ClusterExecutor) -> None:
        """Look at its machines from now on."""

    def is_due(self) -> bool:
        """Whether the other one can go on; never False again once it was True."""


#: Called with the controller before it starts, so that signals can reach it.
OnStart = Callable[[Controller], None]


@dataclass(slots=True)
class Session:
    """A run that this process holds the lease of and is about to drive.

    Attributes:
        secrets: per experiment, names and values; never written anywhere.
        notes: what the user may want to know.
    """

    run: str
    lease: Lease
    recipe: Recipe
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def drive(
    opened: OpenHome,
    session: Session,
    environ: Mapping[str, str],
    watcher: Watcher | None = None,
    on_start: OnStart | None = None,
    pace: Pace | None = None,
    files: Replication | None = None,
    hand_over: HandOver | None = None,
) -> None:
    """Drive a run to its end, or until it is handed over; see `Service.drive`.

    ``files`` sends the files of the run, instead of how its home does. ``hand_over`` says when another driver
    goes on; the lease is kept for it then.
    """
    forbid_core_dumps()
    if watcher is not None:
        opened.database.patience.tell = watcher.say
    machines = None
    files = files or opened.replicas.replication(session.lease, environ)
    delivery = Delivery(opened.database, session.lease, session.recipe.notify, environ)
    feeding = _feeding(opened, session, environ)
    controllers: list[Controller] = []
    is_left = False

    def started(controller: Controller) -> None:
        controllers.append(controller)
        if on_start is not None:
            on_start(controller)

    try:
        delivery.start()
        if feeding is not None:
            feeding.start()
        if files is not None:
            files.begin()
        if not capabilities_of(session.recipe.provider).is_here:
            from trainmaster.cluster.baking import Baking
            from trainmaster.control.contents import Preparations
            from trainmaster.service.driving.run_clusters import RunClusters

            home, row = opened.home_of(session.run), opened.database.run_row(session.run)
            code = opened.replicas.code(row)
            machines = RunClusters(
                opened.database,
                home,
                session.lease,
                code,
                session.recipe.provider,
                environ,
                _teller(watcher),
                session.recipe.budget.usd_per_hour if session.recipe.budget else None,
                saved=_nothing if files is None else files.save_private,
                own_cluster="" if files is None else files.own_cluster,
                baking=Baking.of(session.recipe, code, row["team"] or "", Preparations.of(home.cache)),
            )
        if hand_over is not None and machines is not None:
            hand_over.watch(machines.executor)
        leaves = None if hand_over is None else hand_over.is_due
        _drive(opened, session, environ, watcher, started, machines, pace or USUAL_PACE, files, leaves)
        is_left = leaves is not None and leaves() and controllers[-1].run_state.state is not State.DONE
    finally:
        if machines is not None:
            machines.close()
        if files is not None:
            with suppress(StoreError):  # the next driver sends the rest
                # Where the end could not be recorded, the next driver needs the keys.
                is_over = bool(controllers) and controllers[-1].is_over
                files.close(controllers[-1].run_state if is_over else None)
        if not is_left:
            with suppress(StoreError):  # it expires by itself, and is broken at once when this process ends
                opened.database.release(session.lease, time.time())
        with suppress(StoreError):  # the run matters more; also of one that was interrupted
            _record_truth(opened, session.run)
        # Last: neither a quote nor what waits for the run or resumes it waits for what is told.
        for controller in controllers:
            if controller.is_over:
                for left in _finish(delivery, feeding, controller):
                    _teller(watcher)(left)
        delivery.stop()
        if feeding is not None:
            feeding.stop()


def _feeding(opened: OpenHome, session: Session, environ: Mapping[str, str]) -> SinkThread | None:
    """Sends what tasks report to where the recipe says; on a server that does so for all runs."""
    if session.recipe.sinks is None or opened.database.run_row(session.run)["submitted_by"] is not None:
        return None
    from trainmaster.service.sinks.feeding import SinkFeeder
    from trainmaster.service.sinks.sink_thread import SinkThread

    return SinkThread(SinkFeeder(opened, environ), session.run)


def _finish(delivery: Delivery, feeding: SinkThread | None, controller: Controller) -> Iterator[str]:
    """Wait for what others are still to be told; what to tell the user of what is left."""
    interrupts = controller.interrupts
    for each in (delivery, feeding):
        if each is not None and (left := each.finish(lambda: controller.interrupts > interrupts)):
            yield left


def _drive(
    opened: OpenHome,
    session: Session,
    environ: Mapping[str, str],
    watcher: Watcher | None,
    on_start: OnStart,
    machines: RunClusters | None,
    pace: Pace,
    files: Replication | None,
    leaves: Callable[[], bool] | None,
) -> None:
    database, recipe, run = opened.database, session.recipe, session.run
    home, row = opened.home_of(run), database.run_row(run)
    isolation = None
    if machines is None and row["team"] is not None:  # whatever has accepted it
        from trainmaster.service.driving.local_runs import close_metadata, isolation_of

        isolation = isolation_of(home, row["team"], is_ending=row["stop_wanted"] is not None)
        if not isolation.image:
            close_metadata(home)
    machine = detect_capacity()
    executor: Executor
    if machines is None:
        slots = max([machine.cores, *(_slots_at_once(each) for each in recipe.experiments.values())])
        executor = opened.executor_of(home)
        base = base_environment(environ) if isolation is None else isolation.base_environment()
    else:
        slots = machines.executor.slots
        executor, base = machines.executor, {}
    policies = load_policies(recipe)
    policies = policies if isolation is None else isolation.bounded(policies)
    meter = _meter(recipe, policies, 0.0 if machines is None else machines.lease_s)
    allowance = None
    if machines is not None:
        machines.executor.costs.pay_by(meter, steady_s())
        allowance = _allowance(database, session, meter.cap_usd, machines)
        allowance.look(meter, steady_s())
        machines.executor.costs.pay_by(meter, steady_s())
    capacity = Capacity(slots, machine.gpus)
    if machines is None and row["team"]:
        from trainmaster.service.teams.team_budget import Budgets

        most = Budgets(database.read, database.clock_s())[row["team"]].cpus_at_once
        # A gang that is larger than the machine has it for itself, and makes no more room for others.
        capacity = Capacity(machine.cores, machine.gpus, row["team"], most or 0)
    executor.open(run, capacity, base, session.lease.token)
    clusters = where = None
    if machines is not None:
        from trainmaster.service.cluster_costs import RecordedClusterCosts, where_in

        clusters = RecordedClusterCosts(
            recipe.provider, machines.executor.records, database.cluster_waits(recipe.provider)
        )
        where = partial(where_in, clusters)
    snapshot = opened.replicas.code(row)
    actions = AttemptActions(
        home=home,
        run=run,
        recipe=recipe if isolation is None else isolation.applied(recipe),
        base=base,
        secrets=session.secrets,
        find_models=partial(find_models, database, run),
        slots=slots,
        site=None if machines is None else machines.site,
        owner=owner_of(row, home),
        is_foreign=row["team"] is not None,
        isolation=isolation,
        facts=_facts(database, session.lease, files),
    )
    if machines is not None and recipe.budget is not None and recipe.budget.total_usd is not None:
        known = histories(database, opened.home, recipe, snapshot, row["team"]).values()
        sizes = [(m.output_bytes or 0) + (m.checkpoint_bytes or 0) for each in known for m in each.same]
        meter.publishing.most_bytes = max(sizes, default=0.0)
    actions.jobs.published = meter.publishing.learn
    run_state = load_run_state(database, run, recipe, slots)
    services = None
    if any(each.serve is not None for each in recipe.experiments.values()):
        from trainmaster.service.endpoints.service_world import services_of

        nodes = None if machines is None else machines.executor
        services = services_of(opened.of_team(row["team"]), run, recipe, nodes)
        actions.served = services.model_of
    controller = Controller(
        database=database if files is None else files.records(database, run_state),
        lease=session.lease,
        run_state=run_state,
        actions=actions,
        executor=executor,
        policies=policies,
        recorder=make_recorder(
            database,
            home,
            run,
            recipe,
            snapshot,
            machine,
            policies,
            where=where,
        ),
        watcher=watcher,
        meter=meter,
        allowance=allowance,
        forecaster=_tracker(opened, session, snapshot, slots, clusters, allowance),
        machines=None if machines is None else machines.executor,
        saving=SavingMoney(recipe.budget.saving_usd if recipe.budget else None),
        silence=StoreSilence(home.store_url),
        judge=lambda experiment, gate: database.verdict(run, experiment, gate),
        services=services,
        pace=pace,
        leaves=leaves,
    )
    on_start(controller)
    database.patience.hurried = lambda: controller.interrupts > 1
    try:
        controller.run()
    finally:
        database.patience.hurried = None
        if services is not None:
            services.close()
        if controller.is_over:
            data = home.data_directory(run)
            if machines is not None:
                try:
                    if any(each.data for each in recipe.experiments.values()):  # of machines that are kept
                        machines.site.withdraw_data(recipe.experiments)
                finally:  # nothing may leave machines rented
                    machines.finish(
                        succeeded=controller.run_state.reason is EndReason.SUCCEEDED,
                        hurried=lambda: controller.interrupts > 1,
                    )
            if data.is_dir():
                from trainmaster.control.data_sources import withdraw_volumes

                withdraw_volumes(data)


def _facts(database: Database, lease: Lease, files: Replication | None) -> RunFacts:
    """What was found out of a run; what is found from now on is known to others before it is used."""

    def record(kind: Fact, name: str, value: str) -> str:
        found = put_fact(database, lease, kind, name, value)
        if files is not None:
            files.save_private()
        return found

    return RunFacts(facts_of(database, lease.run), record)


def _slots_at_once(experiment: Experiment) -> int:
    """What is wanted of this machine whatever it has: one gang as a whole, or all replicas."""
    at_once = 1 if experiment.serve is None else experiment.serve.most_at_once
    return slots_of(experiment) * at_once


def _allowance(database: Database, session: Session, cap_usd: float, machines: RunClusters) -> Allowance:
    from trainmaster.service.teams.allowance import Allowance

    usd_per_hour = sum(
        role.count * max(rental.at_most.usd_per_hour for rental in role.rentals)
        for record in machines.executor.records()
        for role in record.plan.roles
    )
    return Allowance(
        database, session.run, database.run_row(session.run)["team"] or "", cap_usd, usd_per_hour
    )


def _tracker(
    opened: OpenHome,
    session: Session,
    snapshot: Path,
    slots: int,
    clusters: ClusterCosts | None,
    allowance: Allowance | None,
) -> QuoteTracker:
    row = opened.database.run_row(session.run)
    return QuoteTracker(
        database=opened.database,
        recipe=session.recipe,
        run=session.run,
        histories=lambda: histories(opened.database, opened.home, session.recipe, snapshot, row["team"]),
        elapsed=lambda now: row["earlier_s"] + max(now - (row["session_at"] or now), 0.0),
        slots=slots,
        costs=clusters,
        score=lambda kind: score_line(opened.database, opened.home.identity(), kind, session.recipe.provider),
        promised=_nothing if allowance is None else allowance.hurry,
    )


def _record_truth(opened: OpenHome, run: str) -> None:
    row = opened.database.run_row(run)
    if row["state"] == State.DONE:
        succeeded = row["reason"] == EndReason.SUCCEEDED
        now = opened.database.clock_s()
        time_s = run_seconds(row, now) - queued_seconds(row, now)
        record_truth(opened.database, run, succeeded, time_s, row["cost_usd"])


def _meter(recipe: Recipe, policies: Mapping[str, Policy], lease_s: float) -> Meter:
    """The billing clock; members may take their grace before anything can be saved."""
    meter = Meter.of(recipe.budget)
    meter.usual_lease_s = lease_s
    meter.stopping_s = max((policy.grace_s for policy in policies.values()), default=0.0)
    return meter


def _nothing() -> None:
    """Of a run that stays here, nothing is kept elsewhere, and nothing is paid."""


def _teller(watcher: Watcher | None) -> Callable[[str], None]:
    """Lines for the user, if anybody watches."""
    return (lambda _: None) if watcher is None else watcher.say
