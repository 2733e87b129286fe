"""`HostLedger`: which hosts this home has borrowed; one that does not answer is still known to be a node."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final, TypeVar

from trainmaster.providers.base import Node
from trainmaster.providers.inventory import InventoryHost
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.spec.private_files import write_private

T = TypeVar("T")

#: Beside the files of clusters.
_SIZES: Final = "memory-of-hosts"
_CORES: Final = "cores-of-hosts"
_CARDS: Final = "mbps-of-hosts"
_ASKED: Final = "asked-hosts"
#: In place of a rate, where hosts did not reach each other.
_UNMEASURED: Final = -1.0


class HostLedger:
    """A file per cluster.

    Args:
        directory: where; made when there is something to remember.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def recall(self, cluster: str) -> list[Node]:
        """The nodes of a cluster as they were when it was last written."""
        return _told(list[Node], self._file(cluster), "nodes") or []  # the hosts know

    def tokens(self, cluster: str) -> dict[str, str]:
        """By which request each of these nodes came."""
        return _told(dict[str, str], self._file(cluster), "tokens") or {}

    def remember(self, cluster: str, nodes: Iterable[Node], tokens: Mapping[str, str] | None = None) -> None:
        """Write down the nodes of a cluster, and by which requests some came; without nodes, forget it."""
        tokens = {**self.tokens(cluster), **(tokens or {})}
        rows = [{**asdict(node), "key": os.fspath(node.key) if node.key else None} for node in nodes]
        file = self._file(cluster)
        if not rows:
            file.unlink(missing_ok=True)
            return
        write_private(file, json.dumps({"cluster": cluster, "nodes": rows, "tokens": tokens}).encode())

    def sizes(self) -> dict[str, int]:
        """Main memory of hosts, in bytes, as they told last; those that never did are missing."""
        return _told(dict[str, int], self._directory / _SIZES) or {}

    def cores(self) -> dict[str, float]:
        """Processors of hosts that our login may use, the same way."""
        return _told(dict[str, float], self._directory / _CORES) or {}

    def mbps(self, *, measured: bool = True) -> dict[str, float]:
        """What hosts got from each other while all sent, in Mbit/s; or also where that was tried in vain."""
        told = _told(dict[str, float], self._directory / _CARDS) or {}
        return {name: rate for name, rate in told.items() if rate > 0 or not measured}

    def learn_sizes(self, memory: Mapping[str, int], cores: Mapping[str, float]) -> None:
        """Write down how much memory hosts have, and how many processors."""
        self._learn(_SIZES, self.sizes(), memory)
        self._learn(_CORES, self.cores(), cores)

    def learn_mbps(self, rates: Mapping[str, float]) -> None:
        """Write down what hosts got from each other; 0 where they did not reach each other."""
        told = {name: rate or _UNMEASURED for name, rate in rates.items()}
        self._learn(_CARDS, self.mbps(measured=False), told)

    def asked(self) -> dict[str, float]:
        """When hosts were asked last for what they had never said, in Unix seconds."""
        return _told(dict[str, float], self._directory / _ASKED) or {}

    def note_asked(self, names: Iterable[str], at: float) -> None:
        """These were asked then."""
        self._learn(_ASKED, self.asked(), dict.fromkeys(names, at))

    def _learn(self, file: str, known: Mapping[str, float], told: Mapping[str, float]) -> None:
        new = {**known, **{name: size for name, size in told.items() if size}}
        if new != known:
            with contextlib.suppress(OSError):  # a full disk: they tell again
                write_private(self._directory / file, json.dumps(new).encode())

    def clusters(self) -> list[str]:
        """Those that are remembered."""
        found = (_told(str, file, "cluster") for file in self._directory.glob("*.json"))
        return [name for name in found if name is not None]

    def _file(self, cluster: str) -> Path:
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}", cluster):
            return self._directory / f"{cluster}.json"
        return self._directory / f"{hashlib.sha256(cluster.encode()).hexdigest()[:24]}.json"


def _told(kind: type[T], file: Path, *keys: str) -> T | None:
    """What a file says, there; None if it says nothing of that kind."""
    try:
        said = parsed_json(file.read_bytes())
        for key in keys:
            said = said[key]
        return typed(kind, said)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def as_host(node: Node) -> InventoryHost:
    """A host that has left the inventory while it was in use."""
    shared = InventoryHost.model_fields.keys() - {"name", "line", "labels"}
    facts = {field: getattr(node, field) for field in shared}
    return InventoryHost(name=node.id, labels=dict(node.labels), **facts)
