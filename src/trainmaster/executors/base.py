"""The interface between what decides and what starts processes: `Executor` and the nouns it speaks.

An executor starts gangs on a given cluster, observes them, stops them and shows their logs.
It decides nothing: no retries, no reasons, no order between tasks. All calls are idempotent
per attempt, so the control loop may repeat any of them after a crash at any line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from trainmaster.dataclass import dataclass, field
from trainmaster.spec.errors import OtherVersionError
from trainmaster.spec.units import counted

if TYPE_CHECKING:
    from trainmaster.executors.gangs.placement import LiveNode
    from trainmaster.spec.facts import QueuedMachines
    from trainmaster.spec.states import Overuse


class Phase(StrEnum):
    """How far an attempt has come, as the executor sees it.

    UNKNOWN: never heard of it (or forgotten): it is safe to submit it.
    QUEUED: waits for free slots.
    GRANTED: holds its slots and ports, waits for `Executor.launch` (only gangs submitted with ``hold``).
    RUNNING: its members were started.
    EXITED: no process of it is left; every member has an exit record.
    """

    UNKNOWN = "UNKNOWN"
    QUEUED = "QUEUED"
    GRANTED = "GRANTED"
    RUNNING = "RUNNING"
    EXITED = "EXITED"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What a member that others have sent sees of this machine, and as whom it runs.

    Attributes:
        uid: user of its processes.
        gid: their group.
        groups: further ones.
        readable: absolute paths that exist by the start; they are the same inside.
        writable: absolute paths that it may write to; some lie in readable ones.
        hidden: directories of which it sees nothing but those paths; containers see nothing of any.
        scratch: has a directory for each member, by its name: its ``/tmp``. Containers have their own.
        memory_bytes: most that it takes; 0 is any. Members of a gang that are no containers share theirs.
        cpus: most cores that it takes; 0 is any.
        processes: most processes and threads.
        has_peers: other members share its network. Containers have no other one.
    """

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    scratch: str = ""
    memory_bytes: int = 0
    cpus: int = 0
    processes: int = 0
    has_peers: bool = False


#: The kind of a `Container` that is none: its member runs as a Unix user in a sandbox.
UNIX_USER = "user"


@dataclass(frozen=True, slots=True)
class Container:
    """The image that a member runs in, and the engine that starts it.

    Attributes:
        image: one that the engine has on this node; it holds a bash.
        program: absolute path of the engine's client.
        kind: one of `engines.KINDS` or `UNIX_USER`; that one has neither image nor engine.
        rootless: the engine runs as an ordinary user.
        mounts: absolute paths that exist by the start; they are the same inside, and writable.
        settings: all the environment that the client gets.
        engine_file: absolute path of a file on the node, empty where there is one node only. By the start it
            has ``program``, ``kind``, ``rootless`` and ``settings`` as JSON: they differ from node to node.
        sandbox: what it sees, instead of ``mounts`` and the network of this machine.
        shm_bytes: shared memory that it finds at least; 0 is any.
    """

    image: str
    program: str
    kind: str
    rootless: bool = False
    mounts: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    engine_file: str = ""
    sandbox: Sandbox | None = None
    shm_bytes: int = 0

    def message(self) -> dict[str, Any]:
        """As the supervisor's part knows it."""
        return {**asdict(self), "settings": portable(self.settings)}


@dataclass(frozen=True, slots=True)
class MemberRequest:
    """One process of a gang.

    Attributes:
        name: ``worker-0``, ``ps-1``, ``chief-0``.
        script: run as ``bash -euo pipefail -c SCRIPT``.
        env: added to the environment given to `Executor.open`; with ``hold`` it comes with `launch`.
        cwd: absolute working directory; it exists.
        ports: how many free loopback ports to hold for it until it starts.
        essential: the gang has succeeded when every essential member has exited 0; the others
            (parameter servers) are then stopped.
        dispensable: the others go on when it is lost with its node.
        gpus: how many GPUs it needs for itself (``CUDA_VISIBLE_DEVICES`` is set to them).
        container: runs it in there; it then gets ``env`` and nothing else, and sees those GPUs only.
        node_labels: the node it runs on has all of these (``{"market": "spot"}``); of no effect where there
            is one node only.
        secrets: names of variables whose values do not appear in its log.
        serves: it answers at ``TRAINMASTER_PORT``, where nothing else may listen.
    """

    name: str
    script: str
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)
    ports: int = 0
    essential: bool = True
    dispensable: bool = False
    gpus: int = 0
    container: Container | None = None
    node_labels: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    serves: bool = False


