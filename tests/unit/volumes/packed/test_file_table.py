import os
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from handmade_volumes import file_row, folder_row, link_row, publish_files, publish_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.spec.errors import NotFoundError
from trainmaster.volumes.packed.hashes import equal_slices, file_digest, path_hash, path_hashes
from trainmaster.volumes.packed.opening import open_volume
from trainmaster.volumes.packed.table import Extent, FileTable

names = st.binary(min_size=1, max_size=12).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
paths = st.lists(names, min_size=1, max_size=4).map(b"/".join)


@st.composite
def trees(draw):
    """Files by path, of which none is the directory of another."""
    files = {}
    folders = set()
    for path in draw(st.lists(paths, max_size=20, unique=True)):
        parents = [path[:at] for at in range(len(path)) if path[at : at + 1] == b"/"]
        if path in folders or any(parent in files for parent in parents):
            continue
        folders.update(parents)
        files[path] = draw(st.binary(max_size=60))
    return files


@settings(max_examples=25, deadline=None)
@given(trees(), st.integers(1, 100))
def test_what_was_published_is_read(files, limit):
    with tempfile.TemporaryDirectory() as scratch:
        url = f"file://{scratch}/volume"
        publish_files(url, files, limit=limit)
        volume = open_volume(url, Path(scratch) / "cache")
        table = volume.table
        assert table.file_count == len(files)
        assert table.total_bytes == sum(map(len, files.values()))
        assert {table.path_bytes(row) for row in range(table.file_count)} == set(files)
        for row in range(table.row_count):
            path = table.path_bytes(row)
            assert table.row_of(path) == row
            assert table.row_of(os.fsdecode(path)) == row
            assert table.path_bytes(table.parent(row)) == path.rpartition(b"/")[0]
            assert row in table.children(table.parent(row)) or row == table.root
        for path, data in files.items():
            row = table.row_of(path)
            extents = table.extents(row)
            pieces = [volume.chunks.fetch(*extent) for extent in extents]
            assert b"".join(pieces) == data
            assert table.file_hash(row) == file_digest(pieces)
        for chunk in range(table.chunk_count):
            volume.chunks.verify(chunk, volume.chunks.fetch_verified(chunk))
            assert all(table.first_chunks[row] == chunk for row in table.rows_of_chunk(chunk))
        assert table.row_of(b"not/there") == -1


def test_directories_and_links(tmp_path):
    files = {b"a/b/one": b"1", b"a/two": b"22", b"three": b"333"}
    publish_files(f"file://{tmp_path}/v", files, folders=[b"empty"], links=[(b"a/link", b"../three")])
    table = open_volume(f"file://{tmp_path}/v", tmp_path / "cache").table
    assert [table.path(row) for row in range(table.row_count)] == [
        "a/b/one", "a/two", "three", "", "a", "a/b", "empty", "a/link",
    ]  # fmt: skip
    assert [table.path(row) for row in table.children(table.root)] == ["three", "a", "empty"]
    assert [table.path(row) for row in table.children(table.row_of("a"))] == ["a/two", "a/b", "a/link"]
    assert list(table.children(table.row_of("empty"))) == []
    assert list(table.children(table.row_of("three"))) == []
    link = table.entry(table.row_of("a/link"))
    assert (link.kind, link.target, link.size_bytes, link.hash) == ("symlink", "../three", 0, None)
    one = table.entry(0)
    assert (one.kind, one.size_bytes, one.mode, one.path) == ("file", 1, 0o644, "a/b/one")
    assert table.entry(table.root).kind == "directory"
    assert table.extents(1) == [Extent(0, 1, 2)]
    assert np.frombuffer(table.sizes, np.uint64)[:3].tolist() == [1, 2, 3]


