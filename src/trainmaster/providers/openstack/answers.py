"""What Nova says: servers, flavors, limits. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.providers.base import NodeRequest, NodeState
from trainmaster.providers.examining import Finding, check_room, room_finding
from trainmaster.providers.offer import Offer, site_offer
from trainmaster.providers.openstack.settings import OPENSTACK, OpenstackFlavor, OpenstackSettings

HOME: Final = "trainmaster-home"
CLUSTER: Final = "trainmaster-cluster"
TOKEN: Final = "trainmaster-token"  # noqa: S105 - the name of it
UNTIL: Final = "trainmaster-until"
_MIB: Final = 2**20
#: What Nova calls a limit, and what is used of it.
_LIMITS: Final = {
    "machines": ("maxTotalInstances", "totalInstancesUsed"),
    "cores": ("maxTotalCores", "totalCoresUsed"),
    "MiB of memory": ("maxTotalRAMSize", "totalRAMUsed"),
}
_STARTING: Final = frozenset({"BUILD", "REBUILD"})
#: It is off, or stowed away: what ran on it is over, and it holds a quota.
_OFF: Final = {
    "SHUTOFF": "it has switched itself off",
    "SUSPENDED": "somebody has suspended it",
    "SHELVED": "somebody has shelved it",
    "SHELVED_OFFLOADED": "somebody has shelved it",
    "SOFT_DELETED": "somebody has deleted it",
    "DELETED": "somebody has deleted it",
}
#: Aliases of devices that are GPUs.
_GPU: Final = re.compile(
    r"gpu|nvidia|tesla|quadro|rtx|gtx|instinct|\b(gh?[0-9]00|[abhlptv][0-9]{1,3}s?|mi[0-9]{2,3}x?|k80)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Server:
    """A machine, as Nova tells it.

    Attributes:
        id, status, task: as Nova has them; ``task`` is empty if nothing is done to it.
        metadata: what we have written on it.
        fixed, floating: its first address of either kind; empty if it has none.
        created: when, as text: it sorts.
        fault: why it is in the status ERROR.
        zone: availability zone.
    """

    id: str
    status: str
    task: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    fixed: str = ""
    floating: str = ""
    created: str = ""
    fault: str = ""
    zone: str = ""

    @property
    def is_there(self) -> bool:
        """Whether it is not being deleted."""
        return self.status not in ("DELETED", "SOFT_DELETED") and self.task not in (
            "deleting",
            "soft-deleting",
        )

    @property
    def is_placed(self) -> bool:
        """Whether it is decided if it can be had."""
        return self.status not in _STARTING or self.task != "scheduling"

    @property
    def cluster(self) -> str:
        """Which it is of."""
        return self.metadata.get(CLUSTER, "")

    @property
    def until(self) -> float:
        """Unix seconds until which it is wanted."""
        until = self.metadata.get(UNTIL, "")
        return float(until) if until.isdecimal() else 0.0

    @property
    def state(self) -> tuple[NodeState, str]:
        """How far it is, and why if it is gone."""
        if not self.is_there:
            return NodeState.GONE, "it was deleted"
        if self.status == "ERROR":
            return (
                NodeState.GONE,
                f"OpenStack could not make or keep it: {self.fault or 'it does not say why'}",
            )
        if why := _OFF.get(self.status):
            return NodeState.GONE, why
        return (NodeState.STARTING if self.status in _STARTING else NodeState.READY), ""


def server_of(told: Mapping[str, Any]) -> Server:
    """A machine of an answer."""
    ends = [end for ends in (told.get("addresses") or {}).values() for end in ends]

    def address(kind: str) -> str:
        mine = (end for end in ends if end.get("OS-EXT-IPS:type", "fixed") == kind)
        return str(min(mine, key=lambda end: int(end["version"]), default={"addr": ""})["addr"])

    return Server(
        id=str(told["id"]),
        status=str(told.get("status") or ""),
        task=str(told.get("OS-EXT-STS:task_state") or ""),
        metadata={str(key): str(value) for key, value in (told.get("metadata") or {}).items()},
        fixed=address("fixed"),
        floating=address("floating"),
        created=str(told.get("created") or ""),
        fault=" ".join(str((told.get("fault") or {}).get("message") or "").split()),
        zone=str(told.get("OS-EXT-AZ:availability_zone") or ""),
    )


@dataclass(frozen=True, slots=True)
class Flavor:
    """A kind of machine. disk_bytes: 0 for one that must boot from a volume."""

    id: str
    name: str
    vcpus: int
    memory_bytes: int
    disk_bytes: int
    gpus: int = 0
    gpu: str = ""


def flavor_of(told: Mapping[str, Any], own: OpenstackFlavor | None = None) -> Flavor:
    """A flavor of an answer; what the user says of its GPUs holds."""
    own = own or OpenstackFlavor()
    gpus, gpu = gpus_of(told.get("extra_specs") or {})
    gpus = gpus if own.gpus is None else own.gpus
    return Flavor(
        id=str(told["id"]),
        name=str(told["name"]),
        vcpus=int(told["vcpus"]),
        memory_bytes=int(told["ram"]) * _MIB,
        disk_bytes=int(told.get("disk") or 0) * 2**30,
        gpus=gpus,
        gpu=(own.gpu or gpu) if gpus else "",
    )


def gpus_of(properties: Mapping[str, Any]) -> tuple[int, str]:
    """GPUs of a flavor, and their model, as its properties have them.

    >>> gpus_of({"pci_passthrough:alias": "nic:1,a100:2"}), gpus_of({"resources:VGPU": "1"}), gpus_of({})
    ((2, 'a100'), (1, 'GPU'), (0, ''))
    """
    for entry in str(properties.get("pci_passthrough:alias") or "").split(","):
        alias, _, count = entry.strip().rpartition(":")
        if count.isdecimal() and _GPU.search(alias):
            return int(count), alias
    for name in ("resources:PGPU", "resources:VGPU"):
        if str(properties.get(name) or "").isdecimal():
            return int(properties[name]), "GPU"
    return 0, ""


#: Between these, machines of a cluster listen.
_FIRST_PORT: Final = 1024
_LAST_PORT: Final = 65535


def offers_of(flavors: Sequence[Flavor], settings: OpenstackSettings, today: date) -> list[Offer]:
    """What may be asked for, at the site's own price, or for nothing."""
    named, source = settings.flavors, str(settings.file)
    return [
        site_offer(
            OPENSTACK.provider, each.name, each.vcpus, each.memory_bytes, today, source,
            zone=settings.zone, gpu=each.gpu, gpus=each.gpus,
            usd_per_hour=named[each.name].usd_per_hour if each.name in named else 0.0,
        )
        for each in flavors
        if not named or each.name in named
    ]  # fmt: skip


