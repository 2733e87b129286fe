# ruff: noqa: F811 - fixtures are imported
"""The known order, from plan to reader, without PyTorch."""

import random
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from chunk_sources import SLOT, MadeSource
from hypothesis import given
from hypothesis import strategies as st
from read_volumes import CHUNK, home, tree, volume  # noqa: F401 - fixtures

from trainmaster.spec.errors import UsageError
from trainmaster.testing.waits import until
from trainmaster.volumes import Volume
from trainmaster.volumes.errors import MissingChunkError
from trainmaster.volumes.packed.pushing import push
from trainmaster.volumes.reading import SampleOrder, TrainingPosition, download, prefetcher, samples
from trainmaster.volumes.reading.download import Downloader
from trainmaster.volumes.reading.eviction import victims
from trainmaster.volumes.reading.prefetch import ConcurrencyLimiter, depth_chunks, soonest


def test_an_epoch_reads_every_sample_once_and_each_chunk_once(volume, tree):
    order = SampleOrder(volume, seed=1, window=2)
    rows = []
    for row in samples(order):
        assert volume.read(row) == tree[volume.table.path(row)]
        rows.append(row)
    assert sorted(rows) == list(range(len(volume)))
    assert rows != sorted(rows)
    assert volume.cache.fetched_chunks == volume.table.chunk_count


def test_a_cache_of_a_quarter_keeps_what_the_next_epoch_uses_first(home):
    rng = random.Random(5)
    for number in range(640):
        path = home / "src" / f"f{number:04}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(rng.randbytes(CHUNK // 16))
    push(home / "src", "many", chunk_limit_bytes=CHUNK)
    volume = Volume.open("many", limit_bytes=10 * CHUNK)
    count = volume.table.chunk_count
    order = SampleOrder(volume, window=2)
    fetched = []
    for _ in range(4):
        before = volume.cache.fetched_chunks
        for row in samples(order):
            volume.read(row)
        fetched.append(volume.cache.fetched_chunks - before)
        order.next_epoch()
    # The least there can be is about nine less than all; the least recently used would fetch all each time.
    assert sum(fetched[1:]) <= 3 * (count - 4)


def test_ranks_and_workers_share_an_epoch(volume):
    for split in ("chunks", "samples"):
        order = SampleOrder(volume, window=2, split=split, padding="uneven")
        rows = [
            row
            for rank in range(3)
            for worker in range(2)
            for row in samples(order, rank=rank, world=3, block=4, workers=2, worker=worker, prefetch=False)
        ]
        assert sorted(rows) == list(range(len(volume)))


def test_another_number_of_ranks_in_mid_epoch(volume):
    order = SampleOrder(volume, window=2, padding="uneven", seed=9)
    read = []
    for rank in range(4):
        mine = order.share(rank, 4)
        read += order.rows(0, mine.positions(0, 10)).tolist()
    order.consumed(10, 4)
    state = order.progress.as_state()
    other = SampleOrder(volume, window=2, padding="uneven")
    other.progress = TrainingPosition.from_state(state)
    for rank in range(3):
        read += list(samples(other, rank=rank, world=3, prefetch=False))
    assert sorted(read) == list(range(len(volume)))


def test_some_of_the_files(volume):
    rows = np.array([row for row, path in enumerate(volume.paths()) if path.startswith("d1/")])
    order = SampleOrder(volume, rows=rows, window=1)
    assert sorted(samples(order)) == rows.tolist()
    with pytest.raises(UsageError, match="rows must increase"):
        SampleOrder(volume, rows=rows[::-1])


def test_a_reader_that_stops_early_leaves_no_order_behind(volume):
    stream = samples(SampleOrder(volume))
    next(stream)
    stream.close()
    assert list(volume.cache.directory.glob("orders/*")) == []


def test_a_chunk_that_is_missing_is_asked_for_ahead_once_and_told_to_who_reads_it(volume, home, monkeypatch):
    asked, failed = [], []
    chunks = sorted(path for path in (home / "store/volumes/pets/chunks").rglob("*") if path.is_file())
    chunks[0].unlink()
    obtain = volume.cache.obtain

    def watched(chunk, **how):
        if how.get("ahead"):
            asked.append(chunk.number)
        try:
            return obtain(chunk, **how)
        except MissingChunkError:
            failed.append(bool(how.get("ahead")))
            raise

    monkeypatch.setattr(volume.cache, "obtain", watched)
    monkeypatch.setattr(prefetcher, "_LOOK_AGAIN_S", 0.001)
    steps = []
    step = prefetcher.Prefetcher._step
    monkeypatch.setattr(prefetcher.Prefetcher, "_step", lambda self: steps.append(1) or step(self))

    def train():
        for row in samples(SampleOrder(volume, window=2)):
            volume.read(row)
            enough = len(steps) + 2
            until(lambda enough=enough: len(steps) >= enough, "the prefetcher has looked, and once more")

    with pytest.raises(MissingChunkError):
        train()
    assert failed == [True, False], "ahead, and then by what reads it"
    assert len(asked) == len(set(asked))


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.0, 1.0, 2.0, np.inf])), max_size=12),
    st.sampled_from([-1.0, 0.0, 1.0, 5.0]),
)
def test_victims(slots, needed_in_s):
    used = np.array([use for use, _ in slots], np.uint64)
    next_use = np.array([next_use for _, next_use in slots])
    order = victims(np.arange(len(slots)), used, next_use, needed_in_s)
    assert len(set(order)) == len(order)
    assert [next_use[slot] for slot in order] == sorted((next_use[slot] for slot in order), reverse=True)
    kept = set(range(len(slots))) - set(order)
    assert all(next_use[slot] <= needed_in_s for slot in kept)
    unknown = [used[slot] for slot in order if next_use[slot] == np.inf]
    assert unknown == sorted(unknown)


