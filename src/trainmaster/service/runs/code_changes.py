"""`code_changes`: how the code of one run became that of another, file by file."""

from __future__ import annotations

import difflib
import filecmp
import re
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
#: What programs are written in. All else in a folder of code may be data, settings, or what a run has left.
_SOURCE: Final = re.compile(
    r".*\.(bash|cc?|cpp|cuh?|go|h|hpp|ipynb|java|jl|js|lua|pl|pyx?|r|rs|scala|sh|sql)",
    re.IGNORECASE | re.DOTALL,
)


def code_changes(before: Path, after: Path, without: Collection[bytes] = ()) -> list[dict[str, Any]]:
    """What differs between two snapshots of code.

    Args:
        before: a directory.
        after: another one.
        without: contents of files that are not looked at.

    Returns:
        Of each file that differs its ``path``, whether it ``is_source`` of a program, its ``change``
        (``changed``, ``added`` or ``removed``), and of small texts that were changed the ``lines`` of a
        unified diff. Sources come first.
    """
    ours, theirs = _files(before), _files(after)
    found: list[dict[str, Any]] = []
    for path in sorted({*ours, *theirs}, key=lambda path: (not _is_source(path), path)):
        old, new = ours.get(path), theirs.get(path)
        if old and new and _are_same(old, new):
            continue
        if all(_is_one_of(each, without) for each in (old, new) if each):
            continue
        change = "changed" if old and new else "added" if new else "removed"
        lines = _diff(old, new, path) if old and new and len(found) < _MAX_FILES else []
        found.append({"path": path, "is_source": _is_source(path), "change": change, "lines": lines})
        if len(found) == _MAX_NAMED:
            break
    return found


def _is_source(path: str) -> bool:
    return _SOURCE.fullmatch(path) is not None


def _files(top: Path) -> dict[str, Path]:
    return {
        each.relative_to(top).as_posix(): each
        for each in top.rglob("*")
        if each.is_symlink() or each.is_file()
    }


def _are_same(old: Path, new: Path) -> bool:
    """Links are not followed: they may lead out of the code."""
    if old.is_symlink() or new.is_symlink():
        return old.is_symlink() and new.is_symlink() and old.readlink() == new.readlink()
    is_run = [each.stat().st_mode & 0o100 for each in (old, new)]
    return is_run[0] == is_run[1] and filecmp.cmp(old, new, shallow=False)


def _is_one_of(file: Path, contents: Collection[bytes]) -> bool:
    size = -1 if file.is_symlink() else file.stat().st_size
    return any(len(each) == size and file.read_bytes() == each for each in contents)


def _diff(old: Path, new: Path, path: str) -> list[str]:
    """Lines of a diff; none if one of both is no small text."""
    if old.is_symlink() or new.is_symlink():
        return []
    if max(old.stat().st_size, new.stat().st_size) > _MAX_BYTES:
        return []
    try:
        before, after = (each.read_text("utf-8").splitlines() for each in (old, new))
    except UnicodeDecodeError:
        return []
    lines = list(difflib.unified_diff(before, after, path, path, lineterm=""))
    left_out = len(lines) - _MAX_LINES
    return lines if left_out <= 0 else [*lines[:_MAX_LINES], f" ... {left_out} more lines"]
