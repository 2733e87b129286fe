"""`Provider`: rents machines, or lends the user's own. It decides nothing; every call may be repeated.

A cluster is the nodes of one experiment of a run. Its id names what is rented for it: machines are created by
client token and tagged, so a call that is repeated after a crash finds what the first one made.

`ProviderPlace`: where a provider keeps what it must remember, and whose machines are whose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from trainmaster.dataclass import dataclass, field
from trainmaster.spec.errors import ProviderError, UsageError
from trainmaster.spec.private_files import short_digest
from trainmaster.spec.states import Overuse

#: Drivers of one home may have clocks that differ by so much.
CLOCKS_DIFFER_S: Final = 300.0
#: Where a home may have machines, and the key that they let in.
_OF_ALL_CLUSTERS: Final = ("regions.json", "id_ed25519", "id_ed25519.pub")
#: A machine that has not come up so long after this process knows of it is given back.
BOOT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class ProviderPlace:
    """The home as providers see it.

    Attributes:
        root: all state (``TRAINMASTER_HOME``).
        identity: a name that no other home has. Machines are tagged with it; others are not touched.
        environ: the caller's variables, for settings and credentials.
        team: whose own login it is; empty with that of the home.
        asker: the team that uses that of the home, and may have its own; empty for none.
        saved: called when something was written that is needed to go on, before it is relied on.
    """

    root: Path
    identity: str
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    saved: Callable[[], None] = field(default=lambda: None, repr=False)
    team: str = ""
    asker: str = ""

    def with_login_of(self, team: str, environ: Mapping[str, str]) -> ProviderPlace:
        """The same with a team's own login: host keys, and what providers remember, are apart from others'.

        Args:
            team: whose login it is.
            environ: all variables that count then.
        """
        return replace(self, root=self.root / "logins" / team, team=team, environ=environ)

    @property
    def home_root(self) -> Path:
        """Of the home, whosever login it is."""
        return self.root.parent.parent if self.team else self.root

    def directory(self, provider: str) -> Path:
        """Where the provider of that name may write; it is private."""
        path = self.root / "providers" / provider
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def files_for(self, provider: str, clusters: Iterable[str]) -> list[Path]:
        """What a driver that goes on with these clusters in another home must have of a provider's directory.

        Every ledger names a file of one cluster by its short digest; the others here are of all clusters.
        """
        place = self.root / "providers" / provider
        own = [path for each in clusters for path in sorted(place.glob(f"*{short_digest(each)}*.json"))]
        return [*(place / name for name in _OF_ALL_CLUSTERS), *own]


def root_on_nodes(identity: str) -> str:
    """Where everything of a home lies on every node; short, as Ray's sockets have little room."""
    return f"/var/tmp/trainmaster-{identity[:8]}"  # noqa: S108 - made with 0700, and refused if not ours


class NodeState(StrEnum):
    """How far a machine is, as its provider says.

    STARTING: rented, it boots.
    READY: it runs (whether anything answers is for others to find out).
    LEAVING: the provider has announced that it takes it back.
    GONE: it is not there any more, and costs nothing.
    """

    STARTING = "STARTING"
    READY = "READY"
    LEAVING = "LEAVING"
    GONE = "GONE"


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """Machines of one kind for a cluster.

    Attributes:
        role: what they are for: ``worker`` or ``ps``.
        count: how many.
        instance_type: as the provider names it; empty for hosts of one's own.
        region, zone: where; an empty zone leaves it to the provider.
        spot: they may be taken back.
        token: the same token gives the same machines: never more, however often it is asked for.
        labels: for placing members on them.
        lease_s: a machine ends itself when its lease was not renewed for so long.
        require: labels that a host of one's own must have in the inventory; others are not asked.
        slots, gpus: how much of a host of one's own is wanted, others may use the rest; 0 slots: all of it.
        disk_bytes: of the root disk of a rented machine; 0 for what the provider takes.
        least: hosts of one's own that will do, if some cannot be had; 0: all of them.
        max_usd_per_hour: of a spot machine, which is taken back if it costs more; 0: whatever it costs.
        memory_bytes, cpus: that a host of one's own must have, where it says (``slots``); 0: any.
        content: what is to be on it beside its system, by hash: an image that has all of it is taken.
        beside: requests of the same cluster that are made at the same time, for a provider that can give all
            of them or none.
    """

    role: str
    count: int
    instance_type: str = ""
    region: str = ""
    zone: str = ""
    spot: bool = False
    token: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    lease_s: float = 900.0
    require: Mapping[str, str] = field(default_factory=dict)
    slots: int = 0
    gpus: int = 0
    disk_bytes: int = 0
    least: int = 0
    max_usd_per_hour: float = 0.0
    memory_bytes: int = 0
    cpus: int = 0
    content: tuple[str, ...] = ()
    beside: tuple[NodeRequest, ...] = ()

    @property
    def together(self) -> list[NodeRequest]:
        """It and those beside it, in the same order whichever of them is asked."""
        return sorted([replace(self, beside=()), *self.beside], key=lambda each: each.token)

    @property
    def needed(self) -> int:
        """How many must be had."""
        return self.least or self.count


