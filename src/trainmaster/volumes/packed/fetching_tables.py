"""Bringing a version's tables here, proved by their hashes."""

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainmaster.objects.object_store import ObjectStore
from trainmaster.volumes.errors import DamagedVolumeError
from trainmaster.volumes.packed.head import StoredTable
from trainmaster.volumes.packed.parquet import TableName

_HINT = "Use another version (`trainmaster volume versions`), or push again."
# At once, without asking for its size, which the head says.
_SMALL_BYTES = 8 << 20


def fetched_tables(
    store: ObjectStore, tables: Mapping[TableName, StoredTable], directory: Path
) -> dict[TableName, Path]:
    """Downloads the tables of a version at the same time: far away each would take some round trips.

    Raises:
        The same as :func:`fetched_table`.
    """
    with ThreadPoolExecutor(len(tables)) as pool:
        coming = {
            name: pool.submit(fetched_table, store, table, directory / f"{name}.parquet")
            for name, table in tables.items()
        }
        return {name: one.result() for name, one in coming.items()}


def fetched_table(store: ObjectStore, table: StoredTable, path: Path) -> Path:
    """Downloads a table.

    Raises:
        DamagedVolumeError: it is missing, or not what was published.
        PublishError: the store fails.
    """
    digest = hashlib.sha256()
    size_bytes = 0
    with path.open("wb") as file:
        try:
            for block in _blocks(store, table):
                digest.update(block)
                size_bytes += len(block)
                if size_bytes > table.size_bytes:
                    break
                file.write(block)
        except FileNotFoundError as error:
            raise DamagedVolumeError(
                f"{store.url_of(table.key)} is missing: somebody deleted it.", _HINT
            ) from error
    if size_bytes != table.size_bytes or digest.hexdigest() != table.sha256:
        raise DamagedVolumeError(f"{store.url_of(table.key)} is damaged: its SHA-256 is another.", _HINT)
    return path


def _blocks(store: ObjectStore, table: StoredTable) -> Iterator[bytes | memoryview]:
    if 0 < table.size_bytes <= _SMALL_BYTES:
        yield store.get_range(table.key, 0, table.size_bytes)
    else:
        yield from store.blocks(table.key)
