"""Columns and rows of the tables among files: CSV, Parquet, and arrays of NumPy.

The files are anybody's, and what reads them is written in C: it is asked in a process of its own
(``python -m trainmaster.service.table_summary DIRECTORY``), which may crash, and has so much time and memory.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

_TIMEOUT_S: Final = 300.0
_MEMORY_BYTES: Final = 4 << 30
_MOST_TABLES: Final = 200
_MOST_COLUMNS: Final = 1000
_SUFFIXES: Final = (".csv", ".tsv", ".parquet", ".npz", ".npy")


def summarised(directory: Path) -> list[dict[str, Any]]:
    """The tables below a directory by path; of one that cannot be read, why.

    Returns:
        For each ``path``, ``rows``, ``column_count`` and ``columns`` (``name`` and ``type``), or ``trouble``.
        Nothing where they cannot be looked at in time.
    """
    if not any(path.suffix in _SUFFIXES for path in directory.rglob("*")):
        return []
    command = [sys.executable, "-m", __name__, str(directory)]
    with suppress(subprocess.SubprocessError, ValueError):
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=True, env={}
        )
        found: list[dict[str, Any]] = json.loads(answer.stdout)
        return found
    return []


def _tables(directory: Path) -> Iterator[dict[str, Any]]:
    paths = (path for path in sorted(directory.rglob("*")) if path.suffix in _SUFFIXES and path.is_file())
    for number, path in enumerate(paths):
        if number == _MOST_TABLES:
            return
        name = str(path.relative_to(directory)).encode(errors="replace").decode()
        try:
            rows, columns = _READERS[path.suffix](path)
        except Exception as error:  # noqa: BLE001 - whatever the libraries raise, the file is no table
            yield {"path": name, "trouble": (str(error).splitlines() or [type(error).__name__])[0][:300]}
        else:
            shown = [{"name": str(key)[:200], "type": kind} for key, kind in columns[:_MOST_COLUMNS]]
            yield {"path": name, "rows": rows, "column_count": len(columns), "columns": shown}


def _csv(path: Path) -> tuple[int, list[tuple[str, str]]]:
    from pyarrow import csv

    parse = csv.ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
    with csv.open_csv(path, parse_options=parse) as reader:
        return sum(batch.num_rows for batch in reader), [(f.name, str(f.type)) for f in reader.schema]


def _parquet(path: Path) -> tuple[int, list[tuple[str, str]]]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        return file.metadata.num_rows, [(field.name, str(field.type)) for field in file.schema_arrow]


def _npy(path: Path) -> tuple[int, list[tuple[str, str]]]:
    with path.open("rb") as file:
        return _arrays([(path.stem, file)])


def _npz(path: Path) -> tuple[int, list[tuple[str, str]]]:
    with zipfile.ZipFile(path) as archive:
        return _arrays((name.removesuffix(".npy"), archive.open(name)) for name in archive.namelist())


def _arrays(files: Any) -> tuple[int, list[tuple[str, str]]]:  # noqa: ANN401 - pairs, also made one by one
    """By the headers alone: nothing is loaded, and nothing unpickled. Rows are those of the longest array."""
    found = [(name, *_header(file)) for name, file in files]
    rows = max((shape[0] for _, shape, _ in found if shape), default=0)
    return rows, [(name, f"{kind}[{', '.join(map(str, shape))}]") for name, shape, kind in found]


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], str]:
    from numpy.lib import format as layout

    read = {(1, 0): layout.read_array_header_1_0, (2, 0): layout.read_array_header_2_0}
    with file:
        shape, _, kind = read[layout.read_magic(file)](file)
    return shape, str(kind)


_READERS: Final = {".csv": _csv, ".tsv": _csv, ".parquet": _parquet, ".npz": _npz, ".npy": _npy}

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    json.dump(list(_tables(Path(sys.argv[1]))), sys.stdout)
