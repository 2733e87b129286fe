"""moto's EC2 with real hosts: what is put in the place of its methods.

moto keeps the records (instances, subnets, security groups, key pairs, tags, volumes); `Cloud` makes hosts of
them. The methods are replaced on moto's classes, so that spot requests and fleets go the same way.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from trainmaster.lab import answers
from trainmaster.lab.addresses import zone_blocks
from trainmaster.lab.cloud import Cloud, InstanceCalls
from trainmaster.lab.instance_types import TYPES
from trainmaster.lab.market import ApiRefusal, check_max_price
from trainmaster.lab.settings import GROUP_NAME, KEY_NAME, LabSettings
from trainmaster.spec.errors import TrainmasterError, UsageError

#: moto's own.
ACCOUNT: Final = "123456789012"
#: Who publishes Debian's images on AWS, and what they are called: whoever looks for those finds the lab's.
IMAGE_OWNER: Final = "136693071363"
IMAGE_NAME: Final = "debian-12-amd64-trainmaster-lab"
_NO_TOKEN: Final = "ABCDE"  # noqa: S105 - what moto puts where no client token was given
#: Of spot requests, that moto can compare.
_MOTO_FILTERS: Final = ("state", "spot-instance-request-id")
_REQUEST = threading.local()


def prepare(directory: Path, settings: LabSettings) -> None:
    """What moto reads when it is imported: the list of images; and the lists of AWS once, not each time."""
    from botocore import loaders

    loaders.create_loader = functools.cache(loaders.create_loader)
    image = {
        "ami_id": settings.image_id,
        "name": IMAGE_NAME,
        "description": "A host of the lab",
        "owner_id": IMAGE_OWNER,
        "public": True,
        "state": "available",
        "architecture": "x86_64" if os.uname().machine == "x86_64" else "arm64",
        "virtualization_type": "hvm",
        "hypervisor": "xen",
        "root_device_type": "ebs",
        "root_device_name": "/dev/xvda",
        "image_location": f"amazon/{IMAGE_NAME}",
        "image_type": "machine",
        "sriov": "simple",
        "creation_date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
    }
    path = directory / "images.json"
    path.write_text(json.dumps([image]))
    os.environ["MOTO_AMIS_PATH"] = str(path)


def install(settings: LabSettings, make_cloud: Callable[[InstanceCalls], Cloud]) -> Cloud:
    """Put the hosts behind moto's classes, and make the region; once per process, before the first call."""
    _leave_offerings_unread()
    from moto.ec2.models import amis, elastic_network_interfaces, instances, vpcs
    from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend
    from moto.ec2.responses.general import General
    from moto.ec2.responses.instances import InstanceResponse
    from moto.ec2.responses.spot_instances import SpotInstances
    from moto.servicequotas.models import ServiceQuotasBackend

    instance, backend = instances.Instance, instances.InstanceBackend
    terminate_originally = instance.terminate

    def terminate(self: Any) -> Any:
        done = terminate_originally(self)
        subnet = self.ec2_backend.get_subnet(self.subnet_id)
        for address in self._private_ips:  # moto does that when it forgets the instance, which it never does
            subnet.del_subnet_ip(address)
        self._private_ips.clear()
        return done

    cloud = make_cloud(InstanceCalls(instance.start, instance.stop, terminate))
    _keep_types(settings)
    zones = [z for z in RegionsAndZonesBackend.zones[settings.region] if z.name in settings.zones]
    RegionsAndZonesBackend.zones[settings.region] = zones

    def create_default_vpc(self: Any) -> Any:
        vpc = self.create_vpc(cidr_block=str(settings.private_block), is_default=True)
        for zone, block in zone_blocks(settings.private_block, settings.zones).items():
            self.create_subnet(vpc_id=vpc.id, cidr_block=block, availability_zone=zone)
        return vpc

    quota_originally = ServiceQuotasBackend.get_service_quota
    modify_originally = backend.modify_instance_security_groups
    create_originally, creating = amis.AmiBackend.create_image, threading.Lock()
    disks_originally = vars(amis.Ami)["block_device_mappings"].fget
    run_originally, respond_originally = backend.run_instances, InstanceResponse.run_instances

    def run_response(self: Any) -> Any:
        _REQUEST.most = int(self._get_param("MaxCount", if_none="0") or 0)
        _REQUEST.max_price = self._get_param("InstanceMarketOptions.SpotOptions.MaxPrice", if_none="") or ""
        try:
            return respond_originally(self)
        finally:
            _REQUEST.most, _REQUEST.max_price = 0, ""

    def run_instances(
        self: Any, image_id: str, count: int, user_data: Any, security_group_names: list[str], **more: Any
    ) -> Any:
        try:
            return rent(cloud, self, run_originally, image_id, count, user_data, security_group_names, more)
        except ApiRefusal as refusal:
            raise _api_error(refusal.code, str(refusal), refusal.status) from None

    def start(self: Any) -> Any:
        try:
            return cloud.start(self)
        except UsageError as error:
            raise _api_error("IncorrectInstanceState", str(error)) from None

    def reboot_instances(self: Any, instance_ids: list[str]) -> Any:
        chosen = list(self.get_multi_instances_by_id(instance_ids))
        for one in chosen:
            cloud.reboot(one)
        return chosen

    def modify_groups(self: Any, instance_id: str, new_group_id_list: list[str]) -> Any:
        one = modify_originally(self, instance_id, new_group_id_list)
        for card in one.nics.values():
            card._group_set = []  # those that it was made with; moto would keep them beside the new ones
        return one

    def console(self: Any) -> Any:
        from moto.core.responses import ActionResult
        from moto.core.types import Base64EncodedString

        one = self.ec2_backend.get_instance(self._get_param("InstanceId"))
        text = Base64EncodedString.from_raw_string(cloud.console(one.id))
        return ActionResult({"InstanceId": one.id, "Timestamp": datetime.now(UTC), "Output": text})

    def create_image(self: Any, instance_id: str, name: str, *rest: Any, **more: Any) -> Any:
        with creating:
            if any(one.name == name for one in self.amis.values()):  # moto makes another one
                raise _api_error("InvalidAMIName.Duplicate", f"AMI name {name} is already in use")
            image: Any = create_originally(self, instance_id, name, *rest, **more)
        try:
            cloud.save(instance_id, image)
        except TrainmasterError as error:
            self.deregister_image(image.id)
            raise _api_error("InternalError", str(error), 500) from None
        disks = self.get_instance(instance_id).block_device_mapping.values()
        image.lab_disk_gib = sum(int(disk.size or 0) for disk in disks)
        return image

    def disks_of_image(self: Any) -> Any:
        (disk,) = disks_originally(self)
        disk["Ebs"]["VolumeSize"] = getattr(self, "lab_disk_gib", disk["Ebs"]["VolumeSize"])
        return [disk]

    def price_history(self: Any) -> Any:
        from moto.core.responses import ActionResult

        kinds = self._get_param("InstanceTypes", [])
        history = answers.spot_prices(settings, kinds, self._filters_from_querystring(), self)
        return ActionResult({"SpotPriceHistory": history})

    def spot_requests(self: Any) -> Any:
        from moto.core.responses import ActionResult

        ids, filters = self._get_param("SpotInstanceRequestIds", []), self._filters_from_querystring()
        understood = {key: value for key, value in filters.items() if key in _MOTO_FILTERS}
        theirs = self.ec2_backend.describe_spot_instance_requests(understood, ids)
        wanted = filters.get("instance-id")
        theirs = [request for request in theirs if wanted is None or request.instance_id in wanted]
        known = {request.instance_id for request in self.ec2_backend.spot_instance_requests.values()}
        ours = answers.chosen_requests(answers.spot_requests(cloud, known), ids, filters)
        return ActionResult({"SpotInstanceRequests": [*theirs, *ours]})

    def service_quota(self: Any, service_code: str, quota_code: str) -> Any:
        if service_code == "ec2":
            return answers.quota(cloud, quota_code)
        return quota_originally(self, service_code, quota_code)

    replacements: list[tuple[Any, str, Any]] = [
        (vpcs.VPCBackend, "create_default_vpc", create_default_vpc),
        (elastic_network_interfaces, "random_public_ip", cloud.public.take),
        (InstanceResponse, "run_instances", run_response),
        (backend, "run_instances", run_instances),
        (backend, "reboot_instances", reboot_instances),
        (amis.AmiBackend, "create_image", create_image),
        (amis.Ami, "block_device_mappings", property(disks_of_image)),
        (backend, "modify_instance_security_groups", modify_groups),
        (instance, "start", start),
        (instance, "stop", lambda self: cloud.stop(self)),
        (instance, "terminate", lambda self: cloud.terminate(self)),
        (General, "get_console_output", console),
        (SpotInstances, "describe_spot_price_history", price_history),
        (SpotInstances, "describe_spot_instance_requests", spot_requests),
        (ServiceQuotasBackend, "get_service_quota", service_quota),
    ]
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)
    return cloud


