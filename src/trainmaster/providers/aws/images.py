"""`AwsImages`: images that this home has made of its machines, instead of the base image where they fit."""

from __future__ import annotations

import calendar
import contextlib
import hashlib
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from trainmaster.providers.aws.client import AwsClient, AwsRefusedError
from trainmaster.providers.aws.facts import architecture
from trainmaster.providers.aws.requests import CLUSTER_TAG, AwsRequest, AwsRequestBuilder, is_filter, tag_list
from trainmaster.providers.base import BakedImage, NodeRequest
from trainmaster.providers.capabilities import capabilities_of

#: One tag for each part that an image has: requests find those that have all of theirs.
_CONTENT_TAG: Final = "trainmaster:has:"
_BASE_TAG: Final = "trainmaster:base"
_SAVES_TAG: Final = "trainmaster:saves-seconds"
_TEAM_TAG: Final = "trainmaster:team"
_YES: Final = "yes"
_NAME_CHARACTERS: Final = 128
_GIB: Final = 2**30
_PENDING: Final = frozenset({"pending", "available"})
_GONE: Final = frozenset({"InvalidAMIID.NotFound", "InvalidAMIID.Unavailable", "InvalidSnapshot.NotFound"})


class AwsImages:
    """All of it may be called again.

    Args:
        client: to AWS.
        builder: of requests; it knows whose images they are.
    """

    def __init__(self, client: AwsClient, builder: AwsRequestBuilder) -> None:
        self._client = client
        self._builder = builder

    def wanted(self, request: NodeRequest) -> AwsRequest:
        """Asks for images that have what a request wants, made from the image that it would start from."""
        filters = [
            is_filter(f"tag:{_BASE_TAG}", self._builder.image(request).name),
            is_filter("architecture", architecture(request.instance_type)),
            is_filter("state", "available"),
            *(is_filter(f"tag:{_CONTENT_TAG}{part}", _YES) for part in request.content),
        ]
        return self._find(request.region, filters)

    def found(self, request: NodeRequest) -> list[Mapping[str, Any]]:
        """Those of them whose disk is no larger than the request's, as EC2 describes them."""
        images = self._client.call(self.wanted(request)).get("Images", [])
        return [one for one in images if _disk_gib(one) <= self._builder.disk_gib(request)]

    def bake(self, cluster: str, instance: Mapping[str, Any], image: BakedImage) -> BakedImage:
        """Begin to make an image of a machine; what an earlier call has begun is found by its name."""
        request = NodeRequest("", 1, str(instance["InstanceType"]), image.region)
        machine = hashlib.sha256(str(instance["InstanceId"]).encode()).hexdigest()[:8]
        name = f"{self._builder.name(cluster)}-{machine}"[:_NAME_CHARACTERS]
        if not (found := self._named(name, image.region)):
            tags = {
                **self._builder.tags(cluster),
                "Name": f"trainmaster {image.run}",
                _BASE_TAG: self._builder.image(request).name,
                _SAVES_TAG: f"{image.saves_s:.0f}",
                _TEAM_TAG: image.team,
                **{f"{_CONTENT_TAG}{part}": _YES for part in image.content},
            }
            parameters = {
                "InstanceId": instance["InstanceId"],
                "Name": name,
                "Description": f"Trainmaster: what setup and container of {image.run} put on a machine",
                # What was written was synced before; the machine goes on, with the lease that ends it.
                "NoReboot": True,
                "TagSpecifications": [{"ResourceType": "image", "Tags": tag_list(tags)}],
            }
            self._change("CreateImage", parameters, image.region, {"InvalidAMIName.Duplicate"})
            found = self._named(name, image.region)
        if not found:
            return image
        made = self._image(found[0], image.region)
        if made.is_ready:  # so that a policy can let us remove what is ours
            tags = self._builder.tags(cluster)
            self._change(
                "CreateTags", {"Resources": _snapshots(found[0]), "Tags": tag_list(tags)}, image.region
            )
        return made

    def all(self, regions: Iterable[str]) -> list[BakedImage]:
        """Those of the home, the newest first."""
        found = [
            self._image(one, region)
            for region in regions
            for one in self._client.call(self._find(region, [])).get("Images", [])
        ]
        return sorted(found, key=lambda image: -image.made_at)

    def remove(self, image: BakedImage) -> None:
        """With its snapshots, which are what it costs."""
        described = self._client.call(self._find(image.region, [is_filter("image-id", image.id)]))
        for one in described.get("Images", []):
            # In one call: the snapshots of an image that is gone could not be found any more.
            whole = {"ImageId": image.id, "DeleteAssociatedSnapshots": True}
            self._change("DeregisterImage", whole, image.region, _GONE)
            for snapshot in _snapshots(one):
                self._change("DeleteSnapshot", {"SnapshotId": snapshot}, image.region, _GONE)

    def _named(self, name: str, region: str) -> list[Mapping[str, Any]]:
        return list(self._client.call(self._find(region, [is_filter("name", name)])).get("Images", []))

    def _change(
        self, operation: str, parameters: Mapping[str, Any], region: str, done: Collection[str] = ()
    ) -> None:
        self._client.change(AwsRequest(operation, parameters, region), done)

    def _find(self, region: str, filters: list[dict[str, Any]]) -> AwsRequest:
        mine = is_filter("tag-key", _BASE_TAG)
        return AwsRequest(
            "DescribeImages",
            {"Owners": ["self"], "Filters": [*self._builder.home_filter(), mine, *filters]},
            region,
        )

    def _image(self, described: Mapping[str, Any], region: str) -> BakedImage:
        tags = {tag["Key"]: tag["Value"] for tag in described.get("Tags", [])}
        state = str(described.get("State", ""))
        size = _disk_gib(described)
        monthly = capabilities_of(self._builder.settings.name).billing.snapshot_usd_per_gib_month
        return BakedImage(
            id=str(described["ImageId"]),
            region=region,
            run=tags.get(CLUSTER_TAG, "").partition(".")[0],
            content=tuple(sorted(k.removeprefix(_CONTENT_TAG) for k in tags if k.startswith(_CONTENT_TAG))),
            base=tags.get(_BASE_TAG, ""),
            saves_s=float(tags.get(_SAVES_TAG) or 0),
            made_at=_seconds(str(described.get("CreationDate", ""))),
            size_bytes=size * _GIB,
            is_ready=state == "available",
            problem="" if state in _PENDING else f"AWS says that it is {state}",
            team=tags.get(_TEAM_TAG, ""),
            usd_per_month=None if monthly is None else size * monthly,
        )


def is_gone(error: AwsRefusedError) -> bool:
    """Whether a machine was refused as its image is gone."""
    return error.code in _GONE


def _disks(described: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each["Ebs"] for each in described.get("BlockDeviceMappings", []) if each.get("Ebs")]


def _disk_gib(described: Mapping[str, Any]) -> int:
    return sum(int(disk.get("VolumeSize") or 0) for disk in _disks(described))


def _snapshots(described: Mapping[str, Any]) -> list[str]:
    return [str(disk["SnapshotId"]) for disk in _disks(described) if disk.get("SnapshotId")]


def _seconds(text: str) -> float:
    """Unix seconds of a date of EC2; 0 without one."""
    with contextlib.suppress(ValueError):
        return float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))
    return 0.0
