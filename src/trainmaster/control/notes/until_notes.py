"""`UntilNotes`: tells of an `until` that looks at a metric which nothing reports, once per experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from trainmaster.db.changes import Note
from trainmaster.spec.until import Until

if TYPE_CHECKING:
    from trainmaster.control.measure.progress import TaskProgress

#: So long a task may report other things before its `until` metric is missed: evaluations are rare.
MISSED_AFTER_S: Final = 60.0


class UntilNotes:
    """Notes about `until` while tasks run; how they ended tells the rest.

    Args:
        untils: by experiment.
    """

    def __init__(self, untils: Mapping[str, Until | None]) -> None:
        self._untils = {name: until for name, until in untils.items() if until is not None}
        self._since: dict[tuple[str, int], float] = {}

    def look(self, progress: Mapping[tuple[str, int], TaskProgress], now: float) -> list[Note]:
        """What is new; nothing of an experiment one of whose tasks has reported the metric."""
        notes = []
        for key, found in progress.items():
            name, until = key[0], self._untils.get(key[0])
            if until is None or not found.metrics:
                continue
            if until.metric in found.metrics:
                del self._untils[name]
            elif now - self._since.setdefault(key, now) >= MISSED_AFTER_S:
                del self._untils[name]
                words = f"{until.missed(found.metrics)} so far. Nothing ends this training early"
                notes.append(Note(f"warning: {words}", name, key[1]))
        return notes
