"""`MxnetLauncher`: ``DMLC_*``, as MXNet's own launcher sets them."""

from __future__ import annotations

import shlex

from trainmaster.launchers.base import Gang, Launcher, Member, not_installed

_ROLES = {"ps": "server"}
_KNOWN_FAILURES = (not_installed("mxnet", "mxnet"),)


class MxnetLauncher(Launcher):
    """The documented contract of MXNet's key-value store (ps-lite).

    Every role runs the user's script: ``import mxnet`` makes a server or the scheduler of it where
    ``DMLC_ROLE`` says so. The scheduler only introduces the others to each other, so it is no
    member: the first worker runs it beside its own script.

    >>> gang = Gang((Member("worker", 0, "10.0.0.1", (9091,)), Member("ps", 0, "10.0.0.2")))
    >>> env = MxnetLauncher().environment(gang, gang.members[1])
    >>> [env[f"DMLC_{key}"] for key in ("ROLE", "PS_ROOT_URI", "PS_ROOT_PORT", "NUM_SERVER", "NUM_WORKER")]
    ['server', '10.0.0.1', '9091', '1', '1']
    """

    name = "mxnet"
    known_failures = _KNOWN_FAILURES

    def ports_per_member(self, role: str) -> int:
        """One for each worker: the scheduler runs beside the first."""
        return int(role != "ps")

    def script(self, gang: Gang, member: Member, script: str) -> str:
        """The first worker starts the scheduler, if there are servers to be found."""
        if member != gang.chief or not self._servers(gang):
            return script
        inner = shlex.quote(script)
        return f"DMLC_ROLE=scheduler bash -euo pipefail -c {inner} scheduler &\n{script}"

    def environment(self, gang: Gang, member: Member) -> dict[str, str]:
        """``DMLC_ROLE``, where the scheduler is, and how many there are of each role."""
        if not gang.chief.ports:
            raise ValueError(f"{gang.chief.name} needs a port: the scheduler listens there")
        servers = self._servers(gang)
        return {
            "DMLC_ROLE": _ROLES.get(member.role, "worker"),
            "DMLC_PS_ROOT_URI": gang.chief.host,
            "DMLC_PS_ROOT_PORT": str(gang.chief.ports[0]),
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_NUM_WORKER": str(gang.world_size - servers),
            "DMLC_NODE_HOST": member.host,  # else it guesses one from the interfaces
        }

    @staticmethod
    def _servers(gang: Gang) -> int:
        return sum(member.role == "ps" for member in gang.members)
