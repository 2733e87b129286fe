"""`UnknownTime`: what a quote says in place of time and cost where nothing is known of its jobs."""

from __future__ import annotations

from typing import Any

from trainmaster.advisor.quote.interval import Interval
from trainmaster.dataclass import dataclass
from trainmaster.spec.plain_json import JsonObject
from trainmaster.spec.units import format_duration


@dataclass(frozen=True, slots=True)
class UnknownTime(JsonObject):
    """Of a run of which nothing was measured.

    Attributes:
        starts_s: seconds until the first members of its tasks start, without a queue.
        ends: what ends it at the latest, in words; empty if nothing does.
        queue: how long its machines wait before that, in words; empty where there is no queue.
        why: what is known of its jobs does not say how long they run; empty where nothing is known.
        like_others_s: seconds that it would run if it were like other jobs of the home or the team: wide, no
            quote, and bound by nothing; None if there are none.
    """

    starts_s: Interval
    ends: str = ""
    queue: str = ""
    why: str = ""
    like_others_s: Interval | None = None

    def words(self, why: str = "") -> str:
        """For people.

        >>> UnknownTime(Interval(25, 30, 40), "timeout ends it after 1 h").words("code is new")
        'starts in 25 s to 40 s; how long it runs is not known, as code is new; timeout ends it after 1 h'
        >>> UnknownTime(Interval(1, 2, 3), like_others_s=Interval(5, 60, 900)).words()
        'starts in 1 s to 3 s; how long it runs is not known; like your other jobs it would be 5 s to 15 min'
        """
        starts = self.starts_s.span(format_duration)
        starts += f" (waits before that {self.queue})" if self.queue else ""
        because = f", as {self.why or why}" if self.why or why else ""
        others = f"; {self.others_words()}" if self.like_others_s else ""
        ends = f"; {self.ends}" if self.ends else ""
        return f"starts in {starts}; how long it runs is not known{because}{others}{ends}"

    def others_words(self) -> str:
        """How long it would run if it were like other jobs; empty where there are none."""
        if self.like_others_s is None:
            return ""
        return f"like your other jobs it would be {self.like_others_s.span(format_duration)}"

    def as_dict(self) -> dict[str, Any]:
        """For ``--json`` and REST."""
        return {**JsonObject.as_dict(self), "words": self.words()}
