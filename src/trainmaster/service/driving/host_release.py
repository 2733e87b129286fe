"""`leave_hosts`: what a run has left on hosts of the user's own is ended; rented machines take it along."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.spec.errors import TrainmasterError, one_line

if TYPE_CHECKING:
    from trainmaster.cluster.record import ClusterRecord
    from trainmaster.control.task.layout import Home
    from trainmaster.providers.base import Node

_AT_ONCE: Final = 16
_TIMEOUT_S: Final = 300.0


def leave_hosts(home: Home, record: ClusterRecord, run: str, nodes: Sequence[Node]) -> list[str]:
    """End a run's Ray, members and mounts on hosts, and remove its directories; may be repeated.

    Args:
        home: of the run.
        record: the cluster, of hosts.
        run: its id.
        nodes: of the cluster, as their provider lists them; of those that are gone the claim ran out.

    Returns:
        What did not work, in words; those hosts keep it.
    """
    from trainmaster.cluster.node_files.data_look import end_mounts_command
    from trainmaster.cluster.node_provisioner import NodeProvisioner
    from trainmaster.providers.ssh_target import target_of
    from trainmaster.transport import HostKeys, Ssh

    with (
        contextlib.closing(Ssh(HostKeys(home.root / "known_hosts"))) as ssh,
        contextlib.closing(NodeProvisioner(home, run, ssh, Path(), 0.0)) as provisioner,
    ):
        place = f"{provisioner.root}/runs/{run}"
        command = f"{end_mounts_command(place)}; exec rm -rf -- {shlex.quote(place)}"

        def tidy(node: Node) -> str:
            try:
                provisioner.connections.use(
                    target_of(node), lambda it: it.check(command, timeout_s=_TIMEOUT_S)
                )
            except TrainmasterError as error:
                return f"{node.id} keeps what {run} left there: {one_line(error)}"
            return ""

        provisioner.take_back(record, None, (), {node.id: node for node in nodes})
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return [words for words in pool.map(tidy, nodes) if words]
