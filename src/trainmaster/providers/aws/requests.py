"""The exact requests to EC2's API. Pure: a dry run shows the same objects that are sent.

What a request needs of an earlier answer stands in it as a *reference*, such as ``${group.GroupId}``, until
it is known; `AwsRequest.resolved` puts it in.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.providers.aws.facts import MachineImage, architecture, can_cluster, default_image
from trainmaster.providers.aws.settings import AwsSettings
from trainmaster.providers.base import NodeRequest

HOME_TAG: Final = "trainmaster:home"
CLUSTER_TAG: Final = "trainmaster:cluster"
ROLE_TAG: Final = "trainmaster:role"
TOKEN_TAG: Final = "trainmaster:token"  # noqa: S105 - the name of a tag
#: When its lease ends as it was renewed last; and for how many seconds it was when the machine was rented.
LEASE_TAG: Final = "trainmaster:lease-until"
LEASE_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
LEASE_S_TAG: Final = "trainmaster:lease-seconds"
LABEL_TAG: Final = "trainmaster:label:"
#: The key by which a machine is known at the first login.
HOST_KEY_TAG: Final = "trainmaster:host-key"
#: Of a request that leaves the zone to us: it is chosen among those that there are, another one if it lacks
#: capacity.
ANY_ZONE: Final = "${subnet.AvailabilityZone}"
_ANY_TOKEN: Final = "${subnet.ClientToken}"  # noqa: S105 - no secret
#: Says which address asks it.
ADDRESS_URL: Final = "https://checkip.amazonaws.com/"
_SSH_FROM: Final = "SSH from Trainmaster on"
_USER_DATA: Final = """\
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="trainmaster"

--trainmaster
Content-Type: text/cloud-config; charset="utf-8"

#cloud-config
ssh_keys:
  ed25519_private: "-----BEGIN OPENSSH PRIVATE KEY-----\\n${here.HostKey}\\n\\
    -----END OPENSSH PRIVATE KEY-----\\n"
  ed25519_public: "ssh-ed25519 ${here.PublicHostKey}"

--trainmaster
Content-Type: text/x-shellscript; charset="utf-8"

