"""`MpiLauncher`: the first member runs the user's script under ``mpirun``, once per member."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Sequence
from types import MappingProxyType

from trainmaster.launchers.base import Gang, Launcher, Member, not_installed

# Each rank has its own index, and keeps its metrics out of rank 0's way.
_RANK = """\
export TRAINMASTER_INDEX="$OMPI_COMM_WORLD_RANK"
if [ "$OMPI_COMM_WORLD_RANK" != 0 ]; then export TRAINMASTER_METRICS+=".rank-$OMPI_COMM_WORLD_RANK"; fi
"""
# Ranks on other machines find nothing of this one's environment unless mpirun is told the names, and sends
# all of it over the network as it is; or unless what starts them there for mpirun brings it.
_LEAD = """\
if [[ ${OMPI_MCA_plm_rsh_agent:-} != *-agent ]]; then
  names=
  for name in $(compgen -e); do
    case $name in
      OMPI_*|PMIX_*|PRTE_*|PWD|OLDPWD|SHLVL|HOSTNAME|_) ;;
      *) names+="${names:+;}$name" ;;
    esac
  done
  export OMPI_MCA_mca_base_env_list=$names
fi
"""
# Ranks on other machines come by ssh: bash would take itself for a login's and run its start-up files.
_BASH = "env -u SSH_CLIENT -u SSH2_CLIENT bash -euo pipefail"
#: Addresses that have less in common are those of no network of their own.
_LEAST_PREFIX = 8
_KNOWN_FAILURES = (
    (
        "exec: mpirun: not found",
        "Open MPI is not installed on this machine: `apt install openmpi-bin`.",
    ),
    not_installed("mpi4py", "mpi4py"),
    (
        "mpirun was unable to launch the specified application",
        "The command was not found on a machine of the gang: each needs what `setup` does not bring.",
    ),
    (
        "ORTE was unable to reliably start one or more daemons",
        "mpirun could not reach another machine of the gang with ssh.",
    ),
    (
        "MPI_ABORT was invoked",
        "The program called MPI_Abort; what it wrote before that shows why.",
    ),
    (
        "exited on signal",
        "A rank was killed by a signal, and mpirun ended the others; the lines above name the rank.",
    ),
)


class MpiLauncher(Launcher):
    """The first member is ``mpirun``; the others lend it their slots and end at once.

    So a gang of n workers is an unchanged MPI program of n ranks, with as many on each machine as
    the gang has members there. All ranks write into the first member's log, and share its output
    directory. An exit code of a rank becomes mpirun's, and with it the member's.

    On SIGTERM mpirun gives its ranks twice ``OMPI_MCA_odls_base_sigkill_timeout`` (1 s) before it kills
    them, however long ``grace`` is. It always waits that long, also when a rank has failed, so it is
    left to the recipe's ``env`` to raise it.

    >>> gang = Gang((Member("worker", 0, "10.0.0.1"), Member("worker", 1, "10.0.0.1")))
    >>> MpiLauncher().script(gang, gang.chief, "./train").splitlines()[10][:49]
    'exec mpirun -np 2 --host "$TRAINMASTER_MPI_HOSTS"'
    >>> MpiLauncher().environment(gang, gang.chief)
    {'TRAINMASTER_MPI_HOSTS': '10.0.0.1:2'}
    """

    name = "mpi"
    known_failures = _KNOWN_FAILURES
    # Ranks of one machine share memory, of which the kernel counts nothing.
    counted = MappingProxyType(
        {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "127.0.0.0/8"}
    )
    shares_gpus = True  # all ranks descend from the first member, and choose by their local rank

    def is_essential(self, gang: Gang, member: Member) -> bool:
        """The one that runs ``mpirun``."""
        return member == gang.chief

    def script(self, gang: Gang, member: Member, script: str) -> str:
        """``mpirun`` of the script for the first member."""
        if member != gang.chief:
            return f"echo '{member.name} lends its slot to mpirun: see the log of {gang.chief.name}'"
        inner = shlex.quote(f"{_RANK}{script}")
        return (
            f'{_LEAD}exec mpirun -np {gang.world_size} --host "$TRAINMASTER_MPI_HOSTS" {_BASH} -c {inner} mpi'
        )

    def environment(self, gang: Gang, member: Member) -> dict[str, str]:
        """Where the ranks go, which is known when the gang has its place; mpirun numbers them."""
        hosts = [f"{host}:{sum(m.host == host for m in gang.members)}" for host in gang.hosts]
        return {"TRAINMASTER_MPI_HOSTS": ",".join(hosts)}

    def defaults(self, gang: Gang, member: Member) -> dict[str, str]:
        """How mpirun lives with others on a machine; each can be set in the recipe's ``env``."""
        return {
            # It refuses root otherwise; which user runs is not its business but the node's.
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            # Each mpirun would bind its ranks to the same first cores, whatever else runs there.
            "OMPI_MCA_hwloc_base_binding_policy": "none",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            **_network(gang.hosts),
        }


def _network(hosts: Sequence[str]) -> dict[str, str]:
    """Have ranks meet where the gang's machines know each other.

    Open MPI takes every address of a machine for one that the others reach, also that of docker's bridge,
    which each machine has: ranks then wait for each other forever.

    >>> _network(["10.0.0.4", "10.0.0.5"])["OMPI_MCA_btl_tcp_if_include"]
    '10.0.0.4/31'
    >>> _network(["10.0.0.4"]), _network(["10.0.0.4", "192.168.0.1"]), _network(["10.0.0.4", "gpu1"])
    ({}, {}, {})
    """
    try:
        first, *others = [ipaddress.IPv4Address(host) for host in hosts]
    except ValueError:  # a name, or an address of version 6
        return {}
    apart = 0
    for other in others:
        apart |= int(first) ^ int(other)
    prefix = 32 - apart.bit_length()
    if not others or prefix < _LEAST_PREFIX:
        return {}
    network = str(ipaddress.IPv4Network((first, prefix), strict=False))
    return {"OMPI_MCA_btl_tcp_if_include": network, "OMPI_MCA_oob_tcp_if_include": network}
