"""`RunRemoval`: takes runs away that are over, with all that nothing else needs."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.artifacts.owner import claimed_by, give_up_claim
from trainmaster.artifacts.publishing import delete
from trainmaster.dataclass import dataclass, field
from trainmaster.db import removals
from trainmaster.db.removals import Needed, Reason
from trainmaster.objects import ObjectStore
from trainmaster.service.driving.replicas import ACCESS, REPLICAS, TAKEN
from trainmaster.service.runs.run_names import owner_of
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.service.storage.directories import DiskUse, in_use, last_used_s, remove_tree
from trainmaster.spec.errors import TrainmasterError, UsageError

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.control.task.layout import Home
    from trainmaster.service.open_home import OpenHome

#: What becomes of a run: it is gone, or its record stays with what is needed, or all of it stays.
REMOVED, TRIMMED, KEPT = "REMOVED", "TRIMMED", "KEPT"
#: Code that somebody has just taken may be that of a run that is not written down yet.
JUST_TAKEN_S: Final = 600.0


@dataclass(slots=True)
class RemovalOutcome:
    """What became, or would become, of a run.

    Attributes:
        run: its id.
        outcome: `REMOVED`, `TRIMMED` or `KEPT`.
        parts: bytes that go, by kind.
        kept: why something stays.
    """

    run: str
    outcome: str
    parts: dict[str, int] = field(default_factory=dict)
    kept: tuple[Reason, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As ``rm --json`` prints it."""
        return {
            "run": self.run,
            "outcome": self.outcome,
            "bytes": sum(self.parts.values()),
            "parts": self.parts,
            "kept": [{"why": each.why, "hint": each.hint} for each in self.kept],
        }


