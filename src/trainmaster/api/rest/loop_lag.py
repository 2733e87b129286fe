"""`LoopLag`: how busy the server's loop is."""

from __future__ import annotations

import asyncio
import time
from typing import Final

_LOOK_EVERY_S: Final = 1.0


class LoopLag:
    """How late the loop of all requests is with what it was to do at a time.

    Attributes:
        seconds: of the last look.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    async def watch(self) -> None:
        """Look at it, until cancelled."""
        while True:
            due_s = time.monotonic() + _LOOK_EVERY_S
            await asyncio.sleep(_LOOK_EVERY_S)
            self.seconds = time.monotonic() - due_s
