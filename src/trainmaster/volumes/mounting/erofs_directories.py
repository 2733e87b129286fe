"""The contents of directories in an EROFS image.

Names are sorted by their bytes, ``.`` and ``..`` among them, and fill blocks one after the other. A
block begins with twelve bytes per name (inode, where the name begins, kind), then come the names.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainmaster.volumes.packed import FileTable

_ENTRY = struct.Struct("<QHBx")
_FILE, _DIRECTORY, _LINK = 1, 2, 7


@dataclass(frozen=True, slots=True)
class Contents:
    """Where the contents of each directory lie, by their number: the root is 0.

    Attributes:
        sizes: in bytes.
        blocks: the first of each.
        subdirectories: how many directories lie in each.
        end: the block behind all of them.
    """

    sizes: list[int]
    blocks: list[int]
    subdirectories: list[int]
    end: int


def write_directories(
    table: "FileTable", nids: "NDArray[np.int64]", file: IO[bytes], block: int, block_bytes: int
) -> Contents:
    """Writes the contents of all directories, the root's first.

    Args:
        table: the volume's files.
        nids: number of the inode of each row.
        file: where to, from its position on.
        block: the number of the block there.
        block_bytes: how long a block is.
    """
    numbers: list[int] = nids.tolist()
    first_link = table.row_count - table.link_count
    sizes, blocks, subdirectories = [], [], []
    for row in range(table.file_count, first_link):
        own = len(table.path_bytes(row))
        begin = own + 1 if own else 0
        entries = [
            (b".", numbers[row], _DIRECTORY),
            (b"..", numbers[table.parent(row)], _DIRECTORY),
        ]
        inside = 0
        for child in table.children(row):
            kind = _FILE if child < table.file_count else _DIRECTORY if child < first_link else _LINK
            inside += kind == _DIRECTORY
            entries.append((table.path_bytes(child)[begin:], numbers[child], kind))
        entries.sort()
        data, size = _packed(entries, block_bytes)
        file.write(data)
        sizes.append(size)
        blocks.append(block)
        subdirectories.append(inside)
        block += len(data) // block_bytes
    return Contents(sizes, blocks, subdirectories, block)


def _packed(entries: Iterable[tuple[bytes, int, int]], block_bytes: int) -> tuple[bytes, int]:
    """Gives whole blocks, and how many of their bytes count: the last block ends with its last name."""
    done: list[bytes] = []
    pending: list[tuple[bytes, int, int]] = []
    used = 0
    for entry in entries:
        cost = _ENTRY.size + len(entry[0])
        if used + cost > block_bytes:
            done.append(_block(pending).ljust(block_bytes, b"\0"))
            pending, used = [], 0
        pending.append(entry)
        used += cost
    size = len(done) * block_bytes + used
    done.append(_block(pending).ljust(block_bytes, b"\0"))
    return b"".join(done), size


def _block(entries: list[tuple[bytes, int, int]]) -> bytes:
    at = _ENTRY.size * len(entries)
    head = []
    for name, nid, kind in entries:
        head.append(_ENTRY.pack(nid, at, kind))
        at += len(name)
    return b"".join(head) + b"".join([entry[0] for entry in entries])