%s
--trainmaster--
"""
_REFERENCE: Final = re.compile(r"\$\{((?:image|subnet|group|here)\.[A-Za-z]+)\}")
_GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class AwsRequest:
    """One call.

    Attributes:
        operation: of the API, such as ``RunInstances``.
        parameters: as boto3 takes them.
        region: where it goes.
        service: ``ec2``; ``service-quotas``; ``https`` for a plain GET.
    """

    operation: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    region: str = ""
    service: str = "ec2"

    def resolved(self, answers: Mapping[str, str]) -> AwsRequest:
        """The same with what earlier calls answered; see `resolved`."""
        return replace(self, parameters=resolved(self.parameters, answers))

    def as_dict(self) -> dict[str, Any]:
        """What a dry run prints."""
        return {
            "service": self.service,
            "region": self.region,
            "operation": self.operation,
            "parameters": dict(self.parameters),
        }


def resolved(value: Any, answers: Mapping[str, str]) -> Any:  # noqa: ANN401 - parameters of any shape
    """Parameters with what earlier calls answered; a reference that is not known yet stays.

    >>> resolved({"GroupId": "${group.GroupId}"}, {"group.GroupId": "sg-1"})
    {'GroupId': 'sg-1'}
    """
    if isinstance(value, str):
        return _REFERENCE.sub(lambda found: answers.get(found[1], found[0]), value)
    if isinstance(value, Mapping):
        return {key: resolved(item, answers) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [resolved(item, answers) for item in value]
    return value


def _ssh_rule(block: str, **described: str) -> dict[str, Any]:
    """Lets SSH in from a block of addresses."""
    ranges, address = ("Ipv6Ranges", "CidrIpv6") if ":" in block else ("IpRanges", "CidrIp")
    return {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, ranges: [{address: block, **described}]}


def host_key_answers(private: str, public: str) -> dict[str, str]:
    """What the references to a host key in user data and tags stand for.

    Args:
        private: as OpenSSH keeps it in a file.
        public: ``ssh-ed25519 BASE64``.
    """
    _, *body, _ = private.strip().splitlines()
    return {"here.HostKey": r"\n".join(body), "here.PublicHostKey": public.split()[1]}


@dataclass(frozen=True, slots=True)
class AwsRequestBuilder:
    """Builds the requests of a home to EC2, with the tags that say whose machines they are.

    Attributes:
        home: identity of the home; all is tagged with it, and touched only with its tag.
        settings: see there.
        driver: this machine; others may drive machines of the same home.
    """

    home: str
    settings: AwsSettings
    driver: str = field(default_factory=lambda: _driver())

    def name(self, cluster: str) -> str:
        """Of the key pair and the security group of a cluster: no other home has the same."""
        return f"trainmaster-{self.home[:8]}-{cluster}"

    def image(self, request: NodeRequest) -> MachineImage:
        """What boots."""
        chosen = self.settings
        if chosen.image:
            return MachineImage(chosen.image, chosen.image_owner, chosen.user)
        found = default_image(request.instance_type)
        return MachineImage(found.name, found.owner, chosen.user or found.user)

    def token(self, request: NodeRequest) -> str:
        """What tells requests of a cluster apart; one without a token is the only one of its role."""
        return request.token or request.role

    def client_token(self, cluster: str, request: NodeRequest, zone: str) -> str:
        """By which EC2 knows a repeated call; another one per zone, as that is another call to it."""
        if zone == ANY_ZONE:
            return _ANY_TOKEN
        text = "\0".join((self.home, cluster, self.token(request), zone))
        return hashlib.sha256(text.encode()).hexdigest()  # 64 characters, the most there may be

    def find_nodes(self, region: str, cluster: str = "", token: str = "") -> AwsRequest:
        """Every machine of ours, of a cluster, or of a request."""
        filters = self.home_filter()
        filters += [is_filter(f"tag:{CLUSTER_TAG}", cluster)] if cluster else []
        filters += [is_filter(f"tag:{TOKEN_TAG}", token)] if token else []
        return AwsRequest("DescribeInstances", {"Filters": filters}, region)

    def find_image(self, request: NodeRequest) -> AwsRequest:
        """By name, or by id for its root disk."""
        image = self.image(request)
        if image.name.startswith("ami-"):
            return AwsRequest("DescribeImages", {"ImageIds": [image.name]}, request.region)
        parameters: dict[str, Any] = {
            "Filters": [
                is_filter("name", image.name),
                is_filter("state", "available"),
                is_filter("architecture", architecture(request.instance_type)),
            ]
        }
        if image.owner:
            parameters["Owners"] = [image.owner]
        return AwsRequest("DescribeImages", parameters, request.region)

    def find_subnets(self, region: str) -> AwsRequest:
        """Of the network to rent in: one or more per zone."""
        vpc = self.settings.vpc
        only = is_filter("vpc-id", vpc) if vpc else is_filter("default-for-az", "true")
        return AwsRequest("DescribeSubnets", {"Filters": [only, is_filter("state", "available")]}, region)

    def where_am_i(self) -> AwsRequest:
        """The address that SSH is let in from."""
        return AwsRequest("GET", {"url": ADDRESS_URL}, service="https")

    def import_key(self, cluster: str, region: str, public_key: str) -> AwsRequest:
        """The home's key, under the cluster's name."""
        parameters = {
            "KeyName": self.name(cluster),
            "PublicKeyMaterial": public_key,
            "TagSpecifications": [self._tagged("key-pair", cluster)],
        }
        return AwsRequest("ImportKeyPair", parameters, region)

    def create_group(self, cluster: str, region: str) -> AwsRequest:
        """The security group."""
        parameters = {
            "GroupName": self.name(cluster),
            "Description": f"Trainmaster, cluster {cluster}: SSH from its user, everything inside"[:255],
            "VpcId": "${subnet.VpcId}",
            "TagSpecifications": [self._tagged("security-group", cluster)],
        }
        return AwsRequest("CreateSecurityGroup", parameters, region)

    def open_inside(self, region: str, group: str = "${group.GroupId}") -> AwsRequest:
        """The nodes reach each other; nothing else reaches them."""
        rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
        return AwsRequest(
            "AuthorizeSecurityGroupIngress", {"GroupId": group, "IpPermissions": [rule]}, region
        )

    def open_ssh(
        self, region: str, block: str = "${here.Block}", group: str = "${group.GroupId}"
    ) -> AwsRequest:
        """SSH from here."""
        rule = _ssh_rule(block, Description=f"{_SSH_FROM} {self.driver}, since ${{here.Time}}")
        return AwsRequest(
            "AuthorizeSecurityGroupIngress", {"GroupId": group, "IpPermissions": [rule]}, region
        )

    def close_ssh(self, region: str, block: str, group: str) -> AwsRequest:
        """No longer from there."""
        whole = {"GroupId": group, "IpPermissions": [_ssh_rule(block)]}
        return AwsRequest("RevokeSecurityGroupIngress", whole, region)

    def own_blocks(self, group: Mapping[str, Any]) -> list[str]:
        """From where this machine has had SSH let in, of a group as EC2 describes it."""
        mine = f"{_SSH_FROM} {self.driver},"
        ranges = [
            entry
            for rule in group.get("IpPermissions", [])
            for entry in (*rule.get("IpRanges", []), *rule.get("Ipv6Ranges", []))
        ]
        found = [
            entry.get("CidrIp") or entry.get("CidrIpv6")
            for entry in ranges
            if str(entry.get("Description", "")).startswith(mine)
        ]
        return [str(block) for block in found]

    def wants_placement(self, request: NodeRequest) -> bool:
        """Several machines of a type that can stand close together do."""
        return (
            bool(self.settings.placement_groups) and request.count > 1 and can_cluster(request.instance_type)
        )

    def placement_name(self, cluster: str, zone: str) -> str:
        """A placement group is in one zone."""
        return f"{self.name(cluster)}-{zone}"

    def create_placement(self, cluster: str, region: str, zone: str) -> AwsRequest:
        """The placement group."""
        parameters = {
            "GroupName": self.placement_name(cluster, zone),
            "Strategy": "cluster",
            "TagSpecifications": [self._tagged("placement-group", cluster)],
        }
        return AwsRequest("CreatePlacementGroup", parameters, region)

    def run(self, cluster: str, request: NodeRequest, zone: str, script: str) -> AwsRequest:
        """The machines: all of them or none, in one zone.

        Args:
            cluster: its id.
            request: what is wanted.
            zone: where.
            script: that they run as root when they boot first. With it comes their SSH server's key, so that
                they are known at the first login already.
        """
        tags = self.tags(cluster)
        tags[ROLE_TAG] = request.role
        tags[TOKEN_TAG] = self.token(request)
        tags[LEASE_S_TAG] = f"{request.lease_s:.0f}"
        tags |= {f"{LABEL_TAG}{key}": value for key, value in sorted(request.labels.items())}
        named = {"Name": f"trainmaster {cluster} {request.role}", **tags}
        known = {HOST_KEY_TAG: "ssh-ed25519 ${here.PublicHostKey}"}
        kinds = {"instance": named | known, "volume": named}
        if request.spot:
            kinds["spot-instances-request"] = tags
        card = {
            "DeviceIndex": 0,
            "SubnetId": "${subnet.SubnetId}",
            "Groups": ["${group.GroupId}"],
            "AssociatePublicIpAddress": self.settings.public_addresses,
            "DeleteOnTermination": True,
        }
        disk = {
            "VolumeSize": self.disk_gib(request),
            "VolumeType": "gp3",
            "DeleteOnTermination": True,
        }
        placement = {"AvailabilityZone": zone}
        if self.wants_placement(request):
            placement["GroupName"] = self.placement_name(cluster, zone)
        parameters: dict[str, Any] = {
            "ImageId": "${image.ImageId}",
            "InstanceType": request.instance_type,
            "MinCount": request.count,
            "MaxCount": request.count,
            "KeyName": self.name(cluster),
            "NetworkInterfaces": [card],
            "Placement": placement,
            "BlockDeviceMappings": [{"DeviceName": "${image.RootDeviceName}", "Ebs": disk}],
            # Switched off is given back: what the dead-man switch stands on.
            "InstanceInitiatedShutdownBehavior": "terminate",
            "UserData": _USER_DATA % script,
            # Not for containers with a network of their own: user data holds the first host key.
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
            "TagSpecifications": [{"ResourceType": kind, "Tags": tag_list(t)} for kind, t in kinds.items()],
            "ClientToken": self.client_token(cluster, request, zone),
        }
        if request.spot:
            options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            if request.max_usd_per_hour:  # else Amazon takes the price on demand
                options["MaxPrice"] = f"{request.max_usd_per_hour:.6f}"
            parameters["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        return AwsRequest("RunInstances", parameters, request.region)

    def permission_checks(self, cluster: str, request: NodeRequest, zone: str) -> list[AwsRequest]:
        """What is created later, with ``DryRun``: AWS says whether we may, and does nothing."""
        region = request.region
        run = dict(self.run(cluster, request, zone, "#!/bin/sh\n").parameters)
        del run["KeyName"]  # and what else is not there yet
        del run["ClientToken"]
        run["NetworkInterfaces"] = [{k: v for k, v in run["NetworkInterfaces"][0].items() if k != "Groups"}]
        run["Placement"] = {"AvailabilityZone": zone}
        calls = [
            self.import_key(cluster, region, f"ssh-ed25519 {'A' * 68}"),
            self.create_group(cluster, region),
            *([self.create_placement(cluster, region, zone)] if self.wants_placement(request) else []),
            AwsRequest("RunInstances", run, region),
        ]
        return [AwsRequest(c.operation, {**c.parameters, "DryRun": True}, region) for c in calls]

    def find_notices(self, region: str, ids: Sequence[str]) -> AwsRequest:
        """Whether spot machines are to be taken back."""
        return AwsRequest(
            "DescribeSpotInstanceRequests",
            {"Filters": [{"Name": "instance-id", "Values": list(ids)}]},
            region,
        )

    def find_leftovers(self, region: str, kind: str, cluster: str = "") -> AwsRequest:
        """Security groups, placement groups or key pairs of ours."""
        filters = self.home_filter()
        filters += [is_filter(f"tag:{CLUSTER_TAG}", cluster)] if cluster else []
        return AwsRequest(f"Describe{kind}", {"Filters": filters}, region)

    def tag_lease(self, region: str, ids: Sequence[str], until: str) -> AwsRequest:
        """For people at the console, and for `reap`; the machines themselves do not look at it."""
        return AwsRequest(
            "CreateTags", {"Resources": list(ids), "Tags": [{"Key": LEASE_TAG, "Value": until}]}, region
        )

    def home_filter(self) -> list[dict[str, Any]]:
        """What is this home's."""
        return [is_filter(f"tag:{HOME_TAG}", self.home)]

    def disk_gib(self, request: NodeRequest) -> int:
        """Of the root disk."""
        return -(-(request.disk_bytes or self.settings.disk_bytes) // _GIB)

    def tags(self, cluster: str) -> dict[str, str]:
        """Of all that is a cluster's."""
        return {HOME_TAG: self.home, CLUSTER_TAG: cluster}

    def _tagged(self, kind: str, cluster: str) -> dict[str, Any]:
        return {"ResourceType": kind, "Tags": tag_list(self.tags(cluster))}


def _driver() -> str:
    """What tells this machine from others, in characters that a rule's description may have.

    >>> re.fullmatch("[A-Za-z0-9.-]{1,64} [0-9a-f]{8}", _driver()) is not None
    True
    """
    name = re.sub("[^A-Za-z0-9.-]", "-", socket.gethostname())[:64] or "-"
    told = [name]
    with contextlib.suppress(OSError):  # systems other than Linux have neither
        told.append(Path("/etc/machine-id").read_text())
    with contextlib.suppress(OSError):
        told.append(str(Path("/proc/self/ns/net").readlink()))  # a container may have another way out
    return f"{name} {hashlib.sha256(' '.join(told).encode()).hexdigest()[:8]}"


def is_filter(name: str, value: str) -> dict[str, Any]:
    """That what is described has this value."""
    return {"Name": name, "Values": [value]}


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags as the API takes them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]
