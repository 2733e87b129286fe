"""`Client`: one home, embedded in the caller's process; its runs are driven by processes of their own."""

from __future__ import annotations

import hashlib
import logging
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.api.results import Event, Model, RunStatus
from trainmaster.api.run import Run
from trainmaster.control.layout import Home
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service import Service, Session
from trainmaster.spec import Recipe, parse_duration
from trainmaster.spec.errors import UsageError
from trainmaster.spec.private_files import make_private

if TYPE_CHECKING:
    from trainmaster.advisor.quote.quote import Quote
    from trainmaster.service.renting import RentalOffer
    from trainmaster.service.summary import Highlights

#: A file, a directory with a ``recipe.yaml``, the keys and values of one, or one that was read.
AnyRecipe = str | os.PathLike[str] | Mapping[str, Any] | Recipe

_log = logging.getLogger("trainmaster")


class Client:
    """One home: its runs, models and quotes. Fulfils `ClientProtocol`.

    Args:
        home: its directory; None for what ``TRAINMASTER_HOME`` names, or ``~/.trainmaster``. The other
            ``TRAINMASTER_*`` variables hold as for the command line.

    Raises:
        UsageError: the directory cannot be made or written.
        StoreError: (every method) the database cannot be used.
    """

    def __init__(self, home: str | os.PathLike[str] | None = None) -> None:
        self._own = {} if home is None else {"TRAINMASTER_HOME": str(Path(home).expanduser().absolute())}
        self._service = Service(Home.from_environment(self._environ))
        self._end = weakref.finalize(self, self._service.close)

    def close(self) -> None:
        """Give back connections; its runs go on."""
        self._end()

    def runs(self, *, limit: int | None = None, after: Run | str | None = None) -> list[Run]:
        """Runs, newest first: all, or a page.

        Args:
            limit: at most so many.
            after: a run, or its id: only those that come after it, which are older.

        Raises:
            NotFoundError: there is no such run.
            UsageError: the limit is below 1.
        """
        last = after.id if isinstance(after, Run) else after
        return [Run(self, row["run"]) for row in self._service.runs(limit, last)["runs"]]

    def run(self, run: str) -> Run:
        """One run.

        Args:
            run: its id, a unique beginning of it, or ``latest``.

        Raises:
            NotFoundError: none, or several.
        """
        return Run(self, self.resolve(run))

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
        service, environ, notes = self._service, self._environ, _Notes()
        try:
            keep_s = 0.0 if keep is None else parse_duration(keep)
        except ValueError as error:
            raise UsageError(f"keep: {error}") from None
        found, path = self._read(recipe, overrides, provider, directory)
        if capabilities_of(found.provider).is_here:
            for note in service.check_inputs(found, environ):
                notes.tell(note)
            if any(e.distributed and e.distributed.is_flexible for e in found.experiments.values()):
                from trainmaster.service.interrupts import interruptible
                from trainmaster.service.quoting import Quoter

                with interruptible() as caught:
                    caught.quoter = Quoter(service, notes.tell)
                    found = caught.quoter.settle(found, path, environ)
            session = service.start(found, path, environ)
        else:
            from trainmaster.service.consent import rent_by_consent

            consent = _Agreement(yes or max_usd is not None)
            if max_usd is not None:
                found = _capped(found, max_usd)
            offer = rent_by_consent(
                service, found, path, environ, consent, notes.tell, allow_stale=allow_stale
            )
            session = service.start(offer.recipe, path, environ, plans=offer.plans, keep_s=keep_s)
            offer.note_down(service.database, session.run, time.time())
        return Run(self, session.run, [*notes.lines, *self._drive(session)])

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
    ) -> Quote:
        """Quote a recipe; arguments and errors are those of `trainmaster.quote`."""
        from trainmaster.service.interrupts import interruptible
        from trainmaster.service.quoting import QuoteOptions, Quoter

        found, path = self._read(recipe, overrides, provider, directory)
        options = QuoteOptions(
            catalogue=catalogue,
            max_workers=max_workers,
            fresh=fresh,
            allow_stale=allow_stale,
            measurements=None if measurements is None else Path(measurements),
        )
        with interruptible() as caught:
            caught.quoter = quoter = Quoter(self._service, _log.info)
            if catalogue is None:
                quoter.refresh_prices(found, self._environ)
            return quoter.quote(found, path, self._environ, options)

    # --- by the id of a run: see `ClientProtocol` --------------------------------------------------

    def resolve(self, text: str) -> str:
        """The id of the run that is meant."""
        return self._service.resolve(text)

    def listed(self, limit: int | None = None, after: str | None = None) -> dict[str, Any]:
        """A page of runs."""
        return self._service.runs(limit, after)

    def brief(self, run: str) -> dict[str, Any]:
        """The line of a run in the list of runs."""
        return self._service.brief(run)

    def status(self, run: str) -> RunStatus:
        """All about a run."""
        return RunStatus.of(self._service.status(run))

    def highlights(self, run: str) -> Highlights:
        """What people are shown of a run beside its status."""
        return self._service.highlights(run)

    def models(self, run: str | None = None) -> list[Model]:
        """What the tasks of a run left, or those of all."""
        return [Model(**found) for found in self._service.models(run)]

    def metrics(
        self, run: str, experiment: str | None = None, task: int | None = None
    ) -> list[dict[str, Any]]:
        """What its tasks reported."""
        from trainmaster.service.curves import reported

        service = self._service
        return list(reported(service.database, service.home_of(run), run, experiment, task))

    def logs(
        self,
        run: str,
        *,
        follow: bool = False,
        experiment: str | None = None,
        task: int | None = None,
        member: str | None = None,
        tail: int | None = None,
        grep: str | None = None,
        since: str | None = None,
    ) -> Iterator[bytes]:
        """What its tasks wrote, in pieces."""
        from trainmaster.service.log_streams import LineChoice, LogStreams

        choice = LineChoice.of(tail, grep, since, time.time())
        return LogStreams(self._service, run, experiment, task, member, choice).read(follow=follow)

    def events(self, run: str, after: int = 0) -> list[Event]:
        """A page of events."""
        return [Event.of(row) for row in self._service.events(run, after)]

    def cancel(self, run: str) -> None:
        """Ask for its end, and see to it if nobody else does."""
        if not self._service.cancel(run):
            self._service.finish_cancelled(run, self._environ)

    def resume(self, run: str) -> list[str]:
        """Have it driven again, unless it is; notes for the user."""
        session = self._service.resume(run, self._environ)
        if session is not None:
            return self._drive(session)
        left = self._service.deliver_left(run, self._environ)
        return [left] if left else []

    # --- parts -----------------------------------------------------------------------------------

    @property
    def _environ(self) -> dict[str, str]:
        return {**os.environ, **self._own}

    def _drive(self, session: Session) -> list[str]:
        from trainmaster.service.background import drive_in_background

        notes = list(session.notes)
        if "TRAINMASTER_ATTEMPT_ID" in os.environ:
            notes.append("it was started by a task, and ends with it")
        drive_in_background(self._service, session, self._environ)
        return notes

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
                f"a {type(recipe).__name__} is no recipe",
                "Give a path, a dictionary or a trainmaster.Recipe.",
            )
        digest = hashlib.sha256(found.source_text.encode()).hexdigest()[:10]
        path = self._service.home.root / "recipes" / f"{found.name}-{digest}.yaml"
        make_private(path.parent)
        path.write_text(found.source_text, encoding="utf-8")
        return found, path


