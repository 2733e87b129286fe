"""`Client`: a home or a server in the caller's hands; runs are driven by processes of their own."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.api.embedded import EmbeddedClient
from trainmaster.api.protocol import Stream
from trainmaster.api.protocol_parts import RegistryProtocol, StorageProtocol, ViewsProtocol, WorkflowsProtocol
from trainmaster.api.results import Downloaded, RunPlan
from trainmaster.api.run import Run, leave
from trainmaster.api.streams import interruptible
from trainmaster.spec import Recipe, parse_duration
from trainmaster.spec.errors import UsageError, fails_as
from trainmaster.spec.private_files import make_private
from trainmaster.spec.trigger import needs_server
from trainmaster.spec.units import price

if TYPE_CHECKING:
    from trainmaster.advisor.quote.quote import Quote
    from trainmaster.api.administration import AdministrationProtocol
    from trainmaster.api.remote.remote import RemoteClient

#: A file, a directory with a ``recipe.yaml``, the keys and values of one, or one that was read.
AnyRecipe = str | os.PathLike[str] | Mapping[str, Any] | Recipe

_log = logging.getLogger("trainmaster")


class Client:
    """One home, or one server: its runs, models and quotes.

    Args:
        home: its directory; None for what ``TRAINMASTER_HOME`` names, or ``~/.trainmaster``. The other
            ``TRAINMASTER_*`` variables hold as for the command line. Or the URL of a server.
        token: of a server; None for ``TRAINMASTER_TOKEN``, or what ``trainmaster login`` has kept for it.

    Raises:
        UsageError: the directory cannot be made or written, or there is no token.
        AccessError: (every method) the server does not know the token, or refuses it.
        ProviderError: (every method) the server does not answer.
        StoreError: (every method) the database cannot be used.
    """

    def __init__(self, home: str | os.PathLike[str] | None = None, token: str | None = None) -> None:
        self._home: EmbeddedClient | RemoteClient
        if isinstance(home, str) and home.startswith(("http://", "https://")):
            from trainmaster.api.remote.remote import RemoteClient

            self._home = RemoteClient.of_url(home, token)
        elif token is not None:
            raise UsageError("a token is for a server", "Give the URL of one with it.")
        else:
            self._home = EmbeddedClient(home)

    def close(self) -> None:
        """Give back connections; its runs go on."""
        self._home.close()

    @property
    def registry(self) -> RegistryProtocol:
        """Registered models: their names, versions, aliases and tags."""
        return self._home.registry

    def download(self, model: str, directory: str | os.PathLike[str]) -> Downloaded:
        """Download a model and prove its hashes.

        Args:
            model: a registered one, ``NAME@3`` or ``NAME@ALIAS``, or ``RUN``, ``RUN/EXPERIMENT``,
                ``RUN/EXPERIMENT/TASK``.
            directory: where to; must not exist, or be empty.

        Raises:
            NotFoundError: there is no such model.
            UsageError: the directory is not empty, or there are several models.
            PublishError: a file is missing or damaged; nothing was changed.
        """
        found = self._home.registry.version(model)["model"] if "@" in model else model
        return self._home.fetch_model(found, Path(directory))

    def runs(
        self,
        *,
        limit: int | None = None,
        after: Run | str | None = None,
        where: str = "",
        sort: str = "",
    ) -> list[Run]:
        """Runs, newest first: all, or a page.

        Args:
            limit: at most so many.
            after: a run, or its id: only those that come after it, which are older.
            where: only those with which this holds, such as ``loss < 0.3 and label:project = x``.
            sort: in another order: ``best`` by the first metric of ``where``, or such as ``-cost``.

        Raises:
            NotFoundError: there is no such run.
            UsageError: the limit is below 1, ``where`` is no condition, ``sort`` no order, or there is
                ``after``, too: another order has no older ones.
        """
        if sort and after is not None:
            raise UsageError("after, and sort", "Ask for all, or for the first ones by `limit`.")
        last = after.id if isinstance(after, Run) else after
        return [Run(self._home, row["run"]) for row in self._home.listed(limit, last, where, sort)["runs"]]

    def cost(self, *, by: str = "month", since: str = "", where: str = "") -> dict[str, Any]:
        """What runs have cost and their quotes had said: the object of ``trainmaster cost --json``.

        Args:
            by: ``month``, ``provider``, ``user``, ``team``, ``run`` or ``label:KEY``.
            since: what was spent within this time, such as ``30d``, or since a day; empty for all.
            where: of runs with which this condition holds; see `runs`.

        Raises:
            UsageError: one of them is none.
        """
        return self._home.cost(by, since, where)

    def compare(self, runs: Sequence[str]) -> dict[str, Any]:
        """Runs beside each other: the object of ``trainmaster compare --json``.

        Args:
            runs: their ids, or beginnings of these, at most eight.

        Raises:
            NotFoundError: one is not there.
            UsageError: none, or too many.
        """
        return self._home.compare([self._home.resolve(run) for run in runs])

    def wallet(self) -> dict[str, Any] | None:
        """What may be spent with the token of a server, if it has a wallet: ``at_most_usd``, ``left_usd``."""
        return self._home.wallet()

    def run(self, run: str) -> Run:
        """One run.

        Args:
            run: its id, its name, a beginning of its id, or ``latest``.

        Raises:
            NotFoundError: none, or several.
        """
        return Run(self._home, self._home.resolve(run))

    def start(
        self,
        recipe: AnyRecipe,
        *,
        overrides: Mapping[str, object] | None = None,
        provider: str | None = None,
        directory: str | os.PathLike[str] = ".",
        yes: bool = False,
        max_usd: float | None = None,
        keep: str | None = None,
        allow_stale: bool = False,
    ) -> Run:
        """Start a run and return at once; arguments and errors are those of `trainmaster.run`."""
        keep_s, notes = _seconds(keep), list[str]()
        agrees = yes or max_usd is not None
        found, path = self._read(recipe, overrides, provider, directory)
        plan = self._planned(found, path, notes, max_usd, keep_s, agrees=agrees, allow_stale=allow_stale)
        accepted = self._home.accept_run(plan.id, agreed_usd_per_hour=plan.most_usd_per_hour, keep_s=keep_s)
        return Run(self._home, accepted.run, [*notes, *leave(self._home, accepted)])

    @property
    def storage(self) -> StorageProtocol:
        """What takes room, and how it goes: runs that are over, caches, checkpoints."""
        return self._home.storage

    @property
    def workflows(self) -> WorkflowsProtocol:
        """Recipes with ``on``, which a server starts by itself; `register_workflow` has it keep one."""
        return self._home.workflows

    @property
    def views(self) -> ViewsProtocol:
        """One's own names for what one looks for in the list of runs."""
        return self._home.views

    @property
    def administration(self) -> AdministrationProtocol:
        """Tokens, teams, users, secrets, and what may be spent in a month."""
        return self._home.administration

    def services(self) -> list[dict[str, Any]]:
        """Services of runs, those that are not over first: objects of ``trainmaster services --json``."""
        return self._home.services.listed()

    def service(self, name: str) -> dict[str, Any]:
        """One of them.

        Raises:
            NotFoundError: there is none of that name.
        """
        return self._home.services.show(name)

    def service_url(self, name: str, port: int = 0) -> str:
        """Where a service is asked; without a server, as long as this process lives.

        Args:
            name: of the service.
            port: of this machine, without a server; 0 for any that is free.

        Raises:
            NotFoundError: there is none of that name.
            UsageError: the port is taken.
        """
        return self._home.services.url(name, port)

    def check(
        self,
        recipe: AnyRecipe,
        *,
        overrides: Mapping[str, object] | None = None,
        provider: str | None = None,
        directory: str | os.PathLike[str] = ".",
    ) -> list[str]:
        """Look for what a recipe needs where it would run; notes. Nothing is rented or started.

        Args:
            recipe: as of `trainmaster.run`, as are the other arguments and the errors.
            overrides: see there.
            provider: see there.
            directory: see there.
        """
        return self._home.check(self._read(recipe, overrides, provider, directory)[0])

    def dry_run(
        self,
        recipe: AnyRecipe,
        *,
        overrides: Mapping[str, object] | None = None,
        provider: str | None = None,
        directory: str | os.PathLike[str] = ".",
    ) -> dict[str, Any]:
        """What a run would do: ``requests``, ``processes``, ``notes``; nothing is rented or started.

        Where the recipe names several places, also ``places``: a row of each, with why it is not taken.

        Args:
            recipe: as of `trainmaster.run`, as are the other arguments and the errors.
            overrides: see there.
            provider: see there.
            directory: see there.
        """
        return self._home.dry_run(self._read(recipe, overrides, provider, directory)[0])

    def convert(self, source: str, file: str = "job") -> dict[str, Any]:
        """A recipe of a file of another tool alone: the object of ``trainmaster convert --json``.

        Args:
            source: what stands in it, or a line such as of torchrun.
            file: its name.

        Raises:
            UsageError: it is of no kind that is known, or no recipe can say it.
        """
        return self._home.convert(source, file)

    def first_recipe(self, directory: str | os.PathLike[str], script: str | None = None) -> dict[str, Any]:
        """A recipe for the code in a directory: the object of ``trainmaster init --json``; nothing is run.

        Raises:
            UsageError: there is no script, or it is no Python.
            AccessError: the server is for others, too.
        """
        return self._home.first_recipe(Path(directory), script)

    def configuration(self, directory: str | os.PathLike[str] = ".") -> list[dict[str, Any]]:
        """What recipes in a directory leave open, and the files and lines that say so.

        Args:
            directory: of this machine; a server tells what it takes where a recipe says nothing.
        """
        return self._home.configuration(os.fspath(directory))

    def register_workflow(
        self,
        recipe: AnyRecipe,
        *,
        now: bool = False,
        overrides: Mapping[str, object] | None = None,
        provider: str | None = None,
        directory: str | os.PathLike[str] = ".",
        yes: bool = False,
        max_usd: float | None = None,
        keep: str | None = None,
        allow_stale: bool = False,
    ) -> dict[str, Any]:
        """Have the server keep a recipe with ``on`` and start its runs; again for its next revision.

        Args:
            recipe: as of `trainmaster.run`, as are the other arguments and the errors.
            now: start a run at once, too.
            overrides: see there.
            provider: see there.
            directory: see there.
            yes: agree to what each of its runs costs.
            max_usd: agree to so much for each run.
            keep: how long rented machines stay warm after each run.
            allow_stale: see there.

        Returns:
            As `Client.workflows` shows it; ``secret`` of its webhook is shown this once.
        """
        keep_s, agrees = _seconds(keep), yes or max_usd is not None
        found, path = self._read(recipe, overrides, provider, directory)
        if not found.on:
            raise UsageError(f"{found.name} has no `on`: nothing would start it", "`start` runs it once.")
        if isinstance(self._home, EmbeddedClient):
            raise needs_server(found.on[0].key)
        plan = self._planned(found, path, [], max_usd, keep_s, agrees=agrees, allow_stale=allow_stale)
        return self._home.workflows.register(plan.id, starts_now=now, keep_s=keep_s)

    def _planned(
        self,
        recipe: Recipe,
        path: Path,
        notes: list[str],
        max_usd: float | None,
        keep_s: float,
        *,
        agrees: bool,
        allow_stale: bool,
    ) -> RunPlan:
        """What a run would rent, if its price was agreed to; lines for the user become notes."""
        if max_usd is not None:
            from trainmaster.service.run_planning import capped

            recipe = capped(recipe, max_usd)
        stream = self._home.plan_run(
            recipe, str(path), allow_stale=allow_stale, can_agree=agrees, keep_s=keep_s
        )
        plan = _last(stream, notes)
        assert isinstance(plan, RunPlan)
        if not agrees:
            _refuse_costs(plan)
        return plan

    def quote(
        self,
        recipe: AnyRecipe,
        *,
        overrides: Mapping[str, object] | None = None,
        provider: str | None = None,
        directory: str | os.PathLike[str] = ".",
        catalogue: str | None = None,
        max_workers: int | None = None,
        measurements: str | os.PathLike[str] | None = None,
        fresh: bool = False,
        allow_stale: bool = False,
        measure: bool = True,
    ) -> Quote:
        """Quote a recipe; arguments and errors are those of `trainmaster.quote`."""
        from trainmaster.service.quotes.quote_options import QuoteOptions

        found, _ = self._read(recipe, overrides, provider, directory)
        options = QuoteOptions(
            catalogue=catalogue,
            max_workers=max_workers,
            fresh=fresh,
            allow_stale=allow_stale,
            measurements=None if measurements is None else Path(measurements),
            measures=measure,
        )
        made: Quote = _last(self._home.quote_recipe(found, options), [])
        return made

    def _read(
        self,
        recipe: AnyRecipe,
        overrides: Mapping[str, object] | None,
        provider: str | None,
        directory: str | os.PathLike[str],
    ) -> tuple[Recipe, Path]:
        """A recipe, and the file that it is in."""
        if isinstance(recipe, str | os.PathLike):
            return Recipe.read(recipe, overrides=overrides, provider=provider), Path(recipe)
        if isinstance(recipe, Recipe):
            if overrides or provider:
                raise UsageError(
                    "overrides and provider: this recipe was read already",
                    "Give them to Recipe.read or Recipe.from_dict.",
                )
            found = recipe
        elif isinstance(recipe, Mapping):
            found = Recipe.from_dict(recipe, directory=directory, overrides=overrides, provider=provider)
        else:
            raise UsageError(
                f"recipe: {recipe!r:.60} is none",
                "Give a path, a dictionary or a trainmaster.Recipe.",
            )
        if not isinstance(self._home, EmbeddedClient):
            return found, Path("recipe")
        digest = hashlib.sha256(found.source_text.encode()).hexdigest()[:10]
        path = self._home.directory / "recipes" / f"{found.name}-{digest}.yaml"
        make_private(path.parent)
        path.write_text(found.source_text, encoding="utf-8")
        return found, path


def _seconds(keep: str | None) -> float:
    with fails_as("keep", on=ValueError):
        return 0.0 if keep is None else parse_duration(keep)


def _last(stream: Stream[Any], notes: list[str]) -> Any:  # noqa: ANN401
    """What it tells at last; lines before that are logged and, without the word before them, noted."""
    found = None
    with interruptible(stream):
        for found in stream:
            if isinstance(found, str):
                _log.info(found)
                notes.append(found.removeprefix("note: "))
    return found


def _refuse_costs(plan: RunPlan) -> None:
    """What costs is refused, as its cost was not agreed to."""
    if not plan.most_usd_per_hour:
        return

    asked = f"this rents machines for at most {price(plan.most_usd_per_hour)} per hour"
    raise UsageError(
        "\n".join([f"{asked}, which was not agreed to:", *plan.lines]),
        "Nothing was started. `yes=True` agrees; `max_usd=20` agrees to so much for the whole run.",
    )
