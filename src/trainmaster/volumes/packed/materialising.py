"""From the tables of a version to flat columns on this node: once, checked, whole or not at all.

Judging the columns of a manifest that may come from anybody, a million rows at a time.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.artifacts.scratch import made_whole, move_into_place
from trainmaster.objects.errors import explaining
from trainmaster.objects.names import link_stays_inside
from trainmaster.objects.object_store import ObjectStore
from trainmaster.volumes.errors import DamagedVolumeError
from trainmaster.volumes.packed.fetching_tables import fetched_tables
from trainmaster.volumes.packed.finding import write_index
from trainmaster.volumes.packed.flat import ColumnWriter
from trainmaster.volumes.packed.hashes import BATCH_ROWS
from trainmaster.volumes.packed.head import Head, StoredTable
from trainmaster.volumes.packed.parquet import DIRECTORY, FILE, SYMLINK, Batch, TableName, read_table

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


META_NAME = "meta.json"


def tables_directory(cache: Path) -> Path:
    """Where the columns of all volumes are kept on a node."""
    return cache / "volumes" / "tables"


def materialised(store: ObjectStore, head: Head, cache: Path) -> Path:
    """Gives the directory with the columns of a version, made now if it is not there yet.

    Several processes may ask at the same time: one makes it, the others wait.

    Raises:
        DamagedVolumeError: a table is missing, damaged or names something outside.
        PublishError: the store fails, or the cache cannot be written.
    """
    target = tables_directory(cache) / head.table_id
    if (target / META_NAME).is_file():
        with suppress(OSError):
            os.utime(target)  # what removes those that nothing needs goes by their last use
        return target
    with explaining("write", str(target)), _only_one(target):
        if not (target / META_NAME).is_file():
            with made_whole(target) as scratch:
                tables = fetched_tables(store, named_tables(head), scratch)
                write_columns(tables, head, scratch, store.url)
                for path in tables.values():
                    path.unlink()
                shutil.rmtree(target, ignore_errors=True)  # what somebody has half removed
    return target


def named_tables(head: Head) -> dict[TableName, StoredTable]:
    """Gives the tables of a version by their names."""
    tables: dict[TableName, StoredTable] = {"files": head.files, "chunks": head.chunks}
    if head.parts is not None:
        tables["parts"] = head.parts
    return tables


def keep_columns(columns: Path, head: Head, cache: Path) -> None:
    """Puts columns that were made while publishing to where readers look for them."""
    target = tables_directory(cache) / head.table_id
    with explaining("write", str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(target):
            move_into_place(columns, target)


def write_columns(tables: Mapping[TableName, Path], head: Head, directory: Path, where: str) -> None:
    """Turns tables into checked columns.

    Args:
        tables: the Parquet files.
        head: what they must amount to.
        directory: where the columns go.
        where: the volume's URL, for the messages.

    Raises:
        DamagedVolumeError: they are no tables of a volume that can be trusted.
    """
    import numpy as np

    columns = ColumnWriter(directory)
    try:
        _write_chunks(columns, tables["chunks"], head, where)
        if head.parts is not None:
            _write_parts(columns, tables["parts"], head, where)
        counts = _write_rows(columns, tables["files"], head, where)
        check_extents(columns.array, head.file_count, where)
        if counts[SYMLINK]:
            check_links(_links(columns, counts), where)
        total_bytes = int(columns.array("sizes").sum(dtype=np.uint64))
        if total_bytes != head.total_bytes:
            raise _contradiction(where)
        write_index(columns, counts[FILE], counts[DIRECTORY], where)
    finally:
        columns.close()
    meta = {
        "file_count": counts[FILE],
        "directory_count": counts[DIRECTORY],
        "link_count": counts[SYMLINK],
        "chunk_count": head.chunk_count,
        "total_bytes": total_bytes,
    }
    (directory / META_NAME).write_text(json.dumps(meta))


def _write_rows(columns: ColumnWriter, table: Path, head: Head, where: str) -> list[int]:
    """Writes the columns that are in the table as they are, and counts the rows of each kind."""
    import numpy as np

    counts = [0, 0, 0]
    arena_bytes = target_bytes = last_kind = row = 0
    columns.add("path_starts", np.zeros(1))
    columns.add("target_starts", np.zeros(1))
    for batch in read_table(table, "files", head.row_count, where):
        kinds = batch["kind"]
        if int(kinds[0]) < last_kind or (np.diff(kinds.astype(np.int16)) < 0).any() or kinds[-1] > SYMLINK:
            raise DamagedVolumeError(f"{where}: its rows are out of order.", "Nothing was read from it.")
        last_kind = int(kinds[-1])
        per_kind = np.bincount(kinds, minlength=3).tolist()
        _check_batch_paths(batch, per_kind, row, head, where)
        columns.add("paths", batch["path"])
        columns.add("path_starts", batch["path_ends"] + arena_bytes)
        arena_bytes += len(batch["path"])
        columns.add("sizes", np.where(kinds == FILE, batch["size"], 0))
        columns.add("modes", batch["mode"] & 0o777)
        columns.add("mtimes", batch["mtime_ns"])
        files = per_kind[FILE]
        columns.add("first_chunks", batch["chunk"][:files])
        columns.add("offsets", batch["offset"][:files])
        columns.add("hashes", batch["hash"][: files * 16])
        links = per_kind[SYMLINK]
        if links:
            ends = batch["target_ends"][len(kinds) - links :]
            first = int(batch["target_ends"][len(kinds) - links - 1]) if links < len(kinds) else 0
            columns.add("targets", batch["target"][first:])
            columns.add("target_starts", ends - first + target_bytes)
            target_bytes += len(batch["target"]) - first
        counts = [have + new for have, new in zip(counts, per_kind, strict=True)]
        row += len(kinds)
    if counts[FILE] != head.file_count or counts[DIRECTORY] < 1:
        raise _contradiction(where)
    return counts


def _check_batch_paths(batch: Batch, per_kind: list[int], row: int, head: Head, where: str) -> None:
    """Only the root, the first row that is no file, has the empty path."""
    import numpy as np

    root = head.file_count - row
    arena, ends = batch["path"], batch["path_ends"]
    if 0 <= root < len(ends):
        if per_kind[FILE] != root or ends[root] != (ends[root - 1] if root else 0):
            raise _contradiction(where)
        ends = np.delete(ends, root)
    if len(ends):
        check_paths(arena, ends, row, where)


def _write_chunks(columns: ColumnWriter, table: Path, head: Head, where: str) -> None:
    for batch in read_table(table, "chunks", head.chunk_count, where):
        sizes = batch["size"]
        if int(sizes.min()) == 0 or int(sizes.max()) > head.chunk_limit_bytes:
            raise DamagedVolumeError(
                f"{where}: a chunk is empty or larger than {head.chunk_limit_bytes:,} bytes.",
                "Nothing was read from it.",
            )
        columns.add("chunk_sizes", sizes)
        columns.add("chunk_hashes", batch["hash"])


def _write_parts(columns: ColumnWriter, table: Path, head: Head, where: str) -> None:
    import numpy as np

    counts: NDArray[Any] = np.zeros(head.chunk_count, np.int64)
    totals: NDArray[Any] = np.zeros(head.chunk_count, np.int64)
    ends = {"key": 0, "etag": 0}
    last = 0
    columns.add("part_key_starts", np.zeros(1))
    columns.add("part_etag_starts", np.zeros(1))
    for batch in read_table(table, "parts", None, where):
        chunks = batch["chunk"].astype(np.int64)
        is_sorted = chunks[0] >= last and (np.diff(chunks) >= 0).all()
        if not is_sorted or chunks[-1] >= head.chunk_count or (batch["length"] == 0).any():
            raise _contradiction(where)
        last = int(chunks[-1])
        counts += np.bincount(chunks, minlength=head.chunk_count)
        np.add.at(totals, chunks, batch["length"].astype(np.int64))
        columns.add("part_offsets", batch["start"])
        columns.add("part_lengths", batch["length"])
        check_paths(batch["key"], batch["key_ends"], 0, f"{where} (keys)")
        for name in ("key", "etag"):
            columns.add(f"part_{name}s", batch[name])
            columns.add(f"part_{name}_starts", batch[f"{name}_ends"] + ends[name])
            ends[name] += len(batch[name])
    if (totals != columns.array("chunk_sizes")).any():
        raise _contradiction(where)
    columns.add("part_starts", np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))


def _links(columns: ColumnWriter, counts: list[int]) -> dict[str, str]:
    paths, starts = columns.array("paths"), columns.array("path_starts")
    targets, bounds = columns.array("targets"), columns.array("target_starts")
    first = counts[FILE] + counts[DIRECTORY]
    return {
        os.fsdecode(paths[starts[first + link] : starts[first + link + 1]].tobytes()): os.fsdecode(
            targets[bounds[link] : bounds[link + 1]].tobytes()
        )
        for link in range(counts[SYMLINK])
    }


def _contradiction(where: str) -> DamagedVolumeError:
    return DamagedVolumeError(
        f"{where}: its tables contradict its head.", "Use another version, or push again."
    )


@contextmanager
def _only_one(target: Path) -> Iterator[None]:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Never removed: a process could hold the lock of a file that another one no longer sees.
    descriptor = os.open(target.parent / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # A child that was forked meanwhile has the same lock: closing alone would leave it there.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
