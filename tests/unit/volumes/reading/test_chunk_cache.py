# ruff: noqa: PTH116, PTH123, BLE001, RUF043
import gc
import os
import threading

import numpy as np
import pytest
from chunk_sources import SLOT, MadeSource, content, read

from trainmaster.spec.errors import PublishError, UsageError
from trainmaster.volumes.errors import CacheError, DamagedChunkError, MissingChunkError, NoRoomError
from trainmaster.volumes.reading.cache import ChunkCache
from trainmaster.volumes.reading.orders import AnnouncedOrder
from trainmaster.volumes.reading.slot_table import SUSPECT, VALID
from trainmaster.volumes.reading.volume import leased

TABLES = 16 << 10  # what a file system needs to find a file's blocks


@pytest.fixture
def source(tmp_path):
    return MadeSource(tmp_path / "fetches")


def opened(tmp_path, slots=4, **options):
    return ChunkCache(tmp_path / "chunks", slot_bytes=SLOT, limit_bytes=slots * SLOT, **options)


def test_chunks_are_fetched_once_and_stay(tmp_path, source):
    cache = opened(tmp_path)
    for _ in range(3):
        for number in range(4):
            read(cache, source, number)
    assert sorted(source.fetches()) == [0, 1, 2, 3]
    again = opened(tmp_path)
    assert content(again, again.obtain(source.chunk(2)), 100) == source.data(2)[:100]
    assert len(source.fetches()) == 4, "another reader of the node finds them"


def test_the_limit_is_never_exceeded(tmp_path, source):
    cache = opened(tmp_path, slots=3)
    for number in [*range(12), *range(12)]:
        read(cache, source, number)
        assert os.stat(cache.slots.path).st_blocks * 512 <= 3 * SLOT + TABLES
    assert os.stat(cache.slots.path).st_size == 3 * SLOT


def test_the_least_recently_used_goes_first(tmp_path, source):
    cache = opened(tmp_path)
    for number in range(4):
        read(cache, source, number)
    read(cache, source, 0)
    for number in (4, 5):
        read(cache, source, number)
    assert cache.find(source.chunk(0)) is not None
    assert cache.find(source.chunk(1)) is None
    assert cache.find(source.chunk(2)) is None


def test_of_a_known_order_the_furthest_goes_first(tmp_path, source):
    cache = opened(tmp_path)
    for number in range(4):
        read(cache, source, number)
    keys = np.array([source.chunk(number).prefix for number in (0, 1, 3, 2)], np.uint64)
    order = AnnouncedOrder(cache.orders, keys, np.arange(4))
    read(cache, source, 4)  # nobody said anything of it
    read(cache, source, 5)
    assert cache.find(source.chunk(4)) is None, "what nobody announced goes before what will be used"
    read(cache, source, 6)
    read(cache, source, 7)
    assert all(cache.find(source.chunk(number)) is not None for number in (0, 1, 3))
    order.close()
    for number in (10, 11, 12, 13):
        read(cache, source, number)
    assert cache.find(source.chunk(0)) is None, "an order ends with its reader"


def test_fetching_ahead_never_pushes_out_what_is_needed_sooner(tmp_path, source):
    cache = opened(tmp_path)
    keys = np.array([source.chunk(number).prefix for number in range(6)], np.uint64)
    order = AnnouncedOrder(cache.orders, keys, np.arange(6) * 10)
    for number in range(4):
        cache.obtain(source.chunk(number), ahead=True)
    with pytest.raises(NoRoomError):
        cache.obtain(source.chunk(4), ahead=True)
    order.advance(11, 0.5)
    cache.obtain(source.chunk(4), ahead=True)
    assert cache.find(source.chunk(1)) is None or cache.find(source.chunk(0)) is None
    order.close()


def test_pinned_chunks_stay(tmp_path, source):
    cache = opened(tmp_path, slots=2, patience_s=0.1)
    placed = cache.obtain(source.chunk(0), pinned=True)
    for number in range(1, 6):
        read(cache, source, number)
    assert content(cache, placed, 50) == source.data(0)[:50]
    other = cache.obtain(source.chunk(7), pinned=True)
    with pytest.raises(CacheError, match="in use by readers.*\n.*TRAINMASTER_CACHE_BYTES"):
        cache.obtain(source.chunk(8))
    cache.unpin(other)
    read(cache, source, 8)


def test_a_view_keeps_its_chunk_and_what_is_made_of_it_does_too(tmp_path, source):
    cache = opened(tmp_path, slots=2)
    whole, lease = leased(cache.slots, cache.obtain(source.chunk(0), pinned=True).slot, 200)
    array = np.frombuffer(memoryview(whole)[30:100][:40], np.uint8)
    del whole
    for number in range(1, 8):
        read(cache, source, number)
    assert array.tobytes() == source.data(0)[30:70]
    assert not array.flags.writeable
    del array
    gc.collect()
    assert lease() is None
    read(cache, source, 1)
    read(cache, source, 2)
    assert cache.find(source.chunk(0)) is None


