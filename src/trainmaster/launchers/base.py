"""The nouns of the launchers: `Member`, `Gang` and the `Launcher` protocol; `get_launcher` finds one by name.

Each launcher is loaded when it is asked for. What the end of a log may say, and what to do about it
(`advice`), is shared by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from trainmaster.dataclass import dataclass
from trainmaster.spec.frameworks import LAUNCHERS
from trainmaster.spec.plugins import PluginRegistry

#: (what the log shows, what it means and what to do). The first match counts: causes stand before
#: the consequences that they have on the other members.
KnownFailures = Sequence[tuple[str, str]]

PEER_ENDED = "Another member of the gang ended first; its log shows the cause."


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a gang and where it runs.

    Attributes:
        role: ``chief``, ``worker`` or ``ps``.
        index: 0-based within its role.
        host: address under which the other members reach it; members on one machine share it.
        ports: free ports held for it on its host, as many as its launcher asked for.
        gpus: GPUs that it has for itself; it sees them as 0..n-1.

    >>> Member("worker", 0, "127.0.0.1", (29500,)).name
    'worker-0'
    """

    role: str
    index: int
    host: str
    ports: tuple[int, ...] = ()
    gpus: int = 0

    @property
    def name(self) -> str:
        """``worker-0``: unique in its gang, and the name of its log."""
        return f"{self.role}-{self.index}"


@dataclass(frozen=True, slots=True)
class Gang:
    """The members of one attempt, in rank order; all of them run, or none.

    What is "local" to a member goes by its host and not by `per_node`: four workers that were
    meant for four nodes and run on one laptop share its disk and its cores, and must know it.

    Attributes:
        members: in rank order, at least one, each name once.
        per_node: how many training processes the recipe wants on each node.
        chief_is_worker: the first worker leads, and trains with the others.

    >>> workers = tuple(Member("worker", i, f"10.0.0.{1 + i // 2}", (29500 + i,)) for i in range(3))
    >>> gang = Gang(workers, per_node=2)
    >>> gang.world_size, gang.chief.name, gang.hosts
    (3, 'worker-0', ('10.0.0.1', '10.0.0.2'))
    >>> [(gang.rank(w), gang.node_rank(w), gang.local_rank(w), gang.local_world_size(w)) for w in workers]
    [(0, 0, 0, 2), (1, 0, 1, 2), (2, 1, 0, 1)]
    """

    members: tuple[Member, ...]
    per_node: int = 1
    chief_is_worker: bool = False

    def __post_init__(self) -> None:
        if not self.members:
            raise ValueError("a gang needs at least one member")
        if self.per_node < 1:
            raise ValueError(f"per_node must be at least 1, not {self.per_node}")
        names = [member.name for member in self.members]
        if len(set(names)) != len(names):
            raise ValueError(f"two members of a gang have the same name: {', '.join(names)}")

    @property
    def world_size(self) -> int:
        """How many members there are."""
        return len(self.members)

    @property
    def chief(self) -> Member:
        """The member with rank 0: its metrics and its output directory count."""
        return self.members[0]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The machines, each once, in the order of their lowest rank."""
        return tuple(dict.fromkeys(member.host for member in self.members))

    def rank(self, member: Member) -> int:
        """The member's place in the gang, from 0."""
        return self.members.index(member)

    def node_rank(self, member: Member) -> int:
        """The place of the member's machine among `hosts`, from 0."""
        return self.hosts.index(member.host)

    def local_rank(self, member: Member) -> int:
        """The member's place among those on its machine, from 0."""
        return sum(other.host == member.host for other in self.members[: self.rank(member)])

    def local_world_size(self, member: Member) -> int:
        """How many members its machine runs."""
        return sum(other.host == member.host for other in self.members)


