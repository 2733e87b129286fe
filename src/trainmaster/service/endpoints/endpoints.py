"""`Endpoints`: the services that a caller sees, and where their requests may go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.db import endpoint_rows as rows
from trainmaster.db.endpoint_changes import ReplicaState
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.endpoints.endpoint_summaries import endpoint_summaries
from trainmaster.spec.errors import NotFoundError

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.service.service import Service
    from trainmaster.service.users.caller import Caller

MOST_ENDPOINTS: Final = 200
#: A sender of requests may know targets for so long. A replica that drains lives for longer than that.
TARGETS_VALID_S: Final = 1.0
#: So often a proxy tells what it has in flight, where that changes or is not nothing.
REPORT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ReadyReplica:
    """A replica that takes requests.

    Attributes:
        replica: its id, for `Endpoints.report`.
        run: whose task it is.
        node: its machine, for `MemberConnections.open`; None for the machine of the run's home.
        port: at which it listens there, on the loopback.
        is_here: that is this machine.
        version: of the model that it has; None without a model.
        in_flight: requests that the proxies of all servers have with it, as far as they have told.
    """

    replica: str
    run: str
    node: str | None
    port: int
    is_here: bool
    version: str | None
    in_flight: int


class Endpoints:
    """What a caller sees of the services of runs; to it, those of others are not there.

    Args:
        service: of the home.
        caller: who asks.
    """

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service, self._caller = service, caller

    def listed(self) -> list[dict[str, Any]]:
        """The newest `MOST_ENDPOINTS`, those that are not over first; see `show`."""
        self._caller.need("read")
        teams = None if self._caller.sees_all else [self._caller.team]
        return endpoint_summaries(
            self._service.database, rows.of_team(self._service.database, teams, MOST_ENDPOINTS)
        )

    def show(self, name: str) -> dict[str, Any]:
        """One of them.

        Returns:
            ``name``, ``team``, ``run``, ``experiment``, ``model`` (as the recipe names it), ``version`` (that
            replicas are to have), ``refused`` (a version that did not become healthy), ``state`` (``READY``
            if a replica takes requests, ``STARTING``, ``DONE``), ``asleep`` (it has scaled to zero: the next
            request starts a replica), ``created_at``, ``ended_at`` and ``replicas``, each with ``replica``,
            ``task``, ``version``, ``state`` (``STARTING``, ``READY`` or ``DRAINING``), ``said`` (what the
            health check saw last), ``node``, ``port``, ``in_flight``, ``ready_at``.

        Raises:
            NotFoundError: there is none, or it is not the caller's to see.
        """
        self._caller.need("read")
        return endpoint_summaries(self._service.database, [self._row(name)])[0]

    def targets(self, name: str) -> list[ReadyReplica]:
        """The replicas of a service that take requests, the least busy first; for `TARGETS_VALID_S`.

        Raises:
            NotFoundError: there is no such service, it is over, or it is not the caller's to see.
        """
        self._caller.need("infer")
        row, database = self._row(name), self._service.database
        if row["place"] is None:
            raise NotFoundError(
                f"the service {name!r} is over", f"`trainmaster resume {row['run_id']}` may go on with it."
            )
        ready = [
            each
            for each in rows.replicas(database, [row["id"]], database.clock_s())
            if each["state"] == ReplicaState.READY and each["port"] is not None
        ]
        if not ready:
            return []
        run = database.run_row(row["run_id"])
        is_here = run["home_id"] == self._service.home.identity() and capabilities_of(run["provider"]).is_here
        found = [
            ReadyReplica(
                each["id"], run["id"], each["node"], each["port"], is_here, each["version"], each["in_flight"]
            )
            for each in ready
        ]
        return sorted(found, key=lambda target: (target.in_flight, target.replica))

    def report(self, replica: str, in_flight: int, server: str) -> None:
        """Tell how many requests a proxy has with a replica; what is old counts for nothing.

        Args:
            replica: of `ReadyReplica`.
            in_flight: now.
            server: a name that no other proxy has.
        """
        self._caller.need("infer")
        rows.report(self._service.database, replica, server, in_flight)

    def note_asked(self, name: str) -> None:
        """A request was turned away as no replica is ready: one that was scaled to zero comes back.

        Raises:
            NotFoundError: there is no such service, or it is not the caller's to see.
        """
        self._caller.need("infer")
        rows.note_asked(self._service.database, self._row(name)["id"])

    def _row(self, name: str) -> RowMapping:
        """That of the caller's own team first: who sees all may mean another one's."""
        seen = [row for row in rows.named(self._service.database, name) if self._caller.sees(row["team"])]
        if not seen:
            raise NotFoundError(f"there is no service {name!r}", "`trainmaster services` lists them.")
        return min(seen, key=lambda row: (row["place"] is None, row["team"] != self._caller.team))
