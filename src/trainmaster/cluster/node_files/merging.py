"""What lies in directories of nodes, read and merged. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from trainmaster.artifacts.manifest import FileEntry
from trainmaster.cluster.node_files.trees import (
    FILE,
    FOLDER,
    LINK,
    TreeEntry,
)

Tree = list[TreeEntry]
_FOLDER_MODE: Final = 0o755


def merge_trees(
    trees: Sequence[Sequence[TreeEntry]], base: Sequence[TreeEntry] = ()
) -> list[tuple[int, TreeEntry]]:
    """What several directories hold together, each with the number of its own.

    All of them began as ``base``. What one holds unchanged is no claim: it stays as long as no
    directory has changed it and none has removed it. Of what was changed, or is new, the first one wins; it
    stays, too, where another directory has removed it. An empty folder stays unless one has removed it.

    Args:
        trees: what lies in each.
        base: what lay in all of them at first; nothing if they were empty.

    >>> a, b = TreeEntry("a", "f"), TreeEntry("b", "f")
    >>> [number for number, _ in merge_trees([[a], [a, b]])]
    [0, 1]
    >>> base = [TreeEntry("a", "f", 1), TreeEntry("b", "f", 1), TreeEntry("c", "f", 1)]
    >>> merged = merge_trees([[*base[:2]], [*base[:1], TreeEntry("b", "f", 2), *base[2:]]], base)
    >>> [(number, entry.path, entry.size) for number, entry in merged]
    [(0, 'a', 1), (1, 'b', 2)]
    """
    was = looks(entry for entry in base if entry.kind != FOLDER)
    had = _folders(base)
    union = _MergedTree()
    kept = set(was)
    for number, tree in enumerate(trees):
        same = {path for path, look in looks(tree).items() if was.get(path) == look}
        for entry in tree:
            if entry.path not in same and not (entry.kind == FOLDER and entry.path in had):
                union.take(number, entry)
        kept &= same
    for tree in trees[:1]:
        for entry in tree:
            if entry.path in kept:
                union.take(0, entry)
    # One of which each directory has removed another part is empty here, and on none of them.
    empty = {e.path: (n, e) for n, tree in reversed([*enumerate(trees)]) for e in tree if e.kind == FOLDER}
    for path in had.intersection(*map(_folders, trees)):
        union.take(*empty.get(path, (0, TreeEntry(path, FOLDER, mode=_FOLDER_MODE))))
    return union.entries


class _MergedTree:
    """Paths that were taken; what comes first wins."""

    def __init__(self) -> None:
        self._taken: dict[str, tuple[int, TreeEntry]] = {}
        self._folders: set[str] = set()

    def take(self, number: int, entry: TreeEntry) -> None:
        """Take an entry, unless its path, or something that it cannot stand beside, is taken."""
        above = _above(entry.path)
        if entry.path in self._taken or entry.path in self._folders:
            return
        if any(self._taken[path][1].kind != FOLDER for path in above if path in self._taken):
            return
        for path in above:  # empty on another machine, not so on this one
            self._taken.pop(path, None)
        self._folders.update(above)
        self._taken[entry.path] = (number, entry)

    @property
    def entries(self) -> list[tuple[int, TreeEntry]]:
        """What was taken, by path."""
        return sorted(self._taken.values(), key=lambda found: found[1].path)


def tree_of(files: Iterable[FileEntry]) -> Tree:
    """What lies in a directory to which an artifact was restored.

    >>> tree_of([FileEntry("a", size_bytes=3, mtime_ns=7)]) == [TreeEntry("a", "f", 3, 7)]
    True
    """
    kinds = {"file": FILE, "symlink": LINK, "directory": FOLDER}
    return [
        TreeEntry(each.path, kinds[each.kind], each.size_bytes, each.mtime_ns, each.mode, each.target)
        for each in files
    ]


def looks(entries: Iterable[TreeEntry]) -> dict[str, tuple[str, int, int, str]]:
    """By path, what tells of a change: kind, size, time (an artifact knows none before 1970), target."""
    return {e.path: (e.kind, e.size, max(0, e.mtime_ns), e.target) for e in entries}


def moved(tree: Sequence[TreeEntry], prefix: str) -> Tree:
    """What lies in a directory, as it is called from above it.

    >>> moved([TreeEntry("a", "f")], "members/worker-1")[0].path
    'members/worker-1/a'
    """
    return [entry._replace(path=f"{prefix}/{entry.path}") for entry in tree] if prefix else list(tree)


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _folders(tree: Iterable[TreeEntry]) -> set[str]:
    """All directories in one, empty or not."""
    found = set()
    for entry in tree:
        found.update(_above(entry.path))
        if entry.kind == FOLDER:
            found.add(entry.path)
    return found