@dataclass(frozen=True, slots=True)
class GangRequest:
    """One attempt at a task: all its members start, or none.

    Attributes:
        attempt: unique id such as ``digits-7f3a/train/0/1``; starting it twice starts it once.
        directory: absolute directory of this attempt; logs are ``DIRECTORY/<member>.log``.
        members: in rank order.
        slots: how many slots the whole gang takes while it lives.
        group: attempts of one group never take more than ``group_slots`` slots together.
        group_slots: see ``group``.
        hold: when slots are free, hold them and the ports (phase GRANTED) until `launch`.
        grace_s: seconds between SIGTERM and SIGKILL when a member failed and the others are stopped.
        share_gpus: each member sees the GPUs of all members of its node (and picks by LOCAL_RANK),
            instead of its own only.
        per_node: so many members of a role share a node, and different ones are on different nodes
            (0: on as few nodes as there is room on); of no effect where there is one node only.
        directories: absolute; made on each node, with those above them, before members start there.
        memory_bytes: most that its processes take on a node together; 0 is any. One that takes more ends as
            ``oom``.
    """

    attempt: str
    directory: str
    members: tuple[MemberRequest, ...]
    slots: int
    group: str
    group_slots: int
    hold: bool = False
    grace_s: float = 20.0
    share_gpus: bool = False
    per_node: int = 0
    directories: tuple[str, ...] = ()
    memory_bytes: int = 0

    def message(self) -> dict[str, Any]:
        """As it is submitted."""
        members = [
            {
                **_fields(member),
                "env": portable(member.env),
                "container": None if member.container is None else member.container.message(),
                "node_labels": dict(member.node_labels),
                "directories": self.directories,
            }
            for member in self.members
        ]
        return {**_fields(self), "members": members}


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """What is known of one member; its exit record once it has ended.

    Attributes:
        name: ``worker-0``.
        pid: process id on its node, None before the start.
        started_at: Unix time in seconds.
        ended_at: Unix time in seconds, None while it lives.
        exit_code: None unless it exited by itself.
        signal: number of the signal that killed it, else None.
        stopped: we had asked it to stop (so its exit tells nothing about the user's code).
        lost: its supervisor or its node died with it: how it ended is not known.
        oom: the kernel's OOM killer struck while it ran, and it died of SIGKILL that was not ours.
        error: why it could not be started, else empty.
        lost_log_bytes: the last of its output, for which no disk had room until its gang had ended.
    """

    name: str
    pid: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    stopped: bool = False
    lost: bool = False
    oom: bool = False
    error: str = ""
    lost_log_bytes: int = 0


#: Of any time, number and text that a supervisor says of a member: a node may send anything.
_MOST_NUMBER = 1e18
_MOST_TEXT = 64 << 10


def _is_sound(member: MemberStatus) -> bool:
    """Whether what is said of a member is of the kinds that drivers count with, and databases hold."""
    return (
        all(type(each) is str and len(each) <= _MOST_TEXT for each in (member.name, member.error))
        and all(type(each) is bool for each in (member.stopped, member.lost, member.oom))
        and _are_numbers((member.started_at, member.ended_at))
        and _are_numbers((member.pid, member.exit_code, member.signal, member.lost_log_bytes), int)
    )


def _are_numbers(values: Iterable[object], *kinds: type) -> bool:
    return all(
        each is None or (type(each) in (kinds or (int, float)) and -_MOST_NUMBER < each < _MOST_NUMBER)  # type: ignore[operator]
        for each in values
    )


