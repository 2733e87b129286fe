"""`AwsPrerequisites`: what machines need in a region: image, network, key pair, security groups."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.providers.aws.client import AwsClient, AwsRefusedError
from trainmaster.providers.aws.images import AwsImages
from trainmaster.providers.aws.ledger import AwsLedger
from trainmaster.providers.aws.requests import AwsRequest, AwsRequestBuilder
from trainmaster.providers.base import NodeRequest
from trainmaster.spec.clocks import boot_s
from trainmaster.spec.errors import UsageError

log = logging.getLogger(__name__)

#: What AWS answers when something of that name is there already: made by a call before this one.
_THERE_ALREADY: Final = frozenset(
    {
        "InvalidKeyPair.Duplicate", "InvalidGroup.Duplicate", "InvalidPermission.Duplicate",
        "InvalidPlacementGroup.Duplicate",
    }
)  # fmt: skip
_ANYWHERE: Final = "0.0.0.0/0"
#: An address that this machine has left is let in for so long yet: it may come back, or have two ways out.
_RETURN_S: Final = 600.0


@dataclass(slots=True)
class _PrerequisitesCache:
    """What was asked or made in a region, and need not be asked or made again."""

    images: dict[str, Mapping[str, str]] = field(default_factory=dict)
    subnets: dict[str, Mapping[str, str]] = field(default_factory=dict)
    vpc: str = ""
    groups: dict[str, str] = field(default_factory=dict)
    #: From where this machine has had SSH let in to a cluster.
    opened: dict[str, frozenset[str]] = field(default_factory=dict)
    placements: set[tuple[str, str]] = field(default_factory=set)


class AwsPrerequisites:
    """Finds and makes what `RunInstances` needs. All of it may be called again.

    Args:
        client: to AWS.
        builder: of requests.
        memory: of the home.
    """

    def __init__(self, client: AwsClient, builder: AwsRequestBuilder, memory: AwsLedger) -> None:
        self._client = client
        self._builder = builder
        self._memory = memory
        self._images = AwsImages(client, builder)
        self._regions: dict[str, _PrerequisitesCache] = {}
        self._block = builder.settings.ssh_from
        self._seen: dict[str, float] = {}

    def plan(self, cluster: str, request: NodeRequest, zone: str) -> list[AwsRequest]:
        """The requests that `prepare` sends for the first machines of a cluster in a region, in order."""
        region = request.region
        block = self._block or ("${here.Block}" if self.asks_for_address else _ANYWHERE)
        requests = [
            *([self._images.wanted(request)] if request.content else ()),
            self._builder.find_image(request),
            self._builder.find_subnets(region),
            self._builder.import_key(cluster, region, self._memory.public_key()),
            self._builder.create_group(cluster, region),
            self._builder.open_inside(region),
            *([self._builder.where_am_i()] if self.asks_for_address else ()),
            self._builder.open_ssh(region, block),
        ]
        if self._builder.wants_placement(request):
            requests.append(self._builder.create_placement(cluster, region, zone))
        return requests

    @property
    def asks_for_address(self) -> bool:
        """Whether the address of this machine is not known yet."""
        return not self._block and not self._builder.settings.is_own_cloud

    def image(self, request: NodeRequest) -> Mapping[str, str]:
        """Id and root disk of the image that boots: ``image.ImageId``, ``image.RootDeviceName``.

        One that was baked with all that is to be on the machine is taken; else the base image.

        Raises:
            UsageError: there is none of that name.
        """
        known = self._known(request.region)
        wanted = self._builder.find_image(request)
        key = repr((wanted.parameters, request.content, request.disk_bytes if request.content else 0))
        if key not in known.images:
            found = self._images.found(request) if request.content else []
            found = found or self._client.call(wanted).get("Images", [])
            if not found:
                image = self._builder.image(request)
                raise UsageError(
                    f"no image {image.name!r}{f' of {image.owner}' if image.owner else ''} in "
                    f"{request.region} for {request.instance_type}",
                    "Name another with TRAINMASTER_AWS_IMAGE (and TRAINMASTER_AWS_USER).",
                )
            newest = max(found, key=lambda one: str(one.get("CreationDate", "")))
            known.images[key] = {
                "image.ImageId": newest["ImageId"],
                "image.RootDeviceName": newest.get("RootDeviceName") or "/dev/xvda",
            }
        return known.images[key]

    def zones(self, region: str) -> list[str]:
        """Where machines can be put, in order.

        Raises:
            UsageError: there is no network.
        """
        known = self._known(region)
        if not known.subnets:
            for page in self._client.pages(self._builder.find_subnets(region)):
                for subnet in page.get("Subnets", []):
                    best = known.subnets.get(subnet["AvailabilityZone"], {})
                    free = int(subnet.get("AvailableIpAddressCount") or 0)
                    if free >= int(best.get("free", -1)):
                        known.subnets[subnet["AvailabilityZone"]] = {
                            "subnet.SubnetId": subnet["SubnetId"],
                            "subnet.VpcId": subnet["VpcId"],
                            "free": str(free),
                        }
            if not known.subnets:
                vpc = self._builder.settings.vpc
                raise UsageError(
                    f"{f'the network {vpc} has no subnets' if vpc else 'there is no default network'} in "
                    f"{region}",
                    "Make one with `aws ec2 create-default-vpc`, or name yours with TRAINMASTER_AWS_VPC.",
                )
        return sorted(known.subnets)

    def subnet(self, region: str, zone: str) -> Mapping[str, str]:
        """``subnet.SubnetId`` and ``subnet.VpcId`` of a zone.

        Raises:
            UsageError: we have no network there.
        """
        zones = self.zones(region)
        if zone not in zones:
            raise UsageError(
                f"there is no subnet in {zone or 'no zone'}", f"There are some in {', '.join(zones)}."
            )
        return self._known(region).subnets[zone]

    def prepare(self, cluster: str, request: NodeRequest, zone: str) -> Mapping[str, str]:
        """Make what is not there yet; the answers that references stand for."""
        region = request.region
        known = self._known(region)
        answers = {**self.image(request), **self.subnet(region, zone)}
        if cluster not in known.groups:
            self._make(self._builder.import_key(cluster, region, self._memory.public_key()))
            group = self._group(cluster, region, answers)
            self._make(self._builder.open_inside(region, group))
            self._open_ssh(region, group)
            known.groups[cluster] = group
        answers["group.GroupId"] = known.groups[cluster]
        if self._builder.wants_placement(request) and (cluster, zone) not in known.placements:
            self._make(self._builder.create_placement(cluster, region, zone))
            known.placements.add((cluster, zone))
        return answers

    def forget(self, cluster: str) -> None:
        """What was made for it may not be there any more."""
        for known in self._regions.values():
            known.groups.pop(cluster, None)
            known.opened.pop(cluster, None)
            known.placements = {entry for entry in known.placements if entry[0] != cluster}

    def block(self) -> str:
        """The address block that SSH is let in from: this machine, as AWS sees it."""
        if not self._block:
            if self._builder.settings.is_own_cloud:
                return _ANYWHERE  # what stands in for AWS is on this machine, and so are its hosts
            told = self._client.get(self._builder.where_am_i())
            address = ipaddress.ip_address(told)
            self._block = f"{address}/{address.max_prefixlen}"
        return self._block

    def open_again(self, cluster: str, region: str) -> None:
        """Let SSH in from where we are now, and no more from where we were: this machine may have moved.

        Other machines that drive the same cluster are let in as before.
        """
        if self._builder.settings.ssh_from or self._builder.settings.is_own_cloud:
            return
        self._block = ""
        here, now, known = self.block(), boot_s(), self._known(region)
        self._seen[here] = now
        opened = known.opened.get(cluster, frozenset())
        if opened == {here}:
            return
        stays = {here}
        for group in self._groups(cluster, region):
            if here not in opened:
                self._open_ssh(region, group["GroupId"])
            for block in self._builder.own_blocks(group):
                if now - self._seen.setdefault(block, now) <= _RETURN_S:
                    stays.add(block)
                else:
                    self._close_ssh(self._builder.close_ssh(region, block, group["GroupId"]))
        known.opened[cluster] = frozenset(stays)

    def remove(self, cluster: str, region: str) -> bool:
        """Remove key pair and groups of a cluster; whether nothing is left. Needs its machines to be gone."""
        done = True
        for kind, key, operation in (
            ("PlacementGroups", "GroupName", "DeletePlacementGroup"),
            ("SecurityGroups", "GroupId", "DeleteSecurityGroup"),
            ("KeyPairs", "KeyName", "DeleteKeyPair"),
        ):
            if kind == "PlacementGroups" and not self._builder.settings.placement_groups:
                continue
            for thing in self.leftovers(region, kind, cluster):
                done &= self._delete(AwsRequest(operation, {key: thing[key]}, region))
        self.forget(cluster)
        return done

    def leftovers(self, region: str, kind: str, cluster: str = "") -> list[Mapping[str, Any]]:
        """``SecurityGroups``, ``PlacementGroups`` or ``KeyPairs`` of ours."""
        answer = self._client.call(self._builder.find_leftovers(region, kind, cluster))
        return [thing for thing in answer.get(kind, []) if thing.get("State") not in ("deleting", "deleted")]

    def _known(self, region: str) -> _PrerequisitesCache:
        return self._regions.setdefault(region, _PrerequisitesCache())

    def _group(self, cluster: str, region: str, answers: Mapping[str, str]) -> str:
        wanted = self._builder.create_group(cluster, region)
        try:
            return str(self._client.try_call(wanted.resolved(answers))["GroupId"])
        except AwsRefusedError as refused:
            if refused.code != "InvalidGroup.Duplicate":
                raise refused.explained() from None
        found = self._groups(cluster, region)
        if found:
            return str(found[0]["GroupId"])
        raise UsageError(
            f"a security group {self._builder.name(cluster)!r} is in {region} already, and it is not ours",
            "Remove or rename it.",
        )

    def _groups(self, cluster: str, region: str) -> list[Mapping[str, Any]]:
        return self.leftovers(region, "SecurityGroups", cluster)

    def _open_ssh(self, region: str, group: str) -> None:
        today = {"here.Time": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime())}
        self._make(self._builder.open_ssh(region, self.block(), group).resolved(today))

    def _close_ssh(self, request: AwsRequest) -> None:
        try:
            self._client.try_call(request, settle=False)
        except AwsRefusedError as refused:  # a policy may not have it
            if refused.code != "InvalidPermission.NotFound":
                log.warning("an address that we have left is still let in: %s", refused)

    def _make(self, request: AwsRequest) -> None:
        self._client.change(request, _THERE_ALREADY, settle=True)

    def _delete(self, request: AwsRequest) -> bool:
        try:
            self._client.try_call(request, settle=False)
        except AwsRefusedError as refused:
            if refused.code.endswith((".NotFound", ".Unknown")):
                return True
            if refused.code in ("DependencyViolation", "InvalidPlacementGroup.InUse", "InvalidGroup.InUse"):
                log.info("%s: still in use", request.operation)
                return False
            raise refused.explained() from None
        return True
