"""Paths in a volume, links followed as the kernel would."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster.volumes.packed.table import FileTable

_MOST_LINKS = 40


def resolved(table: "FileTable", path: str | bytes, passed: "list[int] | None" = None) -> int:
    """Gives the row of the file or directory at a path.

    Links are followed as long as they stay in the volume. ``.``, ``..`` and slashes too many
    are understood; nothing lies above the top.

    Args:
        table: of the volume.
        path: in it.
        passed: gets the rows of the links that were followed.

    Returns:
        The row; -1 if there is none, or the links go round in a circle.
    """
    name = path if isinstance(path, bytes) else os.fsencode(path)
    row = table.row_of(name)
    if row >= 0 and table.kind(row) != "symlink":
        return row
    pending = name.split(b"/")[::-1]
    here: list[bytes] = []
    links = 0
    while pending:
        part = pending.pop()
        if part in (b"", b"."):
            continue
        if part == b"..":
            del here[-1:]
            continue
        here.append(part)
        row = table.row_of(b"/".join(here))
        if row < 0:
            return -1
        kind = table.kind(row)
        if kind == "symlink":
            links += 1
            if passed is not None:
                passed.append(row)
            target = table.target_bytes(row)
            if links > _MOST_LINKS or target.startswith(b"/"):
                return -1
            here.pop()
            pending.extend(target.split(b"/")[::-1])
        elif kind == "file" and any(rest not in (b"", b".") for rest in pending):
            return -1
    return table.row_of(b"/".join(here))
