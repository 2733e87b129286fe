"""Manifests from somebody who means harm, or from a broken disk."""

import json
from hashlib import sha256

import pytest
from handmade_volumes import file_row, folder_row, link_row, publish_files, publish_rows

from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError
from trainmaster.volumes.errors import DamagedVolumeError
from trainmaster.volumes.packed.head import StoredTable, head_key
from trainmaster.volumes.packed.opening import open_volume

ROOT = folder_row(b"")
CHUNK = (10, b"\1" * 32)


def refused(tmp_path, match, rows, chunks=(), **changes):
    url = f"file://{tmp_path}/v"
    publish_rows(url, rows, chunks, **changes)
    with pytest.raises(DamagedVolumeError, match=match):
        open_volume(url, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("meta.json"))


@pytest.mark.parametrize(
    "path",
    [b"../x", b"/etc/passwd", b"a/../../x", b"a//b", b"a/", b".", b"..", b"a/./b", b"a/..", b"x\0y", b"./a",
     b"a" * 4096, b""],
)  # fmt: skip
@pytest.mark.parametrize("before", [[], [b"aaa"], [b"aaa", b"..b", b"...", b".c"]])
def test_paths_that_leave_the_volume(tmp_path, path, before):
    rows = [file_row(name) for name in before]
    refused(tmp_path, "row|contradict|twice", [*rows, file_row(path), ROOT, folder_row(b"a")])


def test_names_with_dots_are_fine(tmp_path):
    rows = [file_row(name) for name in (b"...", b"..a", b".b", b"c.", b"d..", b"e/.f", b"e/g.")]
    publish_rows(f"file://{tmp_path}/v", [*rows, ROOT, folder_row(b"e")], [])
    assert open_volume(f"file://{tmp_path}/v", tmp_path / "cache").table.file_count == 7


def test_the_same_path_twice(tmp_path):
    refused(tmp_path, "there twice", [file_row(b"x"), file_row(b"x"), ROOT])


def test_a_file_and_a_directory_of_one_name(tmp_path):
    refused(tmp_path, "there twice", [file_row(b"x"), ROOT, folder_row(b"x")])


@pytest.mark.parametrize("folder", [file_row(b"x"), link_row(b"x", b"y"), None])
def test_a_file_below_what_is_no_directory(tmp_path, folder):
    rows = [file_row(b"x/y"), ROOT]
    if folder is not None:
        rows.insert(0 if folder[1] == 0 else 2, folder)
    refused(tmp_path, "no directory", rows)


@pytest.mark.parametrize("target", [b"/etc", b"..", b"a/../../x", b"", b"a/up/../.."])
def test_links_that_lead_outside(tmp_path, target):
    rows = [ROOT, folder_row(b"a"), link_row(b"a/up", b"."), link_row(b"link", target)]
    refused(tmp_path, "leads outside", rows)


@pytest.mark.parametrize(
    ("size", "chunk", "offset"), [(11, 0, 0), (1, 1, 0), (1, 0, 10), (1 << 63, 0, 0), (2, 0, 9), (1, 9, 0)]
)
def test_files_beyond_their_chunks(tmp_path, size, chunk, offset):
    refused(
        tmp_path,
        "chunks|damaged",
        [file_row(b"x", size, chunk, offset), ROOT],
        [CHUNK],
        total_bytes=size & (1 << 61),
    )


def test_chunks_out_of_order(tmp_path):
    rows = [file_row(b"x", 1, 1, 0), file_row(b"y", 1, 0, 0), ROOT]
    refused(tmp_path, "does not lie in its chunks", rows, [CHUNK, CHUNK])


def test_files_that_share_bytes(tmp_path):
    rows = [file_row(b"x", 15, 0, 0), file_row(b"y", 1, 0, 5), ROOT]
    refused(tmp_path, "does not lie in its chunks", rows, [CHUNK, CHUNK])


def test_chunks_larger_than_the_head_says(tmp_path):
    refused(tmp_path, "larger than", [file_row(b"x"), ROOT], [CHUNK], limit=9)


