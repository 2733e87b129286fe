"""How often, and for how long, work on nodes is tried again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final, TypeVar

from trainmaster.control.task.job_context import NodeGoneError
from trainmaster.spec.errors import ProviderError, one_line
from trainmaster.transport.base import CommandError, ConnectionLostError

T = TypeVar("T")

_PAUSE_S: Final = 1.0
#: So often a long transfer may be cut off.
MOST_CUTS: Final = 10
#: Before what failed on a node is tried again.
_PAUSES_S: Final = (1.0, 4.0, 16.0)


def patiently(work: Callable[[], T], patience_s: float, *, is_returning: bool = True) -> T:
    """Try again what nodes do not answer to.

    What went on for longer than the patience before it was cut off gets all of it once more, a few times.

    Args:
        work: safe to repeat.
        patience_s: so long.
        is_returning: a node that is missing may come back: what needs it is tried again, too.

    Raises:
        ProviderError: a node was silent for too long.
        NodeGoneError: a node is missing.
    """
    failing_since, cuts = math.inf, 0
    while True:
        begun = time.monotonic()
        try:
            return work()
        except (ProviderError, NodeGoneError) as error:  # unreachable, too slow, or perhaps not there yet
            is_gone = isinstance(error, NodeGoneError) and not is_returning
            now = time.monotonic()
            was_long = isinstance(error, ConnectionLostError) and now - begun > patience_s
            if was_long and cuts < MOST_CUTS:
                failing_since, cuts = now, cuts + 1
            else:
                failing_since = min(failing_since, begun)
            if is_gone or now - failing_since > patience_s:
                raise
            time.sleep(_PAUSE_S)


def persistently(work: Callable[[], None], patience_s: float, tell: Callable[[str], None]) -> None:
    """The same, and what fails on a node, a few times: a store may be out of its reach for a moment.

    Args:
        work: safe to repeat.
        patience_s: see `patiently`.
        tell: is called each time.

    Raises:
        CommandError: it failed each time.
        ProviderError: see `patiently`.
        NodeGoneError: see `patiently`.
    """
    for pause_s in (*_PAUSES_S, None):
        try:
            patiently(work, patience_s)
            break
        except CommandError as error:
            if pause_s is None:
                raise
            tell(f"note: {one_line(error)}; it is tried again in {pause_s:.0f} s")
            time.sleep(pause_s)
        except (ProviderError, NodeGoneError) as error:  # the caller begins again, without a word
            tell(f"note: {one_line(error)}")
            raise
