"""How fast a volume's files are found: making the columns, opening them, rows and paths.

``python benchmarks/volumes/table.py [--rows 1000000,10000000] [--directory DIR]`` prints one JSON object.
Needs about 250 bytes of disk per row.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from trainmaster.volumes.packed.head import Head, new_nonce
from trainmaster.volumes.packed.materialising import write_columns
from trainmaster.volumes.packed.parquet import DIRECTORY, FILE, TableWriter
from trainmaster.volumes.packed.releasing import stored_table

CHUNK_BYTES = 64 << 20
FILES_PER_FOLDER = 1000

READER = """
import json, random, sys, time
from pathlib import Path
import numpy
begin = time.perf_counter()
from trainmaster.volumes.packed.table import FileTable
imported = time.perf_counter()
table = FileTable(Path(sys.argv[1]))
table.row_of("d00000")
opened = time.perf_counter()
def private_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
before = private_bytes()
rng = random.Random(1)
rows = [rng.randrange(table.file_count) for _ in range(200_000)]
paths = [table.path_bytes(row) for row in rows]
best = {}
def timed(name, work):
    for _ in range(3):
        start = time.perf_counter()
        work()
        taken = (time.perf_counter() - start) / len(rows) * 1e6
        best[name] = min(best.get(name, taken), taken)
        best.setdefault(name + "_first", taken)
chunks, offsets, sizes = table.first_chunks, table.offsets, table.sizes
def by_row():
    for row in rows:
        chunks[row], offsets[row], sizes[row]
def by_path():
    row_of = table.row_of
    for path in paths:
        row_of(path)
def extents():
    find = table.extents
    for row in rows:
        find(row)
def vectorised():
    index = numpy.array(rows)
    numpy.frombuffer(chunks, "u4")[index], numpy.frombuffer(offsets, "u4")[index]
timed("row", by_row); timed("path", by_path); timed("extents", extents); timed("row_vectorised", vectorised)
assert all(table.row_of(path) == row for path, row in zip(paths[:1000], rows))
start = time.perf_counter()
folder = table.row_of("d00007")
names = [table.path_bytes(row) for row in table.children(folder)]
print(json.dumps({
    "import_s": imported - begin, "open_s": opened - imported,
    **{f"{name}_us": taken for name, taken in best.items()},
    "children_of_1000_ms": (time.perf_counter() - start) * 1e3,
    "reader_private_bytes_more": private_bytes() - before,
}))
"""


class PrivateMemory:
    """The most memory that is not of files, while its body runs; what was there before is left out."""

    def __enter__(self):
        self._before = self._now()
        self.peak_bytes = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *failure):
        self._stopped.set()
        self._thread.join()

    def _watch(self):
        while not self._stopped.wait(0.02):
            self.peak_bytes = max(self.peak_bytes, self._now() - self._before)

    def _now(self):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def tables(rows: int, directory: Path) -> tuple[Head, dict[str, Path]]:
    """Writes the tables of a volume of small files with realistic names and sizes."""
    rng = np.random.default_rng(0)
    sizes = np.minimum(rng.lognormal(11, 0.8, rows), 5e6).astype(np.int64)
    ends = np.cumsum(sizes)
    chunk = (ends - sizes) // CHUNK_BYTES
    offset = (ends - sizes) % CHUNK_BYTES
    # Files that would be cut in two begin the next chunk in a real volume; here they span two.
    chunk_count = int(ends[-1] // CHUNK_BYTES) + 1
    files = TableWriter(directory / "files.parquet", "files")
    names = random.Random(0)
    for row, (size, number, start) in enumerate(
        zip(sizes.tolist(), chunk.tolist(), offset.tolist(), strict=True)
    ):
        path = b"d%05d/%08x-%06d.jpg" % (
            row // FILES_PER_FOLDER,
            names.getrandbits(32),
            row % FILES_PER_FOLDER,
        )
        files.append(
            path, FILE, size, 0o644, 1_700_000_000_000_000_000 + row, number, start, names.randbytes(16), b""
        )
    folders = [b"", *(b"d%05d" % number for number in range(-(-rows // FILES_PER_FOLDER)))]
    for path in folders:
        files.append(path, DIRECTORY, 0, 0o755, 0, 0, 0, bytes(16), b"")
    files.close()
    chunks = TableWriter(directory / "chunks.parquet", "chunks")
    for number in range(chunk_count):
        left = int(ends[-1]) - number * CHUNK_BYTES
        chunks.append(min(CHUNK_BYTES, left), names.randbytes(32))
    chunks.close()
    paths = {"files": directory / "files.parquet", "chunks": directory / "chunks.parquet"}
    head = Head(
        1, datetime.now(UTC), "packed", "path", CHUNK_BYTES, rows, rows + len(folders), int(ends[-1]),
        chunk_count,
        stored_table(paths["files"]), stored_table(paths["chunks"]), nonce=new_nonce(),
    )  # fmt: skip
    return head, paths


def measured(rows: int, directory: Path) -> dict[str, float]:
    start = time.perf_counter()
    head, paths = tables(rows, directory)
    written_s = time.perf_counter() - start
    columns = directory / "columns"
    columns.mkdir()
    start = time.perf_counter()
    with PrivateMemory() as memory:
        write_columns(paths, head, columns, "benchmark")
    made_s = time.perf_counter() - start
    reader = subprocess.run([sys.executable, "-c", READER, str(columns)], check=True, capture_output=True)
    return {
        "rows": rows,
        "write_tables_s": written_s,
        "published_bytes_per_row": (head.files.size_bytes + head.chunks.size_bytes) / rows,
        "make_columns_s": made_s,
        "make_columns_private_bytes": memory.peak_bytes,
        "columns_bytes_per_row": sum(file.stat().st_size for file in columns.iterdir()) / rows,
        **json.loads(reader.stdout),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="1000000,10000000")
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    results = []
    for rows in map(int, options.rows.split(",")):
        scratch = Path(tempfile.mkdtemp(dir=options.directory))
        try:
            results.append(measured(rows, scratch))
        finally:
            shutil.rmtree(scratch)
    print(json.dumps({"table": results}))


if __name__ == "__main__":
    main()
