"""Making tables a version: checked, uploaded, and named by a head that is created once."""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from trainmaster.objects.object_store import ObjectDetail, ObjectStore
from trainmaster.spec.errors import PublishError
from trainmaster.volumes.errors import DamagedVolumeError, OverwritingStoreError, VersionConflictError
from trainmaster.volumes.packed.deletions import Deletions
from trainmaster.volumes.packed.head import (
    Head,
    StoredTable,
    head_key,
    head_numbers,
    newest_version,
    remove_version,
    tombstone_key,
)
from trainmaster.volumes.packed.leases import REAL_CLOCKS, Clocks, OperationLease, wait_for_collections
from trainmaster.volumes.packed.materialising import keep_columns, named_tables, write_columns
from trainmaster.volumes.packed.parquet import TableName

_BLOCK_BYTES = 1 << 20
# Each try means that another push has won a number in the meantime.
_TRIES = 100


def stored_table(path: Path) -> StoredTable:
    """Describes a Parquet file as it will be stored."""
    with path.open("rb") as file:
        return StoredTable(hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size)


def check_creates(store: ObjectStore) -> None:
    """Tries whether the store refuses to create an object twice.

    Raises:
        OverwritingStoreError: it overwrites.
        PublishError: the store fails, or cannot be written.
    """
    if store.is_local:
        return  # by link(2), which every file system of Linux has
    key = f"pushes/probe-{secrets.token_hex(8)}"
    store.put(key, b"first")
    try:
        if store.put_if_absent(key, b"second") or store.get(key) != b"first":
            raise OverwritingStoreError(
                f"{store.url}: this store overwrites objects in spite of If-None-Match.",
                "Two pushes at once would destroy each other's versions. Use a store with conditional "
                "writes, such as S3, Google Cloud Storage, Azure or a directory; nothing was pushed.",
            )
    finally:
        with suppress(PublishError, OSError):
            store.delete([key])


def upload_tables(
    store: ObjectStore, head: Head, tables: Mapping[TableName, Path], deletions: Deletions
) -> Head:
    """Sends the tables, but for those that are there already, and looks at what arrived.

    Returns:
        The head, with tables whose names may be used.

    Raises:
        DamagedVolumeError: the store has something else afterwards.
        PublishError: the store fails.
    """
    usable = {name: _usable(table, deletions) for name, table in named_tables(head).items()}
    for name, table in usable.items():
        info = store.info(table.key)
        is_there = info is not None and info.size_bytes == table.size_bytes
        if not (is_there and _arrived(store, table)):
            store.put_blocks(table.key, _blocks(tables[name]), table.size_bytes)
            if not _arrived(store, table):
                raise DamagedVolumeError(
                    f"{store.url_of(table.key)} is not what was sent.",
                    "Push again; look at the store itself.",
                )
    return replace(head, files=usable["files"], chunks=usable["chunks"], parts=usable.get("parts"))


def confirm_tables(store: ObjectStore, head: Head) -> None:
    """Looks whether the store has the tables.

    Raises:
        DamagedVolumeError: one is gone.
        PublishError: the store fails.
    """
    for table in head.tables:
        info = store.info(table.key)
        where = store.url_of(table.key)
        if info is None:
            raise DamagedVolumeError(f"{where} is missing: somebody deleted it.", "Push again.")
        if info.size_bytes != table.size_bytes:
            raise DamagedVolumeError(
                f"{where} has {info.size_bytes:,} bytes instead of {table.size_bytes:,}.", "Push again."
            )


def check_expected(store: ObjectStore, expect: int | None) -> int:
    """Looks whether the newest version is the one that a user thinks of.

    Args:
        store: the volume.
        expect: its number, 0 for none; None if it does not matter.

    Returns:
        The largest number that was ever used.

    Raises:
        VersionConflictError: it is another one.
        PublishError: the store fails.
    """
    alive, newest = head_numbers(store)
    current = alive[-1] if alive else 0
    if expect is not None and current != expect and (current := newest_version(store, alive)) != expect:
        raise VersionConflictError(
            f"{store.url}: the newest version is {current or 'none'}, not {expect or 'none'}.",
            "Look at what was published meanwhile, then push again.",
        )
    return newest


