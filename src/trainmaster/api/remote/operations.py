"""What a server does with volumes and models of a team, and takes long: told as it is at home."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from trainmaster.api.remote.asking import asked
from trainmaster.api.remote.volumes import UNTOLD
from trainmaster.service.volumes import Collected, Head, VersionCheck
from trainmaster.volumes.packed.verifying import Damage

if TYPE_CHECKING:
    from trainmaster.api.remote.connection import RestConnection

Say = Callable[[str], None]


def check_volume(
    connection: RestConnection, volume: str, *, deep: bool, jobs: int, say: Say
) -> list[VersionCheck]:
    """Look whether all that versions promise is there.

    Args:
        connection: to the server.
        volume: ``NAME`` or ``NAME@VERSION``.
        deep: every chunk is read, too.
        jobs: so many at the same time.
        say: told how far it is.

    Raises:
        NotFoundError: there is no such volume or version.
        PublishError: the store fails.
    """
    answer = _answer(connection, "volume-fsck", {"volume": volume, "deep": deep, "jobs": jobs}, say)
    return [_verdict(each) for each in answer["versions"]]


def collect_garbage(connection: RestConnection, volume: str, grace_s: float, *, now: bool) -> Collected:
    """Mark what no version of a volume names, and free what was marked.

    Raises:
        NotFoundError: there is no such volume.
        AccessError: that is for managers.
        PublishError: the store fails.
    """
    body = {"volume": volume, "grace_s": grace_s, "now": now}
    answer = _answer(connection, "volume-gc", body, lambda _: None)
    return Collected(
        **{name: answer[name] for name in Collected.__slots__} | {"owners": tuple(answer["owners"])}
    )


def check_models(connection: RestConnection, runs: Sequence[str], *, deep: bool, say: Say) -> dict[str, Any]:
    """Look whether models and checkpoints of runs are there; of all that one sees without any.

    Raises:
        NotFoundError: there is no such run.
    """
    return _answer(connection, "models-fsck", {"runs": list(runs), "deep": deep}, say)


def _answer(connection: RestConnection, kind: str, body: Mapping[str, Any], say: Say) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in asked(connection, f"/operations/{kind}", lambda: (dict(body), ()), {}, dict, "/operations"):
        if isinstance(each, dict):
            found = each
        else:
            say(str(each))
    return found


def _verdict(found: Mapping[str, Any]) -> VersionCheck:
    damage = [Damage(each["what"], each["advice"]) for each in found["damage"]]
    if more := found.get("more_damage"):
        damage.append(Damage(f"and {more:,} more faults", "Mend those that are told first."))
    return VersionCheck(found["version"], _head(found) if "kind" in found else None, tuple(damage))


def _head(found: Mapping[str, Any]) -> Head:
    return Head(
        version=found["version"],
        created_at=datetime.fromisoformat(found["created_at"]),
        kind=found["kind"],
        order="path",
        chunk_limit_bytes=0,
        file_count=found["files"],
        row_count=found["files"],
        total_bytes=found["bytes"],
        chunk_count=found["chunks"],
        files=UNTOLD,
        chunks=UNTOLD,
        notes=tuple(found["notes"]),
    )
