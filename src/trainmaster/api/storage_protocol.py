"""`StorageProtocol`: what users ask of what takes room, at home or of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class StorageProtocol(Protocol):
    """What takes room, and how it goes; answers are what ``--json`` prints, see `service.storage`."""

    def remove_runs(
        self,
        runs: Sequence[str] = (),
        *,
        older_than_s: float | None = None,
        where: str = "",
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Remove runs that are over, with all that nothing else needs; after a kill the next call goes on.

        Args:
            runs: their ids.
            older_than_s: instead: all that ended so long ago.
            where: instead, or beside that: those that are over and of which this condition is true.
            dry_run: only say what would go.

        Returns:
            ``runs``: of each ``run``, ``outcome`` (REMOVED, TRIMMED: its record stays with what is needed, or
            KEPT), ``bytes``, ``parts`` and ``kept``: why something stays and what to do about it; ``shared``:
            bytes of what no other run needs; ``bytes`` of all together.

        Raises:
            NotFoundError: there is no such run.
            UsageError: no runs are named or chosen, or both, or the condition is none.
        """

    def prune(
        self, kinds: Sequence[str] = (), *, unused_s: float = 86_400.0, dry_run: bool = False
    ) -> dict[str, Any]:
        """Remove what nothing needs any more.

        Args:
            kinds: such as ``checkpoints`` and ``environments``; without, all.
            unused_s: caches go that were not used for so long, in seconds.
            dry_run: only say what would go.

        Returns:
            ``kinds``: of each ``count``, ``bytes``, the first ``names``, and as ``trouble`` why something
            could not be looked at; ``bytes`` of all together.

        Raises:
            UsageError: there is no such kind.
            AccessError: all teams share it, and the caller is no admin.
        """

    def usage(self, limit: int | None = None) -> dict[str, Any]:
        """What lies where, whose it is, and how much room it takes; what two ask for counts once.

        Args:
            limit: of runs, the largest so many.

        Returns:
            ``kinds``: of each ``where`` (home, cache or store), ``kind`` and ``bytes``; ``runs``: of each
            ``run``, ``team``, ``bytes`` and ``parts``, the largest first, and ``more_runs``; ``bytes``.
        """