def backend_of(settings: LabSettings) -> Any:
    """What moto has written down of the region."""
    from moto.ec2.models import ec2_backends

    return ec2_backends[ACCOUNT][settings.region]


def furnish(settings: LabSettings, public_key: str) -> str:
    """The key pair and the security group that the lab brings, and Amazon's default group; the group's id."""
    backend = backend_of(settings)
    backend.import_key_pair(KEY_NAME, public_key.encode(), {})
    own = backend.create_security_group(GROUP_NAME, "ssh from everywhere, everything among the members")
    for group in (backend.get_default_security_group(), own):
        among = [{"GroupId": group.id}]
        backend.authorize_security_group_ingress(group.id, "-1", None, None, [], source_groups=among)
    backend.authorize_security_group_ingress(own.id, "tcp", "22", "22", [{"CidrIp": "0.0.0.0/0"}])
    return str(own.id)


def rent(
    cloud: Cloud,
    backend: Any,
    original: Callable[..., Any],
    image_id: str,
    count: int,
    user_data: Any,
    names: list[str],
    kwargs: dict[str, Any],
) -> Any:
    """RunInstances: as Amazon checks it, then moto's records, then hosts.

    Raises:
        ApiRefusal: Amazon would not do it either, or the lab cannot.
    """
    asked = (image_id, kwargs.get("instance_type"), count, kwargs.get("subnet_id"))
    token = kwargs.get("client_token") or _NO_TOKEN
    tokens: dict[str, tuple[Any, Any]] = backend.__dict__.setdefault("lab_client_tokens", {})
    if token != _NO_TOKEN and token in tokens:
        earlier, reservation = tokens[token]
        if earlier != asked:
            message = "Arguments on this idempotent request are inconsistent with those of an earlier one."
            raise ApiRefusal("IdempotentParameterMismatch", message)
        return reservation
    kind = _kind(backend, kwargs)
    _check_names(backend, image_id, kwargs)
    spot = kwargs.get("lifecycle") == "spot" or kwargs.get("instance_market_options") == "spot"
    max_price = getattr(_REQUEST, "max_price", "") if spot else ""
    check_max_price(kind, max_price)
    zone = _zone(cloud, backend, kwargs)
    most = max(count, getattr(_REQUEST, "most", 0))
    zone, number = cloud.market.choose(kind, zone, count, most, spot, cloud.running())
    _place(backend, kwargs, zone)
    grouped = (
        names
        or kwargs.get("security_group_ids")
        or any(card.get("Groups") for card in kwargs.get("nics") or [])
    )
    if not grouped and not kwargs.get("launch_template"):
        kwargs["security_group_ids"] = [backend.get_default_security_group()]
    reservation = original(backend, image_id, number, user_data, names, **kwargs)
    for one in reservation.instances:
        if spot:
            one.lifecycle = "spot"
            one.lab_max_price = max_price
        if not one.security_groups:  # given with the network card
            one.security_groups = list(one.nics[0].group_set)
        cloud.created(one)
    if token != _NO_TOKEN:
        tokens[token] = (asked, reservation)
    return reservation


