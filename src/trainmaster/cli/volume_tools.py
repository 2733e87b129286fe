"""What the verbs of ``trainmaster volume`` say of versions and files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.volumes.packed import Entry, Head


def row_at(opened: Any, path: str) -> int:  # noqa: ANN401 - an OpenVolume, imported late
    """Gives the row at a path that a user has given.

    Raises:
        NotFoundError: there is none.
    """
    from trainmaster.spec.errors import NotFoundError

    row: int = opened.table.row_of(path.strip("/"))
    if row < 0:
        raise NotFoundError(
            f"{opened.uri}: there is no {path!r}.", f"List it: trainmaster volume ls {opened.uri}"
        )
    return row


def rows_below(table: Any, row: int, recursive: bool) -> Any:  # noqa: ANN401
    """Gives the rows in a directory by name; with ``recursive`` all below it."""
    stack = [iter(sorted(table.children(row), key=table.path_bytes))]
    while stack:
        found = next(stack[-1], None)
        if found is None:
            stack.pop()
            continue
        yield found
        if recursive and table.kind(found) == "directory":
            stack.append(iter(sorted(table.children(found), key=table.path_bytes)))


def followed(link: str, target: str) -> str:
    """Gives where a symbolic link leads."""
    import os.path

    return os.path.normpath(os.path.join(os.path.dirname(link), target))  # noqa: PTH118, PTH120 - bytes as text


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


def entry_document(entry: Entry) -> dict[str, Any]:
    """Gives what ``ls --json`` says of a file."""
    return {
        "path": entry.path,
        "kind": entry.kind,
        "bytes": entry.size_bytes,
        "mode": f"{entry.mode:o}",
        "mtime_ns": entry.mtime_ns,
        **({"target": entry.target} if entry.kind == "symlink" else {}),
        **({"hash": entry.hash.hex()} if entry.hash else {}),
    }


def entry_line(entry: Entry) -> str:
    """Gives a line of ``ls``."""
    mark = {"file": "", "directory": "/", "symlink": f" -> {entry.target}"}[entry.kind]
    size = f"{entry.size_bytes:>14,}" if entry.kind == "file" else " " * 14
    return f"{size}  {entry.path}{mark}"


def files_text(head: Head) -> str:
    """Says how much a version is."""
    from trainmaster.cli.output import size

    return f"{head.file_count:,} {'file' if head.file_count == 1 else 'files'}, {size(head.total_bytes)}"