def groups_of(requests: Sequence[NodeRequest]) -> list[list[NodeRequest]]:
    """Requests as a provider sends them that gives all or none of those that stand beside each other."""
    found: dict[str, list[NodeRequest]] = {}
    for request in requests:
        together = request.together
        found.setdefault(together[0].token if len(together) > 1 else f"{len(found)}", together)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of a cluster.

    Attributes:
        id: as the provider names it. cluster: that it was rented for. role: as requested.
        state: see `NodeState`.
        address: where it is reached from here.
        private_address: where the nodes of a cluster reach each other.
        port: of its SSH server.
        user: to log in as.
        key: private key file; None for the user's own agent or keys.
        instance_type, zone, spot: what it is.
        is_rented: it is there for its cluster only, and what is on it goes with it; else it stays.
        started_at: Unix seconds from which on it is billed; 0 if it costs nothing.
        leaves_at: Unix seconds at which the provider takes it back; None if it has not said so.
        slots, gpus: processes and GPUs that it takes; 0 if unknown.
        labels: as requested, or from the inventory.
        reason: why it is gone or could not be had, in words.
        ended_at: Unix seconds from which on it is not billed any more; None if it is, or if unknown.
        host_key: its SSH key (``ssh-ed25519 AAAA...``) where the provider vouches for it; empty to pin
            it at first use.
        jump: ``user@host:port`` that it is reached through; empty for none.
        jump_key: private key file of a rented machine's; empty for the user's own agent or keys.
        way: command whose standard input and output lead to its SSH server, run where ``jump`` leads to, or
            here; empty if ``address`` can be connected to.
        switch: on the machine, where the lease of its dead-man switch lies; empty for the usual place.
        python: on the machine, for our runtime; empty to look for one.
        directory: on the machine, where the runtime is put; empty for ``~/.trainmaster-runtime``.
        is_queued: it waits in a queue of its provider: ``reason`` says for what.
        overused: of what the task that ran on it used more than it asked for, if it was ended for that.
    """

    id: str
    cluster: str
    role: str
    state: NodeState
    address: str = ""
    private_address: str = ""
    port: int = 22
    user: str = ""
    key: Path | None = None
    instance_type: str = ""
    zone: str = ""
    spot: bool = False
    started_at: float = 0.0
    leaves_at: float | None = None
    slots: int = 0
    gpus: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    ended_at: float | None = None
    host_key: str = ""
    jump: str = ""
    jump_key: str = ""
    way: str = ""
    switch: str = ""
    python: str = ""
    directory: str = ""
    is_rented: bool = True
    is_queued: bool = False
    overused: Overuse | None = None


@dataclass(frozen=True, slots=True)
class BakedImage:
    """An image that was made of a machine, for others to start from.

    Attributes:
        id: as the provider names it; empty until it has one.
        region: where machines can start from it.
        run: that has made it.
        content: what is on it beside its base, by hash.
        base: name of the image that its machine started from.
        saves_s: seconds that it took to put that there.
        made_at: Unix seconds; 0 until it is made.
        size_bytes: of its disk.
        is_ready: machines can start from it.
        problem: why they never will; empty if nothing is wrong.
        team: whose it is; empty without teams.
        usd_per_month: what keeping it costs at most; None if unknown.
    """

    id: str
    region: str
    run: str
    content: tuple[str, ...]
    base: str = ""
    saves_s: float = 0.0
    made_at: float = 0.0
    size_bytes: int = 0
    is_ready: bool = False
    problem: str = ""
    team: str = ""
    usd_per_month: float | None = None


def planned(service: str, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A request as `Provider.dry_run` shows it."""
    return {"service": service, "operation": operation, "parameters": dict(parameters)}


class ProviderGoneError(UsageError):
    """The provider is gone, and its machines with it: a lab that was taken down."""


class NoCapacityError(ProviderError):
    """The provider has no such machine there now; another zone, type or time may help.

    Attributes:
        zones: where it was asked for in vain.
        lacking: how many are needed beside those that are free; 0 where it is not known.
    """

    def __init__(self, message: str, hint: str = "", zones: Sequence[str] = (), *, lacking: int = 0) -> None:
        self.zones, self.lacking = tuple(zones), lacking
        super().__init__(message, hint)


