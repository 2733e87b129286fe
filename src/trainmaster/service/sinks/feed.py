"""`Feed`: one turn of one sink; what they have in common is how far each attempt is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from ipaddress import ip_network
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar, cast

from trainmaster.dataclass import dataclass
from trainmaster.db import queries, sinks
from trainmaster.db.leases import LEASE_S
from trainmaster.db.sinks import Attempt, Cursor
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.sinks import Sink
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.engine import RowMapping

    from trainmaster.service.notifications.webhook_targets import ReceiverResponse
    from trainmaster.service.open_home import OpenHome
    from trainmaster.spec import Recipe


def sinks_of(recipe: Recipe) -> Mapping[str, Sink]:
    """Those of a recipe, by kind."""
    return {} if recipe.sinks is None else recipe.sinks.by_kind


class TakenOverError(Exception):
    """Another process sends now."""


class SinkError(TrainmasterError):
    """The other side has not taken something.

    Attributes:
        code: what it calls that.
        is_final: it never will.
    """

    def __init__(self, message: str, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.code, self.is_final = code, status in (400, 413, 422)


S = TypeVar("S", bound=Sink)
#: The owner of a home may send to his own machine and network.
EVERYWHERE: Final = (ip_network("0.0.0.0/0"), ip_network("::/0"))


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What is needed to send to a sink.

    Attributes:
        secrets: values of those that it needs, by name.
        post: sends to a URL; refuses those that the run may not send to.
        place: a directory for this run.
    """

    secrets: Mapping[str, str]
    post: Callable[[str, bytes, Mapping[str, str]], ReceiverResponse]
    place: Path


class Feed(ABC, Generic[S]):
    """One turn of one sink.

    Args:
        opened: the home.
        row: of the sink.
        owner: that sends.
        context: what it sends with; a subclass takes what it needs of them.

    Attributes:
        last_s: when a run ends, its driver waits so long at most until all is sent.
        refused: why something is left out; empty if nothing is.
        pause_s: so long it need not be asked again while the run goes on.
    """

    last_s: ClassVar[float] = 10.0
    pause_s = 0.0

    def __init__(self, opened: OpenHome, row: RowMapping, owner: str, context: SinkContext) -> None:
        del context
        self.refused = ""
        self._owner, self._database = owner, opened.database
        self._run, self._kind = row["run_id"], row["kind"]
        run = self._database.run_row(self._run)  # before its tasks: if it is over, so are they
        self._is_over = run["state"] == State.DONE
        self._recipe, self._files = stored_recipe(run), opened.files_of(self._run)
        self._sink = cast("S", sinks_of(self._recipe)[self._kind])
        self._cursors = sinks.cursors(self._database, self._run, self._kind)

    @staticmethod
    @abstractmethod
    def check(sink: S, environ: Mapping[str, str], *, is_team: bool) -> None:
        """Refuse what can never work.

        Args:
            sink: as the recipe has it.
            environ: of the owner of the home.
            is_team: it is a run of a team of a server.

        Raises:
            UsageError: nothing is sent to its URL.
            MissingPartError: what sends is not installed.
        """

    @staticmethod
    def unsent(sink: S, place: Path) -> str:
        """What the user may send himself when its run is over; usually nothing."""
        del sink, place
        return ""

    @abstractmethod
    def feed(self) -> bool:
        """Send what is new; whether that was the last.

        Raises:
            SinkError: the other side has not taken something.
            TakenOverError: another process sends now.
        """

    def _tasks(self) -> dict[tuple[str, int], RowMapping]:
        return {
            (row["experiment"], row["number"]): row
            for name in self._recipe.experiments
            for row in queries.results(self._database, self._run, name)
        }

    def _cursor(self, attempt: RowMapping) -> Cursor:
        return self._cursors.get(_key(attempt), Cursor(""))

    def _keep(self, attempt: RowMapping, cursor: Cursor) -> None:
        self._renew()
        sinks.save_cursor(self._database, self._run, self._kind, _key(attempt), cursor)
        self._cursors[_key(attempt)] = cursor

    def _renew(self) -> None:
        expires_at = self._database.clock_s() + LEASE_S
        if not sinks.change(self._database, self._run, self._kind, self._owner, expires_at=expires_at):
            raise TakenOverError


def _key(attempt: RowMapping) -> Attempt:
    return attempt["experiment"], attempt["task"], attempt["number"]
