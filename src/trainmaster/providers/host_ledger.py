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
from typing import Final

from trainmaster.providers.base import Node
from trainmaster.providers.inventory import InventoryHost
from trainmaster.spec.plain_json import parsed_json, typed
from trainmaster.spec.private_files import write_private

#: Beside the files of clusters.
_SIZES: Final = "memory-of-hosts"


class HostLedger:
    """A file per cluster.

    Args:
        directory: where; made when there is something to remember.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def recall(self, cluster: str) -> list[Node]:
        """The nodes of a cluster as they were when it was last written."""
        try:
            rows = parsed_json(self._file(cluster).read_bytes())["nodes"]
            return [typed(Node, row) for row in rows]
        except (OSError, ValueError, LookupError, TypeError):
            return []  # the hosts know

    def tokens(self, cluster: str) -> dict[str, str]:
        """By which request each of these nodes came."""
        try:
            return typed(dict[str, str], parsed_json(self._file(cluster).read_bytes())["tokens"])
        except (OSError, ValueError, LookupError, TypeError):
            return {}

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
        try:
            return typed(dict[str, int], parsed_json((self._directory / _SIZES).read_bytes()))
        except (OSError, ValueError, LookupError, TypeError):
            return {}

    def learn_sizes(self, told: Mapping[str, int]) -> None:
        """Write down how much memory hosts have."""
        known = self.sizes()
        new = known | {name: size for name, size in told.items() if size}
        if new == known:
            return
        with contextlib.suppress(OSError):  # a full disk: they tell again
            write_private(self._directory / _SIZES, json.dumps(new).encode())

    def clusters(self) -> list[str]:
        """Those that are remembered."""
        found = []
        for file in self._directory.glob("*.json"):
            try:
                found.append(typed(str, parsed_json(file.read_bytes())["cluster"]))
            except (OSError, ValueError, LookupError, TypeError):
                continue
        return found

    def _file(self, cluster: str) -> Path:
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}", cluster):
            return self._directory / f"{cluster}.json"
        return self._directory / f"{hashlib.sha256(cluster.encode()).hexdigest()[:24]}.json"


def as_host(node: Node) -> InventoryHost:
    """A host that has left the inventory while it was in use."""
    shared = InventoryHost.model_fields.keys() - {"name", "line", "labels"}
    facts = {field: getattr(node, field) for field in shared}
    return InventoryHost(name=node.id, labels=dict(node.labels), **facts)