class Provider(Protocol):
    """Rents and gives back. Contract: `trainmaster.testing.provider_contract`.

    Raises (every method): UsageError if credentials or permissions are wrong, ProviderError if it cannot
    be reached.
    """

    name: str

    def check_settings(self) -> None:
        """Refuse what can never work, such as wrong settings; sends no request."""

    def check_up(self) -> None:
        """Refuse what does not answer, or does not take the credentials."""

    def close(self) -> None:
        """Let go of connections; machines stay as they are."""

    def preflight(self, requests: Sequence[NodeRequest]) -> list[str]:
        """Refuse what cannot be rented (permissions, quotas, unknown types), before anything costs; notes."""

    def dry_run(self, cluster: str, requests: Sequence[NodeRequest]) -> list[dict[str, Any]]:
        """The very requests that `acquire` would send, in order; nothing is sent."""

    def acquire(self, cluster: str, request: NodeRequest) -> list[Node]:
        """Rent machines, all of them or none; they may still be STARTING.

        Of hosts of one's own some may be left out, if the request says so: they are GONE, with the reason.

        Raises:
            NoCapacityError: there are none now.
        """

    def nodes(self, cluster: str) -> list[Node]:
        """Every machine of a cluster that was ever there and is still known, with its present state."""

    def console(self, cluster: str, id: str) -> str:
        """What the console of a machine has shown, as far as the provider keeps it; empty if it has nothing.

        Also of one that is lost or gone. Asked only of providers whose `Capabilities.console` says so.
        """

    def renew(self, cluster: str, lease_s: float) -> None:
        """Let its machines live so long from now on."""

    def release(self, cluster: str, ids: Sequence[str] | None = None) -> None:
        """Give machines back: these, or all of the cluster. Those that are gone already are fine."""

    def reap(self, known: Sequence[str]) -> list[str]:
        """Give back machines of ours whose cluster is not among ``known`` and whose lease is over; their ids.

        One whose lease is not over may be that of a copy of our home; else it ends itself.
        """


@runtime_checkable
class Queue(Protocol):
    """What a provider may do, too, whose machines wait in a queue of its own (`Capabilities.queues`)."""

    def queue_wait_s(self, requests: Sequence[NodeRequest]) -> float | None:
        """How long these would wait if they were asked for now; None if it does not reckon. Queues nothing.

        Raises:
            UsageError: they would be refused.
            ProviderError: it cannot be asked.
        """


@runtime_checkable
class RanksJobs(Protocol):
    """What a `Queue` may do, too, that says why some of its jobs begin before others."""

    def rank_words(self, requests: Sequence[NodeRequest]) -> str:
        """How what waits beside these is ranked, for people; empty if it does not say.

        Raises:
            ProviderError: it cannot be asked.
        """


@runtime_checkable
class Learns(Protocol):
    """What a provider may do, too, whose machines are there anyway: ask these what no list says of them."""

    def learn(self, *, network: bool) -> None:
        """Ask machines for what is not known of them yet; nothing is asked where all is known.

        Args:
            network: of what goes between them, too.
        """


@runtime_checkable
class CountsFree(Protocol):
    """What a provider may do, too, whose machines are there anyway, and may be in use."""

    def free_nodes(self, requests: Sequence[NodeRequest]) -> list[int]:
        """How many of the machines that each asks for are free now.

        Raises:
            NoCapacityError: fewer than one needs at least; says which are in use.
            ProviderError: it cannot be asked.
        """


@runtime_checkable
class BringsSelfDeletion(Protocol):
    """What a provider may do, too, whose machines are still there when they have switched themselves off."""

    def self_deletion_script(self, node: Node) -> str:
        """A script by which a machine deletes itself, run as root when its lease is over; empty for none.

        It may hold a secret that can do nothing else. With ``--check`` it does nothing, and ends with 0.

        Raises:
            UsageError: there is none, and what would be left over is not known to the user.
            ProviderError: the provider does not answer.
        """


@runtime_checkable
class Baker(Protocol):
    """A provider that makes images of its machines (`Capabilities.bakes`); it raises as `Provider` does."""

    def bake(self, cluster: str, node: str, image: BakedImage) -> BakedImage:
        """Begin to make an image of a machine of ours, or find the one that an earlier call has begun."""

    def images(self) -> list[BakedImage]:
        """All that this home has, the newest first."""

    def remove_image(self, image: str) -> bool:
        """Remove one of ours; whether it was there."""
