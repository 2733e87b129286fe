# ruff: noqa: F811 - fixtures are imported
"""What a forked child finds, whatever the other threads of its parent were doing at that moment."""

import gc
import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from chunk_sources import SLOT, MadeSource, read
from read_volumes import CHUNK, home, tree, volume  # noqa: F401 - fixtures

from forked_children import exit_code, forked
from trainmaster.volumes import Volume
from trainmaster.volumes.packed import materialising
from trainmaster.volumes.reading import cache_location
from trainmaster.volumes.reading.cache import ChunkCache
from trainmaster.volumes.reading.download import DOWNLOADER
from trainmaster.volumes.reading.renewal import renew_after_fork
from trainmaster.volumes.reading.volume import leased


@contextmanager
def within(manager):
    """Another thread is within a context until this one ends."""
    leave, entered = threading.Event(), threading.Event()

    def work():
        with manager:
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(60)
    try:
        yield
    finally:
        leave.set()
        thread.join()


LOCKS = {
    "of the volume": lambda volume: volume._mutex,
    "of what is read ahead": lambda volume: volume._ahead._mutex,
    "of all caches": lambda _: cache_location._open_caches._mutex,
    "of the cache": lambda volume: volume.cache._mutex,
    "of the choice of slots": lambda volume: volume.cache._choosing,
    "of the slots": lambda volume: volume.cache.slots._mutex,
    "of downloads": lambda _: DOWNLOADER._mutex,
    "of the line": lambda _: DOWNLOADER.limiter._mutex,
}


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_a_lock_that_another_thread_holds(volume, tree, lock):
    def work():
        assert {path: volume[path] for path in tree} == tree
        with Volume.open(volume.uri) as again:
            assert again["large"] == tree["large"]
        volume.close()

    with within(lock(volume)):
        child = forked(work)
    assert exit_code(child) == 0


def test_other_caches_whose_directories_were_removed(tmp_path, volume, tree):
    """They are still open, and must not keep this one from being renewed."""
    others = [ChunkCache(tmp_path / f"{n}", slot_bytes=SLOT, limit_bytes=4 * SLOT) for n in range(20)]
    for other in others:
        shutil.rmtree(other.slots.directory)
    with within(volume.cache._mutex):
        child = forked(lambda: volume["large"] == tree["large"] or 1 / 0)
    assert exit_code(child) == 0


def test_the_locks_of_a_cache_whose_directory_was_removed(volume, tree):
    """A child that shared them with its parent would fill the same slots: wrong bytes would be read."""
    slots = volume.cache.slots
    slot = slots.reserve_another()
    slots.release(slot)
    shutil.rmtree(slots.directory)
    is_claimed, claimed = os.pipe()

    def work():
        os.read(is_claimed, 1)
        assert not slots.claim(slot, slots.table.stamp(slot)), "its parent has it"
        assert volume["large"] == tree["large"]

    child = forked(work)
    assert slots.claim(slot, slots.table.stamp(slot))
    os.write(claimed, b"!")
    assert exit_code(child) == 0
    slots.release(slot)
    os.close(is_claimed)
    os.close(claimed)


def test_something_that_cannot_be_renewed_does_not_keep_others_from_it(volume, tree):
    class Broken:
        def after_fork(self):
            raise OSError("as many files are open as may be")

    broken = [Broken() for _ in range(20)]  # the order is any
    for one in broken:
        renew_after_fork(one)
    with within(volume.cache._mutex):
        child = forked(lambda: volume["large"] == tree["large"] or 1 / 0)
    assert exit_code(child) == 0


@pytest.fixture
def source(tmp_path):
    return MadeSource(tmp_path / "log")


@pytest.fixture
def cache(tmp_path):
    return ChunkCache(tmp_path / "chunks", slot_bytes=SLOT, limit_bytes=4 * SLOT)


def test_a_chunk_that_another_thread_is_fetching(cache, source):
    under_way, go_on = threading.Event(), threading.Event()

    def wait(chunk):
        under_way.set()
        go_on.wait(60)

    source.before_fetch = wait
    thread = threading.Thread(target=read, args=(cache, source, 1))
    thread.start()
    assert under_way.wait(60)
    child = forked(lambda: read(cache, source, 1))
    go_on.set()
    assert exit_code(child) == 0
    thread.join()
    assert source.fetches() == [1], "the child has waited for it"


@contextmanager
def pinned(cache, source, numbers):
    placed = [cache.obtain(source.chunk(number), pinned=True) for number in numbers]
    yield
    for one in placed:
        cache.unpin(one)


def test_slots_that_other_threads_had_pinned_are_free_for_the_child(cache, source):
    placed = cache.obtain(source.chunk(0), pinned=True)
    array, _lease = leased(cache.slots, placed.slot, 200)

    def work():
        for number in range(10, 16):  # there is no room but theirs, once the parent has given it back
            read(cache, source, number)
        assert placed.slot not in cache.slots.usable(), "it is looked at in the child, too"
        assert bytes(array) == source.data(0)[:200]

    with within(pinned(cache, source, (1, 2, 3))):
        child = forked(work)
    assert exit_code(child) == 0


def test_what_the_parent_looks_at_stays_when_the_child_looks_away(tmp_path, source):
    """Also where the cache itself is closed behind it."""
    cache = ChunkCache(tmp_path / "chunks", slot_bytes=SLOT)
    placed = cache.obtain(source.chunk(1), pinned=True)
    held = [leased(cache.slots, placed.slot, 200)[0]]
    del cache
    gc.collect()
    assert exit_code(forked(lambda: (held.clear(), gc.collect()))) == 0
    other = ChunkCache(tmp_path / "chunks", slot_bytes=SLOT)
    assert not other.slots.claim(placed.slot, placed.stamp), "the child's end of it was not the parent's"
    assert bytes(held[0]) == source.data(1)[:200]


def test_slots_that_another_thread_was_about_to_map(tmp_path, cache, source, monkeypatch):
    other = ChunkCache(tmp_path / "chunks", slot_bytes=SLOT, limit_bytes=8 * SLOT)
    for number in range(6):
        read(other, source, number)
    is_about_to, go_on = threading.Event(), threading.Event()
    mapped = cache.slots._map

    def wait():
        is_about_to.set()
        go_on.wait(60)
        mapped()

    def work():
        monkeypatch.undo()
        for number in range(6):
            read(cache, source, number)

    monkeypatch.setattr(cache.slots, "_map", wait)
    thread = threading.Thread(target=cache.slots.refresh)
    thread.start()
    assert is_about_to.wait(60)
    child = forked(work)
    go_on.set()
    assert exit_code(child) == 0
    thread.join()


def test_a_volume_that_another_thread_is_opening(tmp_path):
    def work():
        with materialising._only_one(tmp_path / "pets"):
            pass

    with within(materialising._only_one(tmp_path / "pets")):
        child = forked(work)
    assert exit_code(child) == 0


READS = """
import sys
from trainmaster.volumes import Volume
from trainmaster.volumes.reading import SampleOrder, samples
volume = Volume.open(sys.argv[1])
before = {*sys.modules}
for row in samples(SampleOrder(volume)):
    assert volume.read(row) == bytes(volume.view(row))
print(*{*sys.modules} - before)
"""


def test_nothing_is_imported_while_a_volume_is_read(volume):
    """A child that was forked while a thread imported a module would wait for ever where it imports that."""
    done = subprocess.run([sys.executable, "-c", READS, volume.uri], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"\n"
