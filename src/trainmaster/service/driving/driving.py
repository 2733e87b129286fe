"""`Driving`: puts together what a run needs, and drives it to its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.control.decide.budget import SavingMoney
from trainmaster.control.loop.attempt_actions import AttemptActions
from trainmaster.control.loop.controller import USUAL_PACE, Controller, LoopIntervals
from trainmaster.control.loop.loading import load_run_state
from trainmaster.control.loop.run_state import RunState
from trainmaster.control.loop.surroundings import Forecaster, Watcher
from trainmaster.control.notes.store_silence import StoreSilence
from trainmaster.control.task.gangs import may_resize
from trainmaster.dataclass import dataclass
from trainmaster.db import Database, Lease, queries
from trainmaster.db.run_facts import facts_of, put_fact
from trainmaster.executors.supervisor.processes import forbid_core_dumps
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.driving.execution_backend import (
    ExecutionBackend,
    HandOver,
    Session,
    local_backend,
    rented_backend,
)
from trainmaster.service.quotes.history import histories, make_recorder
from trainmaster.service.quotes.home_load import HomeLoad
from trainmaster.service.quotes.quote_record import record_outcomes
from trainmaster.service.quotes.quote_tracker import QuoteTracker
from trainmaster.service.runs.run_names import owner_of
from trainmaster.service.runs.summary import queued_seconds, run_seconds
from trainmaster.service.teams.team_budget import OWNER, Budgets
from trainmaster.spec.clocks import boot_s, driven_clock, steady_s
from trainmaster.spec.errors import StoreError
from trainmaster.spec.facts import Fact, RunFacts
from trainmaster.spec.recipe_parts import named_places
from trainmaster.spec.states import State
from trainmaster.spec.topics import ADAPTED

if TYPE_CHECKING:
    from trainmaster.advisor.quote.forecast import Overhead
    from trainmaster.service.driving.replication import Replication
    from trainmaster.service.notifications.delivery import Delivery
    from trainmaster.service.open_home import OpenHome
    from trainmaster.service.sinks.sink_thread import SinkThread


#: Where no other place has had machines either, they are asked again after so long.
_ASKED_AGAIN_S: Final = 900.0
#: Called with the controller before it starts, so that signals can reach it.
OnStart = Callable[[Controller], None]
#: Not imported here: what finds another place imports most of what a home does, and that drives runs.
Move = Callable[
    ["OpenHome", Session, ExecutionBackend, Controller, Mapping[str, str], str, Callable[[str], None]],
    Session | None,
]


@dataclass(frozen=True, slots=True)
class Driving:
    """How a run is driven.

    Args:
        opened: its home.
        session: of the run.
        environ: of the caller: settings and credentials.
        watcher: is told what happens.
        on_start: called with the controller before it starts.
        pace: of its loop.
        files: sends the files of the run, instead of how its home does.
        hand_over: says when another driver goes on; the lease is kept for it then.
        move: finds where it goes on if its place has no machines: `moving.moved`; None: nowhere.
    """

    opened: OpenHome
    session: Session
    environ: Mapping[str, str]
    watcher: Watcher | None = None
    on_start: OnStart | None = None
    pace: LoopIntervals = USUAL_PACE
    files: Replication | None = None
    hand_over: HandOver | None = None
    move: Move | None = None

    def run(self) -> None:
        """Drive it to its end, or until it is handed over.

        Raises:
            InterruptedByUser: its members were stopped; it can be resumed.
            LeaseLostError: another process drives it now.
            ExecutorError: the node cannot be reached.
        """
        forbid_core_dumps()
        session: Session | None = self.session
        if self.move is None and self.session.recipe.places_left:
            recipe = self.session.recipe.model_copy(update={"places_left": ()})
            session = replace(self.session, recipe=recipe)
        asked_at = -math.inf
        while session is not None:
            session, asked_at = replace(self, session=session)._in_place(asked_at)

    def _in_place(self, asked_at: float) -> tuple[Session | None, float]:
        """Drive it in one place; with what, and since when, it goes on in another, None if it does not.

        ``asked_at``: when other places were asked in vain, by the clock of `boot_s`.
        """
        opened, session, hand_over = self.opened, self.session, self.hand_over
        if self.watcher is not None:
            opened.database.retry_policy.tell = self.watcher.say
        files = self.files or opened.replicas.replication(session.lease, self.environ)
        delivery, feeding = self._delivery(), self._feeding()
        controllers: list[Controller] = []
        is_left, going = False, None

        def started(controller: Controller) -> None:
            controllers.append(controller)
            if self.on_start is not None:
                self.on_start(controller)

        try:
            for each in (delivery, feeding):
                if each is not None:
                    each.start()
            if files is not None:
                files.begin()
            if capabilities_of(session.recipe.provider).is_here:
                made: AbstractContextManager[ExecutionBackend] = nullcontext(
                    local_backend(opened, session, self.environ)
                )
            else:
                was_asked = asked_at > -math.inf
                given = (opened, session, self.environ, self._tell, files, hand_over)
                made = rented_backend(*given, was_asked)
            with made as backend:

                def gives_up() -> str:
                    """Why other places are to be asked now."""
                    is_time = boot_s() - asked_at > _ASKED_AGAIN_S
                    return backend.nodes.elsewhere if backend.nodes is not None and is_time else ""

                def is_due() -> bool:
                    return hand_over is not None and hand_over.is_due()

                def leaves() -> bool:
                    return is_due() or bool(gives_up())

                may_leave = hand_over is not None or session.recipe.places_left
                self._drive(backend, started, files, leaves if may_leave else None)
                controller = controllers[-1]
                is_left = controller.run_state.state is not State.DONE
                if is_left and not is_due():
                    going = session
                    if self.move is not None and (why := gives_up()):
                        there = self.move(opened, session, backend, controller, self.environ, why, self._tell)
                        going, asked_at = (session, boot_s()) if there is None else (there, -math.inf)
                    if controller.interrupts:  # the next one would not know
                        is_left = False
                        raise controller.interrupted
        finally:
            if files is not None:
                with suppress(StoreError):  # the next driver sends the rest
                    # Where the end could not be recorded, the next driver needs the keys.
                    is_over = bool(controllers) and controllers[-1].is_over
                    files.close(controllers[-1].run_state if is_over else None)
            if not is_left:
                with suppress(StoreError):  # it expires by itself, and is broken when this process ends
                    opened.database.release(session.lease)
            with suppress(StoreError):  # the run matters more; also of one that was interrupted
                self._record_outcomes()
            # Last: neither a quote nor what waits for the run or resumes it waits for what is told.
            for controller in controllers:
                if controller.is_over:
                    for left in _finish(delivery, feeding, controller):
                        self._tell(left)
            for each in (delivery, feeding):
                if each is not None:
                    each.stop()
        return going, asked_at

    def _delivery(self) -> Delivery | None:
        """Tells those whom the recipe names what happens."""
        if not self.session.recipe.notify:
            return None
        from trainmaster.service.notifications.delivery import Delivery

        return Delivery(self.opened.database, self.session.lease, self.session.recipe.notify, self.environ)

    def _feeding(self) -> SinkThread | None:
        """Sends what tasks report to where the recipe says; on a server that does so for all runs."""
        database, session = self.opened.database, self.session
        if session.recipe.sinks is None or database.run_row(session.run)["submitted_by"] is not None:
            return None
        from trainmaster.service.sinks.feeding import SinkFeeder
        from trainmaster.service.sinks.sink_thread import SinkThread

        return SinkThread(SinkFeeder(self.opened, self.environ), session.run)

    def _drive(
        self,
        backend: ExecutionBackend,
        on_start: OnStart,
        files: Replication | None,
        leaves: Callable[[], bool] | None,
    ) -> None:
        opened, session = self.opened, self.session
        database, recipe, run = opened.database, session.recipe, session.run
        home, row = opened.home_of(run), database.run_row(run)
        backend.executor.open(run, backend.capacity, backend.base, session.lease.token)
        snapshot = opened.replicas.code(row)

        def find_models(experiment: str, best: str | None) -> list[tuple[int, str]]:
            from trainmaster.service.models.model_names import find_models

            return find_models(database, run, experiment, best)

        facts = _facts(database, session.lease, files)
        actions = AttemptActions(
            home=home,
            run=run,
            recipe=backend.recipe,
            secrets=session.secrets,
            find_models=find_models,
            site=backend.site,
            owner=owner_of(row, home),
            is_foreign=row["team"] is not None,
            facts=facts,
        )
        actions.jobs.published = backend.meter.publishing.learn
        run_state = load_run_state(database, run, recipe, backend.site.at_once)
        services = None
        if any(each.serve is not None for each in recipe.experiments.values()):
            from trainmaster.service.endpoints.service_surroundings import services_of

            services = services_of(opened.of_team(row["team"]), run, recipe, backend.nodes)
            actions.served = services.model_of
        controller = Controller(
            database=database if files is None else files.records(database, run_state),
            lease=session.lease,
            run_state=run_state,
            actions=actions,
            executor=backend.executor,
            policies=backend.policies,
            recorder=make_recorder(
                database,
                home,
                run,
                recipe,
                snapshot,
                backend.machine,
                backend.policies,
                where=backend.where,
                facts=facts,
            ),
            watcher=self.watcher,
            meter=backend.meter,
            allowance=backend.allowance,
            forecaster=self._forecaster(snapshot, backend, facts, run_state),
            machines=backend.machines,
            saving=SavingMoney(recipe.budget.saving_usd if recipe.budget else None),
            silence=StoreSilence(home.store_url),
            judge=lambda experiment, gate: database.verdict(run, experiment, gate),
            services=services,
            pace=self.pace,
            leaves=leaves,
            wall=partial(database.clock_s, math.inf),  # rows of a run are of one clock
        )
        on_start(controller)
        database.retry_policy.hurried = lambda: controller.interrupts > 1
        try:
            controller.run()
        finally:
            database.retry_policy.hurried = None
            if services is not None:
                services.close()
            if controller.is_over:
                backend.finish(controller)
                data = home.data_directory(run)
                if data.is_dir():
                    from trainmaster.control.attempt.data_sources import withdraw_volumes

                    withdraw_volumes(data)

    def _forecaster(
        self, snapshot: Path, backend: ExecutionBackend, facts: RunFacts, run_state: RunState
    ) -> Forecaster:
        """Looks after the quote; after slow machines and sizes of gangs where the recipe asks for that."""
        from trainmaster.service.quotes.adapter import Adapter

        session = self.session
        tracker = self._tracker(snapshot, backend)
        earlier = queries.notes_about(self.opened.database, session.run, [ADAPTED])
        told = [(row["experiment"], row["message"]) for row in earlier]
        resizer = None
        if any(map(may_resize, session.recipe.experiments.values())):
            from trainmaster.service.quotes.resizer import Resizer

            resizer = Resizer(
                tracker,
                session.run,
                session.recipe,
                backend.executor,
                backend.nodes,
                backend.costs,
                facts,
                self._most_usd_per_hour(backend),
                told,
            )
            resizer.begin(run_state)
        return Adapter(tracker, session.run, session.recipe, backend.nodes, backend.costs, resizer, told)

    def _tracker(self, snapshot: Path, backend: ExecutionBackend) -> QuoteTracker:
        opened, session = self.opened, self.session
        row, now = opened.database.run_row(session.run), HomeLoad.now()  # what it runs adds to that itself
        load = now.of(named_places(session.recipe))

        def score(kind: str) -> str:
            from trainmaster.service.quotes.score import score_line

            home_id, provider = opened.home.identity(), session.recipe.provider
            return score_line(opened.database, home_id, kind, provider, lambda team: team == row["team"])

        def beside() -> dict[str, Overhead]:
            from trainmaster.service.quotes.phase_records import phases_of

            found = phases_of(opened.of_team(row["team"]), session.recipe, {}, snapshot, load)
            return {name: each.beside("local", "", "") for name, each in found.items()}

        def others_s() -> Sequence[float]:
            from trainmaster.service.quotes.other_jobs import other_jobs_s

            return other_jobs_s(opened.database, row["team"])

        began_at, now_s = row["session_at"], opened.database.clock_s()
        began = steady_s() - max(now_s - (began_at or now_s), 0.0)
        return QuoteTracker(
            database=opened.database,
            recipe=session.recipe,
            run=session.run,
            histories=lambda: histories(
                opened.database, opened.home, session.recipe, snapshot, row["team"], load
            ),
            elapsed=driven_clock(row["earlier_s"], began),
            earlier_s=row["earlier_s"],
            capacity=backend.capacity,
            costs=backend.costs,
            score=score,
            beside=beside,
            promised=_nothing if backend.allowance is None else backend.allowance.hurry,
            where=backend.where,
            load=now.load,
            others_s=others_s if backend.costs is None else None,
            told_before={each["message"] for each in queries.last_notes(opened.database, session.run, 1_000)},
        )

    def _most_usd_per_hour(self, backend: ExecutionBackend) -> float:
        """What its machines may cost at a time. A team's limit was shared out when its runs were admitted."""
        opened, session = self.opened, self.session
        limits = Budgets(opened.database.read, opened.database.clock_s())
        team = opened.database.run_row(session.run)["team"] or OWNER
        if backend.nodes is not None and limits[team].usd_per_hour is not None:
            return sum(record.plan.usd_per_hour for record in backend.nodes.records())
        return (session.recipe.budget and session.recipe.budget.usd_per_hour) or math.inf

    def _record_outcomes(self) -> None:
        database, run = self.opened.database, self.session.run
        row = database.run_row(run)
        if row["state"] == State.DONE:
            now = database.clock_s()
            time_s = run_seconds(row, now) - queued_seconds(row, now)
            record_outcomes(database, run, row["reason"], time_s, row["cost_usd"])

    def _tell(self, line: str) -> None:
        """A line for the user, if anybody watches."""
        if self.watcher is not None:
            self.watcher.say(line)


def _finish(delivery: Delivery | None, feeding: SinkThread | None, controller: Controller) -> Iterator[str]:
    """Wait for what others are still to be told; what to tell the user of what is left."""
    interrupts = controller.interrupts
    for each in (delivery, feeding):
        if each is not None and (left := each.finish(lambda: controller.interrupts > interrupts)):
            yield left


def _facts(database: Database, lease: Lease, files: Replication | None) -> RunFacts:
    """What was found out of a run; what is found from now on is known to others before it is used."""

    def record(kind: Fact, name: str, value: str) -> str:
        found = put_fact(database, lease, kind, name, value)
        if files is not None:
            files.save_private()
        return found

    return RunFacts(facts_of(database, lease.run), record)


def _nothing() -> None:
    """Of a run here, nothing is paid."""
