"""Looking whether all that versions promise is there: heads, tables, chunks, objects that were indexed."""

import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from trainmaster.dataclass import dataclass
from trainmaster.objects.object_store import ObjectDetail, ObjectStore
from trainmaster.spec.errors import NotFoundError
from trainmaster.volumes.errors import DamagedVolumeError
from trainmaster.volumes.packed.chunk_source import chunk_key, is_whole
from trainmaster.volumes.packed.chunk_upload import stored_chunks
from trainmaster.volumes.packed.fetching_tables import fetched_tables
from trainmaster.volumes.packed.head import Head, head_key, head_numbers, head_of, read_head
from trainmaster.volumes.packed.materialising import named_tables, write_columns
from trainmaster.volumes.packed.opening import check_source
from trainmaster.volumes.packed.releasing import confirm_tables
from trainmaster.volumes.packed.table import FileTable

_JOBS = 4


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it was published.

    Attributes:
        what: a sentence that names it.
        advice: what to do next.
    """

    what: str
    advice: str


@dataclass(frozen=True, slots=True)
class VersionCheck:
    """What was found of a version.

    Attributes:
        version: its number.
        head: what it is; None if that cannot be read.
        damage: what is wrong; empty if all is there.
    """

    version: int
    head: Head | None
    damage: tuple[Damage, ...]


def verified(
    store: ObjectStore, version: int | None = None, *, deep: bool = False, jobs: int = _JOBS
) -> Iterator[VersionCheck]:
    """Looks at a version, or at all of them, one after the other.

    Of a packed one that its tables are readable and agree, and that each chunk is there with its size; of an
    indexed one that each object is there, and is the one that was indexed. Nothing of a cache is used.

    Args:
        store: the volume.
        version: which; None for all.
        deep: read every chunk too, and prove it by its hash.
        jobs: how many are read at the same time.

    Raises:
        NotFoundError: there is no such version, or no volume at all.
        PublishError: the store fails.
    """
    alive, newest = head_numbers(store)
    if version is not None and version not in alive:
        read_head(store, version)  # says what there is
    if not newest:
        raise NotFoundError(f"{store.url}: there is no volume.", "Look at the URL.")
    looks = _Looks(store, deep, jobs)
    for number in alive if version is None else [version]:
        try:
            head = head_of(store, number)
        except DamagedVolumeError as error:
            advice = f"The version is lost; {_remove(store, number)}"
            yield VersionCheck(number, None, (Damage(str(error.args[0]), advice),))
            continue
        if head is None:
            continue
        damage = looks.at(head)
        if not damage or store.exists(head_key(number)):  # else it was removed meanwhile
            yield VersionCheck(number, head, damage)


class _Looks:
    """Looks at versions of one volume; what they share is looked at once."""

    def __init__(self, store: ObjectStore, deep: bool, jobs: int) -> None:
        self._store = store
        self._deep = deep
        self._jobs = jobs
        self._proved: dict[str, bool] = {}
        self._sources: dict[str, dict[str, ObjectDetail]] = {}

    def at(self, head: Head) -> tuple[Damage, ...]:
        with tempfile.TemporaryDirectory(prefix="trainmaster-fsck-") as scratch:
            columns = Path(scratch) / "columns"
            columns.mkdir()
            try:
                confirm_tables(self._store, head)
                tables = fetched_tables(self._store, named_tables(head), Path(scratch))
                write_columns(tables, head, columns, self._store.url)
                table = FileTable(columns)
                if head.kind == "indexed":
                    check_source(self._store, head)
                    return tuple(self._objects(head, table))
                return tuple(self._chunks(head, table))
            except DamagedVolumeError as error:
                return (Damage(str(error.args[0]), self._mend(head)),)

    def _chunks(self, head: Head, table: FileTable) -> Iterator[Damage]:
        # Anew for each version: a push may have been made since the last one was looked at.
        there = stored_chunks(self._store)
        whole = []
        for number in range(table.chunk_count):
            digest = table.chunk_hash(number)
            if digest is None:
                yield Damage(f"chunk {number} has no name", self._mend(head))
                continue
            key, size_bytes = chunk_key(digest, head.generation(number)), table.chunk_sizes[number]
            where = self._store.url_of(key)
            if key not in there:
                yield Damage(f"chunk {number} ({where}) is missing", self._mend(head))
            elif there[key] != size_bytes:
                have = there[key]
                yield Damage(
                    f"chunk {number} ({where}) has {have:,} bytes instead of {size_bytes:,}", self._mend(head)
                )
            else:
                whole.append((number, key))
        if self._deep:
            for number, key in self._others(whole):
                again = "Push the same files with --read-back, which sends such chunks again, or "
                yield Damage(
                    f"chunk {number} ({self._store.url_of(key)}) has another hash",
                    again + _remove(self._store, head.version),
                )

    def _others(self, chunks: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """Gives the chunks whose content is another one than their name says."""
        chunks = list(chunks)
        new = {key for _, key in chunks} - self._proved.keys()
        with ThreadPoolExecutor(self._jobs, "fsck") as pool:
            self._proved.update(zip(new, pool.map(partial(is_whole, self._store), new), strict=True))
        return ((number, key) for number, key in chunks if not self._proved[key])

    def _objects(self, head: Head, table: FileTable) -> Iterator[Damage]:
        source = ObjectStore(head.source_url)
        there = self._sources.get(head.source_url)
        if there is None:
            there = {detail.key: detail for detail in source.details()}
            self._sources[head.source_url] = there
        again = f"Index it again: trainmaster volume index {head.source_url} {self._store.url}"
        told = set()
        for number in range(table.chunk_count):
            for part in table.parts(number):
                found = there.get(part.key)
                if part.key in told:
                    continue
                if found is None:
                    fault = "is no longer there"
                elif part.etag and found.etag != part.etag:
                    fault = f"was written again since it was indexed (ETag {part.etag})"
                elif found.size_bytes < part.start + part.length:
                    fault = f"has only {found.size_bytes:,} bytes"
                else:
                    continue
                told.add(part.key)
                yield Damage(f"{source.url_of(part.key)} {fault}", again)

    def _mend(self, head: Head) -> str:
        if head.kind == "indexed":
            return f"Index {head.source_url} again, or {_remove(self._store, head.version)}"
        return (
            f"Push the same files again, which sends what is missing, or {_remove(self._store, head.version)}"
        )


def _remove(store: ObjectStore, version: int) -> str:
    return f"give the version up: trainmaster volume rm {store.url}@{version}"
