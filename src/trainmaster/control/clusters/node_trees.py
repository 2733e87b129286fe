"""What lies in directories of nodes, read and united. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

from trainmaster.remote.guest.trees import FOLDER, MARK, Entry, TreeError

Tree = list[Entry]


def parse_trees(data: bytes, count: int) -> list[Tree] | None:
    """Read the answer of ``list`` about so many directories; None if the stamp was the same.

    Raises:
        TreeError: the other end says what is wrong, or says too little.
    """
    trees: list[Tree] = [[]]
    for line in data.partition(MARK)[2].splitlines():
        said = json.loads(line)
        if said == "@@have":
            return None
        if isinstance(said, str):
            raise TreeError(said)
        if said is None:
            trees.append([])
        else:
            trees[-1].append(Entry(*said))
    if len(trees) != count + 1:
        raise TreeError("its answer was cut short")
    return trees[:-1]


def unite(trees: Sequence[Sequence[Entry]]) -> list[tuple[int, Entry]]:
    """What several directories hold together, each with the number of its own; the first one wins.

    >>> [number for number, _ in unite([[Entry("a", "f")], [Entry("a", "f"), Entry("b", "f")]])]
    [0, 1]
    """
    taken: dict[str, tuple[int, Entry]] = {}
    folders: set[str] = set()
    for number, tree in enumerate(trees):
        for entry in tree:
            above = _above(entry.path)
            if entry.path in taken or entry.path in folders:
                continue
            if any(taken[path][1].kind != FOLDER for path in above if path in taken):
                continue
            for path in above:  # empty on another machine, not so on this one
                taken.pop(path, None)
            folders.update(above)
            taken[entry.path] = (number, entry)
    return sorted(taken.values(), key=lambda found: found[1].path)


def moved(tree: Sequence[Entry], prefix: str) -> Tree:
    """What lies in a directory, as it is called from above it.

    >>> moved([Entry("a", "f")], "members/worker-1")[0].path
    'members/worker-1/a'
    """
    return [entry._replace(path=f"{prefix}/{entry.path}") for entry in tree] if prefix else list(tree)


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]
