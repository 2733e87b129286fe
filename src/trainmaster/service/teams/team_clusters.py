"""`TeamClusters`: the rented machines that a caller sees, and may give back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.service.clusters import USED
from trainmaster.spec.errors import NotFoundError

if TYPE_CHECKING:
    from trainmaster.service.service import Service
    from trainmaster.service.users.caller import Caller


class TeamClusters:
    """Clusters of the runs that a caller sees.

    Args:
        service: of the home.
        caller: who asks; it may `read`.
    """

    def __init__(self, service: Service, caller: Caller) -> None:
        caller.need("read")
        self._service = service
        self._caller = caller

    def listed(self) -> list[dict[str, Any]]:
        """Those that have machines, as ``clusters --json`` prints them."""
        return [each for each in self._service.clusters() if self._sees(each["run"])]

    def end(
        self, ids: Sequence[str] | None, environ: Mapping[str, str], tell: Callable[[str], None]
    ) -> list[dict[str, Any]]:
        """Give back clusters that no run uses, or all of those (None); what they were.

        Raises:
            NotFoundError: there is no such cluster, or it is not the caller's.
            UsageError: a run uses it, or its provider cannot be used.
            ProviderError: the provider cannot be reached.
        """
        self._caller.need("run")
        seen = {each["id"]: each["state"] for each in self.listed()}
        wanted = [name for name, how in seen.items() if how != USED] if ids is None else ids
        for name in wanted:
            if name not in seen:
                raise NotFoundError(f"no cluster {name!r} has machines", "`trainmaster clusters` lists them.")
        return self._service.end_clusters(wanted, environ, tell) if wanted else []

    def _sees(self, run: str) -> bool:
        return self._caller.sees(self._service.database.run_row(run)["team"])
