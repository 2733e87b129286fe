"""Tables of a volume that anybody may have written: columns to read, or an error in order."""

import functools
import json
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from handmade_volumes import file_row, folder_row, link_row
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile_bytes import changed_bytes, changed_json
from trainmaster.volumes.errors import DamagedVolumeError
from trainmaster.volumes.packed.head import Head, StoredTable
from trainmaster.volumes.packed.materialising import META_NAME, write_columns
from trainmaster.volumes.packed.parquet import TableWriter
from trainmaster.volumes.packed.table import FileTable

ROWS = [
    file_row(b"a/b/one", 3, 0, 0), file_row(b"a/two", 5, 0, 3), file_row(b"three", 20, 1, 0),
    folder_row(b""), folder_row(b"a"), folder_row(b"a/b"), link_row(b"a/link", b"../three"),
]  # fmt: skip
CHUNKS = [(8, b"1" * 32), (10, b"2" * 32), (10, b"3" * 32)]
PARTS = [(0, b"o/1", 0, 8, b"e"), (1, b"o/2", 5, 4, b"e"), (1, b"o/2", 90, 6, b""), (2, b"o/3", 0, 10, b"f")]
TABLE = StoredTable("0" * 64, 1, 1)
HEAD = Head(
    version=1, created_at=datetime.now(UTC), kind="indexed", order="path", chunk_limit_bytes=10, file_count=3,
    row_count=7, total_bytes=28, chunk_count=3, files=TABLE, chunks=TABLE, parts=TABLE,
)  # fmt: skip


def written(name, rows):
    with tempfile.TemporaryDirectory() as scratch:
        writer = TableWriter(Path(scratch) / "t", name)
        for row in rows:
            writer.append(*row)
        writer.close()
        return (Path(scratch) / "t").read_bytes()


@functools.cache
def good():
    return {
        "files": written("files", ROWS),
        "chunks": written("chunks", CHUNKS),
        "parts": written("parts", PARTS),
    }


def walk(table):
    """All that readers ask of a table; what they would read lies where it should."""
    paths = [table.path_bytes(row) for row in range(table.row_count)]
    assert len(set(paths)) == len(paths)
    for row, path in enumerate(paths):
        assert table.row_of(path) == row
        assert b".." not in path.split(b"/")
        assert not path.startswith(b"/")
        assert table.file_count <= table.parent(row) < table.row_count
        entry = table.entry(row)
        extents = table.extents(row) if entry.kind == "file" else []
        assert sum(extent.length for extent in extents) == entry.size_bytes
        for extent in extents:
            assert extent.offset + extent.length <= table.chunk_sizes[extent.chunk]
        assert all(table.parent(child) == row for child in table.children(row))
    for chunk in range(table.chunk_count):
        table.chunk_hash(chunk)
        parts = table.parts(chunk)
        assert sum(part.length for part in parts) == table.chunk_sizes[chunk]
        assert all(".." not in part.key.split("/") for part in parts)


def opened(tables, head=HEAD):
    """Columns of tables, if they are some."""
    with tempfile.TemporaryDirectory() as scratch:
        paths = {}
        for name, data in tables.items():
            paths[name] = Path(scratch) / f"{name}.parquet"
            paths[name].write_bytes(data)
        columns = Path(scratch) / "columns"
        columns.mkdir()
        try:
            write_columns(paths, head, columns, "s3://bucket/v")
        except DamagedVolumeError as error:
            return "s3://bucket/v" in error.args[0] and bool(error.hint)
        finally:
            assert {each.name for each in Path(scratch).iterdir()} == {
                "columns",
                *(p.name for p in paths.values()),
            }
        walk(FileTable(columns))
    return True


def test_good_ones():
    assert opened(good())


@settings(max_examples=40)
@given(st.sampled_from(["files", "chunks", "parts"]), st.data())
def test_any_bytes(name, data):
    assert opened({**good(), name: data.draw(changed_bytes(good()[name]))})


NUMBERS = {"I": st.integers(0, 2**32 - 1), "Q": st.integers(0, 2**64 - 1)}
SMALL = st.integers(0, 12)
NAMES = st.sampled_from(
    [b"", b".", b"..", b"a", b"a/b", b"a/..", b"/a", b"a//b", b"a\0", b"x" * 5000, b"\xff"]
)
FILE_ROWS = st.tuples(
    NAMES | st.sampled_from([row[0] for row in ROWS]), st.integers(0, 3), SMALL | NUMBERS["Q"],
    st.integers(0, 2**16 - 1), st.integers(-(2**63), 2**63 - 1), SMALL | NUMBERS["I"], SMALL | NUMBERS["I"],
    st.binary(min_size=16, max_size=16), NAMES,
)  # fmt: skip
CHUNK_ROWS = st.tuples(SMALL | NUMBERS["I"], st.binary(min_size=32, max_size=32))
PART_ROWS = st.tuples(SMALL | NUMBERS["I"], NAMES, NUMBERS["Q"], SMALL | NUMBERS["I"], NAMES)


def some_of(rows, other):
    """Rows, of which some are others, gone or there twice."""
    return st.lists(st.sampled_from(rows) | other, max_size=9) | st.tuples(
        st.integers(0, len(rows) - 1), other
    ).map(lambda one: [*rows[: one[0]], one[1], *rows[one[0] + 1 :]])


SIZES = ("file_count", "row_count", "total_bytes", "chunk_count", "chunk_limit_bytes")


@settings(max_examples=30)
@given(
    some_of(ROWS, FILE_ROWS), some_of(CHUNKS, CHUNK_ROWS), some_of(PARTS, PART_ROWS), st.booleans(), st.data()
)
def test_any_rows(rows, chunks, parts, is_described, data):
    """As a writer of a volume with a hash that is right may write them."""
    sizes = {
        "file_count": sum(row[1] == 0 for row in rows), "row_count": len(rows), "chunk_count": len(chunks),
        "total_bytes": sum(row[2] for row in rows) % (1 << 62),
    }  # fmt: skip
    if not is_described:
        sizes[data.draw(st.sampled_from(SIZES))] = data.draw(SMALL | st.integers(0, 2**32 - 1))
    tables = {
        "files": written("files", rows),
        "chunks": written("chunks", chunks),
        "parts": written("parts", parts),
    }
    assert opened(tables, replace(HEAD, **sizes))


@functools.cache
def columns():
    """Columns as they lie on a node, by name."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, data in good().items():
            (Path(scratch) / f"{name}.parquet").write_bytes(data)
        made = Path(scratch) / "columns"
        made.mkdir()
        write_columns(
            {name: Path(scratch) / f"{name}.parquet" for name in good()}, HEAD, made, "s3://bucket/v"
        )
        return {file.name: file.read_bytes() for file in made.iterdir()}


def opened_columns(changes):
    with tempfile.TemporaryDirectory() as scratch:
        for name, data in {**columns(), **changes}.items():
            (Path(scratch) / name).write_bytes(data)
        try:
            walk(FileTable(Path(scratch)))
        except DamagedVolumeError as error:
            return scratch in error.args[0] and "it is made again" in error.hint
    return True


@settings(max_examples=50)
@given(st.deferred(lambda: changed_json(json.loads(columns()[META_NAME]))))
def test_any_counts_of_columns(data):
    assert opened_columns({META_NAME: data})


@settings(max_examples=40)
@given(st.deferred(lambda: st.sampled_from(sorted(set(columns()) - {META_NAME}))), st.integers(-40, 40))
def test_columns_that_are_too_short_or_too_long(name, more):
    good = columns()[name]
    assert opened_columns({name: good + bytes(more) if more >= 0 else good[:more]})
