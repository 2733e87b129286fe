"""Where attempts ran: which machine each member was on, and which provider it is of."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from trainmaster.db import queries

if TYPE_CHECKING:
    from trainmaster.control.task.layout import RunFiles
    from trainmaster.db import Database

#: So many tasks are looked at, those that were made first.
_MAX_TASKS: Final = 1000


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
        from trainmaster.cluster.member_places import PLACES, read_places

        directory = self._files.attempt(self._run, experiment, task, attempt).directory
        return [
            {"member": member, **self._known.get(id_, {"provider": "", "machine": ""}), "id": id_}
            for member, id_ in read_places(directory / PLACES).items()
        ]

    def tasks(self) -> dict[str, dict[str, int]]:
        """By experiment and provider, of how many tasks the newest attempt was, or is, there."""
        found: dict[str, Counter[str]] = {}
        for row in queries.tasks(self._database, self._run, limit=_MAX_TASKS):
            machines = self.machines(row["experiment"], row["number"], row["attempt"])
            found.setdefault(row["experiment"], Counter()).update({m["provider"] for m in machines} - {""})
        return {name: dict(sorted(counts.items())) for name, counts in found.items() if counts}

    @functools.cached_property
    def _known(self) -> Mapping[str, dict[str, str]]:
        from trainmaster.cluster.record import readable

        rows = self._database.clusters_of(self._run)
        return {
            machine.id: {"provider": record.provider, "machine": record.name_of(machine.seat)}
            for record in readable(rows, lambda _: None)
            for machine in record.machines
            if machine.id
        }