@pytest.mark.parametrize(
    "changes",
    [{"file_count": 2}, {"file_count": 0}, {"row_count": 5}, {"total_bytes": 7}, {"chunk_count": 2}],
)
def test_heads_that_lie(tmp_path, changes):
    refused(tmp_path, "contradict|of another size|is empty", [file_row(b"x", 1), ROOT], [CHUNK], **changes)


def test_rows_out_of_order(tmp_path):
    refused(tmp_path, "out of order", [ROOT, link_row(b"l", b"x"), folder_row(b"d")], file_count=0)


@pytest.mark.parametrize(
    "parts",
    [
        [(0, b"../secret", 0, 10, b"e")],
        [(0, b"k", 0, 9, b"e")],
        [(1, b"k", 0, 10, b"e")],
        [(0, b"k", 0, 10, b"e"), (0, b"k", 0, 0, b"e")],
        [],
    ],
)
def test_parts_that_are_none(tmp_path, parts):
    rows = [file_row(b"x", 1), ROOT]
    refused(
        tmp_path, "contradict|lies outside", rows, [CHUNK], parts=parts, source_url=f"file://{tmp_path}/s"
    )


def test_a_remote_volume_over_files_of_this_machine(tmp_path):
    parts = [(0, b"passwd", 0, 10, b"e")]
    publish_rows("memory://evil", [file_row(b"x", 1), ROOT], [CHUNK], parts=parts, source_url="file:///etc")
    with pytest.raises(DamagedVolumeError, match="files of this machine"):
        open_volume("memory://evil", tmp_path / "cache")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda head: head | {"format": 4}, "format 4"),
        (lambda head: head | {"format": 3, "generations": [[0, 1, 0]]}, "damaged"),
        (lambda head: head | {"format": 3, "generations": [[0, 0, 1]]}, "damaged"),
        (lambda head: head | {"format": 3, "generations": [[0, 1 << 40, 1]]}, "damaged"),
        (lambda head: head | {"format": 3, "generations": [[0, True, 1]]}, "damaged"),
        (lambda head: head | {"format": 3, "generations": 7}, "damaged"),
        (lambda head: head | {"hash": "md5"}, "the hash 'md5'"),
        (lambda head: head | {"version": 7}, "version 7"),
        (lambda head: head | {"files": {"sha256": "../../x", "size_bytes": 1}}, "damaged"),
        (lambda head: head | {"chunk_limit_bytes": 0}, "impossible"),
        (lambda head: head | {"row_count": True}, "damaged"),
        (lambda head: {}, "damaged"),
        (lambda head: [], "damaged"),
    ],
)
def test_heads_that_are_none(tmp_path, change, match):
    url = f"file://{tmp_path}/v"
    publish_files(url, {b"x": b"1"})
    store = ObjectStore(url)
    head = json.loads(store.get(head_key(1)))
    store.put(head_key(1), json.dumps(change(head)).encode())
    with pytest.raises(PublishError, match=match):
        open_volume(url, tmp_path / "cache")


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"X" + data[1:], lambda data: b""])
def test_tables_that_are_damaged(tmp_path, damage):
    url = f"file://{tmp_path}/v"
    head = publish_files(url, {b"x": b"1"})
    store = ObjectStore(url)
    store.put(head.files.key, damage(store.get(head.files.key)))
    with pytest.raises(DamagedVolumeError, match="SHA-256 is another"):
        open_volume(url, tmp_path / "cache")
    store.delete([head.files.key])
    with pytest.raises(DamagedVolumeError, match="missing"):
        open_volume(url, tmp_path / "cache")


def test_a_table_that_is_no_parquet(tmp_path):
    url = f"file://{tmp_path}/v"

    junk = b"PAR1 this is no table PAR1"
    table = StoredTable(sha256(junk).hexdigest(), len(junk))
    head = publish_files(url, {b"x": b"1"})
    store = ObjectStore(url)
    store.put(table.key, junk)
    document = json.loads(store.get(head_key(1)))
    document["files"] = {"sha256": table.sha256, "size_bytes": table.size_bytes}
    store.put(head_key(1), json.dumps(document).encode())
    with pytest.raises(DamagedVolumeError, match="damaged"):
        open_volume(url, tmp_path / "cache")
    assert head.version == 1
