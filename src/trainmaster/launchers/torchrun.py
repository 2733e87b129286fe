"""`TorchrunLauncher`: PyTorch's ``env://`` rendezvous, as ``torchrun`` would set it up."""

from __future__ import annotations

from trainmaster.launchers.base import PEER_ENDED, Gang, Launcher, Member, not_installed

_NO_CUDA = (
    "The script asks for a GPU, and this machine, or the PyTorch that ran, has none: `hardware: {gpus: 1}` "
    "takes machines with GPUs only; else the script must choose its device with torch.cuda.is_available()."
)
_KNOWN_FAILURES = (
    not_installed("torch", "torch"),
    not_installed("accelerate", "accelerate"),
    (
        "ProcessGroupNCCL is only supported with GPUs",
        "The script asks for the nccl backend, and this machine has no GPU: "
        'use init_process_group("nccl" if torch.cuda.is_available() else "gloo").',
    ),
    (
        "Distributed package doesn't have NCCL built in",
        "The script asks for the nccl backend, and this PyTorch was built without it: "
        'use init_process_group("nccl" if torch.distributed.is_nccl_available() else "gloo").',
    ),
    ("has no attribute '_cuda_", _NO_CUDA),
    ("Torch not compiled with CUDA enabled", _NO_CUDA),
    ("Found no NVIDIA driver on your system", _NO_CUDA),
    (
        "Weights only load failed",
        "From PyTorch 2.6 on torch.load takes tensors only, and the script loads more: "
        "`env: {TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD: 1}` lets it, if you trust the file.",
    ),
    (
        "CUDA out of memory",
        "The GPU's memory is full: lower `batch` or raise `workers`, or ask for more with `hardware.memory`.",
    ),
    (
        "invalid device ordinal",
        "The script asks for a GPU that this member does not see: "
        'use torch.cuda.set_device(int(os.environ["LOCAL_RANK"])).',
    ),
    (
        "Expected to have finished reduction in the prior iteration",
        "Some parameters took no part in the loss: remove them from the model, "
        "or pass find_unused_parameters=True to DistributedDataParallel.",
    ),
    (
        "name: EADDRINUSE",
        "Another process has taken the port of rank 0: let the script use MASTER_PORT as it is given, "
        "and call init_process_group only once.",
    ),
    (
        "seconds waiting for clients",
        "Not all members joined in time: see whether another member failed before init_process_group, "
        "or raise its `timeout=`.",
    ),
    (
        "The client socket has timed out",
        "Rank 0 could not be reached: see whether worker-0 failed before init_process_group, "
        "or raise its `timeout=`.",
    ),
    (
        "for recv operation to complete",
        "Another member stopped answering; see its log, or raise the `timeout=` of init_process_group "
        "if it was only slow (a checkpoint, an evaluation).",
    ),
    (
        "gloo/transport/tcp",  # not only "Connection reset by peer", which any download may say
        PEER_ENDED,
    ),
)


class TorchrunLauncher(Launcher):
    """What ``torchrun`` sets, without its agent: restarts and log files are Trainmaster's work.

    ``LOCAL_RANK`` counts the members on one machine, as scripts expect that index the GPUs
    with it; so each member must see the GPUs of all the gang's members on its machine.

    >>> gang = Gang((Member("worker", 0, "10.0.0.1", (29500,)), Member("worker", 1, "10.0.0.2", (29500,))))
    >>> env = TorchrunLauncher().environment(gang, gang.members[1])
    >>> [env[key] for key in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")]
    ['10.0.0.1', '29500', '1', '2', '0']
    """

    name = "torchrun"
    known_failures = _KNOWN_FAILURES
    shares_gpus = True

    def ports_per_member(self, role: str) -> int:
        """One: rank 0 listens on its own; any member may be asked to be rank 0."""
        return 1

    def is_essential(self, gang: Gang, member: Member) -> bool:
        """All are: every member trains."""
        return True

    def environment(self, gang: Gang, member: Member) -> dict[str, str]:
        """The variables of torchrun 2.13 (but those of its agent), and ``NODE_RANK``."""
        if not gang.chief.ports:
            raise ValueError(f"{gang.chief.name} needs a port: rank 0 listens there for the others")
        master_port = str(gang.chief.ports[0])
        rank, world_size = str(gang.rank(member)), str(gang.world_size)
        node_rank = str(gang.node_rank(member))
        return {
            "MASTER_ADDR": gang.chief.host,
            "MASTER_PORT": master_port,
            "RANK": rank,
            "WORLD_SIZE": world_size,
            "LOCAL_RANK": str(gang.local_rank(member)),
            "LOCAL_WORLD_SIZE": str(gang.local_world_size(member)),
            "GROUP_RANK": node_rank,
            "GROUP_WORLD_SIZE": str(len(gang.hosts)),
            "NODE_RANK": node_rank,  # torchrun does not set it, Lightning and many scripts read it
            "ROLE_NAME": "default",
            "TRAINMASTER_HOSTS": ",".join(gang.hosts),  # a launcher of one's own wants a list of them
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": world_size,
            # Lightning and others take this one for "started from outside, do not start processes".
            "TORCHELASTIC_RUN_ID": f"trainmaster-{gang.chief.host}-{master_port}",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            # There is no agent: rank 0 must open the store itself, also if we run inside a torchrun.
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }

    def defaults(self, gang: Gang, member: Member) -> dict[str, str]:
        """As torchrun: nccl raises its errors, and several processes on a machine get one thread each."""
        chosen = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
        if gang.local_world_size(member) > 1:
            chosen["OMP_NUM_THREADS"] = "1"
        return chosen
