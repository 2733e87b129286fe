"""The columns by which rows are found: buckets of path hashes, parents, children."""

from typing import TYPE_CHECKING, Any

from trainmaster.volumes.errors import DamagedVolumeError
from trainmaster.volumes.packed.flat import ColumnWriter
from trainmaster.volumes.packed.hashes import BATCH_ROWS, equal_slices, path_hashes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ROWS_PER_BUCKET = 2
_SLASH = ord("/")
#: Behind the paths.
PADDING_BYTES = 8


def bucket_bits(row_count: int) -> int:
    """Gives how many upper bits of a hash name its bucket."""
    return max(1, (row_count // _ROWS_PER_BUCKET).bit_length())


def padded_arena(columns: ColumnWriter) -> "NDArray[np.uint8]":
    """Gives all paths with eight bytes more, as the hashes need them."""
    import numpy as np

    columns.add("paths", np.zeros(PADDING_BYTES, np.uint8))
    return columns.array("paths")


def write_index(columns: ColumnWriter, file_count: int, directory_count: int, where: str) -> None:
    """Writes what finds rows by path, by parent and by directory.

    Raises:
        DamagedVolumeError: two rows have the same path, or one lies below what is no directory.
    """
    import numpy as np

    arena = padded_arena(columns)
    # Of each row no more than must be is held in memory: here 24 bytes, the rest is in files.
    bounds = columns.array("path_starts").view(np.int64)
    starts, lengths = bounds[:-1], np.diff(bounds).astype(np.int32)
    row_count = len(starts)
    hashes = path_hashes(arena, starts, lengths)
    folder_hashes = hashes[file_count : file_count + directory_count].copy()
    order = np.argsort(hashes)
    hashes = hashes[order]
    _refuse_twins(arena, starts, lengths, hashes, order, where)
    bits = bucket_bits(row_count)
    firsts = np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
    columns.add("bucket_starts", np.searchsorted(hashes, firsts))
    columns.add("bucket_starts", np.array([row_count]))
    for first in range(0, row_count, BATCH_ROWS):
        columns.add("hashed_rows", order[first : first + BATCH_ROWS])
        columns.add("hashed_low", hashes[first : first + BATCH_ROWS] & np.uint64(0xFFFFFFFF))
    del order, hashes, firsts
    parents = _parents(arena, starts, lengths, folder_hashes, file_count, where)
    columns.add("parents", parents)
    counts = np.bincount(parents - file_count, minlength=directory_count)
    counts[0] -= 1  # the root is its own parent, not a child
    columns.add("child_starts", np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))
    children = np.argsort(parents, kind="stable")
    columns.add("children", children[children != file_count])


def _refuse_twins(
    arena: "NDArray[np.uint8]",
    starts: "NDArray[np.int64]",
    lengths: "NDArray[np.int32]",
    hashes: "NDArray[np.uint64]",
    order: "NDArray[Any]",
    where: str,
) -> None:
    """Refuses two rows with one path; ``hashes`` are sorted, ``order`` tells whose they are."""
    import numpy as np

    same = np.flatnonzero(hashes[1:] == hashes[:-1])
    seen: set[bytes] = set()
    for row in np.unique(np.concatenate([order[same], order[same + 1]])).tolist():
        path = arena[starts[row] : starts[row] + lengths[row]].tobytes()
        if path in seen:
            raise DamagedVolumeError(f"{where}: {path!r} is there twice.", "Nothing was read from it.")
        seen.add(path)


def _parents(
    arena: "NDArray[np.uint8]",
    starts: "NDArray[np.int64]",
    lengths: "NDArray[np.int32]",
    folder_hashes: "NDArray[np.uint64]",
    root: int,
    where: str,
) -> "NDArray[np.uint32]":
    """Finds the directory of each row by the hash of its path up to the last ``/``."""
    import numpy as np

    folder_order = np.argsort(folder_hashes)
    sorted_hashes = folder_hashes[folder_order]
    parents = np.empty(len(starts), np.uint32)
    for first in range(0, len(starts), BATCH_ROWS):
        batch = slice(first, min(first + BATCH_ROWS, len(starts)))
        begin, length = starts[batch], lengths[batch]
        low, high = int(begin[0]), int(begin[-1] + length[-1])
        slashes = np.flatnonzero(arena[low:high] == _SLASH) + low
        at = np.searchsorted(slashes, begin + length) - 1
        last = slashes[at] if len(slashes) else np.full(len(begin), -1)
        prefix = np.where((at >= 0) & (last >= begin), last - begin, 0)
        wanted = path_hashes(arena, begin, prefix)
        position = np.searchsorted(sorted_hashes, wanted)
        found = folder_order[np.minimum(position, len(folder_order) - 1)] + root
        is_right = (lengths[found] == prefix) & equal_slices(arena, begin, starts[found], prefix)
        # Two directories with one hash are next to each other; so rare that a loop will do.
        for row in np.flatnonzero(~is_right).tolist():
            found[row] = _searched(
                arena, starts, lengths, begin[row], prefix[row], folder_order[position[row] :] + root, where
            )
        parents[batch] = found
    return parents


def _searched(
    arena: "NDArray[np.uint8]",
    starts: "NDArray[np.int64]",
    lengths: "NDArray[np.int32]",
    begin: int,
    length: int,
    candidates: "NDArray[Any]",
    where: str,
) -> int:
    path = arena[begin : begin + length].tobytes()
    for row in candidates[:64].tolist():
        if arena[starts[row] : starts[row] + lengths[row]].tobytes() == path:
            return int(row)
    raise DamagedVolumeError(
        f"{where}: something lies in {path!r}, which is no directory of it.", "Nothing was read from it."
    )