@dataclass(frozen=True, slots=True)
class GangStatus:
    """What is known of one attempt.

    Attributes:
        attempt: id as submitted.
        phase: see `Phase`.
        members: one each, in the order of the request; empty while UNKNOWN or QUEUED.
        ports: free ports held per member (GRANTED), else empty.
        started_at: Unix time in seconds of the first member's start.
        ended_at: Unix time in seconds of the last member's end.
        addresses: where the other members reach each one, from GRANTED on; empty where all are on this
            machine.
        lost_nodes: of a gang over several machines with a member that failed: machines that did not live
            beyond that, one clause each for people; empty if all of them did.
        overused: of what it used more than it asked for, if one of these was ended for that.
    """

    attempt: str
    phase: Phase
    members: tuple[MemberStatus, ...] = ()
    ports: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    started_at: float | None = None
    ended_at: float | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)
    lost_nodes: tuple[str, ...] = ()
    overused: Overuse | None = None

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> GangStatus:
        """As it comes from a supervisor.

        Raises:
            OtherVersionError: it cannot be read.
        """
        try:
            attempt, phase, members, ports, started_at, ended_at = row
            known = len(fields(MemberStatus))  # a newer supervisor tells more
            rows = tuple(MemberStatus(*member[:known]) for member in members)
            held = {name: tuple(numbers) for name, numbers in ports.items()}
            if not (_are_numbers((started_at, ended_at)) and all(map(_is_sound, rows))):
                raise ValueError("it has times or codes that are none")
            if not _are_numbers([port for numbers in held.values() for port in numbers], int):
                raise ValueError("it has ports that are none")
            return cls(attempt, Phase(phase), rows, held, started_at, ended_at)
        except (ValueError, TypeError, AttributeError) as error:
            raise OtherVersionError(f"the status of a task cannot be read: {error}") from error

    def row(self) -> list[Any]:
        """The contrary of `of_row`."""
        members = [list(astuple(member)) for member in self.members]
        return [self.attempt, self.phase.value, members, dict(self.ports), self.started_at, self.ended_at]

    @property
    def is_spread(self) -> bool:
        """Its members are on several machines."""
        return len(set(self.addresses.values())) > 1


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one node offers to a run.

    Attributes:
        slots: how many slots may be in use at once by all runs on the node when a gang of this run
            is granted (cores, or the largest gang of the run, whichever is more).
        gpus: ids of the node's GPUs, as for CUDA_VISIBLE_DEVICES.
        team: whose run it is: teams share the slots of a node evenly. Empty for the owner of the home.
        team_slots: most slots that all runs of the team hold at once; 0 is any.
    """

    slots: int
    gpus: tuple[str, ...] = ()
    team: str = ""
    team_slots: int = 0


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """What a run waits for of which nothing runs, because other runs hold it.

    Attributes:
        slots: that its first gang needs.
        gpus: that its first gang needs.
        place: among the runs that wait: 1 is next.
        held: how many slots each other run of the team holds.
        teams: how many each other team holds; empty where the team itself holds all that it may.
        of: how many there are, or that the team may hold; 0 where it shares with none.
    """

    slots: int
    gpus: int
    place: int
    held: Mapping[str, int]
    teams: Mapping[str, int] = field(default_factory=dict)
    of: int = 0

    @property
    def words(self) -> str:
        """For people, without its place.

        >>> QueuePlace(2, 0, 1, {"digits-7f3a": 4}).words
        '2 cores: digits-7f3a holds 4'
        >>> QueuePlace(1, 0, 1, {}, {"news": 2}, 2).words
        '1 core: news has 2 of 2'
        """
        wanted = counted(self.slots, "core")
        if self.gpus:
            wanted += f" and {counted(self.gpus, 'GPU')}"
        held = [f"{run} holds {slots}" for run, slots in sorted(self.held.items())]
        teams = sorted(self.teams.items())
        held += [f"{team or 'the owner of the server'} has {slots} of {self.of}" for team, slots in teams]
        if self.of and not teams:
            held.append(f"all together may hold {self.of}")
        return f"{wanted}: {', '.join(held)}"

    @property
    def note(self) -> str:
        """The line that tells that it waits."""
        return f"waits for {self.words}; {place_text(self.place)}"


def place_text(place: int) -> str:
    """How many wait before it.

    >>> place_text(1), place_text(2), place_text(4)
    ('it is next', '1 run waits before it', '3 runs wait before it')
    """
    if place == 1:
        return "it is next"
    return f"{place - 1} run{'s wait' if place > 2 else ' waits'} before it"


class Executor(Protocol):
    """Starts, observes and stops gangs on one cluster. Not thread-safe: one loop owns it.

    Raises (every method): ExecutorError when the node cannot be reached.
    """

    def open(self, run: str, capacity: Capacity, env: Mapping[str, str], token: int = 0) -> None:
        """Connect on behalf of a run.

        Args:
            run: its id.
            capacity: of the node.
            env: the base of every member's environment; never stored.
            token: of the lease of the run's driver. From then on a client with a smaller one is refused,
                and hung up on if it is connected: what it says has no effect. 0 where there is no lease.

        Raises:
            LeaseLostError: (every method) a larger one has been seen.
        """

    def submit(self, gangs: Sequence[GangRequest]) -> None:
        """Queue gangs in this order; ones already known are left alone."""

    def launch(self, attempt: str, env: Mapping[str, Mapping[str, str]]) -> None:
        """Start a GRANTED gang with more environment per member name. No effect in another phase."""

    def observe(self, attempts: Sequence[str]) -> list[GangStatus]:
        """The present status of each attempt, in their order; also gone control processes' attempts."""

    def changes(self, timeout_s: float) -> list[GangStatus]:
        """Wait until something changed or ``timeout_s`` passed; what changed since the last call."""

    def output(self) -> list[tuple[str, str]]:
        """(attempt, member) of each member that wrote something since the last call; wakes `changes`."""

    def queue_place(self) -> QueuePlace | QueuedMachines | None:
        """For what the run waits that others hold, as far as `changes` has heard.

        Returns:
            None if something of it runs, nothing of it is queued, or no other run uses the machines.
        """

    def stop(self, attempt: str, grace_s: float, *, stacks: bool = False) -> None:
        """SIGTERM to every process of the attempt, SIGKILL after ``grace_s``; also un-queues it.

        With ``stacks`` Pythons that have `faulthandler` enabled get SIGABRT in place of SIGTERM: they write
        the stacks of their threads into the log, and end.

        Members that are not essential get SIGTERM when the essential ones have ended: those may
        need them to save their work.

        A repeated call with a shorter grace shortens it.
        """

    def forget(self, attempts: Sequence[str]) -> None:
        """The exit records of these EXITED attempts are stored; the node may drop them."""

    def close(self) -> None:
        """Disconnect. Running gangs go on; queued and GRANTED ones are dropped (they become UNKNOWN)."""


class OneClusterExecutor(Executor, Protocol):
    """An executor over the nodes of one cluster, which may be lost as a whole, as one with a head may."""

    @property
    def is_lost(self) -> bool:
        """Whether the cluster is gone: all its gangs have been reported, and nothing is started there."""
        ...

    def nodes(self) -> Sequence[LiveNode]:
        """Those that are not known to be dead."""
        ...

    def waits(self) -> Mapping[str, str]:
        """Attempts that wait for room, to be placed though others could be or for what they write; why."""
        ...

    def hurry(self) -> None:
        """From now on a loop waits for each answer: give up sooner than when connecting."""


def portable(env: Mapping[str, str]) -> dict[str, str]:
    """An environment as the supervisor reads it, which takes file names and variables for UTF-8."""
    if sys.getfilesystemencoding() == "utf-8":
        return dict(env)
    return {_recode(name): _recode(value) for name, value in env.items()}


def _recode(text: str) -> str:
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def _fields(request: GangRequest | MemberRequest) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__slots__}
