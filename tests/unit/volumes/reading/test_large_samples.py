# ruff: noqa: F811 - fixtures are imported
"""Files larger than a chunk, or than the cache: fetched ahead while one of them is read."""

import random
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_volumes import CHUNK, home, tree, volume  # noqa: F401 - fixtures

from forked_children import exit_code, forked
from trainmaster.volumes import Volume
from trainmaster.volumes.packed.pushing import push
from trainmaster.volumes.reading import SampleOrder, samples
from trainmaster.volumes.reading.prefetch import RANGE_BYTES, ConcurrencyLimiter, planned

CHUNKS_OF_A_FILE = 12


class Asked:
    """Which chunks a cache was asked for ahead of their use."""

    def __init__(self, volume: Volume, monkeypatch, *, is_said: bool) -> None:
        self._changed = threading.Condition()
        self._chunks: set[int] = set()
        obtain = volume.cache.obtain

        def watched(chunk, **how):
            try:
                return obtain(chunk, **how)
            finally:
                if how.get("ahead") or not (is_said or how):
                    with self._changed:
                        self._chunks.add(chunk.number)
                        self._changed.notify_all()

        monkeypatch.setattr(volume.cache, "obtain", watched)

    def for_chunk(self, chunk: int) -> bool:
        """Waits until somebody has asked for it."""
        with self._changed:
            return self._changed.wait_for(lambda: chunk in self._chunks, 10)


@pytest.fixture
def large(home):
    """Three files of twelve chunks."""
    rng = random.Random(2)
    (home / "src").mkdir()
    for name in "abc":
        (home / "src" / name).write_bytes(rng.randbytes(CHUNKS_OF_A_FILE * CHUNK))
    push(home / "src", "large", chunk_limit_bytes=CHUNK)
    return home


def test_a_file_larger_than_the_cache_is_fetched_ahead_while_it_is_read(large, monkeypatch):
    volume = Volume.open("large", limit_bytes=6 * CHUNK)
    asked = Asked(volume, monkeypatch, is_said=True)
    for row in samples(SampleOrder(volume, shuffle=False)):
        first = volume.table.first_chunks[row]
        for number in range(CHUNKS_OF_A_FILE):
            assert asked.for_chunk(first + number), f"chunk {number} of file {row}"
            data = (large / "src" / "abc"[row]).read_bytes()[number * CHUNK :][:CHUNK]
            assert volume.read_range(row, number * CHUNK, CHUNK) == data
    assert volume.cache.fetched_chunks == volume.table.chunk_count, "none was evicted before its use"


def test_files_that_are_read_in_turn_without_a_known_order_are_each_fetched_ahead(large, monkeypatch):
    volume = Volume.open("large", limit_bytes=36 * CHUNK)
    asked = Asked(volume, monkeypatch, is_said=False)
    for number in range(CHUNKS_OF_A_FILE):
        for row in range(3):
            if number > 1:
                assert asked.for_chunk(volume.table.first_chunks[row] + number), (row, number)
            assert len(volume.read_range(row, number * CHUNK, CHUNK)) == CHUNK
    volume.close()


def test_a_file_whose_end_is_looked_at_first_is_fetched_ahead_all_the_same(large, monkeypatch):
    """As of Parquet and zip files, whose tables of contents are there."""
    volume = Volume.open("large", limit_bytes=6 * CHUNK)
    asked = Asked(volume, monkeypatch, is_said=True)
    row = next(stream := samples(SampleOrder(volume, shuffle=False)))
    volume.read_range(row, (CHUNKS_OF_A_FILE - 1) * CHUNK + 5, 10)
    for number in range(CHUNKS_OF_A_FILE - 1):
        assert asked.for_chunk(number)
        volume.read_range(row, number * CHUNK, CHUNK)
    stream.close()


def test_who_reads_here_and_there_gets_nothing_ahead(large, monkeypatch):
    volume = Volume.open("large", limit_bytes=36 * CHUNK)
    for row, chunk in ((0, 5), (1, 3), (0, 6), (2, 1), (1, 4)):
        volume.read_range(row, chunk * CHUNK + 10, 10)
    assert volume._ahead._pool is None, "some of them followed others"
    assert volume.cache.fetched_chunks == 5
    volume.close()


