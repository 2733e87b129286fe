from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.spec.errors import UsageError
from trainmaster.volumes.reading.order import EpochOrder, SampleLayout, quality
from trainmaster.volumes.reading.prefetch import planned
from trainmaster.volumes.reading.sharing import TrainingPosition, blocks, left, share

counts = st.lists(st.integers(0, 30), max_size=30)
splits = st.sampled_from(["chunks", "samples"])


def layout_of(per_chunk):
    return SampleLayout.of_first_chunks(np.repeat(np.arange(len(per_chunk)), per_chunk), len(per_chunk))


@given(counts, st.integers(0, 2**32), st.integers(0, 5), st.integers(0, 10), st.booleans())
def test_every_sample_once(per_chunk, seed, epoch, window, shuffle):
    order = EpochOrder(layout_of(per_chunk), seed=seed, epoch=epoch, window=window, shuffle=shuffle)
    total = sum(per_chunk)
    rows = order.rows(0, total)
    assert sorted(rows.tolist()) == list(range(total))
    if not shuffle:
        assert rows.tolist() == list(range(total))


@given(counts, st.integers(0, 9), st.data())
def test_any_part_of_it_can_be_had(per_chunk, window, data):
    order = EpochOrder(layout_of(per_chunk), seed=1, epoch=2, window=window)
    total = sum(per_chunk)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    assert order.rows(start, stop).tolist() == order.rows(0, total)[start:stop].tolist()
    positions = np.array(data.draw(st.lists(st.integers(0, max(total - 1, 0)), max_size=9 if total else 0)))
    assert order.at(positions.astype(np.int64)).tolist() == [order.rows(p, p + 1)[0] for p in positions]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=30), st.integers(1, 5))
