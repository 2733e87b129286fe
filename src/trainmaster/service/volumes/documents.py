"""What ``--json`` and REST say of versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.service.volumes import Head, VersionCheck


def head_document(head: Head, uri: str | None = None) -> dict[str, Any]:
    """Gives what ``--json`` says of a version."""
    return {
        **({"uri": uri} if uri else {}),
        "version": head.version,
        "created_at": head.created_at.isoformat(),
        "kind": head.kind,
        "files": head.file_count,
        "bytes": head.total_bytes,
        "chunks": head.chunk_count,
        "notes": list(head.notes),
    }


def verdict_document(verdict: VersionCheck) -> dict[str, Any]:
    """Gives what `fsck --json` says of a version."""
    head = {} if verdict.head is None else head_document(verdict.head)
    damage = [{"what": one.what, "advice": one.advice} for one in verdict.damage]
    return {**head, "version": verdict.version, "damage": damage}