def test_a_table_goes_to_another_process(tmp_path):
    publish_files(f"file://{tmp_path}/v", {b"x": b"abc"})
    volume = open_volume(f"file://{tmp_path}/v", tmp_path / "cache")
    table, chunks = pickle.loads(pickle.dumps((volume.table, volume.chunks)))
    assert table.row_of("x") == 0
    assert bytes(chunks.fetch(0, 1)) == b"bc"
    buffer = bytearray(2)
    chunks.fetch_into(0, memoryview(buffer))
    assert buffer == b"ab"


def test_versions(tmp_path):
    url = f"file://{tmp_path}/v"
    with pytest.raises(NotFoundError, match="there is no volume"):
        open_volume(url, tmp_path / "cache")
    publish_files(url, {b"x": b"1"})
    publish_files(url, {b"x": b"2"})
    cache = tmp_path / "cache"
    assert open_volume(url, cache).uri == f"{url}@2"
    assert bytes(open_volume(f"{url}@1", cache).chunks.fetch(0)) == b"1"
    with pytest.raises(NotFoundError, match=r"(?s)no version 3.*1, 2"):
        open_volume(f"{url}@3", cache)


def test_equal_versions_share_their_columns(tmp_path):
    url = f"file://{tmp_path}/v"
    publish_files(url, {b"x": b"1"})
    publish_files(url, {b"x": b"1"})
    first, second = (open_volume(f"{url}@{number}", tmp_path / "cache") for number in (1, 2))
    assert first.table.directory == second.table.directory


def test_a_volume_without_files(tmp_path):
    publish_files(f"file://{tmp_path}/v", {}, folders=[b"only", b"only/folders"])
    table = open_volume(f"file://{tmp_path}/v", tmp_path / "cache").table
    assert table.file_count == table.chunk_count == table.total_bytes == 0
    assert [table.path(row) for row in table.children(table.root)] == ["only"]
    publish_rows(f"file://{tmp_path}/w", [folder_row(b"")], [])
    assert open_volume(f"file://{tmp_path}/w", tmp_path / "cache").table.row_of("") == 0


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30))
def test_hashes_of_many_paths_are_those_of_each(values):
    arena = np.frombuffer(b"".join(values) + bytes(8), np.uint8)
    ends = np.cumsum([len(value) for value in values])
    lengths = np.array([len(value) for value in values], np.int64)
    starts = (ends - lengths).astype(np.int64)
    assert path_hashes(arena, starts, lengths).tolist() == [path_hash(value) for value in values]
    shifted = np.roll(np.arange(len(values)), 1)
    same = equal_slices(arena, starts, starts[shifted], np.minimum(lengths, lengths[shifted]))
    for number, other in enumerate(shifted):
        shorter = min(len(values[number]), len(values[other]))
        assert same[number] == (values[number][:shorter] == values[other][:shorter])


def test_hashes_are_spread():
    values = [path_hash(b"train/%08d.jpg" % number) for number in range(50_000)]
    assert len(set(values)) == len(values)
    for shift in (0, 20, 48):
        counts = np.bincount([value >> shift & 0xFF for value in values], minlength=256)
        assert counts.max() < 1.5 * counts.mean()


def test_unfinished_columns_are_made_again(tmp_path):
    publish_files(f"file://{tmp_path}/v", {b"x": b"1"})
    first = open_volume(f"file://{tmp_path}/v", tmp_path / "cache").table.directory
    (first / "meta.json").unlink()
    assert FileTable(open_volume(f"file://{tmp_path}/v", tmp_path / "cache").table.directory).row_of("x") == 0


def test_many_links_lead_where_they_should(tmp_path):
    rows = [file_row(b"f"), folder_row(b""), folder_row(b"d")]
    rows += [link_row(b"d/%03d" % number, b"../f") for number in range(300)]
    publish_rows(f"file://{tmp_path}/v", rows, [])
    table = open_volume(f"file://{tmp_path}/v", tmp_path / "cache").table
    assert {table.entry(row).target for row in table.children(table.row_of("d"))} == {"../f"}
