import json
import os
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_trees import contents, write

from trainmaster.artifacts import UnstableDirectory
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError, UsageError
from trainmaster.volumes.errors import DamagedChunkError, MissingChunkError, VersionConflictError
from trainmaster.volumes.packed import chunk_upload, push_source, pushing
from trainmaster.volumes.packed.getting import file_blocks, get
from trainmaster.volumes.packed.opening import open_volume
from trainmaster.volumes.packed.pushing import push

pytest_plugins = ["volumes_packed"]

LIMIT = 100_000


def chunk_names(url):
    return {info.key for info in ObjectStore(url).list("chunks")}


def test_there_and_back(tree, packed_url, tmp_path):
    report = push(tree, packed_url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
    assert report.version == 1
    assert report.sent_chunks == report.head.chunk_count == len(chunk_names(packed_url))
    volume = open_volume(report.uri, tmp_path / "other cache")
    get(volume, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tree)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []
    assert [info.key for info in ObjectStore(packed_url).list("pushes")] == []


def test_the_same_again_sends_nothing(tree, packed_url, tmp_path, monkeypatch):
    first = push(tree, packed_url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
    read = []
    original = push_source.load_pieces
    monkeypatch.setattr(
        "trainmaster.volumes.packed.directory_source.load_pieces",
        lambda pieces, target: (read.append(pieces), original(pieces, target)),
    )
    second = push(tree, packed_url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
    assert (second.version, second.sent_chunks, second.shared_chunks) == (2, 0, first.sent_chunks)
    assert read == [], "the journal remembers what the files were"
    third = push(tree, packed_url, cache=tmp_path / "empty cache", chunk_limit_bytes=LIMIT)
    assert (third.version, third.sent_chunks) == (3, 0)
    assert read, "without the journal they are read"
    assert first.head.files == second.head.files == third.head.files


def test_a_change_sends_little(tree, packed_url, tmp_path):
    first = push(tree, packed_url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
    (tree / "d3/new file").write_bytes(b"something else")
    (tree / "d5/f 5").unlink()
    second = push(tree, packed_url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
    assert 0 < second.sent_chunks <= 6 < first.sent_chunks
    get(open_volume(f"{packed_url}@2", tmp_path / "cache"), tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tree)


def test_files_are_packed_in_the_order_of_their_paths(tree, tmp_path):
    push(tree, f"file://{tmp_path}/v", cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
    table = open_volume(f"file://{tmp_path}/v", tmp_path / "cache").table
    paths = [table.path_bytes(row) for row in range(table.file_count)]
    assert paths == sorted(paths, key=lambda path: path.split(b"/"))


names = st.binary(min_size=1, max_size=6).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)


@settings(max_examples=10, deadline=None)
@given(st.dictionaries(st.tuples(names, names), st.binary(max_size=300), max_size=12), st.integers(1, 500))
def test_any_tree_there_and_back(files, limit):
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "src"
        root.mkdir()
        for (folder, name), data in files.items():
            write(os.fsencode(root) + b"/" + folder, name, data)
        url = f"file://{scratch}/v"
        push(root, url, cache=Path(scratch) / "cache", chunk_limit_bytes=limit)
        get(open_volume(url, Path(scratch) / "cache"), Path(scratch) / "out")
        assert contents(Path(scratch) / "out") == contents(root)


@pytest.mark.parametrize("target", ["/etc/passwd", "../../secret", "../d1/../../x"])
def test_links_that_lead_outside(tree, tmp_path, target):
    (tree / "d1/bad").symlink_to(target)
    with pytest.raises(PublishError, match=r"d1/bad' is a symbolic link|d1/bad is a symbolic link"):
        push(tree, f"file://{tmp_path}/v", cache=tmp_path / "cache")
    assert not (tmp_path / "v").exists()


def test_what_is_no_file(tree, tmp_path):
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tree / "socket"))
        report = push(tree, f"file://{tmp_path}/v", cache=tmp_path / "cache")
    assert len(report.notes) == 2
    assert open_volume(report.uri, tmp_path / "cache").table.row_of("pipe") == -1


@pytest.mark.parametrize("how", ["grow", "replace", "touch", "remove"])
def test_a_file_that_changes_while_it_is_pushed(tree, tmp_path, monkeypatch, how):
    victim = tree / "large"
    original = push_source.load_pieces
    done = []

    def load(pieces, target):
        original(pieces, target)
        if not done and pieces[0].file.path == b"large":
            done.append(1)
            if how == "grow":
                with victim.open("ab") as file:
                    file.write(b"more")
            elif how == "replace":
                (tree.parent / "other").write_bytes(bytes(250_000))
                (tree.parent / "other").rename(victim)
            elif how == "touch":
                os.utime(victim)
            else:
                victim.unlink()

    monkeypatch.setattr("trainmaster.volumes.packed.directory_source.load_pieces", load)
    url = f"file://{tmp_path}/v"
    with pytest.raises(UnstableDirectory, match="large"):
        push(tree, url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT, jobs=1)
    assert list(ObjectStore(url).list("heads")) == []
    if how != "remove":
        assert push(tree, url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT).version == 1


def test_a_file_that_comes_while_it_is_pushed(tree, tmp_path, monkeypatch):
    original = push_source.load_pieces

    def load(pieces, target):
        original(pieces, target)
        (tree / "zzz").write_bytes(b"1")

    monkeypatch.setattr("trainmaster.volumes.packed.directory_source.load_pieces", load)
    with pytest.raises(UnstableDirectory, match="changed while it was pushed"):
        push(tree, f"file://{tmp_path}/v", cache=tmp_path / "cache", chunk_limit_bytes=LIMIT, jobs=1)


def test_a_chunk_that_vanishes_before_the_end(tree, packed_url, tmp_path, monkeypatch):
    original = chunk_upload.ChunkUploader.confirm

    def confirm(uploader):
        store = ObjectStore(packed_url)
        store.delete([next(iter(store.list("chunks"))).key])
        original(uploader)

    monkeypatch.setattr(chunk_upload.ChunkUploader, "confirm", confirm)
    with pytest.raises(MissingChunkError, match="deleted"):
        push(tree, packed_url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
    assert list(ObjectStore(packed_url).list("heads")) == []
    monkeypatch.undo()
    assert push(tree, packed_url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT).sent_chunks == 1


def test_chunks_that_were_damaged_on_the_store(tree, packed_url, tmp_path):
    push(tree, packed_url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
    store = ObjectStore(packed_url)
    first, second = sorted(info.key for info in store.list("chunks"))[:2]
    store.put(first, b"short")
    store.put(second, bytes(len(store.get(second))))
    report = push(tree, packed_url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT, read_back=True)
    assert report.sent_chunks == 2
    get(open_volume(f"{packed_url}@1", tmp_path / "cache"), tmp_path / "out")
    assert (
        push(tree, packed_url, cache=tmp_path / "new", chunk_limit_bytes=LIMIT, read_back=True).sent_chunks
        == 0
    )


def test_a_store_that_changes_bytes(tree, packed_url, tmp_path, monkeypatch):
    """What it has of others is left alone, whatever is read back of it."""
    push(tree, packed_url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
    there = {info.key: info.size_bytes for info in ObjectStore(packed_url).list("chunks")}
    blocks = ObjectStore.blocks

    def changed(store, key):
        for block in blocks(store, key):
            yield bytes(len(block)) if key.startswith("chunks/") else block

    monkeypatch.setattr(ObjectStore, "blocks", changed)
    with pytest.raises(PublishError, match="other bytes than were sent"):
        push(tree, packed_url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT, read_back=True)
    monkeypatch.undo()
    assert {info.key: info.size_bytes for info in ObjectStore(packed_url).list("chunks")} == there
    get(open_volume(packed_url, tmp_path / "cache"), tmp_path / "out")


def test_versions_in_the_expected_order(tree, packed_url, tmp_path):
    cache = tmp_path / "cache"
    with pytest.raises(VersionConflictError, match="newest version is none, not 1"):
        push(tree, packed_url, cache=cache, expect=1)
    assert push(tree, packed_url, cache=cache, expect=0).version == 1
    assert push(tree, packed_url, cache=cache, expect=1).version == 2
    with pytest.raises(VersionConflictError, match="newest version is 2, not 1"):
        push(tree, packed_url, cache=cache, expect=1)


@pytest.mark.parametrize(
    ("source", "url", "match"),
    [
        ("/no/such/place", "v", "no such file"),
        ("ftp://bucket/x", "v", "no object store"),
        ("", "v", "an empty text"),
        (".", "v@3", "makes a new version"),
        (".", "no name!", "neither a URL nor the name"),
        (".", "v@0", "counted from 1"),
    ],
)
def test_calls_that_are_wrong(source, url, match, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINMASTER_STORE", f"file://{tmp_path}")
    with pytest.raises(UsageError, match=match):
        push(source, url, cache=tmp_path / "cache")


def test_a_short_name_lies_under_the_store(tree, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINMASTER_STORE", f"file://{tmp_path}/store")
    report = push(tree, "team/cats", cache=tmp_path / "cache")
    assert report.uri == f"file://{tmp_path}/store/volumes/team/cats@1"
    assert json.loads((tmp_path / "store/volumes/team/cats/heads/000001.json").read_bytes())["version"] == 1


def test_a_directory_without_anything(tmp_path):
    (tmp_path / "src").mkdir()
    push(tmp_path / "src", f"file://{tmp_path}/v", cache=tmp_path / "cache")
    get(open_volume(f"file://{tmp_path}/v", tmp_path / "cache"), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_unreadable_cache_costs_only_time(tree, tmp_path):
    (tmp_path / "cache/volumes").mkdir(parents=True)
    (tmp_path / "cache/volumes/push").write_text("in the way")
    assert push(tree, f"file://{tmp_path}/v", cache=tmp_path / "cache").version == 1


def test_a_file_by_itself_is_proved(tree, packed_url, tmp_path):
    push(tree, packed_url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
    volume = open_volume(packed_url, tmp_path / "cache")
    store = ObjectStore(packed_url)
    for path in ("d1/f 1", "large", "empty"):
        row = volume.table.row_of(path)
        assert b"".join(file_blocks(volume, row)) == (tree / path).read_bytes()
    for info in list(store.list("chunks")):
        store.put(info.key, bytes(info.size_bytes))
    for path in ("d1/f 1", "large"):
        with pytest.raises(DamagedChunkError):
            list(file_blocks(volume, volume.table.row_of(path)))


def test_a_cache_that_can_only_be_read(tree, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    push(tree, f"file://{tmp_path}/v", cache=cache)
    assert open_volume(f"file://{tmp_path}/v", cache).table.row_of("empty") >= 0
    blocked = tmp_path / "blocked"
    blocked.write_text("a file is in the way")
    with pytest.raises(PublishError, match="blocked"):
        open_volume(f"file://{tmp_path}/v", blocked)
    with pytest.raises(PublishError, match="blocked"):
        push(tree, f"file://{tmp_path}/v", cache=blocked)


def test_a_cache_that_cannot_be_written_is_replaced(tree, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("TRAINMASTER_CACHE", str(tmp_path / "file/cache"))
    said = []
    push(tree, f"file://{tmp_path}/v", say=said.append)
    assert ["TRAINMASTER_CACHE" in text for text in said] == [True]
    with pytest.warns(RuntimeWarning, match="Set TRAINMASTER_CACHE"):
        opened = open_volume(f"file://{tmp_path}/v")
    get(opened, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tree)


class Lazy:
    """An executor that does nothing before its result is asked for."""

    def __init__(self, jobs, name):
        pass

    def submit(self, work, *arguments):
        return SimpleNamespace(done=lambda: False, result=lambda: work(*arguments))

    def shutdown(self, **_):
        pass


@pytest.mark.parametrize(("most", "planned"), [(1 << 17, (9, 9)), (60, (3, 6))])
def test_of_many_tiny_files_no_more_are_under_way_than_memory_has_room_for(
    tmp_path, monkeypatch, most, planned
):
    (tmp_path / "src").mkdir()
    for number in range(300):
        (tmp_path / f"src/{number:03}").write_bytes(b"123456")
    ahead, chunks = [0], pushing.planned_chunks
    pack = pushing.ChunkUploader.packed

    def counted(files, limit_bytes):
        for pieces in chunks(files, limit_bytes):
            ahead.append(ahead[-1] + 1)
            yield pieces

    def packed(*arguments):
        ahead.append(ahead[-1] - 1)
        return pack(*arguments)

    monkeypatch.setattr(pushing, "ThreadPoolExecutor", Lazy)
    monkeypatch.setattr(pushing, "planned_chunks", counted)
    monkeypatch.setattr(pushing.ChunkUploader, "packed", packed)
    monkeypatch.setattr(pushing, "_MOST_PIECES", most)
    push(tmp_path / "src", f"file://{tmp_path}/v", cache=tmp_path / "cache", chunk_limit_bytes=120)
    assert planned[0] <= max(ahead) <= planned[1]
    monkeypatch.undo()
    get(open_volume(f"file://{tmp_path}/v", tmp_path / "cache"), tmp_path / "out")
    assert len(list((tmp_path / "out").iterdir())) == 300