class RunRemoval:
    """Removes runs of a home; several processes and servers may do so at once, and each may be killed.

    Args:
        opened: the home.
    """

    def __init__(self, opened: OpenHome) -> None:
        self._opened = opened
        self._database = opened.database
        self._room = DiskUse()

    def remove(self, runs: Sequence[str], by: str, *, is_trial: bool = False) -> dict[str, Any]:
        """Remove runs; the object of ``rm --json``. One that another one of them needs goes after that.

        Args:
            runs: their ids.
            by: who wants it.
            is_trial: only say what would go.

        Raises:
            NotFoundError: there is no such run.
            PublishError: an object store cannot be written; the next call goes on.
            StoreError: the database cannot be used, or a file cannot be removed; the same.
        """
        found: dict[str, RemovalOutcome] = {}
        if not is_trial:
            with suppress(TrainmasterError):  # it is of others: they are asked for another time
                self.finish()
        codes = {run: str(self._database.run_row(run)["code_path"]) for run in runs}
        environments = {run: self._environments(self._database.run_row(run)) for run in runs}
        left = list(dict.fromkeys(runs))
        while left:
            gone = {run for run, each in found.items() if each.outcome != KEPT}
            for run in left:
                found[run] = self._one(run, by, gone if is_trial else set(), is_trial=is_trial)
            needing = [
                run
                for run in left
                if found[run].outcome == KEPT
                and all(each.by in found and found[each.by].outcome == REMOVED for each in found[run].kept)
            ]
            left = needing if len(needing) < len(left) else []
        whole = [run for run, each in found.items() if each.outcome == REMOVED]
        shared = {
            "code": self._free_code({codes[run] for run in whole}, whole, is_trial=is_trial),
            "environments": self._free_environments(
                {name for run in whole for name in environments[run]}, whole, is_trial=is_trial
            ),
        }
        total = sum(sum(each.parts.values()) for each in found.values()) + sum(shared.values())
        return {
            "dry_run": is_trial,
            "bytes": total,
            "runs": [found[run].to_json() for run in dict.fromkeys(runs)],
            "shared": shared,
        }

    def finish(self) -> list[str]:
        """Go on with what was marked and is not gone yet; ids of those that are gone now.

        What lies in a home that cannot be reached from here is left to those that can.
        """
        done = []
        for row in removals.half_removed(self._database):
            home = self._home_of(row)
            if home is not None:
                self._empty(row, home, ())
                done.append(row["id"])
        self._forget_copies()
        return done

    def finish_trimmed(self, since: float = 0.0) -> None:
        """Go on with what was trimmed since a time: what is not needed goes, if it is there still."""
        for row in removals.trimmed(self._database, since):
            if (home := self._home_of(row)) is not None:
                self._empty(row, home, removals.model_uris(self._database, row["id"]))

    # --- one run --------------------------------------------------------------------------------------

    def _one(self, run: str, by: str, gone: Collection[str], *, is_trial: bool) -> RemovalOutcome:
        row = self._database.run_row(run)
        try:
            home = self._opened.home_of(run) if not self._opened.replicas.is_elsewhere(row) else None
            owner = owner_of(row, self._opened.home)
            if not claimed_by(row["store_url"], owner):
                raise UsageError(f"{row['store_url']} has a run of this name of another home", "Look there.")
        except UsageError as error:
            return RemovalOutcome(run, KEPT, kept=(Reason(error.args[0], error.hint),))
        record = tuple(self._made_volumes(row))
        if is_trial:
            needed = removals.needed(self._database, run, record)
        else:
            needed = removals.mark(self._database, run, by, record)
        whole = tuple(each for each in needed.whole if each.by not in gone or not each.by)
        if whole:
            return RemovalOutcome(run, KEPT, kept=whole)
        outcome = TRIMMED if needed.is_trimmed else REMOVED
        stays = tuple(needed.models)
        parts = self._sizes(row, home, stays)
        if not is_trial:
            self._empty(row, home or self._opened.own_home_for(row), stays)
        return RemovalOutcome(run, outcome, parts, _reasons(needed))

    def _home_of(self, row: RowMapping) -> Home | None:
        """As `OpenHome.home_of`, of one that is shown no more."""
        if self._opened.replicas.is_elsewhere(row):
            return self._opened.own_home_for(row)
        if self._opened.replicas.is_here(row):
            return self._opened.replicas.taken(row)
        here = self._opened.own_home_for(row)
        return here.at(Path(row["home"]), row["home_id"]) if row["home_id"] else here

    def _places(self, row: RowMapping, home: Home) -> list[Path]:
        """Where files of a run are on this machine."""
        run, own = row["id"], self._opened.home
        return [
            home.run_directory(run),
            *own.cache.glob(f"images/{run}-*"),
            own.cache / REPLICAS / run,
            own.root / ACCESS / run,
            own.root / TAKEN / run,
        ]

    def _sizes(self, row: RowMapping, home: Home | None, stays: Collection[str]) -> dict[str, int]:
        store, run = ObjectStore(row["store_url"]), row["id"]
        kept = [uri.removeprefix(f"{store.url}/") + "/" for uri in stays]
        models = sum(
            each.size_bytes
            for each in store.list(f"models/{run}")
            if not any(each.key.startswith(place) for place in kept)
        )
        found = {
            "files": self._room.bytes_below(*self._places(row, home or self._opened.home)),
            "checkpoints": sum(each.size_bytes for each in store.list(f"checkpoints/{run}")),
            "models": models,
        }
        return {kind: size for kind, size in found.items() if size}

    def _empty(self, row: RowMapping, home: Home, stays: Collection[str]) -> None:
        """Remove what lies in files and objects of a run that was marked, and at last its rows.

        Args:
            row: of the run.
            home: that has its files.
            stays: URIs of models; with any, or of one that was only trimmed, its rows stay, too.
        """
        run, url = row["id"], str(row["store_url"]).rstrip("/")
        for place in self._places(row, home):
            remove_tree(place)
        store = ObjectStore(url)
        for top in ("checkpoints", "driver"):
            store.delete_all(f"{top}/{run}")
        for experiment in store.folders(f"models/{run}"):
            for task in store.folders(f"models/{run}/{experiment}"):
                uri = f"{url}/models/{run}/{experiment}/{task}"
                if uri not in stays:
                    delete(uri)
        if removals.removed_of(self._database, [run]):
            store.delete_all(f"models/{run}")
            give_up_claim(url, owner_of(row, home))  # before the rows, by which it is found again
            removals.empty(self._database, run)

    def _forget_copies(self) -> None:
        """What this machine has of runs that were removed elsewhere."""
        own = self._opened.home
        places = [own.root / "runs", own.root / TAKEN, own.root / ACCESS, own.cache / REPLICAS]
        named = {each.name: each for place in places if place.is_dir() for each in place.iterdir()}
        gone = removals.removed_of(self._database, named)
        for place in places:
            for run in gone:
                remove_tree(place / run)

    def _made_volumes(self, row: RowMapping) -> Iterator[Reason]:
        """A version of a volume that a task of it has pushed: its record says what that is made of."""
        from trainmaster.control.attempt.data_sources import volume_url
        from trainmaster.spec.trigger import pushed_volumes
        from trainmaster.volumes.packed.head import MADE_BY, alive_heads

        recipe = json.loads(row["recipe"])["experiments"]
        for name in pushed_volumes(str(each.get("command", "")) for each in recipe.values()):
            with suppress(TrainmasterError):
                for head in alive_heads(ObjectStore(volume_url(name, row["store_url"]))):
                    if f"{MADE_BY}{row['id']}" in head.notes:
                        at = f"{name}@{head.version}"
                        yield Reason(f"it made volume {at}", f"`trainmaster volume rm {at}` removes that.")
                        return

    # --- what runs share ------------------------------------------------------------------------------

    def _free_code(self, paths: Collection[str], gone: Collection[str], *, is_trial: bool) -> int:
        """Remove snapshots of code that no other run has; their bytes."""
        needed = {Path(path).name for run, path in removals.code_paths(self._database) if run not in gone}
        total = 0
        for name in {Path(path).name for path in paths} - needed - {""}:
            place = self._opened.home.snapshots / name
            total += self.free(place, JUST_TAKEN_S, is_trial=is_trial)
        return total

    def free(self, place: Path, unused_s: float, *, is_trial: bool) -> int:
        """Remove a directory that others look for, unless it was used of late; its bytes."""
        if last_used_s(place) <= unused_s:
            return 0
        size = self._room.bytes_below(place)
        if not is_trial:
            _remove_aside(place, unused_s)
        return size

    def _environments(self, row: RowMapping) -> set[str]:
        """Names of the environments that its `setup` may have made on this machine."""
        from trainmaster.control.task.environment_hashes import node_python, setup_hash

        code = self._opened.home.snapshots / Path(row["code_path"]).name
        found = set()
        with suppress(TrainmasterError, OSError):
            for each in stored_recipe(row).experiments.values():
                for python in (sys.version, node_python(each)):
                    found |= {setup_hash(each.setup, python, code)} if each.setup is not None else set()
        return found

    def environments_of_open_runs(self) -> set[str]:
        """Names of the environments of runs that are not over.

        Raises:
            UsageError: one has its `setup` in an image, by which that is named.
        """
        found: set[str] = set()
        for row in removals.open_rows(self._database):
            for each in json.loads(row["recipe"])["experiments"].values():
                if each.get("setup") and each.get("container"):
                    words = f"{row['id']} goes on, and its `setup` was done in an image"
                    raise UsageError(words, "Environments stay until it is over.")
            found |= self._environments(row)
        return found

    def data_of_open_runs(self) -> set[str]:
        """Names of the directories with what URLs of runs lead to that are not over."""
        from trainmaster.control.attempt.data_urls import url_directory

        return {
            url_directory(self._opened.home.cache, source.url, source.sha256).name
            for row in removals.open_rows(self._database)
            for each in stored_recipe(row).experiments.values()
            for source in each.data.values()
            if source.url
        }

    def _free_environments(self, names: Collection[str], gone: Collection[str], *, is_trial: bool) -> int:
        """Remove environments that no other run of this home has and no process uses; their bytes."""
        root = self._opened.home.cache / "environments"
        there = {name for name in names if (root / name).is_dir()}
        if not there:
            return 0
        needed: set[str] = set()
        for run, _ in removals.code_paths(self._database):
            if run not in gone:
                needed |= self._environments(self._database.run_row(run))
        places = {root / name for name in there - needed}
        total = 0
        for place in places - in_use(places):
            total += self._room.bytes_below(place)
            if not is_trial:
                remove_environment(place)
        return total


def _remove_aside(place: Path, unused_s: float) -> None:
    """It is gone for whoever looks for it before the first file goes; one that was just used is put back."""
    aside = place.with_name(f".{place.name}.removed")
    remove_tree(aside)
    with suppress(FileNotFoundError):
        place.rename(aside)
        if last_used_s(aside) <= unused_s:
            with suppress(OSError):  # it was made again meanwhile
                aside.rename(place)
                return
        remove_tree(aside)


def remove_environment(place: Path) -> None:
    """Remove the environment of a `setup`: it is not ready before the first file goes."""
    from trainmaster.spec.locking import locked

    with locked(place):
        (place / "ready").unlink(missing_ok=True)
        remove_tree(place)
        place.with_name(f"{place.name}.log").unlink(missing_ok=True)


def _reasons(needed: Needed) -> tuple[Reason, ...]:
    return (*needed.models.values(), *needed.record)
