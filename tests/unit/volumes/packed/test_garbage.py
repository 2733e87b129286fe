import json
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from handmade_volumes import file_row, folder_row, publish_rows

from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import NotFoundError, PublishError
from trainmaster.volumes.errors import DamagedVolumeError
from trainmaster.volumes.packed import leases
from trainmaster.volumes.packed.deletions import Deletions, forget_lists, write_list
from trainmaster.volumes.packed.garbage import collect_garbage, remove_volume
from trainmaster.volumes.packed.getting import get
from trainmaster.volumes.packed.head import alive_heads, head_numbers, remove_version
from trainmaster.volumes.packed.leases import Clocks, OperationLease, leased
from trainmaster.volumes.packed.opening import open_volume
from trainmaster.volumes.packed.pushing import push

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
            with suppress(FileNotFoundError):  # a push has renamed it into place
                stamp = path.stat().st_mtime - hours * 3600
                os.utime(path, (stamp, stamp))


def chunks(url):
    return {info.key for info in ObjectStore(url).list("chunks")}


def lists(store):
    return sorted(info.key for info in store.list("collections") if info.key.endswith(".deletions"))


def contents(url, tmp_path):
    """What the newest version has, fetched anew."""
    place = tmp_path / f"read{len(list(tmp_path.iterdir()))}"
    get(open_volume(url, place / "cache"), place / "out")
    return {path.name: path.read_bytes() for path in (place / "out").iterdir()}


def collected_twice(url, **options):
    """What the second of two collections has done, a day after the first."""
    collect_garbage(ObjectStore(url), **options)
    age(url, 25)
    return collect_garbage(ObjectStore(url), **options)


def test_only_what_no_version_names_goes(volume, tmp_path):
    store = ObjectStore(volume)
    before = chunks(volume)
    remove_version(store, 2)
    done = collect_garbage(store)
    assert (done.young_chunks, done.marked_chunks, done.free_at_s) == (1, 0, None), (
        "it may belong to a push that is about to name it"
    )
    age(volume, 25)
    done = collect_garbage(store)
    assert (done.deleted_chunks, done.deleted_bytes, done.deleted_tables) == (0, 0, 0)
    assert (done.marked_chunks, done.marked_tables, done.young_chunks) == (1, 2, 0)
    assert done.marked_bytes == LIMIT
    assert done.free_at_s == pytest.approx(store.info("collections/000001.deletions").modified_s + 24 * 3600)
    assert chunks(volume) == before
    again = collect_garbage(store)
    assert (again.marked_chunks, again.deleted_chunks) == (1, 0), "the grace has only begun"
    age(volume, 25)
    done = collect_garbage(store)
    assert (done.deleted_chunks, done.deleted_tables, done.young_chunks, done.marked_chunks) == (1, 2, 0, 0)
    assert done.deleted_bytes == again.marked_bytes
    assert done.free_at_s is None
    assert len(chunks(volume)) == len(before) - 1 == done.kept_chunks
    for version in (1, 3):
        get(open_volume(f"{volume}@{version}", tmp_path / "cache"), tmp_path / f"out{version}")
    assert len(list(store.list("manifests"))) == 4
    assert collect_garbage(store).deleted_chunks == 0


def test_while_a_list_waits_no_other_is_written(volume):
    """Every push reads all of them."""
    store = ObjectStore(volume)
    remove_version(store, 2)
    age(volume, 25)
    assert collect_garbage(store).marked_chunks == 1
    remove_version(store, 1)
    age(volume, 25, "chunks")
    done = collect_garbage(store)
    assert (done.marked_chunks, done.young_chunks, len(lists(store))) == (1, 1, 1)
    age(volume, 25)
    done = collect_garbage(store)
    assert (done.deleted_chunks, done.marked_chunks, done.young_chunks) == (1, 1, 0)


def test_what_a_first_push_has_left_that_never_ended_goes(tmp_path):
    store = ObjectStore(f"file://{tmp_path}/volume")
    store.put("chunks/00/" + "0" * 64, b"x" * 10)
    age(store.url, 25)
    assert collect_garbage(store).marked_chunks == 1
    age(store.url, 25)
    assert collect_garbage(store).deleted_bytes == 10
    with pytest.raises(NotFoundError):
        collect_garbage(ObjectStore(f"file://{tmp_path}/nothing"))


def test_the_grace_holds_for_tables_too(volume):
    store = ObjectStore(volume)
    remove_version(store, 2)
    age(volume, 25, "chunks")
    done = collect_garbage(store)
    assert (done.marked_chunks, done.marked_tables) == (1, 0)
    age(volume, 25, "collections")
    assert collect_garbage(store).deleted_tables == 0
    assert len(list(store.list("manifests"))) == 6


