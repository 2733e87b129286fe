"""`info_of`: a volume, as a server shows it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from trainmaster.service.volumes import VolumeInfo
from trainmaster.volumes.packed.head import Head, StoredTable

#: A server does not tell where its tables lie.
_UNTOLD: Final = StoredTable("", 0)


def info_of(found: Mapping[str, Any]) -> VolumeInfo:
    """From the object of ``GET /api/v1/volumes/{name}``."""
    return VolumeInfo(found["volume"], tuple(_head(row) for row in found["versions"]))


def _head(row: Mapping[str, Any]) -> Head:
    return Head(
        version=row["version"],
        created_at=datetime.fromtimestamp(row["created_at"], UTC),
        kind="packed",
        order="path",
        chunk_limit_bytes=0,
        file_count=row["files"],
        row_count=row["files"],
        total_bytes=row["size_bytes"],
        chunk_count=row["chunks"],
        files=_UNTOLD,
        chunks=_UNTOLD,
        notes=tuple(row["notes"]),
    )
