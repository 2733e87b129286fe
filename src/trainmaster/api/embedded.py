"""`EmbeddedClient`: one home, in the caller's process; fulfils `ClientProtocol` and is described there."""

from __future__ import annotations

import os
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.api.results import Accepted, Downloaded, Event, LogQuery, Model, RunPlan, RunStatus, Watched
from trainmaster.api.streams import RunInterrupts, WorkStream
from trainmaster.db.ledger import ALL
from trainmaster.db.queries import ALL_RUNS
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service import Service
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.spec.processes import this_user
from trainmaster.spec.recipe_source import configuration_files

if TYPE_CHECKING:
    from trainmaster.api.administration import HomeAdministration
    from trainmaster.api.home_workflows import HomeWorkflows
    from trainmaster.api.local_apps import LocalApps, LocalServices
    from trainmaster.api.port_forward import PortForward
    from trainmaster.api.protocol import Stream
    from trainmaster.service import OfferFilter, ProfileProgress, Quote
    from trainmaster.service.driving.execution_backend import Session
    from trainmaster.service.driving.run_news import RunNews
    from trainmaster.service.images import HomeImages
    from trainmaster.service.models.registry import Registry
    from trainmaster.service.offer_list import OfferList
    from trainmaster.service.on_cluster.away import AwayRuns
    from trainmaster.service.quotes.quote_options import QuoteOptions
    from trainmaster.service.run_planning import PlannedRun, RunPlanner
    from trainmaster.service.runs.run_picture import RunPicture
    from trainmaster.service.storage.storage import Storage
    from trainmaster.service.users.caller import Caller, Wallet
    from trainmaster.service.users.saved_views import SavedViews
    from trainmaster.service.volumes.stored import RemovedVolume, VolumeInfo
    from trainmaster.spec import Recipe

_WATCH_S: Final = 0.3


