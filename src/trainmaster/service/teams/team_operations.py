"""`Operations`: looking through volumes and models, and freeing what no version of a volume needs.

Each is a row of `quote_requests`, so any server works on it, and begins it again when another one has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from trainmaster.service.teams.team_runs import MAX_PAGE, TeamRuns
from trainmaster.service.teams.team_volumes import TeamVolumes
from trainmaster.service.volumes.stored import verdict_document

if TYPE_CHECKING:
    from trainmaster.service.quotes.quote_requests import Operation, QuoteRequests
    from trainmaster.service.service import Service
    from trainmaster.service.users.caller import Caller

VOLUME_FSCK: Final = "volume-fsck"
VOLUME_GC: Final = "volume-gc"
MODELS_FSCK: Final = "models-fsck"
KINDS: Final = (VOLUME_FSCK, VOLUME_GC, MODELS_FSCK)
#: Of one version so many faults are told.
_MOST_FAULTS: Final = 10_000

Tell = Callable[[str], None]


class Operations:
    """Asks for them, for a caller.

    Args:
        service: of the home.
        requests: where they wait.
        caller: who asks.
    """

    def __init__(self, service: Service, requests: QuoteRequests, caller: Caller) -> None:
        self._service, self._requests, self._caller = service, requests, caller

    def check_volume(self, volume: str, *, deep: bool, jobs: int) -> dict[str, Any]:
        """Look whether all that versions promise is there: ``NAME`` or ``NAME@VERSION``.

        Raises:
            NotFoundError: the team has no such volume.
        """
        self._caller.need("run")
        self._volumes().must_exist(volume)
        return self._put(VOLUME_FSCK, {"volume": volume, "deep": deep, "jobs": jobs})

    def collect_garbage(self, volume: str, grace_s: float, *, now: bool) -> dict[str, Any]:
        """Mark what no version of a volume names, and free what was marked.

        Raises:
            NotFoundError: the team has no such volume.
            ForbiddenError: the caller manages no team.
        """
        self._caller.need("manage")
        self._volumes().must_exist(volume)
        asked = {"volume": volume, "grace_s": grace_s, "now": now}
        return self._put(VOLUME_GC, asked)

    def check_models(self, runs: list[str], *, deep: bool) -> dict[str, Any]:
        """Look whether models and checkpoints of runs are there; without any, of all that the team has.

        Raises:
            NotFoundError: there is no such run, or it is not the caller's to see.
        """
        self._caller.need("run")
        for run in runs:
            TeamRuns(self._service, self._caller).row(run)
        return self._put(MODELS_FSCK, {"runs": runs, "deep": deep})

    def show(self, operation: str) -> dict[str, Any]:
        """How far one is.

        Raises:
            NotFoundError: there is none, or it is not the caller's to see.
        """
        return self._requests.show(self._caller, kind_of(operation), operation)

    def cancel(self, operation: str) -> None:
        """End one; it ends when it has something to tell."""
        self._requests.cancel(self._caller, kind_of(operation), operation)

    def _put(self, kind: str, asked: dict[str, Any]) -> dict[str, Any]:
        return self._requests.put(self._caller, kind, {**asked, "scopes": sorted(self._caller.scopes)})

    def _volumes(self) -> TeamVolumes:
        return TeamVolumes(self._service.home, self._service.database, self._caller)


def kind_of(operation: str) -> str:
    """The kind of an operation, by its id."""
    kind = operation.rpartition("-")[0]
    return kind if kind in KINDS else "operation"


def operations(service: Service) -> Mapping[str, Operation]:
    """What does them, by kind; for `QuoteRequests`."""

    def volumes(caller: Caller) -> TeamVolumes:
        return TeamVolumes(service.home, service.database, caller)

    def check_volume(caller: Caller, asked: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
        found = []
        for verdict in volumes(caller).verified(asked["volume"], deep=asked["deep"], jobs=asked["jobs"]):
            document = verdict_document(verdict)
            document["damage"], rest = document["damage"][:_MOST_FAULTS], len(verdict.damage) - _MOST_FAULTS
            if rest > 0:
                document["more_damage"] = rest
            found.append(document)
            tell(f"version {verdict.version} was looked through")
        damaged = sum(bool(each["damage"]) for each in found)
        return {"volume": asked["volume"], "deep": asked["deep"], "damaged": damaged, "versions": found}

    def collect_garbage(caller: Caller, asked: Mapping[str, Any], _: Tell) -> dict[str, Any]:
        done = volumes(caller).collect_garbage(asked["volume"], asked["grace_s"], now=asked["now"])
        return {"volume": asked["volume"], **asdict(done)}

    def check_models(caller: Caller, asked: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
        runs = TeamRuns(service, caller)
        found: dict[str, Any] = {"models": 0, "checkpoints": 0, "damaged": [], "unnamed": [], "unread": []}
        for run in asked["runs"] or _all(runs):
            tell(f"looks at {run}")
            for key, seen in runs.check_models(run, is_deep=asked["deep"]).items():
                found[key] += seen
        return found

    return {VOLUME_FSCK: check_volume, VOLUME_GC: collect_garbage, MODELS_FSCK: check_models}


def _all(runs: TeamRuns) -> list[str]:
    found: list[str] = []
    after = None
    while True:
        page = runs.page(MAX_PAGE, after)
        found += [row["run"] for row in page["runs"]]
        if (after := page["next"]) is None:
            return found
