"""Asking the stores of a volume whether they let us in: also where there is no FUSE."""

import contextlib

from trainmaster.objects.object_store import ObjectStore
from trainmaster.volumes.packed.addresses import volume_address
from trainmaster.volumes.packed.faults import DamagedChunkError, SourceChangedError
from trainmaster.volumes.packed.head import read_head
from trainmaster.volumes.packed.source import ChunkSource
from trainmaster.volumes.packed.table import FileTable


def ask_stores(uri: str, table: FileTable) -> None:
    """Asks the store of a volume, and that of the objects which it was indexed over.

    Args:
        uri: of a version.
        table: its files.

    Raises:
        PublishError: one does not answer, or does not let us in.
    """
    address = volume_address(uri)
    store = ObjectStore(address.url)
    head = read_head(store, address.version)
    if head.kind != "indexed":
        return
    first = next((chunk for chunk in range(table.chunk_count) if table.chunk_sizes[chunk]), None)
    if first is not None:
        with contextlib.suppress(SourceChangedError, DamagedChunkError):  # that is an answer, too
            ChunkSource(store.url, head, table).fetch(first, 0, 1)