class EmbeddedClient:
    """One home, embedded in this process, which may drive its runs.

    Args:
        home: its directory; None for what the variables name. Other variables hold as for the command line.
        makes: the directory, if it is not there.
        wallet: that pays for all it starts.

    Raises:
        UsageError: the directory cannot be made or written.
    """

    undriven_s: float = 3.0
    #: Told where a run goes on from here as its driver on a machine is lost; None: it does not by itself.
    on_lost: Callable[[str], None] | None = None

    def __init__(
        self,
        home: str | os.PathLike[str] | None = None,
        *,
        makes: bool = True,
        wallet: Wallet | None = None,
    ) -> None:
        self._own = {} if home is None else {"TRAINMASTER_HOME": str(Path(home).expanduser().absolute())}
        self._service = Service.from_environment(self._environ, makes=makes)
        self._wallet = wallet
        self._plans: dict[str, tuple[PlannedRun, Path]] = {}
        self._sessions: dict[str, Session] = {}
        self._moving: set[str] = set()
        self.close = weakref.finalize(self, self._service.close)
        # These it answers as they are.
        self.find_model, self.brief = self._service.find_model, self._service.brief
        self.highlights, self.save_models = self._service.highlights, self._service.save_kept
        self.score, self.recommend = self._service.score, self._service.recommend

    def __reduce__(self) -> tuple[Callable[[Path], EmbeddedClient], tuple[Path]]:
        """Another process opens the same home."""
        return partial(EmbeddedClient, wallet=self._wallet), (self.directory,)

    @property
    def _environ(self) -> dict[str, str]:
        return {**os.environ, **self._own}

    @property
    def directory(self) -> Path:
        """Of the home."""
        return self._service.home.root

    def warm_up(self) -> None:
        """Start what a run on this machine will need in the background."""
        self._service.warm_up()

    # --- which runs there are ---------------------------------------------------------------------

    def resolve(self, text: str) -> str:
        run = self._service.resolve(text)
        if self._service.database.run_row(run)["away"] is not None:
            self._away.follow(run)
        return run

    def listed(
        self, limit: int | None = None, after: str | None = None, where: str = "", sort: str = ""
    ) -> dict[str, Any]:
        self._look_at_runs_away()
        return self._service.runs(limit, after, where, sort)

    def asked_quotes(self) -> list[dict[str, Any]]:
        return []

    def overview(self) -> dict[str, Any]:
        from trainmaster.service.runs.overview import overview
        from trainmaster.service.users.caller import home_owner

        self._look_at_runs_away()
        return overview(self._service, home_owner(), ALL_RUNS)

    def cost(self, by: str = "month", since: str = "", where: str = "") -> dict[str, Any]:
        self._look_at_runs_away()
        return self._service.cost(by, since, where)

    def describe(self, run: str, labels: Mapping[str, str | None], note: str | None = None) -> dict[str, Any]:
        return self._service.describe(run, labels, note, self._environ)

    def _look_at_runs_away(self) -> None:
        """What all runs, or all rented machines, are shown with is what their drivers have published."""
        if self._service.has_runs_away():
            self._away.look_at_all()

    @cached_property
    def _away(self) -> AwayRuns:
        from trainmaster.service.driving.background import go_on_here
        from trainmaster.service.on_cluster.away import AwayRuns

        go_on = (
            None if self.on_lost is None else partial(go_on_here, self._service, self._environ, self.on_lost)
        )
        return AwayRuns(self._service, self._environ, go_on=go_on)

    # --- starting, and going on -------------------------------------------------------------------

    def plan_run(
        self,
        recipe: Recipe,
        path: str,
        *,
        allow_stale: bool = False,
        can_agree: bool = True,
        measure_first: bool = False,
        keep_s: float = 0.0,
    ) -> Stream[str | ProfileProgress | Quote | RunPlan]:
        def plan(planner: RunPlanner) -> RunPlan:
            found = planner.plan(
                recipe,
                allow_stale=allow_stale,
                can_agree=can_agree,
                measure_first=measure_first,
                keep_s=keep_s,
            )
            name = secrets.token_hex(8)
            self._plans[name] = found, Path(path)
            if found.offer is None:
                return RunPlan(name, found.recipe.provider)
            from trainmaster.service.run_planning import awake_notes

            offer = found.offer
            usd, lines = offer.most_usd_per_hour, tuple(offer.lines)
            notes = [*offer.notes, *awake_notes(offer, self._environ)]
            return RunPlan(name, found.recipe.provider, usd, lines, tuple(notes), offer.quote)

        return self._planning(plan)

    def quote_recipe(self, recipe: Recipe, options: QuoteOptions) -> Stream[str | ProfileProgress | Quote]:
        return self._planning(lambda planner: planner.quote(recipe, options))

    def _planning(self, plan: Callable[[RunPlanner], Any]) -> WorkStream[Any]:
        from trainmaster.service.run_planning import RunPlanner

        planners: list[RunPlanner] = []

        def work(tell: Callable[[Any], None]) -> None:
            planners.append(RunPlanner(self._service, self._environ, tell, tell))
            tell(plan(planners[0]))

        return WorkStream(work, lambda: sum(planner.interrupt() for planner in planners))

    def accept_run(
        self,
        plan: str,
        *,
        agreed_usd_per_hour: float = 0.0,
        keep_s: float = 0.0,
        queue: bool = False,
        on_cluster: bool = False,
        max_usd: float | None = None,
    ) -> Accepted:
        if queue:
            raise UsageError("only a server has a queue", "Nothing was started. Leave it out.")
        if plan not in self._plans:
            raise NotFoundError(f"there is no plan {plan!r}", "Plan the run again.")
        planned, path = self._plans[plan]
        offer, notes = planned.offer, list[str]()
        if on_cluster:
            from trainmaster.service.on_cluster.hand_over import check_moves

            plans = () if offer is None else offer.plans
            is_shared = self._service.database.is_shared
            check_moves(planned.recipe, self._service.home.store_url, plans, is_shared=is_shared)
        if offer is not None and offer.most_usd_per_hour > agreed_usd_per_hour:
            raise UsageError(
                f"it costs at most ${offer.most_usd_per_hour:.4g} per hour, which was not agreed to",
                "Nothing was started. Agree to it, or change the recipe.",
            )
        if self._wallet is not None and keep_s:
            raise UsageError("machines that stay warm are in no wallet", "Leave out how long.")
        recipe, database = planned.recipe, self._service.database
        if max_usd is not None:
            from trainmaster.service.run_planning import capped

            recipe = capped(recipe, max_usd)
            offer = None if offer is None else replace(offer, recipe=recipe)
        if offer is not None:
            from trainmaster.service.renting.provider_check import check_with_provider
            from trainmaster.service.run_planning import capped_as_paid
            from trainmaster.service.teams.team_budget import OWNER, Budgets

            month = Budgets(database.read, database.clock_s())
            budgets = [month[OWNER], month[ALL]] if on_cluster else []  # from there it cannot ask
            recipe = capped_as_paid(offer, budgets, self._wallet, database, notes.append)
            notes += check_with_provider(self._service, offer.plans, self._environ)
        given = (recipe, path, self._environ, offer, keep_s)
        session = self._service.start(*given, moves=on_cluster, wallet=self._wallet)
        del self._plans[plan]
        if on_cluster:
            self._moving.add(session.run)
        return replace(self._accepted(session, notes), moves=on_cluster)

    def take_run(self, run: str, *, max_usd: float | None = None) -> Accepted | None:
        session = self._service.resume(run, self._environ, self._wallet, max_usd)
        return None if session is None else self._accepted(session, [])

    def _accepted(self, session: Session, notes: list[str]) -> Accepted:
        self._sessions[session.run] = session
        rents = not capabilities_of(session.recipe.provider).is_here
        return Accepted(session.run, (*notes, *session.notes), rents)

    def drive_run(self, run: str, view_every_s: float) -> Stream[RunNews | str]:
        from trainmaster.service.driving.run_watcher import RunWatcher

        session = self._sessions.pop(run)
        interrupts = RunInterrupts()

        def work(tell: Callable[[RunNews | str], None]) -> None:
            watcher = RunWatcher(self._service, session, tell, tell, view_every_s)
            if run in self._moving:
                from trainmaster.service.on_cluster.hand_over import drive_away

                drive_away(self._service, session, self._environ, watcher, interrupts.started, tell)
            else:
                from trainmaster.service.driving.driving import Driving

                driving = Driving(self._service, session, self._environ, watcher, interrupts.started)
                if session.recipe.places_left:
                    from trainmaster.service.driving.moving import moved

                    driving = replace(driving, move=moved)
                driving.run()

        return WorkStream(work, interrupts.ask)

    def detach_run(self, run: str) -> None:
        from trainmaster.service.driving.background import drive_in_background

        is_moving = run in self._moving
        drive_in_background(self._service, self._sessions.pop(run), self._environ, on_cluster=is_moving)

    def watch_run(self, run: str) -> Iterator[Watched]:
        rents, seen = (
            not capabilities_of(self._service.provider_of(run)).is_here,
            self._service.last_event(run),
        )
        was_away, undriven = self._service.database.run_row(run)["away"] is not None, 0
        while True:
            brief = self.brief(run)
            is_driven = brief["driven"]  # looked at first: it may end while we look
            events = tuple(self.events(run, seen))
            seen = events[-1].id if events else seen
            brief = self.brief(run)
            if brief["state"] == "DONE":
                self._service.await_close(run)
            yield Watched(events, brief, rents)
            undriven = 0 if is_driven else undriven + 1  # undriven while it comes back
            if brief["state"] == "DONE" or undriven * _WATCH_S > (self.undriven_s if was_away else 0.0):
                return
            time.sleep(_WATCH_S)

    def cancel(self, run: str) -> None:
        self._service.cancel(run, self._environ)

    def cancel_tasks(self, run: str, tasks: Sequence[str]) -> list[dict[str, Any]]:
        return self._service.cancel_tasks(run, tasks, self._environ, by=this_user())

    def answer(self, run: str, experiment: str, *, is_given: bool, why: str = "") -> None:
        by = this_user()
        self._service.answer(run, experiment, self._environ, is_given=is_given, by=by, why=why)

    def deliver_left(self, run: str) -> str:
        return self._service.deliver_left(run, self._environ)

    # --- runs ------------------------------------------------------------------------------------

    def status(self, run: str) -> RunStatus:
        return RunStatus.of(self._service.status(run))

    def models(self, run: str | None = None) -> list[Model]:
        return [Model(**found) for found in self._service.models(run)]

    def model_files(self, name: str) -> list[str]:
        from trainmaster.artifacts import read_manifest

        manifest = read_manifest(self.find_model(name))
        return [] if manifest is None else [entry.path for entry in manifest.files if entry.kind == "file"]

    def fetch_model(self, name: str, directory: Path) -> Downloaded:
        from trainmaster.artifacts import fetch

        manifest = fetch(self.find_model(name), directory)
        return Downloaded(sum(bool(entry.sha256) for entry in manifest.files), manifest.total_bytes)

    def check_models(self, runs: Sequence[str] = (), *, is_deep: bool = False) -> dict[str, Any]:
        from trainmaster.service.models.model_check import check_models

        return check_models(self._service, runs, is_deep=is_deep)

    def export(self, run: str, file: Path) -> None:
        from trainmaster.service.runs.capsule import new_file, write_capsule

        with new_file(file) as opened:
            write_capsule(self._service, run, opened)

    def metrics(
        self, run: str, experiment: str | None = None, task: int | None = None
    ) -> list[dict[str, Any]]:
        return list(self._service.metrics(run, experiment, task))

    def targets(self, run: str) -> list[dict[str, Any]]:
        return self._service.targets(run)

    def curves(self, run: str, keys: Sequence[str] = (), points: int = 200) -> list[dict[str, Any]]:
        from trainmaster.service.teams.team_runs import TeamRuns

        return TeamRuns(self._service, self._owner).metrics(run, keys, points)

    def compare(self, runs: Sequence[str]) -> dict[str, Any]:
        from trainmaster.service.runs.comparison import compare
        from trainmaster.service.teams.team_runs import TeamRuns

        return compare(TeamRuns(self._service, self._owner), runs)

    def logs(self, run: str, query: LogQuery) -> Iterator[bytes]:
        from trainmaster.service.runs.log_streams import LineChoice, LogStreams

        choice = LineChoice.of(query.tail, query.grep, query.since, time.time())
        which = (query.experiment, query.task, query.member, choice, query.attempt)
        streams = LogStreams(self._service, run, *which, system=query.system)
        return streams.read(follow=query.follow)

    def fetch_system_log(self, run: str, member: str | None = None) -> str:
        from trainmaster.service.runs.system_logs import fetch_system_log

        return fetch_system_log(self._service, run, member, self._environ)

    def search_logs(
        self, text: str, limit: int, after: str | None = None, since: str | None = None
    ) -> dict[str, Any]:
        from trainmaster.service.runs.log_search import search_logs

        return search_logs(self._service, ALL_RUNS, text, limit, after, since)

    def picture(self, run: str) -> RunPicture:
        from trainmaster.service.runs.run_picture import RunPicture

        return RunPicture.of(self._service, run)

    def events(self, run: str, after: int = 0) -> list[Event]:
        return [Event.of(row) for row in self._service.events(run, after)]

    def execute(
        self,
        run: str,
        member: str | None,
        command: Sequence[str] = (),
        files: tuple[int, int, int] = (0, 1, 2),
        *,
        is_terminal: bool = False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> int:
        from trainmaster.service.shells import find_shell

        shell = find_shell(self._service, run, member, command, self._environ, tell, is_terminal=is_terminal)
        return shell.call(files)

    def forward(
        self, run: str, member: str | None, port: int, local_port: int, tell: Callable[[str], None]
    ) -> PortForward:
        from trainmaster.api.port_forward import PortForward
        from trainmaster.service.runs.member_connections import MemberConnections
        from trainmaster.transport.forwarding import SocketStream

        members = MemberConnections(self._service, self._environ)
        return PortForward(
            lambda: SocketStream(members.open(run, member, port)), local_port, tell, members.close
        )

    # --- quotes and machines -------------------------------------------------------------------------

    def convert(self, source: str, file: str = "job") -> dict[str, Any]:
        from trainmaster.service.conversion.converting import conversion_of

        return asdict(conversion_of(source, file))

    def first_recipe(self, directory: Path, script: str | None = None) -> dict[str, Any]:
        from trainmaster.service.first_recipe import first_recipe

        return asdict(first_recipe(directory, script, may_run=False))

    def check(self, recipe: Recipe) -> list[str]:
        from trainmaster.service.places.checking import check_places
        from trainmaster.service.run_planning import check_services_and_sinks

        check_services_and_sinks(self._service, recipe, self._environ)
        return check_places(self._service, recipe, self._environ)

    def dry_run(self, recipe: Recipe) -> dict[str, Any]:
        from trainmaster.service.dry_run import dry_run

        return dry_run(self._service, recipe, self._environ)

    def configuration(self, directory: str) -> list[dict[str, Any]]:
        from trainmaster.spec.configuration import configured_rows

        return configured_rows(configuration_files(Path(directory).absolute(), self._environ))

    def wallet(self) -> dict[str, Any] | None:
        if self._wallet is None:
            return None
        from trainmaster.service.teams.wallet import balance_of

        return balance_of(self._wallet, self._service.database.read).as_dict()

    def score_line(self, provider: str) -> str:
        return self._service.score_line("estimate", provider)

    def offers(
        self, wishes: OfferFilter, catalogue: str | None = None, sort: str = "price", limit: int | None = None
    ) -> OfferList:
        from trainmaster.service.offer_list import list_offers

        return list_offers(self._service, self._environ, wishes, catalogue, sort, limit)

    def refresh_prices(self, region: str | None) -> dict[str, int]:
        from trainmaster.service.offer_list import refresh_prices

        return refresh_prices(self._service, self._environ, region)

    def clusters(self) -> list[dict[str, Any]]:
        self._look_at_runs_away()
        return self._service.clusters()

    def end_clusters(self, ids: Sequence[str] | None) -> Stream[str | list[dict[str, Any]]]:
        self._look_at_runs_away()
        return WorkStream(lambda tell: tell(self._service.end_clusters(ids, self._environ, tell)))

    @property
    def images(self) -> HomeImages:
        from trainmaster.service.images import HomeImages

        return HomeImages(self._service, self._environ)

    @property
    def registry(self) -> Registry:
        from trainmaster.service.models.registry import Registry

        return Registry(self._service, None, "owner")

    @property
    def workflows(self) -> HomeWorkflows:
        from trainmaster.api.home_workflows import HomeWorkflows

        return HomeWorkflows(self._service, self._environ)

    @property
    def storage(self) -> Storage:
        from trainmaster.service.storage.storage import Storage

        return Storage(self._service, self._owner, self._environ)

    @property
    def administration(self) -> HomeAdministration:
        from trainmaster.api.administration import HomeAdministration

        return HomeAdministration(self._service)

    @property
    def views(self) -> SavedViews:
        from trainmaster.service.users.saved_views import SavedViews

        return SavedViews(self._service.database, self._owner)

    @property
    def _owner(self) -> Caller:
        """Who has this home may do everything in it."""
        from trainmaster.service.users.caller import home_owner

        return home_owner(this_user())

    @cached_property
    def apps(self) -> LocalApps:
        from trainmaster.api.local_apps import LocalApps

        return LocalApps(self._service, self._environ)

    @cached_property
    def services(self) -> LocalServices:
        from trainmaster.api.local_apps import LocalServices

        return LocalServices(self._service, self._environ)

    # --- volumes -----------------------------------------------------------------------------------

    def volumes(self) -> list[str]:
        from trainmaster.service.volumes import named_volumes

        return named_volumes()

    def volume(self, url: str) -> VolumeInfo:
        from trainmaster.service.volumes.stored import StoredVolume

        return StoredVolume(url).info()

    def remove_volume(self, url: str, *, whole: bool = False) -> RemovedVolume:
        from trainmaster.service.runs.lineage import refuse_used_volume
        from trainmaster.service.volumes.stored import StoredVolume

        stored = StoredVolume(url)
        if whole or stored.address.version is not None:
            refuse_used_volume(self._service.database, ALL_RUNS, url, *stored.address)
        return stored.remove(whole=whole)