def test_threads_fetch_a_chunk_once(tmp_path, source):
    cache = opened(tmp_path, slots=3)
    start = threading.Barrier(8)
    errors = []

    def work():
        start.wait()
        try:
            for number in [0, 1, 2] * 5:
                read(cache, source, number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors
    assert sorted(source.fetches()) == [0, 1, 2]


def test_many_threads_and_few_slots(tmp_path, source):
    cache = opened(tmp_path, slots=2)
    errors = []

    def work(first):
        try:
            for number in range(first, first + 20):
                read(cache, source, number % 6)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors


def test_a_damaged_chunk_is_fetched_again_and_reported(tmp_path, source, caplog):
    cache = opened(tmp_path)
    source.damaged[1] = 1
    read(cache, source, 1)
    assert source.fetches() == [1, 1]
    assert cache.damaged_chunks == 1
    assert "chunk 1 has another hash. It is fetched once more." in caplog.text


def test_a_chunk_that_stays_damaged_is_an_error_and_leaves_nothing(tmp_path, source):
    cache = opened(tmp_path)
    source.damaged[1] = 2
    with pytest.raises(DamagedChunkError, match="chunk 1"):
        cache.obtain(source.chunk(1))
    assert cache.find(source.chunk(1)) is None
    read(cache, source, 1)


def test_a_missing_chunk_is_an_error_and_leaves_nothing(tmp_path, source):
    cache = opened(tmp_path)
    source.missing.add(1)
    with pytest.raises(MissingChunkError, match="chunk 1"):
        cache.obtain(source.chunk(1))
    source.missing.clear()
    read(cache, source, 1)


def test_all_who_wait_for_a_chunk_hear_that_it_cannot_be_had(tmp_path, source):
    cache = opened(tmp_path)
    all_here, errors = threading.Barrier(3), []
    go_on = threading.Event()

    def before(chunk):
        go_on.wait(10)
        raise PublishError("the store is down")

    source.before_fetch = before

    def work():
        all_here.wait()
        try:
            cache.obtain(source.chunk(0))
        except PublishError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    all_here.wait()
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert len(errors) == 2


def test_too_small_a_limit_is_refused(tmp_path):
    with pytest.raises(CacheError, match="65,536 bytes, which is less than 2 chunks.*\n.*131072 or more"):
        opened(tmp_path, slots=1)


def test_a_chunk_larger_than_a_slot_is_refused(tmp_path, source):
    cache = ChunkCache(tmp_path / "chunks", slot_bytes=SLOT // 2, limit_bytes=4 * SLOT)
    with pytest.raises(CacheError, match="does not fit"):
        cache.obtain(source.chunk(0))


def test_the_limit_may_change(tmp_path, source, monkeypatch):
    for number in range(8):
        read(opened(tmp_path, slots=8), source, number)
    cache = opened(tmp_path, slots=2)
    assert os.stat(cache.slots.path).st_blocks * 512 <= 2 * SLOT + TABLES
    for number in range(8):
        read(cache, source, number)
    larger = opened(tmp_path, slots=6)
    for number in range(6):
        read(larger, source, number)
    assert all(cache.find(source.chunk(number)) is not None for number in range(6)), "the old one sees them"
    monkeypatch.setenv("TRAINMASTER_CACHE_BYTES", "512KiB")
    assert ChunkCache(tmp_path / "chunks", slot_bytes=SLOT).limit_bytes == 512 << 10
    monkeypatch.delenv("TRAINMASTER_CACHE_BYTES")
    assert ChunkCache(tmp_path / "chunks", slot_bytes=SLOT).limit_bytes == 512 << 10, "remembered"
    monkeypatch.setenv("TRAINMASTER_CACHE_BYTES", "plenty")
    with pytest.raises(UsageError, match="TRAINMASTER_CACHE_BYTES: 'plenty' is no size"):
        ChunkCache(tmp_path / "chunks", slot_bytes=SLOT)


def test_slots_of_several_sizes_share_the_limit(tmp_path, source):
    small = opened(tmp_path, slots=8)
    for number in range(5):
        read(small, source, number)
    large = ChunkCache(tmp_path / "chunks", slot_bytes=2 * SLOT)
    read(large, source, 0)
    assert large.slots.reserve_another() is None
    with pytest.raises(CacheError, match="Chunks of other sizes fill the cache"):
        ChunkCache(tmp_path / "chunks", slot_bytes=4 * SLOT).obtain(source.chunk(0))


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "chunks").write_text("a file")
    with pytest.raises(CacheError, match="cannot be written.*\n.*TRAINMASTER_CACHE"):
        opened(tmp_path)


def test_after_a_restart_of_the_machine_nothing_is_believed(tmp_path, source):
    cache = opened(tmp_path)
    for number in range(3):
        read(cache, source, number)
    damaged = cache.find(source.chunk(1)).slot
    with open(cache.slots.path, "r+b") as file:
        file.seek(damaged * SLOT + 50)
        file.write(b"lost in the power failure")
    with open(cache.directory / "table", "r+b") as file:
        file.seek(24)
        file.write(b"another boot....")
    del cache
    after = opened(tmp_path)
    assert {*after.slots.table.states().tolist()} <= {0, SUSPECT}
    for number in range(3):
        read(after, source, number)
    assert source.fetches() == [0, 1, 2, 1]
    assert VALID in after.slots.table.states().tolist()


def test_files_that_were_cut_or_are_foreign_are_made_anew(tmp_path, source):
    cache = opened(tmp_path)
    for number in range(4):
        read(cache, source, number)
    os.truncate(cache.slots.path, SLOT)
    again = opened(tmp_path)
    for number in range(4):
        read(again, source, number)
    (again.directory / "table").write_bytes(b"nonsense")
    once_more = opened(tmp_path)
    for number in range(4):
        read(once_more, source, number)
