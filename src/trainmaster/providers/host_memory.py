"""`HostMemory`: which hosts this home has borrowed; one that does not answer is still known to be a node."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainmaster.providers.base import Node, NodeState
from trainmaster.providers.inventory import InventoryHost


class HostMemory:
    """A file per cluster.

    Args:
        directory: where; made when there is something to remember.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def recall(self, cluster: str) -> list[Node]:
        """The nodes of a cluster as they were when it was last written."""
        try:
            rows = json.loads(self._file(cluster).read_text(encoding="utf-8"))["nodes"]
            return [_node(row) for row in rows]
        except (OSError, ValueError, KeyError, TypeError):
            return []  # the hosts know

    def tokens(self, cluster: str) -> dict[str, str]:
        """By which request each of these nodes came."""
        try:
            found = json.loads(self._file(cluster).read_text(encoding="utf-8"))["tokens"]
            return {str(name): str(token) for name, token in found.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def remember(self, cluster: str, nodes: Iterable[Node], tokens: Mapping[str, str] | None = None) -> None:
        """Write down the nodes of a cluster, and by which requests some came; without nodes, forget it."""
        tokens = {**self.tokens(cluster), **(tokens or {})}
        rows = [{**asdict(node), "key": os.fspath(node.key) if node.key else None} for node in nodes]
        file = self._file(cluster)
        if not rows:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        draft.write_text(json.dumps({"cluster": cluster, "nodes": rows, "tokens": tokens}), encoding="utf-8")
        draft.replace(file)

    def clusters(self) -> list[str]:
        """Those that are remembered."""
        found = []
        for file in self._directory.glob("*.json"):
            try:
                found.append(str(json.loads(file.read_text(encoding="utf-8"))["cluster"]))
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return found

    def _file(self, cluster: str) -> Path:
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}", cluster):
            return self._directory / f"{cluster}.json"
        return self._directory / f"{hashlib.sha256(cluster.encode()).hexdigest()[:24]}.json"


def as_host(node: Node) -> InventoryHost:
    """A host that has left the inventory while it was in use."""
    return InventoryHost(
        name=node.id,
        address=node.address,
        port=node.port,
        user=node.user,
        key=node.key,
        private_address=node.private_address,
        host_key=node.host_key,
        jump=node.jump,
        python=node.python,
        directory=node.directory,
        slots=node.slots,
        gpus=node.gpus,
        labels=dict(node.labels),
    )


def _node(row: Mapping[str, Any]) -> Node:
    return Node(**{**row, "state": NodeState(row["state"]), "key": Path(row["key"]) if row["key"] else None})
