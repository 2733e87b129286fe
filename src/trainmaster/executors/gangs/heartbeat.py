"""Whether a node takes connections: sooner than Ray finds it out, whose own question waits in a queue.

A packet that was lost is sent again after 0.2 s, 0.6 s, 1.4 s, 3 s, 6.2 s: a connection that has been cut for
four seconds is silent for six, and Ray cannot tell that from a node that is gone. A connection that is made
anew each time knows at once when the node can be reached again, and when nothing listens there any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_PERIOD_S: Final = 0.5
_TIMEOUT_S: Final = 1.0
#: Refused so often in a row: its engine has ended. A node that is busy does not refuse, its kernel waits.
_REFUSALS: Final = 3
#: Nothing is heard for so long, in so many tries: with none made, because we were busy, nothing is known.
SILENT_S: Final = 5.3
_SILENCES: Final = 4


@dataclass(slots=True)
class Heartbeat:
    """What was heard of a node; times are monotonic seconds.

    Attributes:
        heard_at: when it has shown a sign of life.
    """

    heard_at: float
    _silences: int = 0
    _refusals: int = 0

    def beat(self, now: float) -> None:
        """It has shown a sign of life."""
        self.heard_at = now
        self._silences = self._refusals = 0

    def refuse(self) -> None:
        """It can be reached, but refuses connections."""
        self._refusals += 1

    def miss(self) -> None:
        """It did not answer."""
        self._silences += 1
        self._refusals = 0

    def is_dead(self, now: float) -> bool:
        """Whether it is to be given up."""
        silent = self._silences >= _SILENCES and now - self.heard_at > SILENT_S
        return silent or self._refusals >= _REFUSALS


async def feel(address: str, port: int, heartbeat: Heartbeat, give_up: Callable[[], None]) -> None:
    """Ask a node again and again until it is to be given up.

    Args:
        address: of the node.
        port: on which its engine listens.
        heartbeat: is told what was heard; others may tell it more.
        give_up: called once, then it is over.
    """
    while not heartbeat.is_dead(time.monotonic()):
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                _, writer = await asyncio.open_connection(address, port)
            heartbeat.beat(time.monotonic())
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        except ConnectionRefusedError:
            heartbeat.refuse()
        except (OSError, TimeoutError):
            heartbeat.miss()
        await asyncio.sleep(max(0.0, asked_at + _PERIOD_S - time.monotonic()))
    give_up()