def create_head(
    store: ObjectStore, head: Head, expect: int | None, confirm: Callable[[], object] = lambda: None
) -> Head:
    """Gives the version the next free number and creates its head.

    Args:
        store: the volume.
        head: of the version; its number is replaced.
        expect: the newest version that this one was made from, 0 for none; None if it does not matter.
        confirm: makes sure that all that the head names is there and may be named. Called after the number
            was chosen, as :mod:`~trainmaster.volumes.packed.deletions` needs it; again for each number.

    Returns:
        The head with its number.

    Raises:
        VersionConflictError: the newest version is not the expected one.
        OverwritingStoreError: another push has overwritten the head.
        PublishError: the store fails; or what ``confirm`` raises.
    """
    for _ in range(_TRIES):
        newest = check_expected(store, expect)
        confirm()
        numbered = replace(head, version=newest + 1)
        if not store.put_if_absent(head_key(numbered.version), numbered.to_json()):
            continue
        if store.exists(tombstone_key(numbered.version)):
            continue  # somebody had this number, and gave it up, while this process slept
        if store.get(head_key(numbered.version)) != numbered.to_json():
            raise OverwritingStoreError(
                f"{store.url_of(head_key(numbered.version))} was overwritten by another push.",
                "This store does not keep its word (If-None-Match): use another one.",
            )
        return numbered
    raise VersionConflictError(f"{store.url}: {_TRIES} other pushes were quicker.", "Push again later.")


class VersionRelease:
    """What a push makes sure of before and after it creates a head.

    Args:
        store: the volume.
        lease: of the push.
        say: told what a user would like to know.
        clocks: tell the time.

    Attributes:
        deletions: names that must not be used, as they were when it began.
    """

    def __init__(
        self,
        store: ObjectStore,
        lease: OperationLease,
        say: Callable[[str], None],
        clocks: Clocks = REAL_CLOCKS,
    ) -> None:
        self._store = store
        self._lease = lease
        self._say = say
        self._clocks = clocks
        self.deletions = Deletions(store)
        self.deletions.refresh(self._settled())

    def release(
        self,
        head: Head,
        tables: Mapping[TableName, Path],
        scratch: Path,
        cache: Path,
        expect: int | None,
        chunks: Callable[[], Iterable[str]] = tuple,
        confirm: Callable[[], object] = lambda: None,
    ) -> Head:
        """Sends the tables of a version whose chunks were sent, and creates its head.

        Args:
            head: of the version; its number is replaced.
            tables: that it names.
            scratch: a directory.
            cache: where readers on this node find the columns.
            expect: as for :func:`create_head`.
            chunks: gives the keys of its chunks.
            confirm: makes sure that they are there.

        Returns:
            The head with its number.

        Raises:
            DamagedVolumeError: the tables contradict themselves, or something is gone; no version was made.
            PublishError: a name was given up meanwhile, or the store fails.
            VersionConflictError: the newest version is not the expected one.
            OverwritingStoreError: another push has overwritten the head.
        """
        columns = scratch / "columns"
        columns.mkdir()
        write_columns(
            tables, head, columns, self._store.url
        )  # which proves that every reader will accept them
        head = upload_tables(self._store, head, tables, self.deletions)
        confirmed = False

        def confirm_all() -> None:
            nonlocal confirmed
            if self.deletions.refresh(self._settled()) or not confirmed:
                self._check_names((*(table.key for table in head.tables), *chunks()))
                confirm()
                confirmed = True

        head = create_head(self._store, head, expect, confirm_all)
        self._confirm_once_more(head, confirm)
        with suppress(PublishError):  # a failure costs only time
            keep_columns(columns, head, cache)
        return head

    def _settled(self) -> list[ObjectDetail]:
        return wait_for_collections(self._store, self._lease, self._say, clocks=self._clocks)

    def _check_names(self, keys: Iterable[str]) -> None:
        for key in keys:
            if key in self.deletions:
                where = self._store.url_of(key)
                raise PublishError(
                    f"{where} was given up by `trainmaster volume gc` while this push slept.",
                    "Push again; what was sent is found again, and no version was made.",
                )

    def _confirm_once_more(self, head: Head, confirm: Callable[[], object]) -> None:
        """Withdraws a version of which something was deleted by a version that knows no deletion lists.

        It keeps off as long as our lease is fresh. Only if it was not, until the head was there, is there
        reason to look.
        """
        try:
            info = self._store.info(head_key(head.version))
            if info is None or self._lease.was_fresh(info.modified_s):
                return
            confirm_tables(self._store, head)
            confirm()
        except DamagedVolumeError as error:
            remove_version(self._store, head.version)
            raise DamagedVolumeError(
                f"Version {head.version} was withdrawn: {error.args[0]}", "Push again."
            ) from error
        except PublishError as error:
            self._say(
                f"version {head.version} was made, but could not be looked at again ({error.args[0]}): "
                f"`trainmaster volume fsck {self._store.url}@{head.version}` does"
            )


def _usable(table: StoredTable, deletions: Deletions) -> StoredTable:
    return replace(
        table, generation=deletions.generation(lambda number: replace(table, generation=number).key)
    )


def _arrived(store: ObjectStore, table: StoredTable) -> bool:
    digest = hashlib.sha256()
    for block in store.blocks(table.key):
        digest.update(block)
    return digest.hexdigest() == table.sha256


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block
