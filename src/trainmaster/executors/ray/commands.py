"""The command lines and environments of our own Ray processes. Pure.

Nothing of it can meet a Ray of the user's: own ports outside Ray's default range (10002-19999), an own
directory for temporary files, a token of this cluster's, and none of the ``RAY_*`` variables around us.
"""

from __future__ import annotations

import json
import os

from trainmaster.executors.gangs.engine import NODE_LABEL, ClusterNode
from trainmaster.executors.ray.tls import variables
from trainmaster.spec.errors import ExecutorError

#: Speaks with Ray on the head; it is told that node's home.
HEAD_PROGRAM = "trainmaster.executors.ray.head"
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


def check(node: ClusterNode) -> None:
    """Refuse what Ray would stumble over later.

    Raises:
        ExecutorError: see the message.
    """
    if len(os.fsencode(node.directory)) > _DIRECTORY_BYTES_MAX or not node.directory.startswith("/"):
        raise ExecutorError(
            f"the directory {node.directory} of node {node.key} cannot hold Ray's sockets",
            f"Choose an absolute one of at most {_DIRECTORY_BYTES_MAX} bytes, such as /tmp/tm-7f3a.",
        )
    if node.address in ("127.0.0.1", "localhost", "0.0.0.0"):  # noqa: S104 - refused
        raise ExecutorError(
            f"node {node.key} has the address {node.address}, which Ray replaces by a public one",
            "Give its private address; for nodes on one machine 127.0.0.2 and so on.",
        )


def authentication(directory: str) -> dict[str, str]:
    """What every process needs that speaks to the cluster.

    Args:
        directory: of the node; see `ClusterNode`.
    """
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": f"{directory}/token"}
    return {**token, **variables(directory)}


def environment(node: ClusterNode) -> dict[str, str]:
    """All the environment of Ray's processes on a node.

    Args:
        node: where they run.

    >>> node = ClusterNode("a", "10.0.0.1", 4, "/tmp/tm-1", "/home/me/tm")
    >>> environment(node)["RAY_AUTH_MODE"]
    'token'
    """
    return {
        **_TUNING,
        **authentication(node.directory),
        NODE_FILE_VARIABLE: f"{node.directory}/node.json",
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
