"""`Storage`: what a caller may see and remove of what takes room.

`usage`: what lies where, whose it is, and how much room it takes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from trainmaster.control.task.layout import Home
from trainmaster.db import removals
from trainmaster.db.queries import RunFilter
from trainmaster.objects import ObjectStore
from trainmaster.service.driving.replicas import REPLICAS, TAKEN
from trainmaster.service.service import Service
from trainmaster.service.storage.directories import DiskUse
from trainmaster.service.storage.pruning import KINDS, OF_RUNS, UNUSED_S, Pruning
from trainmaster.service.storage.removal import REMOVED, RemovalOutcome, RunRemoval
from trainmaster.service.teams.team_runs import TeamRuns
from trainmaster.service.users.caller import Caller
from trainmaster.spec.errors import TrainmasterError, UsageError, one_line

#: Folders of an object store with a folder for each run.
_RUN_FOLDERS: Final = ("models", "checkpoints", "driver")
#: What lies in a home and in a cache, by kind.
_IN_HOME: Final = {"snapshots": "code", "uploads": "uploads", "notebooks": "notebooks"}
_IN_CACHE: Final = {
    "environments": "environments",
    "data": "data",
    "chunks": "chunks",
    "volumes": "chunks",
    "images": "images",
    REPLICAS: "copies",
    "capsules": "copies",
    "lab": "lab",
    "runtimes": "runtimes",
}


class StorageUsage:
    """Looks through a home, its cache and its object store; what two of them ask for counts once.

    Args:
        home: that is looked through.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._room = DiskUse()
        self._kinds: dict[tuple[str, str], int] = {}
        self._runs: dict[str, dict[str, int]] = {}
        self._trouble = ""

    def count(self) -> StorageUsage:
        """Look through them: half a minute on a busy machine, where caches have many files."""
        self._local()
        try:
            self._stored()
        except TrainmasterError as error:
            self._trouble = one_line(error)
        return self

    def found(
        self, runs: Mapping[str, str | None], limit: int | None = None, *, is_whole: bool = True
    ) -> dict[str, Any]:
        """The object of ``df --json``, of what was counted.

        Args:
            runs: ids of those that the caller sees, and the team of each.
            limit: of runs, the largest so many.
            is_whole: the caller sees all that there is, not only those runs.
        """
        home = self._home
        seen = {run: parts for run, parts in self._runs.items() if run in runs}
        lost = sum(sum(parts.values()) for run, parts in self._runs.items() if run not in runs)
        sizes = sorted(seen.items(), key=lambda each: (-sum(each[1].values()), each[0]))
        kinds = dict(self._kinds)
        for parts in seen.values():
            for kind, size in parts.items():
                where = "home" if kind == "files" else "store"
                kinds[where, kind] = kinds.get((where, kind), 0) + size
        if lost:
            kinds["store", "of no run here"] = lost
        if not is_whole:
            kinds = {key: size for key, size in kinds.items() if key[1] in ("files", *_RUN_FOLDERS)}
        answer: dict[str, Any] = {
            "bytes": sum(kinds.values()),
            "kinds": [
                {"where": where, "kind": kind, "bytes": size}
                for (where, kind), size in sorted(kinds.items(), key=lambda each: -each[1])
                if size
            ],
            "runs": [
                {"run": run, "team": runs[run], "bytes": sum(parts.values()), "parts": parts}
                for run, parts in sizes[:limit]
            ],
            "more_runs": len(sizes) - len(sizes[:limit]),
        }
        if is_whole:
            answer["places"] = {"home": str(home.root), "cache": str(home.cache), "store": home.store_url}
        if self._trouble:
            answer["trouble"] = self._trouble
        return answer

    def _local(self) -> None:
        home, inner = self._home, list(self._inner())
        for place in (*_entries(home.root / "runs"), *_entries(home.root / TAKEN)):
            parts = self._runs.setdefault(place.name, {})
            parts["files"] = parts.get("files", 0) + self._room.bytes_below(place)
        counted = [home.root / "runs", home.root / TAKEN, home.cache, *inner]
        for name, kind in _IN_HOME.items():
            self._add("home", kind, self._room.bytes_below(home.root / name, but=inner))
            counted.append(home.root / name)
        database = sum(self._room.bytes_below(place) for place in home.root.glob("trainmaster.db*"))
        self._add("home", "database", database)
        others = [*counted, *home.root.glob("trainmaster.db*")]
        self._add("home", "other", self._room.bytes_below(home.root, but=others))
        for name, kind in _IN_CACHE.items():
            self._add("cache", kind, self._room.bytes_below(home.cache / name, but=inner))
        rest = [*(home.cache / name for name in _IN_CACHE), *inner, home.root]
        self._add("cache", "other", self._room.bytes_below(home.cache, but=rest))

    def _inner(self) -> Iterator[Path]:
        """An object store that lies in the home is looked through as a store."""
        url = urlsplit(self._home.store_url)
        if url.scheme == "file":
            yield Path(unquote(url.path))

    def _stored(self) -> None:
        for each in ObjectStore(self._home.store_url).list(""):
            top, _, rest = each.key.partition("/")
            if top in _RUN_FOLDERS:
                parts = self._runs.setdefault(rest.partition("/")[0], {})
                kind = "files" if top == "driver" else top
                parts[kind] = parts.get(kind, 0) + each.size_bytes
            else:
                kind = {"runs": "names"}.get(top, top) if rest else "other"
                self._add("store", kind, each.size_bytes)

    def _add(self, where: str, kind: str, size: int) -> None:
        self._kinds[where, kind] = self._kinds.get((where, kind), 0) + size


