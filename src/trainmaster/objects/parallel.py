"""Moving several files at once: as many as help, and no more than memory allows."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from trainmaster.objects.object_store import ObjectStore

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Latency is what counts on a network, the processor here.
_REMOTE_THREADS = 16
_LOCAL_THREADS = min(8, os.cpu_count() or 1)
# A large file is sent and fetched in several parts at once by itself, each of which is kept in memory.
_LARGE_AT_ONCE = 2
# Below this, starting threads takes longer than copying.
_LITTLE_BYTES = 1 << 20
_LITTLE_FILES = 8


def each(
    items: Sequence[_Item],
    work: Callable[[_Item], _Result],
    size_bytes: Callable[[_Item], int],
    store: ObjectStore,
) -> list[_Result]:
    """Does ``work`` for every item and gives the results, in no order.

    The first exception ends it: what has not begun is left, what has begun is waited for.

    Args:
        items: files.
        work: moves one file to or from the store; called by several threads.
        size_bytes: how large an item is, about.
        store: decides how many at once.
    """
    total_bytes = sum(map(size_bytes, items))
    is_little = len(items) <= _LITTLE_FILES and total_bytes <= _LITTLE_BYTES
    if len(items) <= 1 or (store.is_local and is_little):
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(_LOCAL_THREADS if store.is_local else _REMOTE_THREADS)
    large_pool = ThreadPoolExecutor(_LARGE_AT_ONCE)
    with pool, large_pool:
        # The largest first: begun last, it would be waited for alone.
        return all_done(
            (pool if size_bytes(item) < store.large_from_bytes else large_pool).submit(work, item)
            for item in sorted(items, key=size_bytes, reverse=True)
        )


def all_done(futures: Iterable["Future[_Result]"]) -> list[_Result]:
    """Waits for all; once one has failed, what has not begun is left, what has is waited for."""
    futures = list(futures)
    try:
        return [future.result() for future in futures]
    finally:
        for future in reversed(futures):
            if not future.cancel():
                future.exception()


def in_order(
    pool: "ThreadPoolExecutor", work: Callable[[_Item], _Result], items: Iterable[_Item], ahead: int
) -> Iterator[tuple[_Item, _Result]]:
    """Gives items with what comes of them in their order, while work for so many that follow is under way."""
    rest = iter(items)
    under_way = deque((item, pool.submit(work, item)) for item in islice(rest, ahead))
    while under_way:
        item, future = under_way.popleft()
        result = future.result()
        under_way.extend((later, pool.submit(work, later)) for later in islice(rest, 1))
        yield item, result
