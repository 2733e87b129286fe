"""`UnknownTime`: what a quote says in place of time and cost where nothing is known of its jobs."""

from __future__ import annotations

from typing import Any

from trainmaster.advisor.quote.interval import Interval
from trainmaster.dataclass import dataclass
from trainmaster.spec.plain_json import Told
from trainmaster.spec.units import format_duration


@dataclass(frozen=True, slots=True)
class UnknownTime(Told):
    """Of a run of which nothing was measured.

    Attributes:
        starts_s: seconds until the first members of its tasks start, without a queue.
        ends: what ends it at the latest, in words; empty if nothing does.
        queue: how long its machines wait before that, in words; empty where there is no queue.
    """

    starts_s: Interval
    ends: str = ""
    queue: str = ""

    def words(self, why: str = "") -> str:
        """For people.

        >>> UnknownTime(Interval(25, 30, 40), "timeout ends it after 1 h").words("code is new")
        'starts in 25 s to 40 s; how long it runs is not known, as code is new; timeout ends it after 1 h'
        """
        starts = self.starts_s.span(format_duration)
        starts += f" (waits before that {self.queue})" if self.queue else ""
        because, ends = f", as {why}" if why else "", f"; {self.ends}" if self.ends else ""
        return f"starts in {starts}; how long it runs is not known{because}{ends}"

    def as_dict(self) -> dict[str, Any]:
        """For ``--json`` and REST."""
        return {**Told.as_dict(self), "words": self.words()}