def test_a_window_needs_no_more_chunks_than_it_has(per_chunk, window):
    layout = layout_of(per_chunk)
    chunk_of = np.repeat(np.arange(len(per_chunk)), per_chunk)
    chunks = chunk_of[EpochOrder(layout, seed=3, epoch=0, window=window).rows(0, layout.rows)]
    seen: list[int] = []
    for chunk in chunks.tolist():
        if chunk not in seen:
            seen.append(chunk)
    place = {chunk: index // window for index, chunk in enumerate(seen)}
    windows = [place[chunk] for chunk in chunks.tolist()]
    assert windows == sorted(windows)


def test_it_is_the_same_for_ever():
    # These numbers may never change: trainings that were stopped go on with them.
    order = EpochOrder(layout_of([5, 0, 7, 4, 4]), seed=7, epoch=1, window=2)
    assert order.rows(0, 20).tolist() == [
        17,
        16,
        6,
        18,
        10,
        8,
        9,
        5,
        19,
        11,
        7,
        15,
        0,
        3,
        2,
        13,
        1,
        4,
        14,
        12,
    ]


def test_epochs_and_seeds_differ():
    layout = layout_of([50] * 10)
    orders = {
        tuple(EpochOrder(layout, seed=seed, epoch=epoch).rows(0, 500).tolist())
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(orders) == 4


def test_quality():
    layout = layout_of([100] * 200)
    uniform = quality(EpochOrder(layout, seed=0, epoch=0, window=0).rows(0, 20_000))
    assert uniform.displacement == pytest.approx(1, abs=0.02)
    assert uniform.neighbours == pytest.approx(0, abs=0.03)
    for window in (2, 4, 8):
        windowed = quality(EpochOrder(layout, seed=0, epoch=0, window=window).rows(0, 20_000))
        assert windowed.neighbours == pytest.approx(1 / window, rel=0.35)
    none = quality(np.arange(1000))
    assert (none.displacement, none.neighbours) == (0, 1)


@given(
    st.integers(0, 200),
    st.lists(st.tuples(st.integers(1, 7), st.integers(0, 40)), max_size=4),
    st.integers(1, 7),
    splits,
)
def test_ranks_share_what_is_left_without_overlap_or_loss(total, phases, world, split):
    spans = left(total, phases, split)
    rest = [position for start, stop in spans for position in range(start, stop)]
    shares = [share(spans, world, rank, padding="uneven", split=split) for rank in range(world)]
    read = [position for one in shares for position in one.positions(0, len(one)).tolist()]
    assert sorted(read) == sorted(rest)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(
    st.integers(0, 200),
    st.lists(st.tuples(st.integers(1, 7), st.integers(0, 40)), max_size=4),
    splits,
    st.sampled_from(["pad", "drop"]),
)
def test_another_number_of_ranks_goes_on_where_the_others_stopped(total, phases, split, padding):
    """Plays the phases rank by rank; what was read and what is left must be all, and nothing twice."""
    read: list[int] = []
    played: list[tuple[int, int]] = []
    for world, taken in phases:
        spans = left(total, played, split)
        shares = [share(spans, world, rank, padding=padding, split=split) for rank in range(world)]
        taken = min(taken, *map(len, shares))  # a training takes no more than there is
        read.extend(p for one in shares for p in one.positions(0, min(taken, one.own)).tolist())
        played.append((world, taken))
    spans = left(total, played, split)
    rest = [position for start, stop in spans for position in range(start, stop)]
    assert sorted(read + rest) == list(range(total))


@given(st.integers(1, 300), st.integers(1, 9), splits)
def test_padding(total, world, split):
    spans = [(0, total)]
    padded = [share(spans, world, rank, padding="pad", split=split) for rank in range(world)]
    dropped = [share(spans, world, rank, padding="drop", split=split) for rank in range(world)]
    assert {len(one) for one in padded} == {-(-total // world)}
    assert {len(one) for one in dropped} == {total // world}
    for one in (*padded, *dropped):
        assert all(0 <= position < total for position in one.positions(0, len(one)))
    assert {p for one in padded for p in one.positions(0, len(one)).tolist()} == set(range(total))


@given(
    st.integers(1, 200),
    st.integers(1, 7),
    splits,
    st.sampled_from(["pad", "drop", "uneven"]),
    st.sets(st.integers(0, 199)),
)
def test_places_of_a_share_at_once_are_those_one_by_one(total, world, split, padding, wanted):
    spans = left(total, [(3, 2)], split)
    for rank in range(world):
        mine = share(spans, world, rank, padding=padding, split=split) if spans else None
        if mine is None:
            return
        places = sorted(place for place in wanted if place < len(mine))
        alone = [int(mine.positions(place, place + 1)[0]) for place in places]
        assert mine.at(np.array(places, np.int64)).tolist() == alone


@given(st.integers(0, 100), st.integers(1, 9), st.integers(1, 5))
def test_workers_take_batches_in_turn(length, size, workers):
    dealt = {
        start: list(range(start, stop))
        for worker in range(workers)
        for start, stop in blocks(length, size, workers, worker)
    }
    assert [place for start in sorted(dealt) for place in dealt[start]] == list(range(length))
    for worker in range(workers):
        assert all((start // size) % workers == worker for start, _ in blocks(length, size, workers, worker))


def test_state():
    progress = TrainingPosition(3, 1, ((4, 100), (2, 7)))
    assert progress.as_state() == {"seed": 3, "epoch": 1, "consumed": [[4, 100], [2, 7]]}
    assert TrainingPosition.from_state(progress.as_state()) == progress
    for state in (
        {},
        {"seed": 1, "epoch": 0, "consumed": [[0, 1]]},
        {"seed": "x", "epoch": 0, "consumed": []},
    ):
        with pytest.raises(UsageError, match="is no state of a stream"):
            TrainingPosition.from_state(state)


def test_a_rank_that_is_none():
    with pytest.raises(UsageError, match="Rank 2 of 2"):
        share([(0, 10)], 2, 2, padding="pad", split="chunks")


@given(st.lists(st.integers(0, 6), max_size=300), st.integers(1, 20))
def test_a_plan_never_says_that_a_chunk_is_used_much_later_than_it_is(chunks, gap):
    order = np.array(chunks, np.int64)
    plan = planned(order, gap=gap)
    assert np.all(np.diff(plan.positions) >= 0)
    assert order[plan.positions].tolist() == plan.chunks.tolist()
    for position in range(len(chunks)):
        for chunk in set(chunks):
            uses = [p for p in range(position, len(chunks)) if chunks[p] == chunk]
            said = [
                p for p, c in zip(plan.positions, plan.chunks, strict=True) if c == chunk and p >= position
            ]
            assert bool(uses) == bool(said)
            if uses and uses[0] != said[0]:
                # Dropped uses lie between two that are close to their neighbours.
                between = [p for p in uses if p <= said[0]]
                assert all(b - a <= gap for a, b in pairwise(between))
