"""`TeamVolumes`: the volumes of a team, which are named within its own part of the object store.

``volume: pets`` of team *vision* is ``STORE/teams/vision/volumes/pets``; the owner of the home has
``STORE/volumes``, as ``trainmaster volume`` does. Nothing else can be named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from trainmaster.control.attempt.data_sources import BUILT_IN, BUILT_IN_PREFIX
from trainmaster.db import uploads as rows
from trainmaster.db.queries import RunFilter
from trainmaster.objects import ObjectStore
from trainmaster.service.users.caller import NO_TEAM, Caller
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.volumes.packed.addresses import is_short_name, named_volumes
from trainmaster.volumes.packed.head import Head, read_head

if TYPE_CHECKING:
    from trainmaster.control.task.layout import Home
    from trainmaster.db import Database
    from trainmaster.service.volumes import Collected, OpenVolume, VersionCheck
    from trainmaster.service.volumes.stored import StoredVolume
    from trainmaster.spec import Recipe

#: Objects that versions are made of.
_OBJECT: Final = re.compile(
    r"heads/\d{6,9}\.json|manifests/[0-9a-f]{64}(\.\d{1,9})?\.parquet"
    r"|chunks/[0-9a-f]{2}/[0-9a-f]{64}(\.\d{1,9})?"
)
#: So much of one is in memory.
_PIECE_BYTES: Final = 8 << 20
#: Files of a version that are shown.
MOST_FILES: Final = 1000


def is_volume_name(text: str) -> bool:
    """Whether a text is a name of a volume, maybe with a version; never a URL or a path.

    >>> [is_volume_name(each) for each in ("pets", "cats/small@3", "../pets", "/pets", "s3://b/pets")]
    [True, True, False, False, False]
    """
    name, mark, version = text.partition("@")
    return is_short_name(name) and (not mark or (version.isdecimal() and 0 < int(version) < 10**9))


def volumes_url(home: Home, team: str | None) -> str:
    """Where the volumes of a team lie.

    Args:
        home: of the server.
        team: None for the owner of the home.
    """
    store = home.store_url.rstrip("/")
    if team == NO_TEAM:
        raise NotFoundError("who is in no team has no volumes", "Ask a manager of a team for an invite.")
    return f"{store}/volumes" if team is None else f"{store}/teams/{team}/volumes"


def with_versions(recipe: Recipe, versions: Mapping[str, int]) -> Recipe:
    """The recipe with versions of volumes that it names without one.

    Args:
        recipe: as read.
        versions: by the volumes' names.
    """
    if not versions:
        return recipe
    experiments = {}
    for name, experiment in recipe.experiments.items():
        data = dict(experiment.data)
        for key, source in experiment.data.items():
            if source.volume is not None and (version := versions.get(source.volume)) is not None:
                data[key] = source.model_copy(update={"volume": f"{source.volume}@{version}"})
        experiments[name] = experiment.model_copy(update={"data": data})
    return recipe.model_copy(update={"experiments": experiments})


def with_team_volumes(recipe: Recipe, home: Home, team: str | None) -> Recipe:
    """The recipe with the places of the team's volumes in place of their names.

    Raises:
        UsageError: there is no such volume.
    """
    if team is None:
        return recipe  # short names mean the owner's anyhow
    experiments = {}
    for name, experiment in recipe.experiments.items():
        data = {}
        for key, source in experiment.data.items():
            where = f"experiments.{name}.data.{key}.volume"
            place = source.volume and _place(source.volume, where, home, team)
            data[key] = source.model_copy(update={"volume": place})
        experiments[name] = experiment.model_copy(update={"data": data})
    return recipe.model_copy(update={"experiments": experiments})


def _place(volume: str, where: str, home: Home, team: str) -> str:
    if not is_volume_name(volume):
        raise UsageError(f"{where}: {volume}; only the name of a volume of the team", "Send it as a volume.")
    name, mark, version = volume.partition("@")
    url = f"{volumes_url(home, team)}/{name}"
    try:
        head = read_head(ObjectStore(url), int(version) if mark else None)
    except NotFoundError:
        if volume in BUILT_IN:
            return f"{BUILT_IN_PREFIX}{volume}"  # its plain name is that of a volume of the owner, too
        raise UsageError(
            f"{where}: team {team} has no volume {volume}",
            "`trainmaster volume ls` lists those that there are.",
        ) from None
    if head.kind != "packed":
        raise UsageError(f"{where}: {volume} has its bytes elsewhere", "Send the files themselves.")
    return f"{url}@{head.version}"


class TeamVolumes:
    """What a caller may do with the volumes of its team.

    Args:
        home: of the server.
        database: of the home.
        caller: who asks; it may `read`.
    """

    def __init__(self, home: Home, database: Database, caller: Caller) -> None:
        caller.need("read")
        self._home = home
        self._database = database
        self._caller = caller
        self._url = volumes_url(home, caller.team)

    def names(self) -> list[str]:
        """What they are called."""
        return named_volumes(self._url)

    def all(self) -> list[dict[str, Any]]:
        """The newest version of each, by name."""
        found = []
        for name in named_volumes(self._url):
            with suppress(NotFoundError):  # its last version was removed
                head = read_head(ObjectStore(f"{self._url}/{name}"), None)
                found.append({"volume": name, **_shown(head)})
        return found

    def show(self, name: str, version: int | None = None) -> dict[str, Any]:
        """A volume: its ``versions``, and of one of them ``files`` and ``tables``.

        Args:
            name: of the volume.
            version: whose files; None for the newest.

        Raises:
            NotFoundError: the team has no such volume or version.
        """
        from trainmaster.service.volumes.stored import entries

        versions = list(self._stored(name).info().versions)
        opened = self.opened(name, version)
        head = opened.head
        files = []
        for entry in entries(opened, "", recursive=True):
            if entry.kind != "directory":
                files.append({"path": entry.path, "size_bytes": entry.size_bytes, "kind": entry.kind})
            if len(files) == MOST_FILES:
                break
        described = rows.described(self._database, head.table_id)
        return {
            "volume": name,
            "url": f"{self._url}/{name}",
            "versions": [_shown(each) for each in versions],
            "version": head.version,
            "files": files,
            "tables": json.loads(described) if described else [],
        }

    def opened(self, name: str, version: int | None = None) -> OpenVolume:
        """A version, to be read.

        Args:
            name: of the volume.
            version: None for the newest.

        Raises:
            NotFoundError: the team has no such volume or version.
        """
        from trainmaster.service.volumes import open_volume

        found = [head for head in self._stored(name).info().versions if version in (None, head.version)]
        if not found:
            raise NotFoundError(
                f"{name} has no version {version or ''}", f"Its versions: GET /volumes/{name}."
            )
        return open_volume(f"{self._url}/{name}@{found[-1].version}", self._home.cache)

    def object_blocks(self, name: str, key: str, begin: int, end: int | None) -> Iterator[memoryview]:
        """The bytes of an object of a volume as it lies in the store, for who reads volumes himself.

        Args:
            name: of the volume.
            key: in the volume: of a version, a table or a chunk.
            begin: the first byte that is wanted.
            end: the first that is not wanted any more; None for all.

        Raises:
            NotFoundError: the team has no such volume, or that no such object.
        """
        store = ObjectStore(self._stored(name).url)
        missing = NotFoundError(f"{name} has no {key[:80]!r}", "A version may have been removed meanwhile.")
        if not _OBJECT.fullmatch(key):
            raise missing
        info = store.info(key)
        if info is None:
            raise missing
        end = info.size_bytes if end is None else min(end, info.size_bytes)
        try:
            for first in range(begin, end, _PIECE_BYTES):
                yield store.get_range(key, first, min(_PIECE_BYTES, end - first))
        except FileNotFoundError:
            raise missing from None

    def remove(self, name: str, version: int | None = None, *, whole: bool = False) -> None:
        """Remove a version, or all of it if `whole` says so, and free what nothing needs any more.

        Raises:
            NotFoundError: the team has no such volume or version.
            UsageError: no version is named, or a run that is not over has it as data.
        """
        from trainmaster.service.runs.lineage import refuse_used_volume

        self._caller.need("run")
        self._stored(name).info()
        if version is None and not whole:
            raise UsageError("which version?", "Add ?version=N, or ?whole=true for all of them.")
        what = name if version is None else f"{name}@{version}"
        refuse_used_volume(
            self._database, RunFilter((self._caller.team,)), what, f"{self._url}/{name}", version
        )
        if version is None:
            self._stored(name).remove(whole=True)
            return
        self._stored(f"{name}@{version}").remove()
        self._stored(name).collect_garbage(0, now=True)

    def must_exist(self, text: str) -> None:
        """Refuse what is no ``NAME`` or ``NAME@VERSION`` of the team; one that is damaged is there.

        Raises:
            NotFoundError: it is none.
        """
        numbers = self._stored(text).numbers()
        version = text.partition("@")[2]
        if version and int(version) not in numbers:
            raise NotFoundError(
                f"{text}: there is no version {version}", "`trainmaster volume versions NAME` lists them."
            )

    def collect_garbage(self, name: str, grace_s: float, *, now: bool) -> Collected:
        """Mark what no version of a volume names, and free what was marked; see `packed.garbage`.

        Raises:
            NotFoundError: the team has no such volume.
            ForbiddenError: the caller manages no team.
        """
        self._caller.need("manage")
        return self._stored(name).collect_garbage(grace_s, now=now)

    def verified(self, text: str, *, deep: bool, jobs: int) -> Iterator[VersionCheck]:
        """Look whether all of ``NAME[@VERSION]`` is there, version by version; see `packed.verifying`.

        Raises:
            NotFoundError: the team has no such volume or version.
        """
        self._caller.need("run")
        return self._stored(text).verified(deep=deep, jobs=jobs)

    def _stored(self, name: str) -> StoredVolume:
        from trainmaster.service.volumes.stored import StoredVolume

        if not is_volume_name(name):
            raise NotFoundError(
                f"there is no volume {name[:80]!r}", "Names are letters, digits, '.', '_', '-', '/'."
            )
        return StoredVolume(f"{self._url}/{name}")


def _shown(head: Head) -> dict[str, Any]:
    return {
        "version": head.version,
        "created_at": head.created_at.timestamp(),
        "files": head.file_count,
        "size_bytes": head.total_bytes,
        "chunks": head.chunk_count,
        "notes": list(head.notes),
    }
