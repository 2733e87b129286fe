"""Making tables a version: checked, uploaded, and named by a head that is created once."""

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from trainmaster.spec.errors import PublishError
from trainmaster.volumes.objects import ObjectStore
from trainmaster.volumes.packed.faults import DamagedVolumeError, OverwritingStoreError, VersionConflictError
from trainmaster.volumes.packed.head import Head, StoredTable, head_key, head_numbers
from trainmaster.volumes.packed.materialising import keep_columns, write_columns
from trainmaster.volumes.packed.parquet import TableName

_BLOCK_BYTES = 1 << 20
# Each try means that another push has won a number in the meantime.
_TRIES = 100


def stored_table(path: Path) -> StoredTable:
    """Describes a Parquet file as it will be stored."""
    digest = hashlib.sha256()
    size_bytes = 0
    for block in _blocks(path):
        digest.update(block)
        size_bytes += len(block)
    return StoredTable(digest.hexdigest(), size_bytes)


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


def prepare(head: Head, tables: dict[TableName, Path], columns: Path, where: str) -> None:
    """Turns tables into columns, which proves that every reader will accept them.

    Raises:
        DamagedVolumeError: they contradict themselves.
        PublishError: something in them is not allowed in a volume.
    """
    write_columns(tables, head, columns, where)


def upload_tables(store: ObjectStore, head: Head, tables: dict[TableName, Path]) -> None:
    """Sends the tables, but for those that are there already, and looks at what arrived.

    Raises:
        DamagedVolumeError: the store has something else afterwards.
        PublishError: the store fails.
    """
    stored = [("files", head.files), ("chunks", head.chunks)]
    if head.parts is not None:
        stored.append(("parts", head.parts))
    for name, table in stored:
        path = tables["files" if name == "files" else "chunks" if name == "chunks" else "parts"]
        info = store.info(table.key)
        if info is None or info.size_bytes != table.size_bytes:
            store.put_blocks(table.key, _blocks(path), table.size_bytes)
        digest = hashlib.sha256()
        for block in store.blocks(table.key):
            digest.update(block)
        if digest.hexdigest() != table.sha256:
            store.delete([table.key])
            raise DamagedVolumeError(
                f"{store.url_of(table.key)} is not what was sent.", "Push again; look at the store itself."
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
    if expect is not None and current != expect:
        raise VersionConflictError(
            f"{store.url}: the newest version is {current or 'none'}, not {expect or 'none'}.",
            "Look at what was published meanwhile, then push again.",
        )
    return newest


def create_head(store: ObjectStore, head: Head, expect: int | None) -> Head:
    """Gives the version the next free number and creates its head.

    Args:
        store: the volume.
        head: of the version; its number is replaced.
        expect: the newest version that this one was made from, 0 for none; None if it does not matter.

    Returns:
        The head with its number.

    Raises:
        VersionConflictError: the newest version is not the expected one.
        OverwritingStoreError: another push has overwritten the head.
        PublishError: the store fails.
    """
    for _ in range(_TRIES):
        newest = check_expected(store, expect)
        numbered = replace(head, version=newest + 1)
        if not store.put_if_absent(head_key(numbered.version), numbered.to_json()):
            continue
        if store.get(head_key(numbered.version)) != numbered.to_json():
            raise OverwritingStoreError(
                f"{store.url_of(head_key(numbered.version))} was overwritten by another push.",
                "This store does not keep its word (If-None-Match): use another one.",
            )
        return numbered
    raise VersionConflictError(f"{store.url}: {_TRIES} other pushes were quicker.", "Push again later.")


def keep_prepared(columns: Path, head: Head, cache: Path) -> None:
    """Leaves the columns where readers on this node find them; a failure costs only time."""
    with suppress(PublishError):
        keep_columns(columns, head, cache)


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block