def test_a_stream_that_ends_leaves_another_one_its_own(large):
    volume = Volume.open("large", limit_bytes=36 * CHUNK)
    training = samples(SampleOrder(volume))
    next(training)
    followers = volume._followers
    assert list(samples(SampleOrder(volume, rows=np.array([1])))) == [1]
    assert volume._followers == followers
    training.close()
    assert volume._followers == ()


def test_a_child_forked_in_the_middle_of_an_epoch_reads(large):
    """Its parent's thread may hold a lock at that moment, which nobody gives back in the child."""
    volume = Volume.open("large", limit_bytes=36 * CHUNK)
    stream = samples(SampleOrder(volume, shuffle=False))
    next(stream)
    (follower,) = volume._followers

    def work():
        assert volume.read_range(2, 0, 3 * CHUNK) == (large / "src" / "c").read_bytes()[: 3 * CHUNK]

    with follower._changed:
        child = forked(work)
    assert exit_code(child) == 0
    stream.close()


def test_a_part_of_a_file_is_shown_where_it_lies(volume, tree):
    row = volume.row_of("large")
    for start, length in ((0, 10), (CHUNK - 5, 5), (CHUNK - 5, 9), (4 * CHUNK, 1000), (4 * CHUNK + 990, 99)):
        view = volume.view_range(row, start, length)
        assert view == tree["large"][start : start + length]
        is_copied = start // CHUNK != (start + min(length, len(tree["large"]) - start) - 1) // CHUNK
        assert isinstance(view.obj, bytes) == is_copied
    assert volume.view_range(row, len(tree["large"]), 5) == b""
    with pytest.raises(IndexError, match="rows 0 to"):
        volume.view_range(len(volume), 0, 1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=40), st.integers(1, 20))
def test_a_plan_of_large_samples_knows_where_each_chunk_of_each_is_used(found, gap):
    first, counts = (np.array(one, np.int64) for one in zip(*found, strict=True))
    plan = planned(first, counts, gap=gap)
    uses = [chunk + more for chunk, count in found for more in range(count)]
    at = 0
    for sample, (chunk, count) in enumerate(found):
        assert plan.span(sample) == (at, at + count if counts.max() > 1 else at + 1)
        for more in range(count):
            reached = plan.reached(chunk + more, at, at + count)
            # A use close to others of the chunk may have been left out.
            assert reached == at + more or (
                reached == -1
                and any(uses[p] == chunk + more for p in range(max(at + more - gap, 0), at + more))
            )
        at += count


def test_small_ranges_first_from_far_away_until_the_line_is_known():
    near = ConcurrencyLimiter()
    near.expect(0.005)
    assert near.cut(64 << 20) == RANGE_BYTES
    line = ConcurrencyLimiter()
    line.expect(0.15)
    assert line.cut(64 << 20) < RANGE_BYTES
    line.answered(0.05, 0.2)
    assert line.cut(64 << 20) == RANGE_BYTES
    unknown = ConcurrencyLimiter()
    unknown.expect(0.15)
    asked = sum(unknown.cut(64 << 20) < RANGE_BYTES for _ in range(100))
    assert 1 < asked < 10, "a store that never says so is not asked for small ones for ever"


def test_whoever_waits_longest_is_let_through_first():
    line, order, threads = ConcurrencyLimiter(), [], []
    for _ in range(8):
        line.begin()

    def wait(name, size_bytes):
        line.begin(size_bytes)
        order.append(name)

    for number, size_bytes in enumerate((RANGE_BYTES, 1 << 20, RANGE_BYTES)):
        threads.append(threading.Thread(target=wait, args=(number, size_bytes), daemon=True))
        threads[-1].start()
        while len(line._queue) <= number:
            threading.Event().wait(0.001)
    for number, thread in enumerate(threads):
        line.end()
        thread.join(10)
        assert order[: number + 1] == list(range(number + 1)), "a small one behind a large one waits, too"
