"""`ClientProtocol`: what a `Run` asks of the home or server that it is on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from trainmaster.api.results import Event, Model, RunStatus


class ClientProtocol(Protocol):
    """The questions about runs, by their ids; the embedded `Client` answers them from a home.

    Raises:
        NotFoundError: (every method) there is no such run.
        StoreError: (every method) the database cannot be used.
    """

    def brief(self, run: str) -> dict[str, Any]:
        """The line of a run in the list of runs: quick, to be asked often."""

    def status(self, run: str) -> RunStatus:
        """All about a run."""

    def models(self, run: str) -> list[Model]:
        """What its tasks left."""

    def metrics(self, run: str, experiment: str | None, task: int | None) -> list[dict[str, Any]]:
        """What its tasks reported, a dictionary per line."""

    def logs(
        self,
        run: str,
        *,
        follow: bool,
        experiment: str | None,
        task: int | None,
        member: str | None,
        tail: int | None,
        grep: str | None,
        since: str | None,
    ) -> Iterator[bytes]:
        """What its tasks wrote, in pieces."""

    def events(self, run: str, after: int) -> list[Event]:
        """A page of events with an id above ``after``; empty at the end."""

    def cancel(self, run: str) -> None:
        """Ask for its end, and see to it if nobody else does."""

    def resume(self, run: str) -> list[str]:
        """Have it driven again, unless it is; notes for the user."""
