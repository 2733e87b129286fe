"""Whoever looks on while a driver works: what is written down for the user is told there, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainmaster.db.changes import Note
from trainmaster.testing.simulated_world import ViolationError

if TYPE_CHECKING:
    from trainmaster.control.loop.reconcile import Reconciliation
    from trainmaster.control.loop.run_state import RunState, Task
    from trainmaster.control.measure.progress import TaskProgress
    from trainmaster.db.changes import Change


class SimulatedWatcher:
    """A `Watcher` of one driver; see there for the methods."""

    def __init__(self) -> None:
        self._untold: list[Note] = []

    def written(self, changes: Sequence[Change]) -> None:
        """These were just committed.

        Raises:
            ViolationError: a note of before was not told.
        """
        self.require()
        self._untold = [change for change in changes if isinstance(change, Note)]

    def require(self) -> None:
        """Nothing that was written down is left untold.

        Raises:
            ViolationError: a note was not told.
        """
        if self._untold:
            raise ViolationError(f"it is written down, but nobody who looks on was told: {self._untold[0]}")

    def turned(self, _: RunState, turn: Reconciliation, __: Mapping[tuple[str, int], TaskProgress]) -> None:
        """Notes of one turn are told, in their order."""
        if [change for change in turn.changes if isinstance(change, Note)] != self._untold:
            raise ViolationError(f"other notes are told than were written down: {self._untold}")
        self._untold = []

    def output(self, task: Task, member: str) -> None:
        """Output is no note."""

    def say(self, line: str) -> None:
        """Such a line is in no event."""
