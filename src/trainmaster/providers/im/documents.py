"""`RadlDocuments`: from a request, the settings and a price list to the document for IM. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from trainmaster.providers.base import NodeRequest
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.dead_man_switch import deadman_script
from trainmaster.providers.im.nodes import system_name
from trainmaster.providers.im.radl import InfrastructureOwner, WantedMachines, written
from trainmaster.providers.im.settings import ImSettings
from trainmaster.providers.offer import Offer
from trainmaster.spec.errors import UsageError

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
        cloud = self.cloud(request)
        offer, chosen = self.offer(request), self.settings.cloud(cloud)
        if request.spot:
            raise UsageError(
                f"Infrastructure Manager rents no spot machines: {capabilities_of('im').no_spot}",
                "Leave out `spot`, or rent with `provider: aws`.",
            )
        if request.count < 1:
            raise UsageError(f"{request.count} machines cannot be rented", "Ask for 1 or more.")
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
        """The RADL of a request."""
        mark = InfrastructureOwner(self.home, cluster, now + request.lease_s)
        return written(mark, self.wanted(cluster, request))


def _tag(text: str) -> str:
    """As every cloud takes it, Google's too."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower())[:_MOST_TAG].strip("-") or "x"
