"""Directories that nobody has named but that must be there."""

from collections.abc import Iterable


def with_parents(folders: Iterable[bytes]) -> list[bytes]:
    """Gives directories and all that they lie in, sorted, without the root.

    >>> with_parents([b"a/b/c", b"a/d", b""])
    [b'a', b'a/b', b'a/b/c', b'a/d']
    """
    found: set[bytes] = set()
    for folder in folders:
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition(b"/")[0]
    return sorted(found)
