"""`info_of`: a volume, as a server shows it; `is_name`: what is asked of a server."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from trainmaster.service.volumes import VolumeInfo
from trainmaster.volumes.packed.addresses import is_short_name
from trainmaster.volumes.packed.head import Head, StoredTable

#: A server does not tell where its tables lie.
_UNTOLD: Final = StoredTable("", 0)


def is_name(text: str) -> bool:
    """Whether a text names a volume, maybe with a version, and is no URL or directory.

    >>> [is_name(each) for each in ("pets", "pets@3", "./pets", "s3://bucket/pets")]
    [True, True, False, False]
    """
    return is_short_name(text.partition("@")[0])


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
