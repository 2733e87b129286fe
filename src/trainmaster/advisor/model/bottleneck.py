"""What limits a shape, in the words of somebody who trains models."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainmaster.advisor.model.physics import step_time
from trainmaster.advisor.model.shapes import Floats, Shapes

WORDS: Final[dict[str, str]] = {
    "compute": "compute: the workers' devices are busy nearly all the time",
    "input": "input: a node cannot feed or run its workers fast enough",
    "straggle": "stragglers: every step waits for the slowest worker",
    "intra": "links inside the node: gradients between its devices",
    "hop_intra": "coordination inside the node: fixed cost of each exchange",
    "nic": "network between nodes: bandwidth for the gradients",
    "hop_inter": "coordination between nodes: fixed cost of each exchange",
    "trips": "network latency: workers wait for round trips",
    "server": "parameter server: its processors are saturated by updates",
    "shared": "parameter server: updates that more servers do not divide",
    "server_nic": "parameter server: its network card is saturated by updates",
}


def name_bottlenecks(theta: Floats, shapes: Shapes, slowness: Floats | float = 1.0) -> tuple[str, ...]:
    """Name for each shape the part whose absence would save most time.

    Args:
        theta: (P,) log parameters.
        shapes: of length m.
        slowness: as in ``step_time``.
    """
    vector = theta[None]
    parts = [part for part in WORDS if part != "server_nic"]
    left = np.array([step_time(vector, shapes, free=part, slowness=slowness)[0] for part in parts])
    worst = left.argmin(axis=0)
    has_server = shapes.kind > 0
    names = []
    for index, server in zip(worst.tolist(), has_server.tolist(), strict=True):
        part = parts[index]
        names.append(WORDS["server_nic" if server and part == "nic" else part])
    return tuple(names)
