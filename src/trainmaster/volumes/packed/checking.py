"""Judging the columns of a manifest that may come from anybody, a million rows at a time."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.objects.names import link_stays_inside
from trainmaster.volumes.packed.faults import DamagedVolumeError
from trainmaster.volumes.packed.hashes import BATCH_ROWS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SLASH, _DOT = ord("/"), ord(".")
MOST_PATH_BYTES = 4095


def check_paths(arena: "NDArray[np.uint8]", ends: "NDArray[np.int64]", first_row: int, where: str) -> None:
    """Refuses paths that are not below the volume's top: empty ones, ``..``, ``//``, NUL, ...

    Args:
        arena: the paths, joined.
        ends: where each ends.
        first_row: number of the first of these rows, for the messages.
        where: the volume, for the messages.

    Raises:
        DamagedVolumeError: naming the path.
    """
    import numpy as np

    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    lengths = ends - starts

    def refuse(positions: "NDArray[np.int64]", fault: str) -> None:
        if len(positions):
            row = min(int(np.searchsorted(ends, positions[0], side="right")), len(ends) - 1)
            path = arena[starts[row] : ends[row]].tobytes()[:200]
            raise DamagedVolumeError(
                f"{where}: row {first_row + row:,}, {path!r}, {fault}.", "Nothing was read from it."
            )

    refuse(starts[lengths > MOST_PATH_BYTES], "is too long")
    refuse(np.flatnonzero(arena == 0), "has a NUL byte")
    refuse(starts[lengths == 0], "is empty")
    slashes = np.flatnonzero(arena == _SLASH)
    is_end = np.zeros(len(arena) + 2, np.bool_)
    is_end[slashes] = True
    is_end[ends] = True
    refuse(starts[arena[starts] == _SLASH], "lies outside")
    refuse(slashes[is_end[slashes + 1]], "has an empty component")
    begins = np.concatenate([starts, slashes + 1])
    dotted = begins[arena[begins] == _DOT]
    refuse(dotted[is_end[dotted + 1]], "has a component '.'")
    longer = dotted[~is_end[dotted + 1]]
    twice = longer[arena[longer + 1] == _DOT]
    refuse(twice[is_end[twice + 2]], "lies outside")


def check_extents(column: Callable[[str], "NDArray[Any]"], file_count: int, where: str) -> None:
    """Refuses files that lie beyond their chunks or are out of order.

    Args:
        column: gives a flat column.
        file_count: rows that are files.
        where: the volume, for the messages.

    Raises:
        DamagedVolumeError: naming the row.
    """
    import numpy as np

    chunk_ends = np.cumsum(column("chunk_sizes"), dtype=np.int64)
    total = int(chunk_ends[-1]) if len(chunk_ends) else 0
    chunk_starts = np.concatenate([np.zeros(1, np.int64), chunk_ends])
    last_chunk = last_end = 0
    for first in range(0, file_count, BATCH_ROWS):
        batch = slice(first, min(first + BATCH_ROWS, file_count))
        sizes, chunks, offsets = (
            column("sizes")[batch],
            column("first_chunks")[batch],
            column("offsets")[batch],
        )
        starts = chunk_starts[np.minimum(chunks, len(chunk_ends))] + offsets
        is_bad = (sizes > total) | (starts + np.minimum(sizes, total).astype(np.int64) > total)
        is_bad |= (sizes > 0) & (chunks >= len(chunk_ends))
        # A byte beyond its chunk would be found in the next one: right, but not what anybody has written.
        ends = chunk_ends[np.minimum(chunks, len(chunk_ends) - 1)] if total else starts
        is_bad |= (sizes > 0) & (starts >= ends)
        previous = np.concatenate([np.array([last_chunk], chunks.dtype), chunks[:-1]])
        is_bad |= chunks < previous
        # Files that share bytes would be harder to write and to cache, and are not made.
        file_ends = np.maximum.accumulate(
            np.where(sizes > 0, starts + np.minimum(sizes, total).astype(np.int64), 0)
        )
        before = np.concatenate([np.array([last_end]), np.maximum(file_ends[:-1], last_end)])
        is_bad |= (sizes > 0) & (starts < before)
        if is_bad.any():
            row = first + int(np.argmax(is_bad))
            raise DamagedVolumeError(
                f"{where}: the file of row {row:,} does not lie in its chunks.", "Nothing was read from it."
            )
        last_chunk, last_end = int(chunks[-1]), max(last_end, int(file_ends[-1]))


def check_links(links: Mapping[str, str], where: str) -> None:
    """Refuses symbolic links that lead out of the volume.

    Args:
        links: every link with its target.
        where: the volume, for the messages.

    Raises:
        DamagedVolumeError: naming the link.
    """
    for path, target in links.items():
        if not link_stays_inside(path, links):
            raise DamagedVolumeError(
                f"{where}: {path!r} is a symbolic link that leads outside, to {target!r}.",
                "Nothing was read from it.",
            )
