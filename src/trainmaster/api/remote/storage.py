"""`RemoteStorage`: what takes room on a server; fulfils `StorageProtocol` and is described there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trainmaster.api.remote.connection import RestConnection


#: Runs of one request: it is to be answered in time.
_AT_ONCE: Final = 20


class RemoteStorage:
    """That of the team.

    Args:
        connection: to the server.
    """

    def __init__(self, connection: RestConnection) -> None:
        self._to = connection

    def remove_runs(
        self,
        runs: Sequence[str] = (),
        *,
        older_than_s: float | None = None,
        where: str = "",
        dry_run: bool = False,
    ) -> dict[str, Any]:
        some = [runs[first : first + _AT_ONCE] for first in range(0, len(runs), _AT_ONCE)] or [runs]
        found: dict[str, Any] = {"dry_run": dry_run, "bytes": 0, "runs": [], "shared": {}}
        for each in some:
            body = {"runs": list(each), "older_than_s": older_than_s, "where": where, "dry_run": dry_run}
            answer = self._to.post("/storage/remove-runs", body, repeats=True)
            found["bytes"] += answer["bytes"]
            found["runs"] += answer["runs"]
            for kind, size in answer["shared"].items():
                found["shared"][kind] = found["shared"].get(kind, 0) + size
        return found

    def prune(
        self, kinds: Sequence[str] = (), *, unused_s: float = 86_400.0, dry_run: bool = False
    ) -> dict[str, Any]:
        body = {"kinds": list(kinds), "unused_s": unused_s, "dry_run": dry_run}
        return dict(self._to.post("/storage/prune", body, repeats=True))

    def usage(self, limit: int | None = None) -> dict[str, Any]:
        return dict(self._to.get("/storage", limit=limit))
