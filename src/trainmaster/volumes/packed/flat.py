"""Flat columns: one file each, mapped into memory and shared by all processes of a node."""

import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias

from trainmaster.volumes.errors import DamagedVolumeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Code: TypeAlias = Literal["B", "H", "I", "Q", "q"]
#: Column -> the letter that ``memoryview.cast`` has for its type.
CODES: dict[str, Code] = {
    "sizes": "Q",
    "modes": "H",
    "mtimes": "q",
    "paths": "B",
    "path_starts": "Q",
    "parents": "I",
    "children": "I",
    "child_starts": "I",
    "first_chunks": "I",
    "offsets": "I",
    "hashes": "B",
    "targets": "B",
    "target_starts": "Q",
    "bucket_starts": "I",
    "hashed_rows": "I",
    "hashed_low": "I",
    "chunk_sizes": "I",
    "chunk_hashes": "B",
    "part_starts": "I",
    "part_offsets": "Q",
    "part_lengths": "I",
    "part_keys": "B",
    "part_key_starts": "Q",
    "part_etags": "B",
    "part_etag_starts": "Q",
}
_DTYPES = {"B": "<u1", "H": "<u2", "I": "<u4", "Q": "<u8", "q": "<i8"}


class ColumnWriter:
    """Writes columns, each in pieces of any size.

    Args:
        directory: where the files go.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, IO[bytes]] = {}

    def add(self, name: str, values: "NDArray[Any]") -> None:
        """Appends values to a column, in the column's own type."""
        import numpy as np

        file = self._files.get(name)
        if file is None:
            file = self._files[name] = (self._directory / name).open("wb", buffering=0)
        # Not buffered: a full disk is found here, not when the files are closed.
        data = np.ascontiguousarray(values, _DTYPES[CODES[name]]).view(np.uint8).data
        while data:
            data = data[file.write(data) :]

    def array(self, name: str) -> "NDArray[Any]":
        """Maps a column that is complete, for reading."""
        import numpy as np

        file = self._files.get(name)
        dtype = np.dtype(_DTYPES[CODES[name]])
        if file is None:
            return np.empty(0, dtype)
        path = self._directory / name
        return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def mapped_columns(directory: Path, names: Iterable[str]) -> dict[str, memoryview]:
    """Maps columns; those that have no file are empty.

    Raises:
        DamagedVolumeError: a file is no column.
    """
    columns = {}
    for name in names:
        columns[name] = _mapped(directory / name, CODES[name])
    return columns


def _mapped(path: Path, code: Code) -> memoryview:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return memoryview(b"").cast(code)
    try:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes == 0:
            return memoryview(b"").cast(code)
        view = memoryview(mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)
    try:
        return view.cast(code)
    except TypeError as error:
        raise DamagedVolumeError(f"{path} is damaged.", f"Remove {path.parent}; it is made again.") from error
