"""`MemberPlaces`: which machine each member of an attempt is on, by its id.

Clusters speak of addresses, and a machine that replaces another one may get its address. What the other one
held is lost all the same, so a member's machine is looked up once, when its place is first heard of, and
written down for the next driver of the run.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.spec.plain_json import parsed_json

if TYPE_CHECKING:
    from trainmaster.cluster.cluster_connection import Places
    from trainmaster.cluster.node_access import NodeAccess

#: In an attempt's directory: the machine of each member.
PLACES: Final = "places.json"


@dataclass(slots=True)
class _Known:
    """What is known of an attempt.

    Attributes:
        places: members, in rank order, with addresses.
        candidates: ids of the machines that there were when they were first heard of.
        machines: ids, by member.
    """

    places: Places
    candidates: frozenset[str]
    machines: dict[str, str]


def read_places(path: Path) -> dict[str, str]:
    """The machine of each member, as an earlier driver has written it; nothing if the file is damaged."""
    with contextlib.suppress(OSError, ValueError):
        found = parsed_json(path.read_bytes())
        if isinstance(found, dict) and all(isinstance(machine, str) for machine in found.values()):
            return {name: machine for name, machine in found.items() if machine}
    return {}


class MemberPlaces:
    """Threads share it.

    Args:
        directory_of: given an attempt's id, its directory here.
    """

    def __init__(self, directory_of: Callable[[str], Path]) -> None:
        self._directory_of = directory_of
        self._guard = threading.Lock()
        self._known: dict[str, _Known] = {}

    def hear(
        self,
        attempt: str,
        places: Places,
        nodes: Mapping[str, NodeAccess],
        machines: Collection[str],
        *,
        has_started: bool,
    ) -> None:
        """Take in where an attempt's members are.

        Args:
            attempt: its id.
            places: members, in rank order, with private addresses.
            nodes: that are there, by machine id.
            machines: ids of all that the cluster has ever had.
            has_started: from then on its members stay where they are.
        """
        with self._guard:
            known = self._known.get(attempt)
            if known is None or not (has_started or dict(known.places) == dict(places)):
                # An earlier driver has written down where it started; what was only granted begins again.
                written = self._read(attempt) if has_started else {}
                known = _Known(places, frozenset(machines), written)
                self._known[attempt] = known
            known.places = places
            self._find(attempt, known, nodes)

    def machines(self, attempt: str, nodes: Mapping[str, NodeAccess]) -> list[tuple[str, str]]:
        """Members of an attempt with the ids of their machines, in rank order; unknown ones are missing.

        What an earlier driver has written down counts until somebody says otherwise.

        Args:
            attempt: its id.
            nodes: that are there, by machine id.
        """
        with self._guard:
            known = self._known.get(attempt)
            if known is None:  # not heard of since this driver began
                return list(self._read(attempt).items())
            self._find(attempt, known, nodes)
            return [(name, known.machines[name]) for name, _ in known.places if name in known.machines]

    def leave(self, attempt: str) -> None:
        """It is submitted again, for a place that is not known yet."""
        self.forget(attempt)
        with contextlib.suppress(OSError):
            (self._directory_of(attempt) / PLACES).unlink()

    def forget(self, attempt: str) -> None:
        """Its end is recorded; what is written stays."""
        with self._guard:
            self._known.pop(attempt, None)

    def _find(self, attempt: str, known: _Known, nodes: Mapping[str, NodeAccess]) -> None:
        missing = {name: address for name, address in known.places if name not in known.machines}
        if not missing:
            return
        ids = {node.address: machine for machine, node in nodes.items() if machine in known.candidates}
        found = {name: ids[address] for name, address in missing.items() if address in ids}
        if found:
            known.machines |= found
            self._write(attempt, {name: known.machines.get(name, "") for name, _ in known.places})

    def _read(self, attempt: str) -> dict[str, str]:
        return read_places(self._directory_of(attempt) / PLACES)

    def _write(self, attempt: str, machines: Mapping[str, str]) -> None:
        directory = self._directory_of(attempt)
        with contextlib.suppress(OSError):  # a full disk: a next driver goes by the addresses
            directory.mkdir(parents=True, exist_ok=True)
            draft = directory / f".{PLACES}"
            draft.write_text(json.dumps({name: machine for name, machine in machines.items() if machine}))
            draft.replace(directory / PLACES)