def _entries(directory: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(directory.iterdir())
    return []


class KeptCount:
    """What was counted last of a home, and the count that is under way: a page does not wait for it.

    Args:
        home: that is looked through.
    """

    #: What was counted longer ago is counted again.
    FRESH_S: Final = 60.0

    def __init__(self, home: Home) -> None:
        self._home, self._lock = home, threading.Lock()
        self._count: Future[StorageUsage] | None = None
        self._ended_s, self._is_stale = 0.0, False

    def counted(self, wait_s: float) -> StorageUsage | None:
        """What takes room; None if that is still being counted after this time.

        Raises:
            TrainmasterError: it could not be counted.
        """
        with self._lock:
            count = self._count
            is_old = self._is_stale or time.monotonic() - self._ended_s > self.FRESH_S
            if count is None or (count.done() and is_old):
                count = self._count = Future()
                threading.Thread(target=self._look, args=(count,), daemon=True).start()
        try:
            return count.result(wait_s)
        except TimeoutError:
            return None

    def forget(self) -> None:
        """Something was removed: it is counted again, also what is being counted."""
        with self._lock:
            self._is_stale = True

    def _look(self, count: Future[StorageUsage]) -> None:
        end: Callable[[], None]
        while not count.done():
            with self._lock:
                self._is_stale = False
            try:
                end = partial(count.set_result, StorageUsage(self._home).count())
            except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
                end = partial(count.set_exception, error)
            with self._lock:
                if not self._is_stale:  # else again, by this thread: there is never a second one
                    self._ended_s = time.monotonic()
                    end()


class Storage:
    """What takes room in a home; to a caller, runs of other teams are not there.

    Args:
        service: of the home.
        caller: who asks; it may `read`.
        environ: says how long what is kept.
        room: what was counted, which is forgotten once something was removed.
    """

    def __init__(
        self, service: Service, caller: Caller, environ: Mapping[str, str], room: KeptCount | None = None
    ) -> None:
        caller.need("read")
        self._service, self._caller, self._environ, self._room = service, caller, environ, room

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
            what = "runs are named, and chosen by a condition, too" if chooses else "which runs?"
            hint = "Name them, or choose some by --older-than 30d, --label KEY=VALUE or --where."
            raise UsageError(what, hint)
        seen = TeamRuns(self._service, self._caller)
        if chooses:
            before = database.clock_s() - (older_than_s or 0.0)
            runs = removals.ended_before(database, before, self._which.narrowed(where, database))
        # A request that was repeated, as its answer got lost.
        gone = {run for run, team in self._removed(runs).items() if self._caller.sees(team)}
        left = [run for run in runs if run not in gone]
        for run in left:
            seen.row(run)
        with self._changing(dry_run):
            found = RunRemoval(self._service).remove(left, self._caller.name, is_trial=dry_run)
        found["runs"] += [RemovalOutcome(run, REMOVED).to_json() for run in runs if run in gone]
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
        with self._changing(dry_run):
            return pruning.prune(kinds)

    def usage(self, limit: int | None = None, counted: StorageUsage | None = None) -> dict[str, Any]:
        """What lies where, whose it is, and how much room it takes: the object of ``df --json``.

        Args:
            limit: of runs, the largest so many.
            counted: what was counted before; None counts it now.
        """
        teams = removals.teams(self._service.database, self._which)
        counted = counted or StorageUsage(self._service.home).count()
        return counted.found(teams, limit, is_whole=self._caller.sees_all)

    @contextmanager
    def _changing(self, dry_run: bool) -> Iterator[None]:
        try:
            yield
        finally:  # also what failed may have removed something
            if self._room is not None and not dry_run:
                self._room.forget()

    @property
    def _which(self) -> RunFilter:
        return RunFilter(None if self._caller.sees_all else (self._caller.team,))

    def _removed(self, runs: Sequence[str]) -> dict[str, str | None]:
        return removals.removed_of(self._service.database, runs)