def limit_findings(absolute: Mapping[str, Any], whose: str) -> list[Finding]:
    """What a project uses of what it may have."""
    return [room_finding(what, float(used), float(limit), whose) for what, used, limit in _room(absolute)]


def group_gaps(group: Mapping[str, Any]) -> list[str]:
    """What a security group of the user's own does not let in, of what runs need.

    Whoever a rule names by an address block is taken to be right.

    >>> group_gaps({"id": "g", "security_group_rules": []})
    ['SSH (TCP port 22)', 'what its own machines send each other (all TCP ports)']
    """
    inward = [
        rule
        for rule in group.get("security_group_rules") or ()
        if rule.get("direction") == "ingress"
        and (rule.get("ethertype") or "IPv4") == "IPv4"
        and str(rule.get("protocol") or "any").lower() in ("any", "tcp", "6")
    ]
    own = "what its own machines send each other (all TCP ports)"
    needed = [("SSH (TCP port 22)", 22, 22, {None}), (own, _FIRST_PORT, _LAST_PORT, {None, group.get("id")})]
    return [
        what
        for what, low, high, groups in needed
        if not any(
            (rule.get("port_range_min") or 0) <= low
            and (rule.get("port_range_max") or _LAST_PORT) >= high
            and rule.get("remote_group_id") in groups
            for rule in inward
        )
    ]


def _room(absolute: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    """What is limited, what is used of it, and the limit."""
    for what, (limit_name, used_name) in _LIMITS.items():
        limit, used = absolute.get(limit_name), absolute.get(used_name)
        if isinstance(limit, int) and isinstance(used, int) and limit >= 0:
            yield what, used, limit


def check_limits(absolute: Mapping[str, Any], wanted: Sequence[tuple[NodeRequest, Flavor]]) -> None:
    """Refuse what a quota does not allow.

    Args:
        absolute: limits of the project and what it uses, as Nova has them.
        wanted: requests, each with what it asks for.

    Raises:
        UsageError: what is needed, and what is free.
    """
    needed = {
        "machines": sum(each.count for each, _ in wanted),
        "cores": sum(each.count * kind.vcpus for each, kind in wanted),
        "MiB of memory": sum(each.count * kind.memory_bytes // _MIB for each, kind in wanted),
    }
    for what, used, limit in _room(absolute):
        hint = "Delete what you have there (`openstack server list`), ask for more, or for fewer machines."
        check_room(f"your project's quota of {what}", needed[what], used, limit, hint)
