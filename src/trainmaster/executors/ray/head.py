"""What speaks with Ray for a driver, on the cluster's head: `python -m trainmaster.executors.ray.head NODE`.

A driver calls it over SSH, see `AgentProgram`. So nothing of Ray gets into a driver's process, one process
may drive several clusters, and no port of Ray's answers anybody who has no certificate of the cluster's. It
ends with its stream. What it has made stays: reservations are detached, and so are the actors.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.executors.gangs.agent import AgentProgram
from trainmaster.executors.gangs.engine import NODE_LABEL
from trainmaster.executors.ray.commands import authentication
from trainmaster.executors.ray.node_actor import actor_of
from trainmaster.executors.supervisor.processes import forbid_core_dumps
from trainmaster.executors.wire import encode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_HEAD_TIMEOUT_S = 5.0
_NAMESPACE = "trainmaster"
_PREFIX = "trainmaster/"
#: Each node has a call that waits for news, and perhaps one that hands over commands.
_THREADS = 2048
_LOOK_S = (0.002, 0.1)
#: A resource that Ray gives to the head only.
_HEAD = "node:__internal_head__"


class RayHead:
    """Ray's node table, its placement groups, and the way to the actor on each node; called from threads."""

    def __init__(self) -> None:
        self._made: set[str] = set()
        self._actors: dict[str, Any] = {}

    def alive(self) -> list[list[Any]]:
        """Those of our nodes that Ray takes to be alive, with the fields of `LiveNode`."""
        import ray

        return [
            [
                row["Labels"][NODE_LABEL],
                row["NodeID"],
                row["NodeManagerAddress"],
                float(row["Resources"].get("CPU", 0.0)),
                int(row["Resources"].get("GPU", 0)),
                dict(row["Labels"]),
                _HEAD in row["Resources"],
            ]
            for row in ray.nodes()
            if row["Alive"] and NODE_LABEL in (row.get("Labels") or {})
        ]

    def connect(self, node_id: str) -> None:
        """Find a node's actor, or make it."""
        self._actors[node_id] = actor_of(node_id)

    def call(self, node_id: str, name: str, arguments: Sequence[Any]) -> object:
        """Call a method of the `Agent` on a node."""
        import ray

        try:
            return ray.get(getattr(self._actors[node_id], name).remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def reserve(
        self, name: str, bundles: list[dict[str, float]], strategy: str, labels: list[dict[str, str]]
    ) -> list[Any]:
        """Make a placement group, and wait for its place.

        Returns:
            The node of each bundle, none if it was removed meanwhile; why Ray refuses it, such as its labels.
        """
        from ray.util.placement_group import placement_group, placement_group_table

        self._made.add(name)
        own = f"{_PREFIX}{name}"
        try:
            group = placement_group(bundles, strategy, own, lifetime="detached", bundle_label_selector=labels)
        except (ValueError, TypeError) as error:
            return [[], str(error)]
        pause_s, longest_s = _LOOK_S
        while (row := placement_group_table(group)).get("state") != "CREATED":
            if name not in self._made or row.get("state") == "REMOVED":
                _remove([name])
                return [[], ""]
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)
        nodes = row["bundles_to_node_id"]
        return [[nodes[index] for index in range(len(bundles))], ""]

    def remove(self, names: Sequence[str]) -> None:
        """Give back placement groups, those too that have no place yet."""
        self._made.difference_update(names)
        _remove(names)

    def keep(self, names: Collection[str]) -> None:
        """Remove what an earlier driver has left, but for these."""
        from ray.util.placement_group import placement_group_table

        found = [
            row["name"].removeprefix(_PREFIX)
            for row in placement_group_table().values()
            if row["name"].startswith(_PREFIX) and row["state"] != "REMOVED"
        ]
        _remove([name for name in found if name not in names and name not in self._made])


def _remove(names: Sequence[str]) -> None:
    from ray.util import get_placement_group, remove_placement_group

    for name in names:
        try:
            remove_placement_group(get_placement_group(f"{_PREFIX}{name}"))
        except ValueError:  # it is gone, or not there yet
            continue


def main(arguments: list[str]) -> None:
    """Serve one driver."""
    forbid_core_dumps()
    output = os.dup(1)
    os.dup2(2, 1)  # what Ray prints is no answer
    directory = json.loads(arguments[0])["directory"]
    node = json.loads(Path(f"{directory}/node.json").read_text())
    os.environ.update(authentication(directory), RAY_USAGE_STATS_ENABLED="0")
    try:
        _connect(node)
    except (OSError, RuntimeError, ValueError) as error:
        words = str(error).strip().splitlines()[-1:]
        os.write(output, encode({"refused": f"Ray's head at {node['cluster']} does not answer: {words}"}))
        os._exit(1)
    AgentProgram(RayHead(), _THREADS, output).serve()


def _connect(node: Mapping[str, str]) -> None:
    host, _, port = node["cluster"].rpartition(":")
    socket.create_connection((host, int(port)), _HEAD_TIMEOUT_S).close()  # Ray would try for a minute
    import ray

    ray.init(
        address=node["cluster"],
        namespace=_NAMESPACE,
        _node_ip_address=node["address"],
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=False,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