class Launcher(Protocol):
    """Turns a gang into each member's environment. Pure: same gang in, same variables out.

    A plug-in inherits from this class, is found through the entry point group
    ``trainmaster.launchers`` (a class or function without arguments) and inherits
    `trainmaster.testing.launcher_contract.LauncherContract` in its tests.

    Attributes:
        name: as in the recipe's ``framework``.
        shares_gpus: each member picks its GPU by its local rank, so it must see those of all members on
            its node; else it sees its own only.
        known_failures: what its framework is known to say, with the fix of each.
        counted: environment with which members of one machine send by TCP what else goes where nothing counts
            it, so that a measurement shows what they would send each other between machines. It is left
            out where the recipe sets one of these names, or one that begins so.
    """

    name: str
    shares_gpus: bool = False
    known_failures: KnownFailures = ()
    counted: Mapping[str, str] = MappingProxyType({})

    def ports_per_member(self, role: str) -> int:
        """How many free ports to hold for each member of this role until it starts."""
        return 0

    def is_essential(self, gang: Gang, member: Member) -> bool:
        """Whether the gang's success needs this member to end well.

        Parameter servers serve until they are stopped, so they are not waited for.
        """
        return member.role != "ps"

    def is_dispensable(self, gang: Gang, member: Member) -> bool:
        """Whether the framework goes on by itself when this member is lost with its machine.

        The gang then runs on without it. Only members that are not essential.
        """
        return False

    def script(self, gang: Gang, member: Member, script: str) -> str:
        """What the member runs instead of the user's script; by default that, unchanged.

        Both are for ``bash -euo pipefail``. It is asked for before ports are held: a script that
        needs one reads it from a variable that `environment` sets.
        """
        return script

    def environment(self, gang: Gang, member: Member) -> Mapping[str, str]:
        """What the framework must find; it wins over the user's ``env`` and inherited variables.

        Raises:
            ValueError: the gang has not got the ports that `ports_per_member` asked for.
        """
        ...

    def defaults(self, gang: Gang, member: Member) -> Mapping[str, str]:
        """What is good to have; each is set only when neither ``env`` nor the caller has set it."""
        return {}

    def explain(self, log_tail: str) -> str:
        """The cause and the fix, if the end of a failed member's log shows a known failure.

        Args:
            log_tail: the last few KB of the log as text.

        Returns:
            A sentence or two for the user; empty when nothing is recognised.
        """
        return advice(self.known_failures, log_tail)


class PlainLauncher(Launcher):
    """Adds nothing for a single process, and the list of hosts for a gang.

    ``TRAINMASTER_HOSTS`` names each member's host in rank order, so that a program of any kind
    finds the others; ``TRAINMASTER_INDEX`` and ``TRAINMASTER_WORLD_SIZE`` come from Trainmaster itself.

    >>> alone = Gang((Member("worker", 0, "127.0.0.1"),))
    >>> PlainLauncher().environment(alone, alone.chief)
    {}
    >>> pair = Gang((Member("worker", 0, "10.0.0.1"), Member("worker", 1, "10.0.0.2")))
    >>> PlainLauncher().environment(pair, pair.members[1])
    {'TRAINMASTER_HOSTS': '10.0.0.1,10.0.0.2'}
    """

    name = "plain"

    def environment(self, gang: Gang, member: Member) -> dict[str, str]:
        """``TRAINMASTER_HOSTS`` when there are others."""
        if gang.world_size == 1:
            return {}
        return {"TRAINMASTER_HOSTS": ",".join(other.host for other in gang.members)}

    def explain(self, log_tail: str) -> str:
        """What PyTorch is known to say: a single process needs no framework in its recipe."""
        return get_launcher("torchrun").explain(log_tail)


_LAUNCHERS = PluginRegistry(
    "launcher",
    {
        "jax": "trainmaster.launchers.jax:JaxLauncher",
        "mpi": "trainmaster.launchers.mpi:MpiLauncher",
        "mxnet": "trainmaster.launchers.mxnet:MxnetLauncher",
        "plain": "trainmaster.launchers.base:PlainLauncher",
        "ray": "trainmaster.launchers.ray:RayLauncher",
        "spark": "trainmaster.launchers.spark:SparkLauncher",
        "tensorflow": "trainmaster.launchers.tensorflow:TensorFlowLauncher",
        "torchrun": "trainmaster.launchers.torchrun:TorchrunLauncher",
    },
    also=LAUNCHERS,
)


def get_launcher(name: str) -> Launcher:
    """The launcher of a framework: built in first, then installed plug-ins.

    Args:
        name: a launcher's, or what recipes write as ``framework``, such as ``pytorch``.

    Raises:
        MissingPartError: it is installed but cannot be loaded.
        UsageError: the name is unknown.

    >>> get_launcher("pytorch").name
    'torchrun'
    """
    found: Launcher = _LAUNCHERS.make(LAUNCHERS.get(name, name))
    return found


def not_installed(module: str, package: str) -> tuple[str, str]:
    """The entry for a Python package that is missing.

    >>> not_installed("jax", "jax")[0]
    "No module named 'jax'"
    """
    return (
        f"No module named '{module}'",
        f"{package} is not installed for the Python that ran: add `setup: pip install {package}` to the "
        "experiment, or `container: auto` if it has a `framework` with an image, or activate the virtual "
        "environment that has it before `trainmaster run`.",
    )


def advice(known: KnownFailures, log_tail: str) -> str:
    """What to do about the first sign that the log shows; empty when it shows none.

    >>> advice([("disk on fire", "Pour water.")], "oh no: disk on fire")
    'Pour water.'
    """
    return next((text for sign, text in known if sign in log_tail), "")
