"""`Pruning`: what nothing needs any more, kind by kind: code, environments, checkpoints, models, caches."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.artifacts.checkpoints import CheckpointSeries
from trainmaster.artifacts.publishing import delete
from trainmaster.control.task.gangs import checkpoints_of, kept_after
from trainmaster.dataclass import dataclass, field
from trainmaster.db import removals
from trainmaster.db.queries import RunFilter, is_among
from trainmaster.objects import ObjectStore
from trainmaster.service.runs.run_names import owner_of
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.service.storage.directories import DiskUse, in_use, last_used_s
from trainmaster.service.storage.removal import JUST_TAKEN_S, RunRemoval, remove_environment
from trainmaster.spec.data_source import EXPERIMENT_NAME
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.spec.sections import RunReference
from trainmaster.spec.states import EndReason

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.service.open_home import OpenHome

#: What is looked through; docs/retention.md says what goes of each.
KINDS: Final = ("runs", "checkpoints", "models", "code", "environments", "data", "chunks", "images")
#: Of runs; the others are of a home and its cache, which all teams share.
OF_RUNS: Final = ("runs", "checkpoints", "models")
UNUSED_S: Final = 86_400.0
#: What was trimmed so long ago has long been gone on with.
_TRIMMED_S: Final = 7 * 86_400.0

#: After a run's id, in what names one of its checkpoints.
_TASK: Final = rf"(?:/(?:{EXPERIMENT_NAME})(?:/\d{{1,9}})?)?"


@dataclass(slots=True)
class Prunable:
    """What goes of a kind.

    Attributes:
        count: of things.
        size_bytes: of all of them.
        names: of the first ones.
        stays: what of it would go, if nothing named it, and why it stays.
        trouble: why something could not be looked at.
    """

    count: int = 0
    size_bytes: int = 0
    names: list[str] = field(default_factory=list)
    stays: list[str] = field(default_factory=list)
    trouble: str = ""

    def add(self, name: str, size: int) -> None:
        """One more."""
        self.count += 1
        self.size_bytes += size
        if len(self.names) < 100:
            self.names.append(name)

    def to_json(self) -> dict[str, Any]:
        """As ``prune --json`` prints it."""
        found = {"count": self.count, "bytes": self.size_bytes, "names": self.names}
        found |= {"stays": self.stays} if self.stays else {}
        return found | ({"trouble": self.trouble} if self.trouble else {})


class Pruning:
    """Removes what nothing needs any more; may be killed and repeated, and done by several at once.

    Args:
        opened: the home.
        which: runs that may be looked at.
        by: who asks for it.
        kept_s: how long runs and checkpoints of those that succeeded are kept, in seconds; see
            `service.retention`. Without, for ever.
        unused_s: caches go that were not used for so long.
        is_trial: only say what would go.
    """

    def __init__(
        self,
        opened: OpenHome,
        which: RunFilter,
        by: str,
        *,
        kept_s: Mapping[str, float],
        unused_s: float = UNUSED_S,
        is_trial: bool = False,
    ) -> None:
        self._opened, self._which, self._by = opened, which, by
        self._database, self._home = opened.database, opened.home
        self._kept_s, self._unused_s, self._is_trial = kept_s, unused_s, is_trial
        self._removal, self._room = RunRemoval(opened), DiskUse()

    def prune(self, kinds: Sequence[str] = ()) -> dict[str, Any]:
        """The object of ``prune --json``.

        Args:
            kinds: of `KINDS`; without, all.

        Raises:
            UsageError: there is no such kind.
        """
        if unknown := [kind for kind in kinds if kind not in KINDS]:
            raise UsageError(f"{unknown[0]!r} is nothing that is pruned", f"It is for {', '.join(KINDS)}.")
        found = {}
        for kind in kinds or KINDS:
            one = Prunable()
            try:
                getattr(self, f"_{kind}")(one)
            except (TrainmasterError, OSError) as error:  # a store that is away hides nothing of the others
                one.trouble = str(error)
            found[kind] = one.to_json()
        total = sum(each["bytes"] for each in found.values())
        return {"dry_run": self._is_trial, "bytes": total, "kinds": found}

    # --- of runs --------------------------------------------------------------------------------------

    def _runs(self, found: Prunable) -> None:
        half = [row["id"] for row in removals.half_removed(self._database)]
        if not self._is_trial:
            self._removal.finish_trimmed(self._database.clock_s() - _TRIMMED_S)
            half = self._removal.finish()
        for run in half:
            if is_among(self._database, run, self._which):  # those of others go, and are not named
                found.add(run, 0)
        if (kept_s := self._kept_s.get("runs")) is None:
            return
        before = self._database.clock_s() - kept_s
        old = removals.ended_before(self._database, before, self._which, untrimmed=True)
        if not old:
            return
        answer = self._removal.remove(old, self._by, is_trial=self._is_trial)
        for each in answer["runs"]:
            if each["outcome"] != "KEPT":
                found.add(each["run"], each["bytes"])
        found.size_bytes += sum(answer["shared"].values())

    def _checkpoints(self, found: Prunable) -> None:
        """What is beyond `checkpoint.keep`, and of tasks that succeeded beyond `keep_after`."""
        kept_s = self._kept_s.get("checkpoints")
        for row in self._over("checkpoints"):
            recipe, store = stored_recipe(row), ObjectStore(row["store_url"])
            is_old = (
                kept_s is not None
                and row["reason"] == EndReason.SUCCEEDED
                and (row["ended_at"] < self._database.clock_s() - kept_s)
            )
            good = removals.whole_tasks(self._database, row["id"])
            named_in = cache(partial(removals.named_in, self._database, row["id"]))
            least = int(is_old and bool(removals.needed(self._database, row["id"]).whole))
            for name in store.folders(f"checkpoints/{row['id']}"):
                for task in store.folders(f"checkpoints/{row['id']}/{name}"):
                    if (experiment := recipe.experiments.get(name)) is not None:
                        is_good = (name, task) in good
                        keep = kept_after(experiment) if is_good else checkpoints_of(experiment).keep
                        place = f"checkpoints/{row['id']}/{name}/{task}"
                        most = least if is_old and is_good else keep
                        self._thin(found, row, store, place, most, named_in)

    def _thin(
        self,
        found: Prunable,
        row: RowMapping,
        store: ObjectStore,
        place: str,
        keep: int,
        named_in: Callable[[], list[tuple[removals.Reason, str]]],
    ) -> None:
        series = CheckpointSeries(store.url_of(place), owner_of(row, self._home))
        sizes: dict[str, int] = {}
        for each in store.list(place):
            folder = each.key.removeprefix(f"{place}/").partition("/")[0]
            sizes[folder] = sizes.get(folder, 0) + each.size_bytes
        gone = series.surplus(keep) if keep else sorted(int(folder) for folder in sizes if folder.isdigit())
        named = _named_numbers(place, named_in(), removals.name_of(row)) if gone else {}
        name = place.partition("/")[2]  # as recipes have it
        found.stays += [f"{name}@{number}: {named[number]}" for number in gone if number in named]
        gone = [number for number in gone if number not in named]
        for number in gone:
            found.add(series.uri_of(number), sizes.get(f"{number:06d}", 0))
        if self._is_trial:
            return
        if keep or named:
            for number in gone:
                delete(series.uri_of(number))
            series.clear_unfinished()
        else:
            series.delete_all()

    def _models(self, found: Prunable) -> None:
        for row in self._over("models"):
            run, store = row["id"], ObjectStore(row["store_url"])
            known = removals.model_uris(self._database, run)
            for experiment in store.folders(f"models/{run}"):
                for task in store.folders(f"models/{run}/{experiment}"):
                    place = f"models/{run}/{experiment}/{task}"
                    uri = f"{row['store_url'].rstrip('/')}/{place}"
                    size = sum(each.size_bytes for each in store.list(place))
                    if uri not in known and size:
                        found.add(uri, size)
                        if not self._is_trial:
                            delete(uri)

    def _over(self, top: str) -> Iterator[RowMapping]:
        """Runs that are over and have something in a folder of this home's store."""
        there = set(ObjectStore(self._home.store_url).folders(top))
        for row in removals.settled(self._database, self._which):
            if row["id"] in there and row["store_url"].rstrip("/") == self._home.store_url.rstrip("/"):
                yield row

    # --- of the home and its cache --------------------------------------------------------------------

    def _code(self, found: Prunable) -> None:
        needed = {Path(path).name for _, path in removals.code_paths(self._database)}
        for place in _directories(self._home.snapshots):
            if place.name not in needed:
                self._free(found, place, JUST_TAKEN_S)

    def _environments(self, found: Prunable) -> None:
        root = self._home.cache / "environments"
        needed = self._removal.environments_of_open_runs()
        old = [
            place
            for place in _directories(root)
            if place.name not in needed and not _is_fresh(place / "ready", place, self._unused_s)
        ]
        for place in sorted(set(old) - in_use(old)):
            found.add(str(place), self._room.bytes_below(place))
            if not self._is_trial:
                remove_environment(place)

    def _data(self, found: Prunable) -> None:
        needed = self._removal.data_of_open_runs()
        self._caches(found, [self._home.cache / "data"], needed)

    def _chunks(self, found: Prunable) -> None:
        for row in removals.open_rows(self._database):
            if any(each.volume for e in stored_recipe(row).experiments.values() for each in e.data.values()):
                raise UsageError(f"{row['id']} goes on, and reads volumes", "They stay until it is over.")
        volumes = self._home.cache / "volumes"
        self._caches(found, [self._home.cache / "chunks", *_directories(volumes)], ())

    def _images(self, found: Prunable) -> None:
        cache = self._home.cache
        open_runs = [row["id"] for row in removals.open_rows(self._database)]
        needed = [each.name for each in _directories(cache / "images") if each.name[:-13] in open_runs]
        self._caches(found, [cache / "images", cache / "replicas", cache / "capsules"], {*needed, *open_runs})

    def _caches(self, found: Prunable, roots: Sequence[Path], needed: Collection[str]) -> None:
        """Directories that were not used of late, are not needed, and that no process names or has mapped."""
        places = [each for root in roots for each in _directories(root) if each.name not in needed]
        old = [each for each in places if not _is_fresh(each / "locks", each, self._unused_s)]
        used = in_use(old)
        for place in old:
            if place not in used:
                self._free(found, place, 0.0)

    def _free(self, found: Prunable, place: Path, unused_s: float) -> None:
        if size := self._removal.free(place, unused_s, is_trial=self._is_trial):
            found.add(str(place), size)


