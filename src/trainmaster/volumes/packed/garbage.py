"""Freeing what no version names any more, in two steps: names are given up first, and deleted later.

Why no version can lose anything by it is said in :mod:`trainmaster.volumes.packed.deletions`.
"""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainmaster.dataclass import dataclass
from trainmaster.objects.object_store import ObjectDetail, ObjectStore
from trainmaster.spec.errors import NotFoundError, PublishError
from trainmaster.spec.units import parse_duration
from trainmaster.volumes.errors import DamagedVolumeError
from trainmaster.volumes.packed.chunk_source import chunk_key
from trainmaster.volumes.packed.deletions import (
    MOST_NAMES,
    DeletionList,
    Deletions,
    forget_lists,
    is_list,
    write_list,
)
from trainmaster.volumes.packed.fetching_tables import fetched_table
from trainmaster.volumes.packed.hashes import CHUNK_HASH_BYTES
from trainmaster.volumes.packed.head import Head, alive_heads, head_numbers, take_number
from trainmaster.volumes.packed.leases import (
    DEAD_AFTER_S,
    REAL_CLOCKS,
    Clocks,
    OperationLease,
    leased,
    living,
    owner,
)
from trainmaster.volumes.packed.parquet import read_table

#: By default nothing younger than this is given up, and nothing is deleted that was given up later.
GRACE = "24h"
DEFAULT_GRACE_S = parse_duration(GRACE)
_DELETED_AT_ONCE = 500
_FOLDERS = ("chunks", "manifests")


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection has done.

    Attributes:
        deleted_chunks: chunks that no version names, deleted.
        deleted_bytes: their bytes.
        deleted_tables: tables that no version names, deleted.
        marked_chunks: chunks that are given up, and not deleted yet.
        marked_bytes: their bytes.
        marked_tables: the same of tables.
        free_at_s: when a collection may delete all that is given up, in Unix seconds by the store's clock;
            None if nothing is.
        young_chunks: chunks that no version names either, too young to be given up, or found while others
            were waiting.
        kept_chunks: chunks that versions name.
        under_way: pushes or other collections that run; they ended this collection.
        owners: whose they are, as far as that is known.
    """

    deleted_chunks: int
    deleted_bytes: int
    deleted_tables: int
    marked_chunks: int
    marked_bytes: int
    marked_tables: int
    free_at_s: float | None
    young_chunks: int
    kept_chunks: int
    under_way: int
    owners: tuple[str, ...]


def remove_volume(store: ObjectStore) -> None:
    """Removes a volume with all its versions and chunks.

    Raises:
        NotFoundError: there is no volume.
        PublishError: a push is under way, or the store fails.
    """
    if not head_numbers(store)[1]:
        raise NotFoundError(f"{store.url}: there is no volume.", "Look at the URL; nothing was deleted.")
    with leased(store, "collections") as lease:
        pushes = living(store, "pushes", lease.renew())
        if pushes:
            whose = owner(store, pushes[0].key)
            raise PublishError(
                f"{store.url}: a push is under way{f' ({whose})' if whose else ''}.",
                "Wait for its end; one that was killed on another machine counts for an hour.",
            )
        # The heads first: what has lost some of its chunks must not look like a version.
        for folder in ("heads", "manifests", "chunks", "pushes"):
            store.delete_all(folder)
    store.delete_all("collections")


def collect_garbage(
    store: ObjectStore, grace_s: float = DEFAULT_GRACE_S, *, now: bool = False, clocks: Clocks = REAL_CLOCKS
) -> Collected:
    """Gives up the chunks and tables that no version names, and deletes those given up before.

    Args:
        store: the volume.
        grace_s: how long nothing that is younger is given up, and nothing that was given up is deleted.
        now: delete what this call gives up too. No version loses anything by that; a push that is halted,
            and counted on it, has to begin again.
        clocks: tell the time.

    Raises:
        NotFoundError: there is no volume.
        PublishError: a version cannot be read, so that what it names is unknown; nothing was
            deleted. Or the store fails.
    """
    if not head_numbers(store)[1] and not any(True for _ in store.list("chunks")):
        raise NotFoundError(f"{store.url}: there is no volume.", "Look at the URL; nothing was deleted.")
    with leased(store, "collections", clocks) as lease:
        collection = _Collection(store, lease, grace_s, now)
        others = collection.others()
        if others:
            return collection.report((), others)
        collection.give_up()
        return collection.free()


class _Collection:
    """One collection: what is there, what is named, and what was given up."""

    def __init__(self, store: ObjectStore, lease: OperationLease, grace_s: float, now: bool) -> None:
        self._store = store
        self._lease = lease
        self._grace_s = grace_s
        self._is_now = now
        self._now_s = lease.renew()
        self._deletions = Deletions(store)
        self._named = _Named(store)
        self._there: dict[str, ObjectDetail] = {}
        self._known_lists: set[str] = set()

    def others(self) -> list[ObjectDetail]:
        """Gives the leases of what else is at work."""
        found = [one for one in living(self._store, "collections", self._now_s) if one.key != self._lease.key]
        return found + living(self._store, "pushes", self._now_s)

    def give_up(self) -> None:
        """Writes a list of what no version names, unless one is waiting."""
        self._deletions.refresh()
        self._known_lists = {one.key for one in self._deletions.lists}
        for folder in _FOLDERS:
            self._there.update((detail.key, detail) for detail in self._store.details(folder))
        self._named.refresh()
        waiting = (one for one in self._deletions.lists if not self._is_due(one.made_s))
        # One at a time: every push reads all lists.
        if any(self._left(one) for one in waiting):
            return
        names = [
            key
            for key, detail in self._there.items()
            if key not in self._named.keys
            and key not in self._deletions
            and self._now_s - detail.modified_s >= self._grace_s
        ]
        if names:
            write_list(self._store, names[:MOST_NAMES], lambda: head_numbers(self._store)[1])
            self._deletions.refresh()

    def free(self) -> Collected:
        """Deletes what was given up before, and no version names."""
        lists = [one for one in self._deletions.lists if self._is_now or one.key in self._known_lists]
        due = [one for one in lists if self._is_due(one.made_s)]
        if any(self._left(one) for one in due):
            self._take_number(due)
            self._named.refresh()
        doomed = sorted({key for one in due for key in self._left(one) if self._is_at_rest(key, one.made_s)})
        others: list[ObjectDetail] = []
        for first in range(0, len(doomed), _DELETED_AT_ONCE):
            # For versions that know no lists: they keep off while we seem alive, and we while they do.
            self._now_s = self._lease.confirm()
            others = self.others()
            if others:
                doomed = doomed[:first]
                break
            self._store.delete(doomed[first : first + _DELETED_AT_ONCE])
        forget_lists(self._store, self._deletions.lists, self._there.keys() - set(doomed), self._now_s)
        self._sweep_leases()
        return self.report(doomed, others)

    def report(self, deleted: Sequence[str], others: Iterable[ObjectDetail]) -> Collected:
        """Says what was done."""
        gone = set(deleted)
        lists = {one: {*self._left(one)} - gone for one in self._deletions.lists}
        marked = set[str]().union(*lists.values())
        chunks = [key for key in self._there if key.startswith("chunks/")]
        kept = sum(key in self._named.keys for key in chunks)
        count, size_bytes, tables = self._sums(gone)
        marked_count, marked_bytes, marked_tables = self._sums(marked)
        owners = [owner(self._store, detail.key) for detail in others]
        return Collected(
            deleted_chunks=count,
            deleted_bytes=size_bytes,
            deleted_tables=tables,
            marked_chunks=marked_count,
            marked_bytes=marked_bytes,
            marked_tables=marked_tables,
            free_at_s=max((one.made_s + self._grace_s for one, left in lists.items() if left), default=None),
            young_chunks=len(chunks) - kept - count - marked_count,
            kept_chunks=kept,
            under_way=len(owners),
            owners=tuple(sorted(filter(None, owners))),
        )

    def _sums(self, keys: set[str]) -> tuple[int, int, int]:
        """Counts chunks, their bytes, and tables."""
        chunks = [key for key in keys if key.startswith("chunks/")]
        return len(chunks), sum(self._there[key].size_bytes for key in chunks), len(keys) - len(chunks)

    def _is_due(self, made_s: float) -> bool:
        return self._is_now or self._now_s - made_s >= self._grace_s

    def _is_at_rest(self, key: str, since_s: float) -> bool:
        """Whether nothing that knew no lists has sent it again, or long ago."""
        modified_s = self._there[key].modified_s
        return modified_s <= since_s or self._now_s - modified_s >= self._grace_s

    def _left(self, one: DeletionList) -> list[str]:
        return [key for key in one.names if key in self._there and key not in self._named.keys]

    def _take_number(self, due: Iterable[DeletionList]) -> None:
        """Sees to it that every number is taken that was chosen before one of these lists was complete."""
        newest = head_numbers(self._store)[1]
        if any(one.newest is None or one.newest >= newest for one in due):
            take_number(self._store, newest + 1)

    def _sweep_leases(self) -> None:
        """Takes away what the dead have left."""
        stale = [
            detail.key
            for folder in ("pushes", "collections")
            for detail in self._store.details(folder)
            if not is_list(detail.key) and self._now_s - detail.modified_s >= max(self._grace_s, DEAD_AFTER_S)
        ]
        if stale:
            self._store.delete(stale)


class _Named:
    """What versions name.

    Attributes:
        keys: of chunks and tables.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._versions: set[int] = set()
        self.keys: set[str] = set()

    def refresh(self) -> None:
        """Reads the versions that were made since the last time.

        Raises:
            PublishError: one is damaged, or the store fails.
        """
        for head in alive_heads(self._store, self._versions):
            self.keys.update(table.key for table in head.tables)
            self.keys |= _named_chunks(self._store, head)
            self._versions.add(head.version)


def _named_chunks(store: ObjectStore, head: Head) -> set[str]:
    if head.kind == "indexed":
        return set()
    named = set()
    number = 0
    with tempfile.TemporaryDirectory(prefix="trainmaster-gc-") as scratch:
        path = fetched_table(store, head.chunks, Path(scratch) / "chunks.parquet")
        for batch in read_table(path, "chunks", head.chunk_count, store.url):
            joined = batch["hash"].tobytes()
            for start in range(0, len(joined), CHUNK_HASH_BYTES):
                named.add(chunk_key(joined[start : start + CHUNK_HASH_BYTES], head.generation(number)))
                number += 1
    if not named and head.total_bytes:
        raise DamagedVolumeError(
            f"{store.url}: version {head.version} names no chunks.", "Nothing was deleted."
        )
    return named
