"""Where attempts ran: which machine each member was on, and which provider it is of."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trainmaster.control.task.layout import RunFiles
from trainmaster.db import Database, queries
from trainmaster.spec.states import State

#: So many tasks are looked at, those that were made first.
MAX_TASKS: Final = 1000
#: Where attempts were that are over, by their directory: that does not change.
_over: dict[Path, dict[str, str]] = {}
_MOST_OVER: Final = 50_000


class TaskPlaces:
    """Of one run, by what its driver has written down; nothing of a run on this machine.

    Args:
        database: the database.
        files: where the run's attempts lie.
        run: its id.
    """

    def __init__(self, database: Database, files: RunFiles, run: str) -> None:
        self._database = database
        self._files = files
        self._run = run

    def machines(self, experiment: str, task: int, attempt: int) -> list[dict[str, Any]]:
        """Of each ``member`` the ``provider``, name (``machine``) and ``id`` of its machine."""
        return [
            {"member": member, **self._known.get(id_, {"provider": "", "machine": ""}), "id": id_}
            for member, id_ in self._places(experiment, task, attempt, is_over=False).items()
        ]

    def _places(self, experiment: str, task: int, attempt: int, *, is_over: bool) -> dict[str, str]:
        """The machine of each member; read once of an attempt that is over."""
        from trainmaster.cluster.member_places import PLACES, read_places

        directory = self._files.attempt(self._run, experiment, task, attempt).directory
        if is_over and directory in _over:
            return _over[directory]
        found = read_places(directory / PLACES)
        if is_over and found and len(_over) < _MOST_OVER:
            _over[directory] = found
        return found

    def tasks(self) -> tuple[dict[str, dict[str, int]], bool]:
        """By experiment and provider, of how many tasks the newest attempt was, or is, there.

        Also whether the run has more tasks than the first `MAX_TASKS`, which alone count.
        """
        found: dict[str, Counter[str]] = {}
        rows = queries.tasks(self._database, self._run, limit=MAX_TASKS + 1)
        for row in rows[:MAX_TASKS]:
            found.setdefault(row["experiment"], Counter()).update(self._providers(row))
        by_place = {name: dict(sorted(counts.items())) for name, counts in found.items() if counts}
        return by_place, len(rows) > MAX_TASKS

    def place(self, task: Mapping[Any, Any]) -> str:
        """Where the newest attempt of a task is, or was; empty of a run in one place.

        Args:
            task: its row.
        """
        if len({each["provider"] for each in self._known.values()}) < 2:
            return ""
        return ", ".join(sorted(self._providers(task)))

    def _providers(self, task: Mapping[Any, Any]) -> set[str]:
        """Those of the machines of a task's newest attempt."""
        is_over = task["state"] == State.DONE
        ids = self._places(task["experiment"], task["number"], task["attempt"], is_over=is_over).values()
        return {self._known[each]["provider"] for each in ids if each in self._known}

    @functools.cached_property
    def _known(self) -> Mapping[str, dict[str, str]]:
        rows = self._database.clusters_of(self._run)
        if not rows:
            return {}
        from trainmaster.cluster.record import readable

        return {
            machine.id: {"provider": record.provider_of(machine), "machine": record.name_of(machine.seat)}
            for record in readable(rows, lambda _: None)
            for machine in record.machines
            if machine.id
        }
