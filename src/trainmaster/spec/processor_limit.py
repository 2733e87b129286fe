"""`processor_limit`: how much of a processor what a server was asked may take; looked at in long sums."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from trainmaster.spec.errors import RunError


class TooMuchWorkError(RunError):
    """What was asked takes more of a processor than it may."""


class _Limit(threading.local):
    """Of each thread: seconds of processor time in all, the clock at which they are over, what to change."""

    seconds = 0.0
    until_s: float | None = None
    hint = ""


_LIMIT: Final = _Limit()


@contextmanager
def processor_limit(seconds: float, hint: str) -> Iterator[None]:
    """Within, `check_processor_limit` of this thread raises when it has taken so much of a processor.

    Args:
        seconds: of processor time.
        hint: what to do where that is too little.
    """
    _LIMIT.seconds, _LIMIT.until_s, _LIMIT.hint = seconds, time.thread_time() + seconds, hint
    try:
        yield
    finally:
        _LIMIT.until_s = None


def check_processor_limit() -> None:
    """Called between the parts of what may be long; without a limit it does nothing.

    Raises:
        TooMuchWorkError: the limit is reached.
    """
    if _LIMIT.until_s is not None and time.thread_time() >= _LIMIT.until_s:
        raise TooMuchWorkError(f"it takes more than {_LIMIT.seconds:g} s of a processor here", _LIMIT.hint)
