"""`ClusterKeys`: the nodes of a cluster log in to each other, as MPI wants it, with a key of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from trainmaster.cluster.bootstrap.host_result import HostResult, program_answer, run_host_program
from trainmaster.spec.errors import ProviderError, TrainmasterError, one_line
from trainmaster.transport.base import CommandError, Transport
from trainmaster.transport.key_pairs import KeyPair, make_key_pair

_AT_ONCE: Final = 8
_TIMEOUT_S: Final = 30.0
_CONFIG: Final = """\
Host {names}
  HostName {address}
  Port {port}
  User {user}
"""
_COMMON: Final = """\
Host *
  IdentityFile "{directory}/id_ed25519"
  IdentitiesOnly yes
  UserKnownHostsFile "{directory}/known_hosts"
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  LogLevel ERROR
  ConnectTimeout 10
  ServerAliveInterval 5
  ServerAliveCountMax 3
"""
#: As ``plm_rsh_agent`` of Open MPI: ``bash AGENT HOST COMMAND``. What is started there has this environment,
#: by the standard input of ssh: mpirun itself would send it over the network as it is.
_AGENT: Final = r"""
host=$1
shift
take='while IFS= read -r -d "" line; do export "$line"; done 2> /dev/null; exec < /dev/null;'
env -0 | grep -zvE '^(OMPI_|PMIX_|PRTE_|SSH_|BASH_FUNC|PWD=|OLDPWD=|SHLVL=|HOSTNAME=|_=)' |
  ssh -F "{directory}/config" "$host" "exec bash -c $(printf %q "$take $*")"
"""


class ClusterKeys:
    """Lets the nodes of a cluster in to each other; `remove` undoes it.

    ``ssh -F CONFIG ADDRESS`` then works on each of them, and so does Open MPI with
    ``plm_rsh_agent="bash AGENT"``; `config` and `agent` say where they are. The user's own keys,
    configuration and known hosts are not used; one line in ``authorized_keys`` is ours while the cluster
    lasts.

    Args:
        ssh: connects.
        cluster: its id.
    """

    def __init__(self, transport: Transport, cluster: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", cluster):
            raise ValueError(f"{cluster!r} cannot be the name of a directory")
        self._transport = transport
        self._cluster = cluster
        self._mark = f"trainmaster-cluster:{cluster}"

    def directory(self, node: HostResult) -> str:
        """Where the keys are on a node."""
        assert node.facts is not None
        return f"{node.facts.root}/clusters/{self._cluster}"

    def config(self, node: HostResult) -> str:
        """The configuration for ``ssh -F`` on a node."""
        return f"{self.directory(node)}/config"

    def agent(self, node: HostResult) -> str:
        """What starts programs on the other nodes for Open MPI."""
        return f"{self.directory(node)}/mpi-agent"

    def give(self, nodes: Sequence[HostResult], pair: KeyPair | None = None) -> None:
        """Let the nodes log in to each other; repeated with other nodes, all of those can.

        Args:
            nodes: results of the bootstrap, all ok.
            pair: the key pair; a new one by default.

        Raises:
            ProviderError: it did not work on some, each named with the reason.
        """
        pair = pair or make_key_pair()
        known, config = self._known_hosts(nodes), self._config(nodes)

        def order(node: HostResult) -> dict[str, Any]:
            common = _COMMON.format(directory=self.directory(node))
            return {
                "do": "add",
                "directory": self.directory(node),
                "files": {
                    "id_ed25519": pair.private,
                    "known_hosts": known,
                    "config": config + common,
                    "mpi-agent": _AGENT.replace("{directory}", self.directory(node)),
                },
                "mark": self._mark,
                # no forwarding and no terminal: what MPI needs is to run a command
                "line": f"restrict {pair.public} {self._mark}",
            }

        self._everywhere(nodes, order)

    def remove(self, nodes: Sequence[HostResult]) -> None:
        """Take the keys away from nodes; those that have none are fine. See `give`."""
        self._everywhere(
            nodes, lambda node: {"do": "remove", "directory": self.directory(node), "mark": self._mark}
        )

    def _known_hosts(self, nodes: Sequence[HostResult]) -> str:
        lines = []
        for node in nodes:
            address, port = _inside(node), node.target.port
            names = [f"[{address}]:{port}"] if port != 22 else [address]
            lines.append(f"{','.join(names)} {node.host_key}\n")
        return "".join(lines)

    def _config(self, nodes: Sequence[HostResult]) -> str:
        entries = []
        for node in nodes:
            assert node.facts is not None
            names = " ".join(dict.fromkeys((node.target.name, _inside(node))))
            entries.append(
                _CONFIG.format(
                    names=names, address=_inside(node), port=node.target.port, user=node.facts.user
                )
            )
        return "".join(entries)

    def _everywhere(self, nodes: Sequence[HostResult], order: Callable[[HostResult], dict[str, Any]]) -> None:
        if not nodes:
            return
        with ThreadPoolExecutor(min(_AT_ONCE, len(nodes)), "keys") as pool:
            reasons = [reason for reason in pool.map(lambda node: self._tell(node, order), nodes) if reason]
        if reasons:
            raise ProviderError("keys between nodes: " + "; ".join(reasons), "It is safe to try again.")

    def _tell(self, node: HostResult, order: Callable[[HostResult], dict[str, Any]]) -> str:
        """Tell a node; why it did not work, or nothing."""
        assert node.plan is not None
        python = node.plan.host_python.path
        try:
            with self._transport.connection(node.target) as connection:
                said = program_answer(
                    run_host_program(connection, python, "keys.py", order(node), _TIMEOUT_S)
                )
                if said != "done":
                    raise CommandError(f"{node.target.shown}: {said}")
        except TrainmasterError as error:
            return one_line(error)
        return ""


def _inside(node: HostResult) -> str:
    """Where other nodes reach it."""
    return node.target.private_address or node.target.address
