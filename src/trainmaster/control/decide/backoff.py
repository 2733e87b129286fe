"""How long to wait before something is tried again: pure."""

from __future__ import annotations

#: The second retry waits this long, each further one twice as long, up to the maximum.
BACKOFF_S = 1.0
MAX_BACKOFF_S = 300.0
#: What nodes, or a store, made fail is staged again after such pauses; machines are rented meanwhile.
MAX_STAGE_PAUSE_S = 60.0
#: What cannot be saved is tried again for as long as it takes: whoever has mended a store does not wait long.
MAX_SAVE_PAUSE_S = 60.0
LONGEST_PAUSE_S = max(MAX_STAGE_PAUSE_S, MAX_SAVE_PAUSE_S)


def backoff_s(retry: int) -> float:
    """How long to wait before a retry (1 = the first): at once, then 1 s, 2 s, 4 s, ... 300 s.

    >>> [backoff_s(retry) for retry in (1, 2, 3, 4, 20)]
    [0.0, 1.0, 2.0, 4.0, 300.0]
    """
    return 0.0 if retry <= 1 else min(BACKOFF_S * 2.0 ** (retry - 2), MAX_BACKOFF_S)


def stage_pause_s(restart: int) -> float:
    """How long to wait before an attempt is staged again, without a new attempt (1 = the first time).

    >>> [stage_pause_s(restart) for restart in (1, 2, 3, 20, 10**6)]
    [0.0, 1.0, 2.0, 60.0, 60.0]
    """
    return min(backoff_s(min(restart, 100)), MAX_STAGE_PAUSE_S)


def save_pause_s(tries: int) -> float:
    """How long to wait before what could not be saved is tried again (1 = it failed for the first time).

    >>> [save_pause_s(tries) for tries in (1, 2, 3, 1000, 10**6)]
    [0.0, 1.0, 2.0, 60.0, 60.0]
    """
    return min(backoff_s(min(tries, 100)), MAX_SAVE_PAUSE_S)
