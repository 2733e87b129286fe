"""`NodeLedger`: what was found out of a cluster's machines, for the next process that drives it.

A driver that takes over or adopts a warm cluster has its nodes in a moment: each is asked whether it still is
what it was, and nothing is made that is there. All of it may be lost: then it is found out anew.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

from trainmaster.cluster.bootstrap.facts import HostFacts
from trainmaster.dataclass import dataclass, field
from trainmaster.providers.base import Node
from trainmaster.spec.plain_json import kept, typed
from trainmaster.spec.private_files import write_private

_FILE: Final = "nodes.json"
_Type = TypeVar("_Type")


@dataclass(slots=True)
class _KnownNodes:
    """What is written. nodes: by machine. logins: machines that let each other in."""

    nodes: dict[str, Any] = field(default_factory=dict)
    logins: list[str] = field(default_factory=list)


class NodeLedger:
    """Of one cluster. Threads share it.

    Args:
        directory: where it is kept; goes with the cluster.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self._lock = threading.Lock()
        self._data: _KnownNodes | None = None

    def nodes(self, machines: Iterable[str]) -> dict[str, Node]:
        """What the provider had said of machines when they became nodes, by id; of those that are known."""
        found = {}
        for machine in machines:
            row = self._row(machine)
            node = _read_as(Node, row.get("node")) if row else None
            if node is not None:
                found[machine] = node
        return found

    def facts(self, machine: str) -> HostFacts | None:
        """What a machine was when it became a node."""
        row = self._row(machine)
        return _read_as(HostFacts, row.get("facts")) if row else None

    def learn(self, node: Node, facts: HostFacts, *, is_new: bool = True) -> None:
        """A machine has become a node; one that is new has no keys of the others."""
        row = {
            "node": {**asdict(node), "key": str(node.key) if node.key else None},
            "facts": {**asdict(facts), "have": sorted(facts.have)},
        }
        with self._lock:
            data = self._read()
            data.nodes[node.id] = row
            if is_new:
                data.logins = []
            self._write(data)

    def have_keys(self, machines: Iterable[str]) -> bool:
        """Whether these let each other in."""
        with self._lock:
            return set(machines) <= set(self._read().logins)

    def gave_keys(self, machines: Iterable[str]) -> None:
        """These let each other in now."""
        with self._lock:
            data = self._read()
            data.logins = sorted(machines)
            self._write(data)

    def clear(self) -> None:
        """Something is not as it was: find all out again."""
        with self._lock:
            self._data = _KnownNodes()
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _row(self, machine: str) -> Mapping[str, Any] | None:
        with self._lock:
            found = self._read().nodes.get(machine)
        return found if isinstance(found, dict) else None

    def _read(self) -> _KnownNodes:
        if self._data is None:
            self._data = kept(_KnownNodes, self._path) or _KnownNodes()
        return self._data

    def _write(self, data: _KnownNodes) -> None:
        with contextlib.suppress(OSError):  # a full disk
            write_private(self._path, json.dumps(asdict(data)).encode())


def _read_as(kind: type[_Type], row: object) -> _Type | None:
    try:
        return typed(kind, row)
    except ValueError:  # another version has written it, or the disk is damaged
        return None