def test_marked_and_freed_at_once(volume, tmp_path):
    store = ObjectStore(volume)
    remove_version(store, 2)
    assert collect_garbage(store, now=True).deleted_chunks == 0, "it is young"
    age(volume, 25)
    done = collect_garbage(store, now=True)
    assert (done.deleted_chunks, done.deleted_tables, done.marked_chunks) == (1, 2, 0)
    report = push(tmp_path / "src", volume, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
    assert report.version == 5, "4 was taken, so that no push that sleeps may have it"
    assert head_numbers(store) == ([1, 3, 5], 5)
    for version in (1, 3, 5):
        get(open_volume(f"{volume}@{version}", tmp_path / "cache"), tmp_path / f"out{version}")


def test_no_number_is_lost_where_versions_come_anyway(volume, tmp_path):
    store = ObjectStore(volume)
    remove_version(store, 2)
    age(volume, 25)
    collect_garbage(store)
    age(volume, 25)
    assert push(tmp_path / "src", volume, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT).version == 4
    assert collect_garbage(store).deleted_chunks == 1
    assert push(tmp_path / "src", volume, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT).version == 5


def test_content_that_was_given_up_is_sent_again_under_another_name(volume, tmp_path):
    store = ObjectStore(volume)
    tree = contents(volume, tmp_path)
    for version in (1, 2, 3):
        remove_version(store, version)
    age(volume, 25)
    assert collect_garbage(store).marked_chunks == len(chunks(volume))
    head = push(tmp_path / "src", volume, cache=tmp_path / "cache2", chunk_limit_bytes=LIMIT).head
    assert head.generations == ((0, head.chunk_count, 1),)
    assert {table.generation for table in head.tables} == {1}
    age(volume, 25)
    done = collect_garbage(store)
    assert (done.kept_chunks, done.marked_chunks) == (head.chunk_count, 0)
    assert {key.rpartition(".")[2] for key in chunks(volume)} == {"1"}
    assert contents(volume, tmp_path) == tree
    shared = push(tmp_path / "src", volume, cache=tmp_path / "cache3", chunk_limit_bytes=LIMIT)
    assert (shared.sent_chunks, shared.head.generations) == (0, head.generations)
    document = json.loads(store.get(f"heads/{head.version:06d}.json"))
    assert document["format"] == 3, "one that knows no generations must not miss anything"


def test_a_name_that_a_version_has_stays_also_when_it_is_on_a_list(volume, tmp_path):
    store = ObjectStore(volume)
    write_list(store, chunks(volume) | {info.key for info in store.list("manifests")}, lambda: 3)
    age(volume, 25)
    done = collect_garbage(store)
    assert (done.deleted_chunks, done.deleted_tables, done.marked_chunks) == (0, 0, 0)
    get(open_volume(volume, tmp_path / "fresh"), tmp_path / "out")


def test_what_was_sent_again_by_who_knows_no_lists_begins_anew(volume):
    store = ObjectStore(volume)
    remove_version(store, 2)
    age(volume, 25)
    collect_garbage(store)
    age(volume, 25)
    doomed = json.loads(store.get("collections/000001.deletions"))["names"]
    for key in doomed:
        store.put(key, store.get(key))
    assert collect_garbage(store).deleted_chunks == 0
    age(volume, 25)
    assert collect_garbage(store).deleted_chunks == 1


def test_lists_of_which_nothing_is_left_are_forgotten_but_for_the_newest(volume):
    store = ObjectStore(volume)
    for version in (1, 2):
        remove_version(store, version)
        age(volume, 25)
        collected_twice(volume)
    assert lists(store) == [f"collections/{n:06d}.deletions" for n in (1, 2)]
    age(volume, 31 * 24)
    collect_garbage(store)
    assert lists(store) == ["collections/000002.deletions"]


def test_who_compares_again_is_told_of_lists_that_came_or_went_and_of_nothing_else(tmp_path):
    """A push that slept has to look for its chunks anew when a list was forgotten meanwhile."""
    store = ObjectStore(f"file://{tmp_path}")
    for name in ("chunks/a", "chunks/b"):
        write_list(store, [name], lambda: 1)
    deletions = Deletions(store)
    assert deletions.refresh()
    assert not deletions.refresh()
    forget_lists(store, deletions.lists, set(), deletions.lists[-1].made_s + 40 * 86_400)
    assert deletions.refresh()
    assert [one.names for one in deletions.lists] == [{"chunks/b"}]
    assert not deletions.refresh()


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"format":2}',
        b'{"format":1,"names":["heads/000001.json"],"newest":1}',
        b'{"format":1,"names":["chunks/a"],"newest":"1"}',
    ],
)
def test_a_list_that_cannot_be_read_stops_everything(volume, tmp_path, data):
    store = ObjectStore(volume)
    remove_version(store, 2)
    store.put("collections/000001.deletions", data)
    age(volume, 25)
    before = chunks(volume)
    with pytest.raises(PublishError, match=r"000001\.deletions"):
        collect_garbage(store, now=True)
    with pytest.raises(PublishError, match=r"000001\.deletions"):
        push(tmp_path / "src", volume, cache=tmp_path / "cache")
    assert chunks(volume) == before
    assert head_numbers(store)[0] == [1, 3]


