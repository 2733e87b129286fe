"""A node's `Agent` as a detached actor of Ray's: any driver finds it by its name."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from trainmaster.executors.base import GangStatus
from trainmaster.executors.gangs.agent import Agent
from trainmaster.executors.gangs.life import UnattendedGangs
from trainmaster.executors.ray.commands import NODE_FILE_VARIABLE

_THREADS = 8
_TEND_S = 2.0
_ANSWER_S = 5.0


class NodeActor(Agent):
    """An `Agent` in a worker of Ray's on its node.

    While no driver is there, the actors ask each other what has become of gangs over several nodes, and Ray
    which nodes are dead: so nothing waits for a dead peer.
    """

    def __init__(self) -> None:
        super().__init__(json.loads(Path(os.environ[NODE_FILE_VARIABLE]).read_text()))
        threading.Thread(target=self._tend, name="tend", daemon=True).start()

    def _tend(self) -> None:
        rules = UnattendedGangs()
        while True:
            time.sleep(_TEND_S)
            lives = False
            with contextlib.suppress(Exception):  # whatever Ray raises, something is out of reach now
                lives = self.tend(rules, _elsewhere)
            rules = rules if lives else UnattendedGangs()


def _elsewhere(parts: dict[tuple[str, str], list[str]]) -> dict[str, GangStatus | None]:
    """Of parts on other nodes; those that do not answer are left out."""
    import ray

    alive = {row["NodeID"] for row in ray.nodes() if row["Alive"]}
    seen: dict[str, GangStatus | None] = {}
    for (node_id, _), names in parts.items():
        if node_id not in alive:
            seen.update(dict.fromkeys(names))
            continue
        with contextlib.suppress(ray.exceptions.RayError, ValueError):  # it is not started yet, or busy
            asked = ray.get_actor(_name(node_id)).statuses.remote(names)
            seen.update((row[0], GangStatus.of_row(row)) for row in ray.get(asked, timeout=_ANSWER_S))
    return seen


def _name(node_id: str) -> str:
    return f"agent:{node_id}"


def actor_of(node_id: str) -> Any:  # noqa: ANN401 - Ray's
    """The actor of a node, which is started if there is none."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return (
        ray.remote(NodeActor)
        .options(
            name=_name(node_id),
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=_THREADS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        .remote()
    )
