"""`ClientProtocol`: what a `Run` and the command line ask of the home or server that runs are on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from trainmaster.api.protocol_parts import (
    AppsProtocol,
    ImagesProtocol,
    RegistryProtocol,
    ServicesProtocol,
    StorageProtocol,
    ViewsProtocol,
    WorkflowsProtocol,
)
from trainmaster.api.results import Accepted, Downloaded, Event, LogQuery, Model, RunPlan, RunStatus, Watched

if TYPE_CHECKING:
    from pathlib import Path

    from trainmaster.api.administration import AdministrationProtocol
    from trainmaster.api.port_forward import PortForward
    from trainmaster.service import OfferFilter, ProfileProgress, Quote, RecommendQuery
    from trainmaster.service.driving.run_news import RunNews
    from trainmaster.service.models.unpublished_models import SavedModel
    from trainmaster.service.offer_list import OfferList
    from trainmaster.service.quotes.quote_options import QuoteOptions
    from trainmaster.service.runs.highlights import Highlights
    from trainmaster.service.runs.run_picture import RunPicture
    from trainmaster.service.volumes.stored import RemovedVolume, VolumeInfo
    from trainmaster.spec import Recipe

T_co = TypeVar("T_co", covariant=True)


class Stream(Protocol[T_co]):
    """What something that takes a while tells, as it comes; raises what went wrong with it."""

    def __iter__(self) -> Iterator[T_co]: ...

    def __next__(self) -> T_co: ...

    def interrupt(self) -> int:
        """Ctrl-C: how often it was asked to end in order; 0 if nothing could. Signal-safe."""

    def close(self) -> None:
        """The listener is gone."""


class ClientProtocol(Protocol):
    """Whatever users do with runs, by their ids: `EmbeddedClient` answers from a home, REST from a server.

    What goes in and out can travel as JSON: strings, numbers, frozen models; what takes long is a `Stream`.
    Not here, as they are of the user's own machine: ``check``, ``predict``, ``doctor``, ``models get`` and
    ``volume push, get, ls, cat, gc, fsck, mount`` of a URI, ``lab``, completion, and the driver ``_drive``.

    Raises:
        NotFoundError: (every method) there is no such run.
        StoreError: (every method) the database cannot be used.
    """

    @property
    def apps(self) -> AppsProtocol:
        """TensorBoard, notebooks, and ports of members."""

    @property
    def services(self) -> ServicesProtocol:
        """Services of models."""

    @property
    def images(self) -> ImagesProtocol:
        """Images that were made of machines."""

    @property
    def registry(self) -> RegistryProtocol:
        """Models that have names."""

    @property
    def workflows(self) -> WorkflowsProtocol:
        """Recipes that run again by themselves."""

    @property
    def storage(self) -> StorageProtocol:
        """What takes room, and how it goes."""

    @property
    def administration(self) -> AdministrationProtocol:
        """Tokens, teams, users, secrets and budgets."""

    @property
    def views(self) -> ViewsProtocol:
        """Names for what one looks for in the list of runs."""

    #: A run may be without a driver for so long, as when one hands it over, in seconds.
    undriven_s: float

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
        """What a run would rent and cost; nothing is rented, but its job may be measured for a minute.

        Args:
            recipe: as read.
            path: where.
            allow_stale: old prices will do.
            can_agree: somebody has agreed to costs, or can be asked: else what costs is not measured for it.
            measure_first: measure it and quote, whatever is known.
            keep_s: see `accept_run`.

        Returns:
            Lines for the user, how far a measurement is, the quote of ``measure_first``; at last the plan.

        Raises:
            UsageError: it cannot run, or cannot be rented.
            ProviderError: whether it can be rented is unknown.
            InterruptedByUser: while measuring.
        """

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
        """Write a run down; `drive_run` or `detach_run` is to follow.

        Args:
            plan: id of a `RunPlan`.
            agreed_usd_per_hour: what its user has agreed to pay at most.
            keep_s: how long rented machines stay warm for the next run, in seconds.
            queue: on a server: it waits where it does not fit in the month's budget.
            on_cluster: its first machine drives it; a server drives it anyway.
            max_usd: its cap, unless its recipe has a lower one; None for that of the recipe.

        Raises:
            UsageError: it costs more than was agreed to, the provider would not give the machines, or there
                is no queue.
            ProviderError: the provider cannot be reached.
        """

    def take_run(self, run: str, *, max_usd: float | None = None) -> Accepted | None:
        """Go on with an undriven run in the same way; None if it is driven, or all of it succeeded.

        Args:
            run: its id.
            max_usd: its ``budget.total`` from now on, of all that it costs and has cost; None: as before.

        Raises:
            UsageError: it cannot run here any more, or its money is used up; names what is missing.
        """

    def drive_run(self, run: str, view_every_s: float) -> Stream[RunNews | str]:
        """See a run that was just accepted or taken to its end: what happens, and lines for the user.

        A home drives it in this process: to end the process ends the run. A server drives it in any case.

        Args:
            run: its id.
            view_every_s: seconds from one look at how far it is to the next.

        Raises:
            InterruptedByUser: its members were stopped; it can be resumed.
            LeaseLostError: another process drives it now.
            ExecutorError: the node cannot be reached.
        """

    def detach_run(self, run: str) -> None:
        """Leave a run that was just accepted or taken to a driver of its own."""

    def watch_run(self, run: str) -> Iterator[Watched]:
        """What happens from now on to a run that others drive; ends when it is not driven any more."""

    def cancel(self, run: str) -> None:
        """Ask for its end; end it here if it is undriven."""

    def cancel_tasks(self, run: str, tasks: Sequence[str]) -> list[dict[str, Any]]:
        """Ask for the end of single tasks, such as ``sweep/3``: all else goes on.

        Returns:
            ``experiment``, ``task``, ``state``, ``reason`` and ``message`` of each at present.

        Raises:
            UsageError: there is no such task.
            AccessError: the caller may not.
        """

    def answer(self, run: str, experiment: str, *, is_given: bool, why: str = "") -> None:
        """Approve or deny that an experiment begins which waits for that.

        Raises:
            UsageError: it waits for no answer (any more).
            AccessError: the caller may not.
        """

    def save_models(self, run: str) -> list[SavedModel]:
        """Publish the models that it could not save.

        Raises:
            UsageError: somebody drives it.
            PublishError: the store cannot be written; what was not published is still kept.
        """

    def deliver_left(self, run: str) -> str:
        """Deliver pending notifications of a finished run; return a message about those that failed."""

    # --- runs ------------------------------------------------------------------------------------

    def resolve(self, text: str) -> str:
        """The id of the run that is meant: by its id, its name, a beginning of its id, or ``latest``."""

    def listed(
        self, limit: int | None = None, after: str | None = None, where: str = "", sort: str = ""
    ) -> dict[str, Any]:
        """A page of runs, newest first, those after one: the object of ``trainmaster status --json``.

        Args:
            limit: at most so many.
            after: id of a run.
            where: only those with which this condition holds; see `trainmaster.spec.where`.
            sort: in another order, as of ``GET /runs``; then ``after`` is how many come before.

        Raises:
            UsageError: it is no condition, or no order.
        """

    def overview(self) -> dict[str, Any]:
        """What needs somebody, runs, waits, ended and costs: see `trainmaster.service.runs.overview`."""

    def describe(self, run: str, labels: Mapping[str, str | None], note: str | None = None) -> dict[str, Any]:
        """Change labels of a run (None takes one away), and its note unless that is None; then its line.

        Raises:
            UsageError: a key or value is wrong, or there are too many.
        """

    def brief(self, run: str) -> dict[str, Any]:
        """The line of a run in the list of runs: quick, to be asked often."""

    def status(self, run: str) -> RunStatus:
        """All about a run."""

    def highlights(self, run: str) -> Highlights:
        """What people are shown of it beside its status."""

    def models(self, run: str | None = None) -> list[Model]:
        """What its tasks left, or those of all runs."""

    def find_model(self, name: str) -> str:
        """The URI of the one model that ``RUN``, ``RUN/EXPERIMENT`` or ``RUN/EXPERIMENT/TASK`` means."""

    def model_files(self, name: str) -> list[str]:
        """Paths in that model."""

    def fetch_model(self, name: str, directory: Path) -> Downloaded:
        """Download that model into a directory, which must not exist or be empty, and prove its hashes.

        Raises:
            UsageError: the directory is not empty, or there are several models.
            PublishError: a file is missing or damaged; nothing was changed.
        """

    def check_models(self, runs: Sequence[str] = (), *, is_deep: bool = False) -> dict[str, Any]:
        """Whether models and checkpoints are there: the object of ``trainmaster models fsck --json``.

        Args:
            runs: their ids; all of them by default.
            is_deep: read every file, and compare its hash.
        """

    def export(self, run: str, file: Path) -> None:
        """Write its capsule: code, recipe, versions of data, environment, results; see `open_capsule`.

        Raises:
            UsageError: the file is there already, or its code is not.
        """

    def metrics(
        self, run: str, experiment: str | None = None, task: int | None = None
    ) -> list[dict[str, Any]]:
        """What its tasks reported, a dictionary per line."""

    def picture(self, run: str) -> RunPicture:
        """What a picture of it shows: its searches, and the curves of its other experiments."""

    def targets(self, run: str) -> list[dict[str, Any]]:
        """When its running tasks come to their targets: a dictionary per task, as REST has it."""

    def curves(self, run: str, keys: Sequence[str] = (), points: int = 200) -> list[dict[str, Any]]:
        """What its tasks reported, thinned: a dictionary per experiment, task and metric, as REST has it.

        Args:
            run: its id.
            keys: names of metrics; all without.
            points: of one curve, at most.
        """

    def compare(self, runs: Sequence[str]) -> dict[str, Any]:
        """Runs beside each other: the object of ``trainmaster compare --json``.

        Args:
            runs: their ids, at most eight; the recipes of the others are compared with the first one's.

        Raises:
            UsageError: none, or too many.
        """

    def logs(self, run: str, query: LogQuery) -> Iterator[bytes]:
        """What its tasks wrote, or operating systems said, in pieces."""

    def fetch_system_log(self, run: str, member: str | None = None) -> str:
        """What the operating system of a machine says now; it is kept with the run where that is driven.

        Args:
            run: its id.
            member: such as ``worker-1``, or a machine; None for the first one there is.

        Raises:
            NotFoundError: there is none, or its log is unknown.
            ProviderError: it cannot be reached.
        """

    def search_logs(
        self, text: str, limit: int, after: str | None = None, since: str | None = None
    ) -> dict[str, Any]:
        """Lines with a text in the logs of all runs, those of the newest runs first; bounded.

        Args:
            text: as it is, but for upper and lower case.
            limit: at most so many lines.
            after: ``next`` of the answer before.
            since: only what was written since so long ago, such as ``24h``.

        Returns:
            ``lines`` (of each: ``run``, ``experiment``, ``task``, ``attempt``, ``member``, ``line``),
            ``runs`` (how many were looked through), ``cut`` (runs that have more than was looked at) and
            ``next``: where it goes on; None at the end.
        """

    def events(self, run: str, after: int = 0) -> list[Event]:
        """A page of events with an id above ``after``; empty at the end."""

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
        """Run a command where a member works, in the run's code and with its environment; its exit code.

        Args:
            run: its id.
            member: such as ``worker-1``, or a machine; None for the first one there is.
            command: none for a shell; a single word is a line for the shell.
            files: descriptors of its standard input, output and error.
            is_terminal: the first two are one, and so it is for the command.
            tell: shows a line to the user, such as that a machine is waited for.

        Raises:
            NotFoundError: the run has no such member, or its machines are gone.
            AccessError: its machines are closed to the caller.
        """

    def forward(
        self, run: str, member: str | None, port: int, local_port: int, tell: Callable[[str], None]
    ) -> PortForward:
        """Let a port of this machine lead to one of a member, until it is closed.

        Args:
            run: its id.
            member: as of `execute`.
            port: at which something listens there, on its loopback.
            local_port: here; 0 for any that is free.
            tell: shows a line to the user: why a connection could not be made.

        Raises:
            NotFoundError, AccessError: as of `execute`.
            UsageError: the port here cannot be used.
        """

    # --- quotes and machines -------------------------------------------------------------------------

    def asked_quotes(self) -> list[dict[str, Any]]:
        """Quotes that were asked of a server, as of ``GET /quotes``; a home keeps none."""

    def quote_recipe(self, recipe: Recipe, options: QuoteOptions) -> Stream[str | ProfileProgress | Quote]:
        """Measure a recipe's job where that is needed, and quote it: lines, progress, at last the quote.

        Raises:
            UsageError: nothing is feasible, or a script shows no steps; names what to change.
            InterruptedByUser: while measuring.
        """

    def recommend(self, wish: RecommendQuery, profile: str) -> dict[str, Any]:
        """How many machines a job should have: the object of ``trainmaster recommend --json``.

        Args:
            wish: a batch, a latency, prices and caps.
            profile: ``RUN`` or ``RUN/EXPERIMENT``, by their ids; or ``anwar-2021``.

        Raises:
            UsageError: a wish that cannot be, or the run has measured several jobs.
            NotFoundError: there is no such run, or nothing was measured there.
        """

    def cost(self, by: str = "month", since: str = "", where: str = "") -> dict[str, Any]:
        """What runs have cost and their quotes had said: the object of ``trainmaster cost --json``.

        Args:
            by: ``month``, ``provider``, ``user``, ``team``, ``run`` or ``label:KEY``.
            since: what was spent within this time, such as ``30d``, or since a day; empty for all.
            where: of runs with which this condition holds; see `listed`.

        Raises:
            UsageError: one of them is none.
        """

    def wallet(self) -> dict[str, Any] | None:
        """What may be spent with this client, or with the token of a server; None if it has no wallet.

        Returns:
            ``wallet`` (its name), ``at_most_usd``, ``spent_usd``, ``reserved_usd`` and ``left_usd``.
        """

    def score(self) -> dict[str, Any]:
        """How often quotes were kept: the object of ``trainmaster score --json``."""

    def convert(self, source: str, file: str = "job") -> dict[str, Any]:
        """A recipe of a file of another tool alone: the object of ``trainmaster convert --json``.

        Args:
            source: what stands in it, or a command line.
            file: its name.

        Raises:
            UsageError: it is of no kind that is known, or no recipe can say it.
        """

    def first_recipe(self, directory: Path, script: str | None = None) -> dict[str, Any]:
        """A recipe for the code in a directory of this machine: the object of ``trainmaster init --json``.

        Raises:
            UsageError: there is no script, or it is no Python.
            AccessError: the server is for others, too.
        """

    def check(self, recipe: Recipe) -> list[str]:
        """Look for what a recipe needs where it would run; nothing is rented, sent or started.

        Returns:
            Notes for the user.

        Raises:
            UsageError: something is not there, or a server does not do it.
        """

    def dry_run(self, recipe: Recipe) -> dict[str, Any]:
        """What a run would do; see `trainmaster.service.dry_run.dry_run`. Nothing is rented, sent or written.

        Raises:
            UsageError: what it asks for is not there.
        """

    def configuration(self, directory: str) -> list[dict[str, Any]]:
        """What recipes in a directory leave open: the rows of ``trainmaster config show --json``.

        Args:
            directory: of this machine; a server tells what it takes where a recipe that is sent says nothing.

        Raises:
            RecipeError: a file of configuration is wrong.
        """

    def score_line(self, provider: str) -> str:
        """The same of estimates for a provider, in a line; empty if too little is known."""

    def offers(
        self, wishes: OfferFilter, catalogue: str | None = None, sort: str = "price", limit: int | None = None
    ) -> OfferList:
        """What can be rented, sorted.

        Args:
            wishes: which offers.
            catalogue: a name or a file; None for the prices that are rented by.
            sort: as ``trainmaster offers --sort``.
            limit: at most so many; the list knows how many there are.

        Raises:
            UsageError: there is no such catalogue or order.
        """

    def refresh_prices(self, region: str | None) -> dict[str, int]:
        """Ask for the prices of now in regions (a pattern); how many there are, by region.

        Raises:
            UsageError: no credentials, no permission, no such region.
            ProviderError: the provider does not answer.
        """

    def clusters(self) -> list[dict[str, Any]]:
        """What is rented now: objects of ``trainmaster clusters --json``."""

    def end_clusters(self, ids: Sequence[str] | None) -> Stream[str | list[dict[str, Any]]]:
        """Give back clusters that no run uses, or all of those (None): lines, at last what they were.

        Raises:
            NotFoundError: there is no such cluster.
            UsageError: a run uses it, or its provider cannot be used.
            ProviderError: the provider cannot be reached; what is warm ends itself in any case.
        """

    # --- volumes -----------------------------------------------------------------------------------

    def volumes(self) -> list[str]:
        """Volumes with short names."""

    def volume(self, url: str) -> VolumeInfo:
        """The versions of a volume, by its URL or short name.

        Raises:
            NotFoundError: there never was one.
            PublishError: the object store fails.
        """

    def remove_volume(self, url: str, *, whole: bool = False) -> RemovedVolume:
        """Remove a version, ``URL@3``; without one the whole volume, but only if ``whole`` says so, too."""