def _kind(backend: Any, kwargs: dict[str, Any]) -> str:
    kind = str(kwargs.get("instance_type"))
    if kwargs.get("is_instance_type_default") and kwargs.get("launch_template"):
        kind = backend._get_template_from_args(kwargs["launch_template"]).data.get("InstanceType", kind)
    if kind not in TYPES:
        raise ApiRefusal(
            "InvalidParameterValue",
            f"Invalid value '{kind}' for InstanceType. The lab has {', '.join(TYPES)}.",
        )
    return kind


def _check_names(backend: Any, image_id: str, kwargs: dict[str, Any]) -> None:
    if image_id and image_id not in backend.amis:
        raise ApiRefusal("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")
    key = kwargs.get("key_name")
    if key and key not in backend.key_pairs:
        raise ApiRefusal("InvalidKeyPair.NotFound", f"The key pair '{key}' does not exist")


def _zone(cloud: Cloud, backend: Any, kwargs: dict[str, Any]) -> str | None:
    """Where it must be, if the request says so."""
    subnet_id = kwargs.get("subnet_id") or next(
        (n["SubnetId"] for n in kwargs.get("nics") or [] if "SubnetId" in n), None
    )
    if subnet_id:
        import ipaddress

        subnet = backend.get_subnet(subnet_id)
        if not ipaddress.IPv4Network(subnet.cidr_block).subnet_of(cloud.settings.private_block):
            where = f"{subnet_id} ({subnet.cidr_block})"
            message = f"The lab has one VPC, {cloud.settings.private_block}: {where} is outside."
            raise ApiRefusal("InvalidSubnet.Range", message)
        return str(subnet.availability_zone)
    wanted = kwargs.get("placement")
    if wanted and wanted not in cloud.settings.zones:
        raise ApiRefusal("InvalidParameterValue", f"Invalid availability zone: [{wanted}]")
    return str(wanted) if wanted else None


