"""`ClusterNode`: a machine as an engine is given it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

#: Names which node this is; placement and members may be bound to it.
NODE_LABEL: Final = "trainmaster-node"


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A machine (or a part of one) that belongs to a cluster.

    Attributes:
        key: its name within the cluster, of letters, digits, ``-`` and ``_``.
        address: private IP address at which the other nodes reach it. Not 127.0.0.1, which Ray replaces by
            the machine's outward address.
        slots: how many slots it offers.
        directory: on the node, absolute and at most 40 bytes long; holds Ray's temporary files, the token
            and the node's certificate.
        home: on the node, absolute; the supervisor's home.
        labels: what members may ask for with ``node_labels``.
        gpus: ids as for CUDA_VISIBLE_DEVICES.
        python: on the node; has Trainmaster and Ray installed.
        port_base: first of the 200 ports that are used there; 0: the node takes free ones, from 20000
            on, and others than those that were last taken at its address.
    """

    key: str
    address: str
    slots: int
    directory: str
    home: str
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    python: str = sys.executable
    port_base: int = 0

    def as_json(self) -> dict[str, Any]:
        """For the cluster's record."""
        return {**asdict(self), "gpus": list(self.gpus)}
