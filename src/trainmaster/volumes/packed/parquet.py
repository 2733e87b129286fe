"""The tables of a version as they are published: Parquet, compressed by zstd.

Anything that reads Parquet reads them (DuckDB, pandas); Trainmaster turns them into flat
columns once per node. pyarrow is imported here, and to read a tar by zstd (`archive_file`).
"""

import os
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from trainmaster.spec.errors import imports_of
from trainmaster.volumes.errors import DamagedVolumeError
from trainmaster.volumes.packed.hashes import CHUNK_HASH_BYTES, FILE_HASH_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Kinds of rows as the tables have them, in the order in which rows of them come.
FILE, DIRECTORY, SYMLINK = 0, 1, 2
Batch: TypeAlias = "dict[str, NDArray[Any]]"
TableName: TypeAlias = Literal["files", "chunks", "parts"]

#: Column -> its type: a NumPy one, ``binary``, or so many bytes.
COLUMNS: dict[TableName, dict[str, str | int]] = {
    "files": {
        "path": "binary",
        "kind": "uint8",
        "size": "uint64",
        "mode": "uint16",
        "mtime_ns": "int64",
        "chunk": "uint32",
        "offset": "uint32",
        "hash": FILE_HASH_BYTES,
        "target": "binary",
    },
    "chunks": {"size": "uint32", "hash": CHUNK_HASH_BYTES},
    "parts": {
        "chunk": "uint32",
        "key": "binary",
        "start": "uint64",
        "length": "uint32",
        "etag": "binary",
    },
}
# Sorted paths share beginnings, and offsets grow: these encodings store the differences.
_ENCODINGS = {"path": "DELTA_BYTE_ARRAY", "chunk": "DELTA_BINARY_PACKED", "offset": "DELTA_BINARY_PACKED"}
_GROUP_ROWS = 1 << 17
# 32 bits count the bytes of a column in one group.
_GROUP_BYTES = 1 << 28
_TYPE_CODES = {"uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q", "int64": "q"}


class TableWriter:
    """Writes one table row by row, in constant memory.

    Args:
        path: the file; made, or written over.
        name: which table.
    """

    def __init__(self, path: Path, name: TableName) -> None:
        self._pyarrow, parquet = _modules()
        self._columns = COLUMNS[name]
        self._schema = _schema(self._pyarrow, name)
        self._writer: Any = parquet.ParquetWriter(
            os.fspath(path),
            self._schema,
            compression="zstd",
            use_dictionary=[column for column in ("kind", "mode", "key", "etag") if column in self._columns],
            column_encoding={name: code for name, code in _ENCODINGS.items() if name in self._columns},
            write_statistics=False,
        )
        self._reset()
        self.row_count = 0

    def append(self, *values: bytes | int) -> None:
        """Adds a row, its values in the order of the columns."""
        for column, value in zip(self._values, values, strict=True):
            column.append(value)
        self._pending_bytes += len(values[0]) if isinstance(values[0], bytes) else 0
        self.row_count += 1
        if len(self._values[0]) >= _GROUP_ROWS or self._pending_bytes >= _GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        """Writes the rest."""
        if self._values[0]:
            self._flush()
        self._writer.close()

    def _reset(self) -> None:
        self._values: list[Any] = [
            array(_TYPE_CODES[kind]) if isinstance(kind, str) and kind in _TYPE_CODES else []
            for kind in self._columns.values()
        ]
        self._pending_bytes = 0

    def _flush(self) -> None:
        arrays = [
            self._array(values, name, kind)
            for values, (name, kind) in zip(self._values, self._columns.items(), strict=True)
        ]
        self._writer.write_batch(self._pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._reset()

    def _array(self, values: Any, name: str, kind: str | int) -> Any:  # noqa: ANN401 - pyarrow has no types
        """From its buffers: `pyarrow.array` imports pandas, where there is one, for a third of a second."""
        pyarrow = self._pyarrow
        if isinstance(values, array):
            buffers = [None, pyarrow.py_buffer(values)]
        elif kind == "binary":
            ends = array("i", (0, *accumulate(map(len, values))))
            buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(b"".join(values))]
        else:
            joined = b"".join(values)
            if len(joined) != len(values) * int(kind):
                raise ValueError(f"a value of the column {name} has not {kind} bytes")
            buffers = [None, pyarrow.py_buffer(joined)]
        return pyarrow.Array.from_buffers(self._schema.field(name).type, len(values), buffers)


def read_table(path: Path, name: TableName, rows: int | None, where: str) -> Iterator[Batch]:
    """Reads a table that may come from anybody, some 100,000 rows at a time.

    Columns of numbers come as arrays of them; those of so many bytes as rows of bytes; those of
    ``binary`` as two arrays, the bytes of all values joined and, as ``NAME_ends``, where each ends.

    Args:
        path: the file.
        name: which table.
        rows: how many it must have; None for any number.
        where: its URL, for the messages.

    Raises:
        DamagedVolumeError: it is no such table.
    """
    pyarrow, parquet = _modules()
    try:
        file = parquet.ParquetFile(os.fspath(path), memory_map=True)
        wanted = _schema(pyarrow, name)
        have = file.metadata.num_rows
        if not file.schema_arrow.equals(wanted) or have != (have if rows is None else rows):
            raise DamagedVolumeError(
                f"{where}: its table of {name} is none that this Trainmaster knows, or of another size.",
                "Use another version, or push again.",
            )
        for batch in file.iter_batches(batch_size=_GROUP_ROWS, use_threads=False):
            have -= len(batch)
            if len(batch):
                yield _decoded(batch, COLUMNS[name])
        if have:  # groups of rows may say something else than the file
            raise ValueError(f"it has {abs(have):,} rows {'less' if have > 0 else 'more'} than it says")
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DamagedVolumeError(
            f"{where} is damaged: {str(error).splitlines()[0]}.", "Use another version, or push again."
        ) from error


def _decoded(batch: Any, columns: dict[str, str | int]) -> Batch:  # noqa: ANN401 - pyarrow has no types
    import numpy as np

    found: Batch = {}
    for name, kind in columns.items():
        column = batch.column(name)
        if column.null_count:
            raise ValueError(f"the column {name} has holes")
        if kind == "binary":
            _, ends, data = column.buffers()
            offsets = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
            joined = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
            found[name] = joined[offsets[0] : offsets[-1]]
            found[f"{name}_ends"] = (offsets[1:] - offsets[0]).astype(np.int64)
        elif isinstance(kind, int):
            flat = np.frombuffer(column.buffers()[1], np.uint8)
            found[name] = flat[column.offset * kind : (column.offset + len(column)) * kind]
        else:
            values = column.buffers()[1]  # `to_numpy` imports pandas: a third of a second
            flat = np.frombuffer(values, kind) if values is not None else np.empty(0, kind)
            found[name] = flat[column.offset : column.offset + len(column)]
    return found


def _schema(pyarrow: ModuleType, name: TableName) -> Any:  # noqa: ANN401
    def type_of(kind: str | int) -> Any:  # noqa: ANN401
        return pyarrow.binary(kind) if isinstance(kind, int) else getattr(pyarrow, kind)()

    fields: Sequence[Any] = [
        pyarrow.field(column, type_of(kind), nullable=False) for column, kind in COLUMNS[name].items()
    ]
    return pyarrow.schema(fields)


def _modules() -> tuple[ModuleType, ModuleType]:
    with imports_of("volumes", "a volume"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet
