"""Bringing a version's tables here, proved by their hashes."""

import hashlib
from pathlib import Path

from trainmaster.volumes.objects import ObjectStore
from trainmaster.volumes.packed.faults import DamagedVolumeError
from trainmaster.volumes.packed.head import StoredTable

_HINT = "Use another version (`trainmaster volume versions`), or push again."


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
            for block in store.blocks(table.key):
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
