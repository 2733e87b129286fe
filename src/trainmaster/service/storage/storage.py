"""`Storage`: what a caller may see and remove of what takes room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.db import removals
from trainmaster.db.queries import RunFilter
from trainmaster.service.storage.pruning import KINDS, OF_RUNS, UNUSED_S, Pruning
from trainmaster.service.storage.removal import REMOVED, Outcome, RunRemoval
from trainmaster.service.storage.usage import Usage
from trainmaster.service.teams.team_runs import TeamRuns
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.service.service import Service
    from trainmaster.service.users.caller import Caller


class Storage:
    """What takes room in a home; to a caller, runs of other teams are not there.

    Args:
        service: of the home.
        caller: who asks; it may `read`.
        environ: says how long what is kept.
    """

    def __init__(self, service: Service, caller: Caller, environ: Mapping[str, str]) -> None:
        caller.need("read")
        self._service, self._caller, self._environ = service, caller, environ

    def remove_runs(
        self,
        runs: Sequence[str] = (),
        *,
        older_than_s: float | None = None,
        where: str = "",
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Remove runs that are over: named ones, or those that ended so long ago.

        Args:
            runs: their ids.
            older_than_s: instead: all that ended longer ago.
            where: instead, or beside that: those that are over and of which this is true.
            dry_run: only say what would go; for that `read` is enough.

        Raises:
            NotFoundError: there is no such run, or it is not the caller's to see.
            UsageError: none are named or chosen, or both, or the condition is none.
        """
        if not dry_run:
            self._caller.need("run")
        chooses, database = older_than_s is not None or bool(where.strip()), self._service.database
        if bool(runs) == chooses:
            raise UsageError(
                "which runs?", "Name them, or choose some by --older-than 30d, --label KEY=VALUE or --where."
            )
        seen = TeamRuns(self._service, self._caller)
        if chooses:
            before = database.clock_s() - (older_than_s or 0.0)
            runs = removals.ended_before(database, before, self._which.narrowed(where, database))
        # A request that was repeated, as its answer got lost.
        gone = {run for run, team in self._removed(runs).items() if self._caller.sees(team)}
        left = [run for run in runs if run not in gone]
        for run in left:
            seen.row(run)
        found = RunRemoval(self._service).remove(left, self._caller.name, is_trial=dry_run)
        found["runs"] += [Outcome(run, REMOVED).to_json() for run in runs if run in gone]
        return found

    def prune(
        self, kinds: Sequence[str] = (), *, unused_s: float = UNUSED_S, dry_run: bool = False
    ) -> dict[str, Any]:
        """Remove what nothing needs any more.

        Args:
            kinds: of `pruning.KINDS`; without, all that the caller may.
            unused_s: caches go that were not used for so long.
            dry_run: only say what would go.

        Raises:
            UsageError: there is no such kind.
            ForbiddenError: it is of all teams, and the caller is none of the server's admins.
        """
        from trainmaster.service.retention import bounded

        self._caller.need("run")
        if not self._caller.sees_all:
            if any(kind in KINDS and kind not in OF_RUNS for kind in kinds):
                self._caller.need("admin")
            kinds = kinds or OF_RUNS
        pruning = Pruning(
            self._service,
            self._which,
            self._caller.name,
            kept_s=bounded(self._environ),
            unused_s=unused_s,
            is_trial=dry_run,
        )
        return pruning.prune(kinds)

    def usage(self, limit: int | None = None) -> dict[str, Any]:
        """What lies where, whose it is, and how much room it takes: the object of ``df --json``.

        Args:
            limit: of runs, the largest so many.
        """
        teams = removals.teams(self._service.database, self._which)
        return Usage(self._service.home).found(teams, limit, is_whole=self._caller.sees_all)

    @property
    def _which(self) -> RunFilter:
        return RunFilter(None if self._caller.sees_all else (self._caller.team,))

    def _removed(self, runs: Sequence[str]) -> dict[str, str | None]:
        return removals.removed_of(self._service.database, runs)
