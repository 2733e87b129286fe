"""`ProviderClock`: how far a provider's clock is ahead of ours, as the dates of its answers tell."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Final

#: Dates name whole seconds, and a clock drifts: what differs by less is the same.
_SAME_S: Final = 2.0


class ProviderClock:
    """Translates times that a provider states into ours, and back. Threads may share it.

    Args:
        clock: ours: gives Unix seconds; never set back.

    Attributes:
        ahead_s: how far the provider's is ahead; 0 until it has answered.

    >>> clock = ProviderClock(lambda: 1767326645.5)
    >>> clock.heard("Fri, 02 Jan 2026 03:04:05 GMT", asked_at=1767326645.0)
    >>> clock.ahead_s, clock.now()
    (-3599.75, 1767323045.75)
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.ahead_s = 0.0

    def ours(self) -> float:
        """Unix seconds by our clock."""
        return self._clock()

    def now(self) -> float:
        """Unix seconds by the provider's clock."""
        return self._clock() + self.ahead_s

    def heard(self, date: str, asked_at: float) -> None:
        """Take in the date of an answer; what is known stays as long as it may be true.

        Args:
            date: as the header of that name has it; what is none is left out.
            asked_at: when that was asked, Unix seconds by our clock.
        """
        try:
            stated = parsedate_to_datetime(date).timestamp()
        except (TypeError, ValueError):
            return
        # It was read at some time between the question and now.
        least, most = stated - self._clock(), stated + 1.0 - asked_at
        for known in (self.ahead_s, 0.0):
            if least - _SAME_S <= known <= most + _SAME_S:
                self.ahead_s = known
                return
        self.ahead_s = (least + most) / 2
