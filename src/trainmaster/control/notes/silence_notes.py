"""`SilenceNotes`: tells of attempts that have shown no sign of work for minutes, which nothing ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from trainmaster.control.decide.effects import Policy
from trainmaster.db.changes import Note
from trainmaster.spec.units import format_duration

if TYPE_CHECKING:
    from pathlib import Path

    from trainmaster.control.measure.progress import TaskProgress

#: So long without a sign of work is told, where the recipe has no `silence`.
TOLD_AFTER_S: Final = 600.0


class SilenceNotes:
    """One note for each silence of an attempt.

    Args:
        policies: of experiments whose tasks are to end; replicas may wait for requests.
    """

    def __init__(self, policies: Mapping[str, Policy]) -> None:
        self._names = {name for name, policy in policies.items() if policy.silence_s is None}
        self._told: set[Path] = set()

    def look(self, progress: Mapping[tuple[str, int], TaskProgress]) -> list[Note]:
        """What is new."""
        notes = []
        for (name, number), found in progress.items():
            if name not in self._names:
                continue
            if found.silent_s < TOLD_AFTER_S:
                self._told.discard(found.directory)
            elif found.directory not in self._told:
                self._told.add(found.directory)
                words = f"{format_duration(found.silent_s)} without a line, a metric or processor time"
                advice = "`silence: 10m` in the recipe would end it, with its stacks in its log"
                notes.append(Note(f"warning: {words}; {advice}", name, number))
        return notes
