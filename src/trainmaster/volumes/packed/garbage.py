"""Removing versions, and the chunks that no version names any more."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from trainmaster.spec.errors import NotFoundError, PublishError
from trainmaster.volumes.objects import ObjectStore
from trainmaster.volumes.packed.faults import DamagedVolumeError
from trainmaster.volumes.packed.fetching_tables import fetched_table
from trainmaster.volumes.packed.hashes import CHUNK_HASH_BYTES
from trainmaster.volumes.packed.head import Head, head_key, head_numbers, read_head, tombstone_key
from trainmaster.volumes.packed.marks import Mark, living, marked, owner
from trainmaster.volumes.packed.parquet import read_table
from trainmaster.volumes.packed.source import chunk_key

DEFAULT_GRACE_S = 24 * 3600.0
_DELETED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection has done.

    Attributes:
        deleted_chunks: chunks that no version names, deleted.
        deleted_bytes: their bytes.
        young_chunks: chunks that no version names yet, too young to be deleted.
        kept_chunks: chunks that versions name.
        under_way: pushes or other collections that run; if any, nothing was deleted.
        owners: whose they are, as far as that is known.
    """

    deleted_chunks: int = 0
    deleted_bytes: int = 0
    young_chunks: int = 0
    kept_chunks: int = 0
    under_way: int = 0
    owners: tuple[str, ...] = ()


def remove_version(store: ObjectStore, version: int) -> None:
    """Removes a version; its number is never used again, its chunks stay until a collection.

    Raises:
        NotFoundError: there is no such version.
        PublishError: the store fails.
    """
    if version not in head_numbers(store)[0]:
        raise NotFoundError(
            f"{store.url}: there is no version {version}.", "See `trainmaster volume versions`."
        )
    store.put(tombstone_key(version), b"{}")
    store.delete([head_key(version)])


def remove_volume(store: ObjectStore) -> None:
    """Removes a volume with all its versions and chunks.

    Raises:
        NotFoundError: there is no volume.
        PublishError: a push is under way, or the store fails.
    """
    if not head_numbers(store)[1]:
        raise NotFoundError(f"{store.url}: there is no volume.", "Look at the URL; nothing was deleted.")
    with marked(store, "collections") as mark:
        pushes = living(store, "pushes", mark.store_now_s())
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


def collect_garbage(store: ObjectStore, grace_s: float = DEFAULT_GRACE_S) -> Collected:
    """Deletes the chunks and tables that no version names.

    Safe beside pushes: see :mod:`trainmaster.volumes.packed.marks`. Nothing younger than
    ``grace_s`` is deleted in any case.

    Raises:
        NotFoundError: there is no volume.
        PublishError: a version cannot be read, so that nobody knows what it names; nothing was
            deleted. Or the store fails.
    """
    alive, newest = head_numbers(store)
    if not newest and not any(True for _ in store.list("chunks")):
        raise NotFoundError(f"{store.url}: there is no volume.", "Look at the URL; nothing was deleted.")
    with marked(store, "collections") as mark:
        now_s = mark.store_now_s()
        others = [detail for detail in living(store, "collections", now_s) if detail.key != mark.key]
        others += living(store, "pushes", now_s)
        if others:
            owners = (owner(store, detail.key) for detail in others)
            return Collected(under_way=len(others), owners=tuple(sorted(filter(None, owners))))
        alive, _ = head_numbers(store)
        heads = [read_head(store, version) for version in alive]
        tables = {table.key for head in heads for table in head.tables}
        chunks = {key for head in heads for key in _named_chunks(store, head)}
        return _swept(store, mark, now_s - grace_s, chunks, tables)


def _swept(store: ObjectStore, mark: Mark, before_s: float, chunks: set[str], tables: set[str]) -> Collected:
    doomed: list[str] = []
    doomed_bytes = young = kept = 0
    for detail in store.details("chunks"):
        if detail.key in chunks:
            kept += 1
        elif detail.modified_s > before_s:
            young += 1
        else:
            doomed.append(detail.key)
            doomed_bytes += detail.size_bytes
    count = len(doomed)
    for folder, named in (("manifests", tables), ("pushes", set[str]())):
        doomed += [
            detail.key
            for detail in store.details(folder)
            if detail.key not in named and detail.modified_s <= before_s
        ]
    for first in range(0, len(doomed), _DELETED_AT_ONCE):
        if not mark.is_fresh:
            raise PublishError(
                f"{store.url}: the mark of this collection could not be renewed.", "Try again later."
            )
        store.delete(doomed[first : first + _DELETED_AT_ONCE])
    return Collected(count, doomed_bytes, young, kept)


def _named_chunks(store: ObjectStore, head: Head) -> set[str]:
    if head.kind == "indexed":
        return set()
    named = set()
    with tempfile.TemporaryDirectory(prefix="trainmaster-gc-") as scratch:
        path = fetched_table(store, head.chunks, Path(scratch) / "chunks.parquet")
        for batch in read_table(path, "chunks", head.chunk_count, store.url):
            joined = batch["hash"].tobytes()
            for start in range(0, len(joined), CHUNK_HASH_BYTES):
                named.add(chunk_key(joined[start : start + CHUNK_HASH_BYTES]))
    if len(named) == 0 and head.total_bytes:
        raise DamagedVolumeError(
            f"{store.url}: version {head.version} names no chunks.", "Nothing was deleted."
        )
    return named
