"""`RadlDocuments`: from a request, the settings and a price list to the document for IM. Pure.

What Infrastructure Manager says of machines, as `Node` s. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trainmaster.dataclass import dataclass, field
from trainmaster.providers.base import Node, NodeRequest, NodeState
from trainmaster.providers.dead_man_switch import deadman_script
from trainmaster.providers.im.ledger import ImRequest
from trainmaster.providers.im.radl import ImMachine, InfrastructureOwner, WantedMachines, written
from trainmaster.providers.im.settings import ImSettings
from trainmaster.providers.ledger_provider import check_requests
from trainmaster.providers.offer import Offer
from trainmaster.spec.errors import UsageError, fails_as

_STATES: Final = {
    "pending": NodeState.STARTING,
    "running": NodeState.READY,
    "configured": NodeState.READY,
    # IM was not asked to configure anything: the machine runs, and SSH says whether it is any good.
    "unconfigured": NodeState.READY,
    # The cloud could not be asked: whether the machine answers is for others to find out.
    "unknown": NodeState.READY,
    "stopped": NodeState.GONE,
    "off": NodeState.GONE,
    "failed": NodeState.GONE,
    "deleting": NodeState.GONE,
}
#: States of machines that are over: their switch, or a person, has ended them.
ENDED: Final = frozenset({"stopped", "off", "failed"})
_REASONS: Final = {
    "stopped": "it was switched off: its lease was over, or somebody did it",
    "off": "it is not there any more in its cloud: it was taken away behind Infrastructure Manager's back",
    "failed": "Infrastructure Manager could not make it",
    "deleting": "it was given back",
    "": "it is not there any more: somebody has removed it",
}


def system_name(request: NodeRequest) -> str:
    """What machines of a request are called in a document: the same for the same token."""
    token = request.token or request.role
    return f"tm-{request.role}-{hashlib.sha256(token.encode()).hexdigest()[:12]}"


def node_id(infrastructure: str, number: str) -> str:
    """What a machine is called here."""
    return f"{infrastructure}-{number}"


def number_in(infrastructure: str, node: str) -> str:
    """Its number; empty if it is in another infrastructure.

    >>> number_in("ab-1", node_id("ab-1", "7")), number_in("ab-2", node_id("ab-1", "7"))
    ('7', '')
    """
    before, _, number = node.rpartition("-")
    return number if before == infrastructure else ""


def node_of(
    cluster: str, name: str, state: str, asked: ImRequest, told: ImMachine, *, user: str, key: Path | None
) -> Node:
    """One machine.

    Args:
        cluster: that it is for.
        name: its id.
        state: as IM says; empty if it is not there any more.
        asked: what it was made for.
        told: what IM says of it.
        user: to log in as, where IM does not say.
        key: file with its private key.
    """
    found = _STATES.get(state, NodeState.STARTING) if state else NodeState.GONE
    if found is NodeState.READY and not told.address:
        found = NodeState.STARTING
    gone = found is NodeState.GONE
    return Node(
        id=name,
        cluster=cluster,
        role=asked.role,
        state=found,
        address="" if gone else told.address,
        private_address="" if gone else told.private_address,
        user=told.user or user,
        key=key,
        instance_type=told.instance_type or asked.instance_type,
        zone=told.zone or asked.place,
        started_at=asked.at,
        labels=asked.labels,
        reason=_REASONS.get(state, "") if gone else "",
    )


#: Types of clouds that know no names of kinds of machines: they are asked for by size.
_BY_SIZE: Final = frozenset({"OpenNebula", "vSphere", "Docker", "Kubernetes", "KubeVirt", "Dummy"})
#: Types of clouds to which IM hands user data on as cloud-init reads them.
_BOOTS: Final = frozenset({"EC2", "OpenStack", "EGI", "Azure", "CloudStack", "KubeVirt"})
_MOST_TAG: Final = 60


@dataclass(frozen=True, slots=True)
class RadlDocuments:
    """What every document is made of.

    Attributes:
        home: identity of the home.
        settings: of IM.
        clouds: id of each cloud that there are credentials of -> its type.
        offers: what each has: by cloud and type.
    """

    home: str
    settings: ImSettings
    clouds: Mapping[str, str]
    offers: Mapping[tuple[str, str], Offer] = field(default_factory=dict)

    def cloud(self, request: NodeRequest) -> str:
        """Which cloud is asked.

        Raises:
            UsageError: there is none of that id, or no credentials of it.
        """
        name = request.region or next(iter(self.settings.clouds))
        self.settings.cloud(name)
        if name not in self.clouds:
            raise UsageError(
                f"{self.settings.credentials_file} has no record with the id {name}",
                f"Write one, or take {name} out of {self.settings.file}.",
            )
        return name

    def offer(self, request: NodeRequest) -> Offer | None:
        """What is known of the type that is asked for."""
        return self.offers.get((self.cloud(request), request.instance_type.lower()))

    def boots(self, cloud: str) -> bool:
        """Whether the dead-man switch comes with its machines; else the first login brings it."""
        return self.clouds[cloud] in _BOOTS

    def wanted(self, cluster: str, request: NodeRequest) -> WantedMachines:
        """What a request comes to.

        Raises:
            UsageError: it cannot be had: spot, an unknown cloud or type.
        """
        check_requests("im", [request])
        cloud = self.cloud(request)
        offer, chosen = self.offer(request), self.settings.cloud(cloud)
        if offer is None:
            raise UsageError(
                f"nothing is known of {request.instance_type or 'no type'!r} in the cloud {cloud}",
                f"Name a type of the price list that {self.settings.file} names, or add it there.",
            )
        if offer.arch == "arm64":
            raise UsageError(
                f"{request.instance_type} has ARM processors, which Infrastructure Manager does not ask for",
                "Name another type.",
            )
        by_size = self.clouds[cloud] in _BY_SIZE or "*" in request.instance_type
        named = (
            "" if self.clouds[cloud] in _BY_SIZE or request.instance_type == "*" else request.instance_type
        )
        return WantedMachines(
            system=system_name(request),
            role=request.role,
            count=request.count,
            cloud=cloud,
            image=chosen.gpu_image if offer.accelerators and chosen.gpu_image else chosen.image,
            user=chosen.user,
            instance_type=named,
            zone=request.zone,
            cpus=offer.vcpus if by_size else 0.0,
            memory_bytes=offer.memory_bytes if by_size else 0,
            gpu=offer.accelerator if by_size else "",
            gpus=int(offer.accelerators) if by_size else 0,
            disk_bytes=request.disk_bytes or chosen.disk_bytes,
            public_network=chosen.public_network,
            private_network=chosen.private_network,
            has_public=chosen.public_addresses,
            ssh_from=chosen.ssh_from,
            tags={
                "trainmaster-home": _tag(self.home),
                "trainmaster-cluster": _tag(cluster),
                "trainmaster-role": _tag(request.role),
            },
            boot_script=deadman_script(request.lease_s, chosen.user) if self.boots(cloud) else "",
        )

    def document(self, cluster: str, request: NodeRequest, now: float) -> str:
        """The RADL of a request.

        Raises:
            UsageError: see `wanted`; or a name in it cannot be said in RADL.
        """
        mark = InfrastructureOwner(self.home, cluster, now + request.lease_s)
        wanted = self.wanted(cluster, request)
        with fails_as("Infrastructure Manager cannot be asked for it", "Name it otherwise.", on=ValueError):
            return written(mark, wanted)


def _tag(text: str) -> str:
    """As every cloud takes it, Google's too."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower())[:_MOST_TAG].strip("-") or "x"
