import os
import threading
from pathlib import Path

import pytest

from trainmaster.spec.errors import NotFoundError, PublishError
from trainmaster.volumes.objects import ObjectStore
from trainmaster.volumes.packed import (
    DamagedVolumeError,
    collect_garbage,
    get,
    head_numbers,
    marks,
    open_volume,
    push,
    remove_version,
    remove_volume,
)
from trainmaster.volumes.packed.marks import Mark, marked

LIMIT = 10_000


@pytest.fixture
def volume(tmp_path):
    """A volume on files, with three versions of which each shares something with the one before."""
    source = tmp_path / "src"
    source.mkdir()
    for number in range(20):
        (source / f"{number:02}").write_bytes(os.urandom(2000))
    url = f"file://{tmp_path}/volume"
    for version in range(3):
        (source / "00").write_bytes(os.urandom(2000))
        assert push(source, url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT).version == version + 1
    return url


def age(url, hours, folder=""):
    """Makes objects look old."""
    for path in (Path(url.removeprefix("file://")) / folder).rglob("*"):
        if path.is_file():
            stamp = path.stat().st_mtime - hours * 3600
            os.utime(path, (stamp, stamp))


def chunks(url):
    return {info.key for info in ObjectStore(url).list("chunks")}


def test_only_what_no_version_names_goes(volume, tmp_path):
    store = ObjectStore(volume)
    before = chunks(volume)
    remove_version(store, 2)
    assert collect_garbage(store).young_chunks == 1, "it may belong to a push that is about to name it"
    age(volume, 25)
    done = collect_garbage(store)
    assert (done.deleted_chunks, done.young_chunks) == (1, 0)
    assert len(chunks(volume)) == len(before) - 1 == done.kept_chunks
    for version in (1, 3):
        get(open_volume(f"{volume}@{version}", tmp_path / "cache"), tmp_path / f"out{version}")
    assert len(list(store.list("manifests"))) == 4
    assert collect_garbage(store).deleted_chunks == 0


def test_a_number_is_never_used_again(volume, tmp_path):
    store = ObjectStore(volume)
    remove_version(store, 3)
    assert head_numbers(store) == ([1, 2], 3)
    assert open_volume(volume, tmp_path / "cache").head.version == 2
    with pytest.raises(NotFoundError, match="no version 3"):
        open_volume(f"{volume}@3", tmp_path / "cache")
    with pytest.raises(NotFoundError, match="no version 3"):
        remove_version(store, 3)
    assert push(tmp_path / "src", volume, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT).version == 4


def test_nothing_goes_while_a_push_is_under_way(volume):
    store = ObjectStore(volume)
    remove_version(store, 2)
    age(volume, 25)
    with marked(store, "pushes"):
        done = collect_garbage(store)
        assert (done.under_way, done.deleted_chunks) == (1, 0)
    assert list(store.list("collections")) == list(store.list("pushes")) == []
    assert collect_garbage(store).deleted_chunks == 1


def test_a_push_that_was_killed_is_forgotten(volume):
    store = ObjectStore(volume)
    remove_version(store, 2)
    age(volume, 25)
    Mark(store, "pushes")
    assert collect_garbage(store).under_way == 1
    age(volume, 2, "pushes")
    assert collect_garbage(store).deleted_chunks == 1
    age(volume, 25, "pushes")
    collect_garbage(store)
    assert list(store.list("pushes")) == []


def test_a_push_waits_for_a_collection(volume, tmp_path, monkeypatch):
    store = ObjectStore(volume)
    mark = Mark(store, "collections")
    said = []

    def say(text):
        said.append(text)
        store.delete([mark.key])

    monkeypatch.setattr(marks.time, "sleep", lambda _: None)
    assert (
        push(tmp_path / "src", volume, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT, say=say).version
        == 4
    )
    assert said == ["waiting for `trainmaster volume gc` to end"]


def test_a_collection_that_never_ends(volume, monkeypatch):
    store = ObjectStore(volume)
    Mark(store, "collections")
    assert collect_garbage(store).under_way == 1, "also for another collection"
    with marked(store, "pushes") as mark, pytest.raises(PublishError, match="too long"):
        marks.wait_for_collections(store, mark, lambda _: None, wait_s=0)


def test_a_head_that_cannot_be_read_stops_it(volume):
    store = ObjectStore(volume)
    store.put("heads/000002.json", b"{")
    age(volume, 25)
    before = chunks(volume)
    with pytest.raises(DamagedVolumeError):
        collect_garbage(store)
    assert chunks(volume) == before


def test_pushes_and_collections_at_once(volume, tmp_path):
    """Old chunks that a push names again are there when it ends, however the two meet."""
    store = ObjectStore(volume)
    source = tmp_path / "src"
    stop = threading.Event()
    failures = []

    def collect():
        while not stop.wait(0.01):
            try:
                age(volume, 25, "chunks")
                collect_garbage(store)
            except (PublishError, FileNotFoundError) as error:
                failures.append(error)

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        for number in range(5):
            for version in head_numbers(store)[0]:
                remove_version(store, version)
            (source / "05").write_bytes(bytes([number % 2]) * 3000)
            report = push(source, volume, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
            get(open_volume(report.uri, tmp_path / "cache"), tmp_path / f"out{number}")
    finally:
        stop.set()
        thread.join()
    assert failures == []


def test_a_whole_volume(volume):
    store = ObjectStore(volume)
    with marked(store, "pushes"), pytest.raises(PublishError, match="under way"):
        remove_volume(store)
    remove_volume(store)
    assert list(store.list()) == []
    for call in (remove_volume, collect_garbage):
        with pytest.raises(NotFoundError):
            call(store)