def _named_numbers(
    place: str, recipes: Sequence[tuple[removals.Reason, str]], called: str = ""
) -> dict[int, str]:
    """Checkpoints of a task that recipes begin with, by number, and why each stays.

    >>> of = removals.Reason("job-2 names it", "")
    >>> _named_numbers("checkpoints/job-1/main/0", [(of, '{"from": "job-1/main/0@2"}'), (of, "job-1@3")])
    {2: 'job-2 names it', 3: 'job-2 names it'}
    >>> _named_numbers("checkpoints/job-1/main/0", [(of, "job-1/main/1@2 job-1/b@2 job-1/x/y@2")])
    {}
    """
    _, run, experiment, task = place.split("/")
    found: dict[int, str] = {}
    for reason, text in recipes:
        for wanted in _beginnings(run, text):
            if wanted.run not in (run, called):
                continue
            is_here = wanted.experiment in (None, experiment) and wanted.task in (None, int(task))
            if is_here and wanted.number is not None:
                found.setdefault(wanted.number, reason.why)
    return found


@lru_cache(maxsize=256)
def _beginnings(run: str, text: str) -> list[RunReference]:
    """Checkpoints that a recipe begins with; of one that cannot be read all that may be one of a run."""
    if (recipe := removals.recipe_in(text)) is not None:
        return recipe.beginnings
    names = re.findall(rf"{re.escape(run)}{_TASK}@[1-9]\d{{0,8}}", text)
    return [RunReference.parse(name) for name in names]


def _directories(root: Path) -> list[Path]:
    try:
        return sorted(each for each in root.iterdir() if each.is_dir() and not each.is_symlink())
    except OSError:
        return []


def _is_fresh(stamp: Path, place: Path, unused_s: float) -> bool:
    return last_used_s(stamp, place) < unused_s
