"""`JaxLauncher`: an unchanged ``jax.distributed.initialize()`` finds its peers."""

from __future__ import annotations

from trainmaster.launchers.base import PEER_ENDED, Gang, Launcher, Member, not_installed

_KNOWN_FAILURES = (
    not_installed("jax", "jax"),
    (
        "Multiprocess computations aren't implemented on the CPU backend",
        "This JAX has no collectives on the CPU: install jax 0.4.36 or newer, "
        'or set jax.config.update("jax_cpu_collectives_implementation", "gloo").',
    ),
    (
        "initialize() must be called before any JAX",
        "Call jax.distributed.initialize() before anything else of JAX: even jax.devices() is too early.",
    ),
    (
        "Number of processes must be defined",
        "This JAX does not find the gang by itself: call jax.distributed.initialize("
        'num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"])).',
    ),
    ("another task died", PEER_ENDED),
    ("Connection closed by peer", PEER_ENDED),
    ("Barrier timed out", "Another member did not come that far in time; its log shows why."),
)


class JaxLauncher(Launcher):
    """The address of process 0, the number of processes, and which one this is.

    JAX 0.10 reads ``JAX_COORDINATOR_ADDRESS`` and ``JAX_LOCAL_DEVICE_IDS`` itself; the number and the
    place of the process it only takes from cluster managers that it detects, first of all
    Open MPI. So the four variables that it reads of Open MPI are set, beside those that scripts of
    other JAX versions pass on by themselves.

    >>> gang = Gang((Member("worker", 0, "10.0.0.1", (1234,)), Member("worker", 1, "10.0.0.2", (1234,), 2)))
    >>> env = JaxLauncher().environment(gang, gang.members[1])
    >>> [env[f"JAX_{key}"] for key in ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")]
    ['10.0.0.1:1234', '2', '1']
    >>> env["JAX_LOCAL_DEVICE_IDS"]
    '0,1'
    """

    name = "jax"
    known_failures = _KNOWN_FAILURES

    def ports_per_member(self, role: str) -> int:
        """One: the coordinator is process 0; any member may be asked to be it."""
        return 1

    def is_essential(self, gang: Gang, member: Member) -> bool:
        """All are: every member trains."""
        return True

    def environment(self, gang: Gang, member: Member) -> dict[str, str]:
        """``JAX_*``, and what JAX reads of Open MPI's."""
        if not gang.chief.ports:
            raise ValueError(f"{gang.chief.name} needs a port: the coordinator listens there")
        address = f"{gang.chief.host}:{gang.chief.ports[0]}"
        rank, world_size = str(gang.rank(member)), str(gang.world_size)
        return {
            "JAX_COORDINATOR_ADDRESS": address,
            "JAX_NUM_PROCESSES": world_size,
            "JAX_PROCESS_ID": rank,
            # A member sees its own GPUs and no others, so they are the first ones wherever it runs.
            "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(max(1, member.gpus)))),
            "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{address}",  # its presence says "Open MPI" to JAX
            "OMPI_COMM_WORLD_SIZE": world_size,
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_LOCAL_RANK": str(gang.local_rank(member)),
        }

    def defaults(self, gang: Gang, member: Member) -> dict[str, str]:
        """The coordinator listens where its peers look for it; JAX's own choice is every interface."""
        return {"JAX_COORDINATOR_BIND_ADDRESS": f"{gang.chief.host}:{gang.chief.ports[0]}"}
