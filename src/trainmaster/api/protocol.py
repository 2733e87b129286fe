"""`ClientProtocol`: what a `Run` and the command line ask of the home or server that runs are on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from trainmaster.api.results import Event, Model, RunStatus
    from trainmaster.service.summary import Highlights


class ClientProtocol(Protocol):
    """The questions about runs, by their ids; the embedded `Client` answers them from a home.

    Raises:
        NotFoundError: (every method) there is no such run.
        StoreError: (every method) the database cannot be used.
    """

    def resolve(self, text: str) -> str:
        """The id of the run that is meant: by its id, a unique beginning of it, or ``latest``."""

    def listed(self, limit: int | None = None, after: str | None = None) -> dict[str, Any]:
        """A page of runs, newest first, those after one: the object of ``trainmaster status --json``."""

    def brief(self, run: str) -> dict[str, Any]:
        """The line of a run in the list of runs: quick, to be asked often."""

    def status(self, run: str) -> RunStatus:
        """All about a run."""

    def highlights(self, run: str) -> Highlights:
        """What people are shown of it beside its status."""

    def models(self, run: str | None = None) -> list[Model]:
        """What its tasks left, or those of all runs."""

    def metrics(
        self, run: str, experiment: str | None = None, task: int | None = None
    ) -> list[dict[str, Any]]:
        """What its tasks reported, a dictionary per line."""

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

    def events(self, run: str, after: int = 0) -> list[Event]:
        """A page of events with an id above ``after``; empty at the end."""

    def cancel(self, run: str) -> None:
        """Ask for its end, and see to it if nobody else does."""

    def resume(self, run: str) -> list[str]:
        """Have it driven again, unless it is; notes for the user."""