@given(st.lists(st.integers(0, 20)), st.integers(1, 9))
def test_soonest(uses, count):
    chosen = soonest(np.array(uses, np.int64), count).tolist()
    assert chosen == list(dict.fromkeys(uses))[:count]


def test_depth():
    assert depth_chunks(8, 8 << 20, slots=1000) == 9
    assert depth_chunks(15, 8 << 20, slots=1000) == 23
    assert depth_chunks(8, 64 << 20, slots=1000) == 2
    assert depth_chunks(64, 1 << 20, slots=8) == 4
    assert depth_chunks(64, 1 << 20, slots=8, readers=4) == 1
    assert depth_chunks(64, 1 << 20, slots=2, readers=4) == 1


@pytest.mark.parametrize(
    ("bytes_per_s", "ranges"),
    [
        (lambda requests: 90e6 * requests, 64),  # each connection has its share
        (lambda requests: min(90e6 * requests, 1.25e9), 16),  # until a line of 10 Gb/s is full
        (lambda requests: 100e6, 8),
    ],
    ids=["shares", "shares of a line", "a narrow line"],
)
def test_requests_at_once_are_as_many_as_bring_more(bytes_per_s, ranges):
    now_s = 0.0
    line = ConcurrencyLimiter(lambda: now_s)
    line._is_short = lambda: True  # somebody always waits
    size_bytes, seen = 8 << 20, []
    for _ in range(4000):
        while line._in_flight < line.ranges:
            line.begin()
        now_s += size_bytes / bytes_per_s(line._in_flight)
        line.end()
        line.saw(size_bytes)
        seen.append(line.ranges)
    assert max(seen[1000:]) <= min(2 * ranges, 64), "it tries more now and then"
    assert sorted(seen[1000:])[1500] == ranges
    line._is_short = lambda: False
    before = line.ranges
    for _ in range(1000):
        line.begin()
        now_s += 1.0
        line.end()
        line.saw(size_bytes)
    assert line.ranges == before, "a reader that asks for little learns nothing"


@pytest.mark.parametrize(
    ("answer_s", "early_s", "ranges"),
    [
        (0.001, 0.0005, 8),
        (0.040, 0.080, 18),
        (0.100, 0.250, 32),
        (2.0, 0.5, 32),  # far away, or its first answer is slow
        (0.100, 1.0, 8),  # far away behind a narrow line: more at once would only wait longer
    ],
)
def test_a_far_store_gets_more_requests_at_once_from_its_first_answer(answer_s, early_s, ranges):
    now_s = 0.0
    line = ConcurrencyLimiter(lambda: now_s)
    assert line.ranges == 8
    line.answered(answer_s, early_s)
    assert line.ranges == ranges
    line.answered(1.0, 1.0)
    assert line.ranges == ranges, "the first one counts"
    line._is_short = lambda: True
    now_s += 3.0  # the first connections are quick by now
    for _ in range(200):  # it only was a guess: where more bring more, there are more
        while line._in_flight < line.ranges:
            line.begin()
        now_s += 0.1 / line._in_flight
        line.end()
        line.saw(8 << 20)
    assert line.ranges == 64


@pytest.mark.parametrize(("least_bytes", "times"), [(1, 1), (SLOT + 1, 0)], ids=["long", "short"])
def test_the_way_to_a_store_is_timed_by_ranges_that_are_long_enough(
    tmp_path, monkeypatch, least_bytes, times
):
    now_s = 0.0

    class Timed(MadeSource):
        def blocks(self, chunk, start, length):
            nonlocal now_s
            now_s += 0.25  # until it answers
            yield memoryview(b"")
            now_s += 0.75  # until the first MiB is there
            for block in super().blocks(chunk, start, length):
                yield block
                now_s += 1000.0

    monkeypatch.setattr(download, "_TIMED_BYTES", least_bytes)
    monkeypatch.setattr(download, "time", SimpleNamespace(perf_counter=lambda: now_s))
    downloader, taken, seen = Downloader(), bytearray(SLOT), []
    downloader.limiter.answered = lambda *seconds: seen.append(seconds)
    source = Timed(tmp_path / "log")
    chunk = source.chunk(0)

    def write(start, data):
        assert len(data)
        taken[start : start + len(data)] = data

    downloader.fill(chunk, write)
    assert taken[: chunk.size_bytes] == source.data(0)
    assert seen == [(0.25, 0.75)] * times
    downloader._pool.shutdown()


def test_a_line_lets_no_more_requests_through_than_it_carries():
    line, inside, most, mutex = ConcurrencyLimiter(), [0], [0], threading.Lock()
    full = threading.Barrier(8)

    def request():
        line.begin()
        with mutex:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        full.wait(10)  # eight are let through at once
        with mutex:
            inside[0] -= 1
        line.end()

    threads = [threading.Thread(target=request) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert most[0] == 8