def _place(backend: Any, kwargs: dict[str, Any], zone: str) -> None:
    """Without a subnet moto plays EC2-Classic, with addresses from nowhere."""
    cards = kwargs.get("nics") or []
    if kwargs.get("subnet_id") or any("SubnetId" in card for card in cards):
        return
    default = backend.get_default_subnets()[zone]
    if cards:
        cards[0]["SubnetId"] = default.id
        cards[0].setdefault("AssociatePublicIpAddress", True)
    else:
        kwargs["subnet_id"] = default.id
        if kwargs.get("associate_public_ip") is None:
            kwargs["associate_public_ip"] = True
    kwargs["placement"] = None


def _leave_offerings_unread() -> None:
    """What all regions of AWS offer: to read it is an eighth of a start, and the lab has its own offers."""
    from moto.utilities import utils

    read = utils.load_resource

    def read_others(package: str, name: str) -> Any:
        return [] if "/instance_type_offerings/" in name else read(package, name)

    utils.load_resource = read_others
    try:
        import moto.ec2.models.instance_types  # noqa: F401 - it is read then
    finally:
        utils.load_resource = read


def _keep_types(settings: LabSettings) -> None:
    """Of all types that moto knows the lab keeps what it can boot."""
    from moto.ec2.models import instance_types as known

    for kind in TYPES.values():
        known.INSTANCE_TYPES[kind.name] = answers.description(kind, known.INSTANCE_TYPES)
    names = list(TYPES)
    known.InstanceTypeBackend.instance_types = [known.InstanceType(name) for name in names]
    for location, regions in known.INSTANCE_TYPE_OFFERINGS.items():
        places = [settings.region] if location == "region" else list(settings.zones)
        if location == "availability-zone-id":
            places = []
        regions.clear()
        regions[settings.region] = [
            {"InstanceType": name, "Location": place, "LocationType": location}
            for place in places
            for name in names
        ]


def _api_error(code: str, message: str, status: int = 400) -> Exception:
    from moto.ec2.exceptions import EC2ClientError

    error: Exception = EC2ClientError(code, message)
    if status != 400:
        _REQUEST.status = status
    return error


def take_status() -> int:
    """The HTTP status that the last error of this thread should have; 0 for moto's own."""
    status = int(getattr(_REQUEST, "status", 0))
    _REQUEST.status = 0
    return status
