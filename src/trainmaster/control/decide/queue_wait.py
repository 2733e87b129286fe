"""`QueueWait`: whether a run waits for what other runs hold, or for a person, and how long it has. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.db.changes import Change, Note, QueueChange
from trainmaster.executors.base import QueuePlace
from trainmaster.spec.facts import AwaitedApproval, QueuedMachines
from trainmaster.spec.units import format_duration

#: A shorter wait is not reported and does not count: runs take turns all the time.
TOLD_AFTER_S: Final = 1.0
#: Somebody else's tasks may come and go many times a second.
_CHANGED_EVERY_S: Final = 2.0

Awaited = QueuePlace | QueuedMachines | AwaitedApproval


@dataclass(slots=True)
class QueueWait:
    """What is known of a run's waiting.

    Attributes:
        earlier_s: how long it has waited, until it went on.
        place: what it waits for now; None if something of it runs.
        since: Unix seconds.
        is_told: it has waited so long that it counts.
    """

    earlier_s: float = 0.0
    place: Awaited | None = None
    since: float = 0.0
    is_told: bool = False
    _changed_at: float = 0.0

    def waited_s(self, now: float) -> float:
        """How long it has waited in all."""
        return self.earlier_s + (now - self.since if self.is_told else 0.0)

    def look(self, place: Awaited | None, now: float, *, works: bool = True) -> list[Change]:
        """Take in what it waits for now; what is to be written down and told.

        Args:
            place: None if nothing.
            now: Unix seconds.
            works: something of it may run now; else it does not go on.
        """
        if place is None:
            return self._end(now, works=works)
        if self.place is None:
            self.place, self.since = place, now
        if not self.is_told:
            self.place = place
            if now - self.since < TOLD_AFTER_S:
                return []
            self.is_told, self._changed_at = True, now
            return [*map(Note, filter(None, [place.note])), _written(place)]
        if place == self.place or now - self._changed_at < _CHANGED_EVERY_S:
            return []
        self.place, self._changed_at = place, now
        return [_written(place)]

    def undriven(self, seconds: float) -> list[Change]:
        """Take in that nothing has driven the run, and nothing of it worked; a wait counts anyway."""
        if self.is_told or seconds < TOLD_AFTER_S:
            return []
        self.earlier_s += seconds
        words = f"nothing drove it for {format_duration(seconds)}, which counts as waiting"
        return [Note(words), QueueChange(None, seconds, is_undriven=True)]

    def _end(self, now: float, *, works: bool) -> list[Change]:
        was_told, waited_for, self.place, self.is_told = self.is_told, self.place, None, False
        if not was_told:
            return []
        waited_s = now - self.since
        self.earlier_s += waited_s
        took = format_duration(waited_s)
        if isinstance(waited_for, AwaitedApproval):  # it may have been denied
            return [Note(f"waited {took} for {waited_for.words}"), QueueChange(None, waited_s)]
        words = "goes on after waiting" if works else "waited"
        return [Note(f"{words} {took}"), QueueChange(None, waited_s)]


def _written(place: Awaited) -> QueueChange:
    return QueueChange(json.dumps(asdict(place)))
