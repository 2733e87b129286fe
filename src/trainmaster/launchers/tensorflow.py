"""`TensorFlowLauncher`: ``TF_CONFIG``, for parameter servers and for mirrored workers."""

from __future__ import annotations

import json

from trainmaster.launchers.base import PEER_ENDED, Gang, Launcher, Member, not_installed

_KNOWN_FAILURES = (
    not_installed("tensorflow", "tensorflow"),
    not_installed("tf_keras", "tf_keras"),
    (
        "Keras cannot be imported. Check that it is installed",
        "TF_USE_LEGACY_KERAS is set, and Keras 2 is not installed: add `setup: pip install tf_keras`.",
    ),
    (
        "tensorflow.python.distribute.values.PerReplica'>) to a Tensor",
        "Keras 3 cannot `fit` under MultiWorkerMirroredStrategy: use Keras 2 "
        "(`setup: pip install tf_keras` and `env: {TF_USE_LEGACY_KERAS: 1}`), or a training loop of your own "
        "with strategy.run().",
    ),
    (
        "Could not start gRPC server",
        "The port of this member is taken: use TF_CONFIG as it is given, and make one server per process.",
    ),
    (
        "MergeV2Checkpoints",
        "Parameter servers on other machines write their parts of a checkpoint on their own disks: save and "
        'restore with tf.train.CheckpointOptions(experimental_io_device="/job:chief").',
    ),
    (
        "ParameterServerStrategy must be initialized with a `ClusterResolver`",
        "Give the strategy the cluster: "
        "ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver()).",
    ),
    (
        "Collective ops must be configured at program startup",
        "Make MultiWorkerMirroredStrategy before anything else of TensorFlow.",
    ),
    ("Collective ops is aborted by", PEER_ENDED),
    ("UnavailableError", PEER_ENDED),
    ("heartbeat timeout", PEER_ENDED),
)


# A server runs a step of each worker at the same time, and each waits for others in a thread of TensorFlow's.
# By itself it makes as many as there are cores: with two of them, two workers' steps wait forever.
_ENOUGH_THREADS = (
    "cores=$(nproc); "
    'export TF_NUM_INTEROP_THREADS="${{TF_NUM_INTEROP_THREADS:-$((cores > {least} ? cores : {least}))}}"; '
    "unset cores; "
)


class TensorFlowLauncher(Launcher):
    """``TF_CONFIG`` with the cluster and the member's own task.

    With parameter servers, only the ``chief`` ends by itself: ``ps`` and ``worker`` run
    ``tf.distribute.Server(...).join()`` until they are stopped. Without (mirrored workers) every
    worker trains, and worker 0 is TensorFlow's chief by convention. Where the chief is one of the workers
    (``chief: worker``), TensorFlow is told that worker 0 is the chief, worker 1 its worker 0, and so on; all
    of them train, and end by themselves, as an Estimator's do.

    >>> gang = Gang((Member("chief", 0, "10.0.0.1", (2222,)), Member("ps", 0, "10.0.0.2", (2222,)),
    ...              Member("worker", 0, "10.0.0.3", (2222,))))
    >>> found = json.loads(TensorFlowLauncher().environment(gang, gang.members[1])["TF_CONFIG"])
    >>> found["cluster"]
    {'chief': ['10.0.0.1:2222'], 'ps': ['10.0.0.2:2222'], 'worker': ['10.0.0.3:2222']}
    >>> found["task"]
    {'type': 'ps', 'index': 0}
    >>> [TensorFlowLauncher().is_essential(gang, member) for member in gang.members]
    [True, False, False]
    >>> replicas = Gang(tuple(Member("worker", at, "10.0.0.3", (2222 + at,)) for at in range(3)),
    ...                 chief_is_worker=True)
    >>> found = json.loads(TensorFlowLauncher().environment(replicas, replicas.members[2])["TF_CONFIG"])
    >>> found["cluster"]
    {'chief': ['10.0.0.3:2222'], 'worker': ['10.0.0.3:2223', '10.0.0.3:2224']}
    >>> found["task"]
    {'type': 'worker', 'index': 1}
    """

    name = "tensorflow"
    known_failures = _KNOWN_FAILURES

    def ports_per_member(self, role: str) -> int:
        """One: every member has a gRPC server."""
        return 1

    def is_essential(self, gang: Gang, member: Member) -> bool:
        """The chief where there is one, else every worker."""
        if any(other.role == "chief" for other in gang.members):
            return member.role == "chief"
        return member.role != "ps"

    def is_dispensable(self, gang: Gang, member: Member) -> bool:
        """A worker that a chief gives its steps to: others get what a lost one had."""
        return member.role == "worker" and any(other.role == "chief" for other in gang.members)

    def script(self, gang: Gang, member: Member, script: str) -> str:
        """The command; with parameter servers, TensorFlow has a thread for each worker in every server."""
        workers = sum(other.role == "worker" for other in gang.members)
        if member.role == "chief" or not any(other.role == "ps" for other in gang.members):
            return script
        return _ENOUGH_THREADS.format(least=workers + 2) + script

    def environment(self, gang: Gang, member: Member) -> dict[str, str]:
        """``TF_CONFIG``."""
        cluster: dict[str, list[str]] = {}
        for other in gang.members:
            if not other.ports:
                raise ValueError(f"{other.name} needs a port: its gRPC server listens there")
            cluster.setdefault(_as_told(gang, other)[0], []).append(f"{other.host}:{other.ports[0]}")
        role, index = _as_told(gang, member)
        task = {"type": role, "index": index}
        return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}

    def defaults(self, gang: Gang, member: Member) -> dict[str, str]:
        """As TensorFlow's guide says: a call to a lost peer fails at once instead of waiting for it."""
        return {"GRPC_FAIL_FAST": "use_caller"}


def _as_told(gang: Gang, member: Member) -> tuple[str, int]:
    """Type and index of a member as TensorFlow is told them."""
    if not gang.chief_is_worker or member.role != "worker":
        return member.role, member.index
    return ("worker", member.index - 1) if member.index else ("chief", 0)
