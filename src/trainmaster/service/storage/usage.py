"""`usage`: what lies where, whose it is, and how much room it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from trainmaster.objects import ObjectStore
from trainmaster.service.driving.replicas import REPLICAS, TAKEN
from trainmaster.service.storage.places import Room
from trainmaster.spec.errors import TrainmasterError, one_line

if TYPE_CHECKING:
    from trainmaster.control.task.layout import Home

#: Folders of an object store with a folder for each run.
OF_RUNS: Final = ("models", "checkpoints", "driver")
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
}


class Usage:
    """Looks through a home, its cache and its object store; what two of them ask for counts once.

    Args:
        home: that is looked through.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._room = Room()
        self._kinds: dict[tuple[str, str], int] = {}
        self._runs: dict[str, dict[str, int]] = {}

    def found(
        self, runs: Mapping[str, str | None], limit: int | None = None, *, is_whole: bool = True
    ) -> dict[str, Any]:
        """The object of ``df --json``.

        Args:
            runs: ids of those that the caller sees, and the team of each.
            limit: of runs, the largest so many.
            is_whole: the caller sees all that there is, not only those runs.
        """
        home, trouble = self._home, ""
        self._local()
        try:
            self._stored()
        except TrainmasterError as error:
            trouble = one_line(error)
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
            kinds = {key: size for key, size in kinds.items() if key[1] in ("files", *OF_RUNS)}
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
        if trouble:
            answer["trouble"] = trouble
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
            if top in OF_RUNS:
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
