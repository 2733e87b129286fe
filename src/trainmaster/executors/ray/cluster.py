"""`RayCluster`: a Ray of our own on given nodes, started, found again and ended.

Commands reach a node through a callable, so that nothing here knows whether it is this machine or one behind
SSH. What was started is recorded on the driver before it is started: a driver that was killed finds it again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from trainmaster.executors.gangs.engine import ClusterNode, Opener, Runner
from trainmaster.executors.gangs.recorded_cluster import RecordedCluster
from trainmaster.executors.ray.commands import (
    HEAD_PROGRAM,
    PORT_COUNT,
    check,
    cluster_address,
    environment,
    head_command,
    worker_command,
)
from trainmaster.executors.ray.engine import RayEngine
from trainmaster.executors.ray.start import STARTED
from trainmaster.executors.ray.tls import AUTHORITY_FILE, CertificateAuthority
from trainmaster.spec.errors import ExecutorError
from trainmaster.spec.private_files import write_private

__all__ = ["RayCluster"]

_TOKEN = "token"  # noqa: S105 - a file name


class RayCluster(RecordedCluster):
    """The Ray processes of one cluster; its first node is the head.

    Beside the record, its directory has the token, and the key that signs the nodes' certificates.
    """

    has_head = True
    settle_s = 15.0  # Ray says sooner which nodes are dead
    packages = ("ray",)
    imports = ("ray/_raylet.so",)
    unused = tuple(  # a third of all bytes; Ray takes them for not installed
        f"ray/{part}/"
        for part in ("air", "dashboard/client", "data", "jars", "llm", "rllib", "serve", "train", "tune")
    )
    answers = "trainmaster.executors.ray.node_program"
    withheld_prefixes = ("RAY_",)  # a member's own Ray must not meet the user's
    # What is `used` are ports that were taken at an address, the last ones last: Ray's own connections to
    # what was there may still be open, though it is dead, and would be used for what comes next on them.

    @classmethod
    def start(
        cls,
        directory: Path,
        nodes: Sequence[ClusterNode],
        run: Runner,
        stream: Opener,
    ) -> RayCluster:
        """Start Ray on all nodes, the head first; see `RecordedCluster.start`."""
        cluster = cls(directory, (), run, stream)
        cluster._enter(nodes)
        if not (directory / _TOKEN).exists():
            write_private(directory / AUTHORITY_FILE, CertificateAuthority.make().as_text().encode())
            write_private(directory / _TOKEN, secrets.token_hex(32).encode())
        cluster._start_node(cluster.head, head_command(cluster.head))
        cluster._record()  # with the ports that it has chosen
        cluster._start_workers(cluster.nodes[1:])
        return cluster

    @property
    def head(self) -> ClusterNode:
        """Where the cluster's own processes run."""
        return self.nodes[0]

    def is_up(self) -> bool:
        """Whether our Ray runs on the head; False also when that cannot be reached."""
        try:
            return bool(self._ask(self.head, {"do": "status"})["pid"])
        except ExecutorError:
            return False

    def add(self, nodes: Sequence[ClusterNode]) -> None:
        """See `RecordedCluster.add`."""
        self._enter(nodes)
        self._start_workers(nodes)

    def _enter(self, nodes: Sequence[ClusterNode]) -> None:
        for node in nodes:
            check(node)
        super()._enter(nodes)

    def stop(self, gone: Collection[str] = ()) -> None:
        """See `RecordedCluster.stop`."""
        super().stop(gone)
        for name in (_TOKEN, AUTHORITY_FILE):
            (self.directory / name).unlink(missing_ok=True)

    def engine(self) -> RayEngine:
        """See `RecordedCluster.engine`; what speaks with Ray is started on the head.

        Raises:
            ExecutorError: the head cannot be reached.
        """
        about = {"home": self.head.home, "directory": self.head.directory}
        return RayEngine(self._open(self.head, [self.head.python, "-m", HEAD_PROGRAM, json.dumps(about)]))

    def _start_workers(self, nodes: Sequence[ClusterNode]) -> None:
        if nodes:
            self._on_each(nodes, lambda node: self._start_node(node, worker_command(node, self.head)))
            self._record()

    def _start_node(self, node: ClusterNode, command: list[str]) -> None:
        authority = CertificateAuthority.load((self.directory / AUTHORITY_FILE).read_text())
        request = {
            "do": "start",
            "port_base": node.port_base,
            "ports": PORT_COUNT,
            "taken": self.used.get(node.address, []),
            "started": STARTED,
            "token": (self.directory / _TOKEN).read_text(),
            "tls": authority.files(node.address),
            "command": command,
            "env": environment(node),
            "node": {
                "key": node.key,
                "address": node.address,
                "home": node.home,
                "gpus": list(node.gpus),
                "cluster": cluster_address(self.head),
            },
        }
        answer = self._ask(node, request)
        self._take(node.address, answer.get("port_base", 0))
        if not answer["ok"]:
            raise ExecutorError(
                f"Ray could not be started on node {node.key}: {answer['error']}",
                f"Its log was {node.directory}/ray.log there.",
            )
        self.nodes[self.nodes.index(node)] = replace(node, port_base=answer["port_base"])

    def _take(self, address: str, port_base: int) -> None:
        if port_base:
            earlier = [base for base in self.used.get(address, []) if base != port_base]
            self.used[address] = [*earlier, port_base]
