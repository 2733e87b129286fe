"""`code_changes`: how the code of one run became that of another, file by file."""

from __future__ import annotations

import difflib
import filecmp
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

#: The lines of so many files at most are shown, of files of at most so many bytes, and so many of each.
_MAX_FILES: Final = 20
_MAX_BYTES: Final = 64 << 10
_MAX_LINES: Final = 200
#: So many files are named at most.
_MAX_NAMED: Final = 200


def code_changes(before: Path, after: Path, without: Collection[str] = ()) -> list[dict[str, Any]]:
    """What differs between two snapshots of code.

    Args:
        before: a directory.
        after: another one.
        without: paths that are not looked at.

    Returns:
        Of each file that differs its ``path``, its ``change`` (``changed``, ``added`` or ``removed``), and of
        small texts that were changed the ``lines`` of a unified diff.
    """
    ours, theirs = _files(before), _files(after)
    found: list[dict[str, Any]] = []
    for path in sorted({*ours, *theirs} - {*without}):
        old, new = ours.get(path), theirs.get(path)
        if old and new and filecmp.cmp(old, new, shallow=False):
            continue
        change = "changed" if old and new else "added" if new else "removed"
        lines = _diff(old, new, path) if old and new and len(found) < _MAX_FILES else []
        found.append({"path": path, "change": change, "lines": lines})
        if len(found) == _MAX_NAMED:
            break
    return found


def _files(top: Path) -> dict[str, Path]:
    return {
        each.relative_to(top).as_posix(): each
        for each in top.rglob("*")
        if each.is_file() and not each.is_symlink()
    }


def _diff(old: Path, new: Path, path: str) -> list[str]:
    """Lines of a diff; none if one of both is no small text."""
    if max(old.stat().st_size, new.stat().st_size) > _MAX_BYTES:
        return []
    try:
        before, after = (each.read_text("utf-8").splitlines() for each in (old, new))
    except UnicodeDecodeError:
        return []
    lines = list(difflib.unified_diff(before, after, path, path, lineterm=""))
    left_out = len(lines) - _MAX_LINES
    return lines if left_out <= 0 else [*lines[:_MAX_LINES], f" ... {left_out} more lines"]