class _Notes:
    """Notes for the user, without the word before them; the log has them too."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def tell(self, line: str) -> None:
        """Take one."""
        _log.info(line)
        self.lines.append(line.removeprefix("note: "))


@dataclass(frozen=True)
class _Agreement:
    """Whether the caller has agreed to pay; see `Consent`."""

    is_given: bool

    def look(self, cheapest: RentalOffer) -> None:
        """Before anything is measured."""
        self.decide(cheapest)

    def decide(self, offer: RentalOffer) -> None:
        """Refuse what costs, unless it is agreed to."""
        if not offer.costs or self.is_given:
            return
        from trainmaster.service.quote_record import price

        asked = f"this rents machines for at most {price(offer.most_usd_per_hour)} per hour"
        raise UsageError(
            "\n".join([f"{asked}, and nobody has agreed to that:", *offer.lines]),
            "Nothing was started. `yes=True` agrees; `max_usd=20` agrees to so much for the whole run.",
        )


def _capped(recipe: Recipe, max_usd: float) -> Recipe:
    """The recipe with at most so much as its ``budget.total``."""
    from trainmaster.spec import Budget

    if not max_usd > 0:
        raise UsageError(f"max_usd={max_usd:g} is no amount to spend", "Give US dollars, such as max_usd=20.")
    budget = recipe.budget or Budget()
    total = min(max_usd, budget.total_usd or max_usd)
    return recipe.model_copy(update={"budget": budget.model_copy(update={"total_usd": total})})
