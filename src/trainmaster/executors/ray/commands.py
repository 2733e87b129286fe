"""The command lines and environments of our own Ray processes. Pure.

Nothing of it can meet a Ray of the user's: own ports outside Ray's default range (10002-19999), an own
directory for temporary files, a token of this cluster's, and none of the ``RAY_*`` variables around us.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trainmaster.executors.ray.tls import variables
from trainmaster.spec.errors import ExecutorError

#: Names which node this is; placement and members may be bound to it.
NODE_LABEL = "trainmaster-node"
#: Names the file that says what this node offers; set for Ray's processes, never for members.
NODE_FILE_VARIABLE = "TRAINMASTER_NODE_FILE"
#: A cluster takes so many ports on each of its nodes.
PORT_COUNT = 200
#: Ray adds up to 62 bytes to its directory for its sockets, and the kernel takes 107.
_DIRECTORY_BYTES_MAX = 40
#: Nothing is kept in the object store; Ray wants at least 75 MiB.
_OBJECT_STORE_BYTES = 100 << 20
_WORKER_PORTS_FROM = 20
_TUNING = {
    # A killed raylet is noticed within 2 s, a frozen or cut-off one within 7 s.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1500",
    "RAY_health_check_failure_threshold": "4",
    # Ray would have its workers, and so our supervisor and the members, killed first when memory is short.
    "RAY_worker_oom_score_adjustment": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_niceness": "0",
    # Environments of members travel through calls: they must not get onto a disk.
    "RAY_automatic_object_spilling_enabled": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_autoscaler_v2": "0",
    # A machine that is switched off would wait for Ray, which waits 30 s for actors that are not moved away.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}


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

    def check(self) -> None:
        """Refuse what Ray would stumble over later.

        Raises:
            ExecutorError: see the message.
        """
        if len(os.fsencode(self.directory)) > _DIRECTORY_BYTES_MAX or not self.directory.startswith("/"):
            raise ExecutorError(
                f"the directory {self.directory} of node {self.key} cannot hold Ray's sockets",
                f"Choose an absolute one of at most {_DIRECTORY_BYTES_MAX} bytes, such as /tmp/tm-7f3a.",
            )
        if self.address in ("127.0.0.1", "localhost", "0.0.0.0"):  # noqa: S104 - refused
            raise ExecutorError(
                f"node {self.key} has the address {self.address}, which Ray replaces by a public one",
                "Give its private address; for nodes on one machine 127.0.0.2 and so on.",
            )
        last = self.port_base + PORT_COUNT - 1
        if not self.port_base:
            return
        if self.port_base < 1024 or last > 65535 or (self.port_base <= 19999 and last >= 10002):
            raise ExecutorError(
                f"node {self.key} cannot use the ports {self.port_base} to {last}",
                "Stay outside of 10002 to 19999, which belong to other Rays.",
            )

    def as_json(self) -> dict[str, Any]:
        """For the cluster's record."""
        return {**asdict(self), "gpus": list(self.gpus)}


def node_file(node: ClusterNode) -> str:
    """What the agent reads: which node it is on."""
    return f"{node.directory}/node.json"


def gateway_directory(node: ClusterNode) -> str:
    """Where the head's gateway has its socket, lock and log."""
    return f"{node.directory}/gateway"


def authentication(directory: str, *, tls: bool) -> dict[str, str]:
    """What every process needs that speaks to the cluster.

    Args:
        directory: of the node; see `ClusterNode`.
        tls: whether the nodes have certificates.
    """
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": f"{directory}/token"}
    return {**token, **variables(directory)} if tls else token


def environment(node: ClusterNode, *, tls: bool = True) -> dict[str, str]:
    """All the environment of Ray's processes on a node.

    Args:
        node: where they run.
        tls: whether the nodes have certificates.

    >>> node = ClusterNode("a", "10.0.0.1", 4, "/tmp/tm-1", "/home/me/tm")
    >>> environment(node)["RAY_AUTH_MODE"]
    'token'
    """
    return {
        **_TUNING,
        **authentication(node.directory, tls=tls),
        NODE_FILE_VARIABLE: node_file(node),
    }


def head_command(node: ClusterNode) -> list[str]:
    """Starts the first node and what the cluster has once; ports as `port` has them."""
    return _start(node, head=True, gcs_server_port=port(node, 0), no_monitor=True)  # none of the autoscaler


def port(node: ClusterNode, number: int) -> str:
    """One of a node's ports; what the node itself fills in as long as it has not chosen them.

    >>> node = ClusterNode("a", "10.0.0.1", 4, "/tmp/tm-1", "/home/me/tm")
    >>> port(node, 2), port(ClusterNode("a", "10.0.0.1", 4, "/tmp/tm-1", "/home/me/tm", port_base=21000), 2)
    ('@2@', '21002')
    """
    return str(node.port_base + number) if node.port_base else f"@{number}@"


def worker_command(node: ClusterNode, head: ClusterNode) -> list[str]:
    """Starts a further node."""
    return _start(node, head=False, gcs_address=cluster_address(head))


def cluster_address(head: ClusterNode) -> str:
    """Where a cluster is reached by its nodes."""
    return f"{head.address}:{port(head, 0)}"


def _start(node: ClusterNode, **more: object) -> list[str]:
    parameters = {
        "node_ip_address": node.address,
        "node_name": node.address,
        "temp_dir": f"{node.directory}/ray",
        "num_cpus": node.slots,
        "num_gpus": len(node.gpus),
        "object_store_memory": _OBJECT_STORE_BYTES,
        "labels": {**node.labels, NODE_LABEL: node.key},
        "include_log_monitor": False,  # our logs go another way; it takes 80 MB
        "node_manager_port": port(node, 1),
        "object_manager_port": port(node, 2),
        "runtime_env_agent_port": port(node, 3),  # an unused port
        "min_worker_port": port(node, _WORKER_PORTS_FROM),
        "max_worker_port": port(node, PORT_COUNT - 1),
    }
    return [node.python, "-m", "trainmaster.executors.ray.start", json.dumps({**parameters, **more})]
