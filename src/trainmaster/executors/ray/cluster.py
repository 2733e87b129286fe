"""`RayCluster`: a Ray of our own on given nodes, started, found again and ended.

Commands reach a node through a callable, so that nothing here knows whether it is this machine or one behind
SSH. What was started is recorded on the driver before it is started: a driver that was killed finds it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainmaster.executors.ray.commands import (
    PORT_COUNT,
    ClusterNode,
    cluster_address,
    environment,
    gateway_directory,
    head_command,
    worker_command,
)
from trainmaster.executors.ray.tls import AUTHORITY_FILE, Authority
from trainmaster.spec.errors import ExecutorError
from trainmaster.spec.plain_json import parsed_json, typed

__all__ = ["ClusterNode", "Opener", "RayCluster", "Runner"]

#: Runs a command on a node with this standard input; gives its standard output. Raises `ExecutorError`
#: when the node cannot be reached or the command fails.
Runner = Callable[[ClusterNode, Sequence[str], bytes], bytes]
#: Starts a command on a node; gives the stream that is its standard input and output.
Opener = Callable[[ClusterNode, Sequence[str]], socket.socket]

_RECORD = "cluster.json"
_TOKEN = "token"  # noqa: S105 - a file name
_PARALLEL = 32


class RayCluster:
    """The Ray processes of one cluster.

    Attributes:
        directory: on the driver; holds the record, the token, and the key that signs the nodes' certificates.
        nodes: the first one is the head.
    """

    def __init__(
        self,
        directory: Path,
        nodes: Sequence[ClusterNode],
        run: Runner,
        stream: Opener,
    ) -> None:
        """Describe one; `start` or `find` make it real."""
        self.directory = directory
        self.nodes = list(nodes)
        self._run = run
        self._open = stream
        # Ports that were taken at an address, the last ones last: Ray's own connections to what was there may
        # still be open, though it is dead, and would be used for what comes there next on the same ports.
        self._taken: dict[str, list[int]] = {}
        for node in nodes:
            self._take(node.address, node.port_base)

    @classmethod
    def start(
        cls,
        directory: Path,
        nodes: Sequence[ClusterNode],
        run: Runner,
        stream: Opener,
    ) -> RayCluster:
        """Start Ray on all nodes, the head first; what runs already is left alone.

        Raises:
            ExecutorError: a node could not be started; what was started is recorded, see `stop`.
        """
        if not nodes:
            raise ExecutorError("a cluster needs at least one node", "Give it the head first.")
        for node in nodes:
            node.check()
        cluster = cls(directory, nodes, run, stream)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (directory / _TOKEN).exists():
            _write(directory / AUTHORITY_FILE, Authority.make().as_text())
            _write(directory / _TOKEN, secrets.token_hex(32))
        cluster._record()
        cluster._start_node(cluster.head, head_command(cluster.head))
        cluster._record()  # with the ports that it has chosen
        cluster._start_workers(cluster.nodes[1:])
        return cluster

    @classmethod
    def find(cls, directory: Path, run: Runner, stream: Opener) -> RayCluster | None:
        """The cluster that was started from there, None when there is none or its head runs no more."""
        nodes, taken = recorded(directory)
        cluster = cls(directory, nodes, run, stream)
        cluster._taken.update(taken)
        return cluster if nodes and cluster.runs(cluster.head) else None

    @property
    def head(self) -> ClusterNode:
        """Where the cluster's own processes and the gateway run."""
        return self.nodes[0]

    def runs(self, node: ClusterNode) -> bool:
        """Whether our Ray runs on a node; False also when it cannot be reached."""
        try:
            return bool(self._ask(node, {"do": "status"})["pid"])
        except ExecutorError:
            return False

    def add(self, nodes: Sequence[ClusterNode]) -> None:
        """Further nodes join; gangs that wait for room see them within a second.

        Raises:
            ExecutorError: as `start`.
        """
        for node in nodes:
            node.check()
        known = {node.key for node in nodes}
        self.nodes = [node for node in self.nodes if node.key not in known] + list(nodes)
        self._record()
        self._start_workers(nodes)

    def remove(self, key: str, *, is_gone: bool = False) -> None:
        """End all of ours on a node, members included; one that cannot be reached is only forgotten.

        Args:
            key: of any node but the head.
            is_gone: the machine is gone, so its silence need not be waited for.
        """
        for node in [node for node in self.nodes[1:] if node.key == key]:
            with contextlib.suppress(ExecutorError):
                if not is_gone:
                    self._stop_node(node)
            self.nodes.remove(node)
        self._record()

    def stop(self, gone: Collection[str] = ()) -> None:
        """End everything of ours on all nodes, members included; may be repeated.

        Args:
            gone: keys of nodes, perhaps the head's, that are gone; they are not asked.

        Raises:
            ExecutorError: a node could not be reached; the record stays.
        """
        failed = []
        with ThreadPoolExecutor(_PARALLEL) as pool:
            nodes = [node for node in self.nodes if node.key not in gone]
            for node, error in zip(nodes, pool.map(self._try_stop, nodes), strict=True):
                if error is not None:
                    failed.append(f"{node.key}: {error}")
        if failed:
            raise ExecutorError(
                f"Ray could not be ended on {len(failed)} nodes: {'; '.join(failed)}",
                "Repeat it when they can be reached, or terminate them.",
            )
        for name in (_RECORD, _TOKEN, AUTHORITY_FILE):
            (self.directory / name).unlink(missing_ok=True)

    def connect(self) -> socket.socket:
        """A stream to the gateway on the head, which is started if there is none.

        Raises:
            ExecutorError: the head cannot be reached.
        """
        return self._open(self.head, self.gateway_command())

    def gateway_command(self) -> list[str]:
        """What to run on the head so that its standard input and output speak with the gateway."""
        return [
            self.head.python,
            "-m",
            "trainmaster.executors.ray.relay",
            "gateway",
            gateway_directory(self.head),
        ]

    def _try_stop(self, node: ClusterNode) -> ExecutorError | None:
        try:
            self._stop_node(node)
        except ExecutorError as error:
            return error
        return None

    def _stop_node(self, node: ClusterNode) -> None:
        self._ask(node, {"do": "stop", "home": node.home, "members": True})

    def _start_workers(self, nodes: Sequence[ClusterNode]) -> None:
        if nodes:
            with ThreadPoolExecutor(_PARALLEL) as pool:
                list(pool.map(lambda node: self._start_node(node, worker_command(node, self.head)), nodes))
            self._record()

    def _start_node(self, node: ClusterNode, command: list[str]) -> None:
        authority = Authority.load(self.directory / AUTHORITY_FILE)
        request = {
            "do": "start",
            "port_base": node.port_base,
            "ports": PORT_COUNT,
            "taken": self._taken.get(node.address, []),
            "token": (self.directory / _TOKEN).read_text(),
            "tls": authority.files(node.address) if authority else {},
            "command": command,
            "env": environment(node, tls=authority is not None),
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

    def _ask(self, node: ClusterNode, request: Mapping[str, Any]) -> dict[str, Any]:
        command = [node.python, "-m", "trainmaster.executors.ray.node"]
        output = self._run(node, command, json.dumps({"directory": node.directory, **request}).encode())
        try:
            answer = dict(json.loads(output.splitlines()[-1]))
        except (ValueError, TypeError, IndexError, RecursionError) as error:
            raise ExecutorError(
                f"node {node.key} answered {output[:200]!r}", "Is the same Trainmaster installed there?"
            ) from error
        return answer

    def _take(self, address: str, port_base: int) -> None:
        if port_base:
            earlier = [base for base in self._taken.get(address, []) if base != port_base]
            self._taken[address] = [*earlier, port_base]

    def _record(self) -> None:
        nodes = [node.as_json() for node in self.nodes]
        text = json.dumps({"nodes": nodes, "taken": self._taken}, indent=1)
        draft = self.directory / f"{_RECORD}.new"
        _write(draft, text)
        draft.replace(self.directory / _RECORD)


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def recorded(directory: Path) -> tuple[list[ClusterNode], dict[str, list[int]]]:
    """Nodes of the cluster that was started last from there, the head first, and ports that it took.

    Without any if there was none, or the file is damaged: then it is started anew.
    """
    try:
        record = typed(dict[str, Any], parsed_json((directory / _RECORD).read_bytes(), finite=True))
        nodes = typed(list[ClusterNode], record["nodes"])
        return nodes, typed(dict[str, list[int]], record.get("taken", {}))
    except (OSError, ValueError, LookupError):
        return [], {}