def test_a_version_without_its_chunks_stops_it(volume):
    publish_rows(volume, [file_row(b"x", 10), folder_row(b"")], [], total_bytes=10)
    store = ObjectStore(volume)
    remove_version(store, 2)
    age(volume, 25)
    with pytest.raises(DamagedVolumeError, match="version 4 names no chunks"):
        collect_garbage(store, now=True)
    assert len(chunks(volume)) == 7


def test_a_collection_that_was_killed_while_it_took_a_number(volume, tmp_path):
    store = ObjectStore(volume)
    store.put("heads/000004.json", b'{"format":"fence","nonce":"1"}')
    assert open_volume(volume, tmp_path / "cache").head.version == 3
    with pytest.raises(NotFoundError):
        open_volume(f"{volume}@4", tmp_path / "cache")
    assert [head.version for head in alive_heads(store)] == [1, 2, 3]
    report = push(tmp_path / "src", volume, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT, expect=3)
    assert report.version == 5


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
    with leased(store, "pushes"):
        done = collect_garbage(store, now=True)
        assert (done.under_way, done.deleted_chunks, done.marked_chunks) == (1, 0, 0)
    assert list(store.list("collections")) == list(store.list("pushes")) == []
    assert collect_garbage(store, now=True).deleted_chunks == 1


def test_a_push_that_was_killed_is_forgotten(volume):
    store = ObjectStore(volume)
    remove_version(store, 2)
    age(volume, 25)
    OperationLease(store, "pushes")
    assert collect_garbage(store).under_way == 1
    age(volume, 2, "pushes")
    assert collect_garbage(store, now=True).deleted_chunks == 1
    OperationLease(store, "collections")
    age(volume, 25)
    collect_garbage(store)
    assert list(store.list("pushes")) == []
    assert [info.key for info in store.list("collections")] == lists(store)


def test_a_push_waits_for_a_collection(volume, tmp_path):
    store = ObjectStore(volume)
    lease = OperationLease(store, "collections")
    said = []

    def say(text):
        said.append(text)
        store.delete([lease.key])

    clocks = Clocks(sleep=lambda _: None)
    push(tmp_path / "src", volume, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT, say=say, clocks=clocks)
    assert said == ["waiting for `trainmaster volume gc` to end"]


def test_a_collection_that_never_ends(volume):
    store = ObjectStore(volume)
    OperationLease(store, "collections")
    assert collect_garbage(store).under_way == 1, "also for another collection"
    with leased(store, "pushes") as lease, pytest.raises(PublishError, match="too long"):
        leases.wait_for_collections(store, lease, lambda _: None, wait_s=0)


def test_a_head_that_cannot_be_read_stops_it(volume):
    store = ObjectStore(volume)
    store.put("heads/000002.json", b"{")
    age(volume, 25)
    before = chunks(volume)
    with pytest.raises(DamagedVolumeError):
        collect_garbage(store, now=True)
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
                collect_garbage(store, now=True)
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


def test_a_volume_without_versions_can_be_removed_too(volume):
    """Their numbers are still taken, and their chunks still cost money."""
    store = ObjectStore(volume)
    for version in (1, 2, 3):
        remove_version(store, version)
    remove_volume(store)
    assert list(store.list()) == []


def test_a_whole_volume(volume):
    store = ObjectStore(volume)
    with leased(store, "pushes"), pytest.raises(PublishError, match=r"under way \(.+\)"):
        remove_volume(store)
    remove_volume(store)
    assert list(store.list()) == []
    for call in (remove_volume, collect_garbage):
        with pytest.raises(NotFoundError):
            call(store)
