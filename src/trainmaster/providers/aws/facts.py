"""What EC2's instance types need, as far as their names tell: image, placement, quota. Pure."""

from __future__ import annotations

import re
from typing import Final

from trainmaster.dataclass import dataclass

_TYPE: Final = re.compile(
    r"(?P<letters>[a-z]+(?:-[0-9]+tb)?)(?P<generation>[0-9]*)(?P<rest>[a-z0-9-]*)\.[a-z0-9-]+"
)

#: Families with NVIDIA GPUs whose driver is in Amazon's images for deep learning.
_NVIDIA: Final = frozenset({"g", "gr", "p"})
#: Families that cannot stand in a cluster placement group (burstable, Mac, and the oldest).
_NO_CLUSTER: Final = re.compile(
    r"(t[1-4][a-z]*|mac[0-9].*|m1|m2|m3|c1|m7i-flex|c7i-flex|m8i-flex|c8i-flex|r8i-flex)\..*"
)

#: First letters of a family -> quota codes of running on-demand vCPUs and of spot requests. From
#: https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
_QUOTAS: Final = {
    "standard": ("L-1216C47A", "L-34B43A08"),
    "f": ("L-74FC7D96", "L-88CF9481"),
    "g": ("L-DB2E81BA", "L-3819A6DF"),
    "vt": ("L-DB2E81BA", "L-3819A6DF"),
    "gr": ("L-DB2E81BA", "L-3819A6DF"),
    "inf": ("L-1945791B", "L-B5D1601B"),
    "p": ("L-417A185B", "L-7212CCBC"),
    "p5": ("L-417A185B", "L-C4BD4855"),
    "trn": ("L-2C3B7624", "L-6B0D517C"),
    "x": ("L-7295265B", "L-E3A00192"),
}
_STANDARD: Final = frozenset("acdhimrtz")


@dataclass(frozen=True, slots=True)
class MachineImage:
    """Where an image is found, and whom it lets in.

    Attributes:
        name: its name with ``*``; the newest is taken. Or ``ami-...``.
        owner: account id or alias of its publisher; empty for any, which is safe for an id only.
        user: to log in as.
    """

    name: str
    owner: str
    user: str


def _split(instance_type: str) -> tuple[str, str, str]:
    found = _TYPE.fullmatch(instance_type)
    return (found["letters"], found["generation"], found["rest"]) if found else ("", "", "")


def architecture(instance_type: str) -> str:
    """``arm64`` or ``x86_64``, from the name.

    >>> [architecture(t) for t in ("m4.large", "g4dn.xlarge", "t4g.micro", "g5g.xlarge", "a1.large")]
    ['x86_64', 'x86_64', 'arm64', 'arm64', 'arm64']
    """
    letters, generation, rest = _split(instance_type)
    is_arm = "g" in rest.partition("-")[0] or (letters, generation) == ("a", "1") or "gb" in rest
    return "arm64" if is_arm else "x86_64"


def has_nvidia(instance_type: str) -> bool:
    """Whether it has NVIDIA GPUs.

    >>> [has_nvidia(t) for t in ("p3.2xlarge", "g5.xlarge", "g4ad.xlarge", "m5.large")]
    [True, True, False, False]
    """
    letters, generation, rest = _split(instance_type)
    return letters in _NVIDIA and (letters, generation, rest) != ("g", "4", "ad")


def default_image(instance_type: str) -> MachineImage:
    """What boots there if nothing else is asked for: Debian 12, or Ubuntu with NVIDIA's driver.

    >>> default_image("m4.large").name
    'debian-12-amd64-*'
    """
    arm = architecture(instance_type) == "arm64"
    if has_nvidia(instance_type):
        name = f"Deep Learning {'ARM64 ' if arm else ''}Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) *"
        return MachineImage(name, "amazon", "ubuntu")
    # Debian's own account:
    return MachineImage(f"debian-12-{'arm64' if arm else 'amd64'}-*", "136693071363", "admin")


def can_cluster(instance_type: str) -> bool:
    """Whether it may stand in a cluster placement group.

    >>> [can_cluster(t) for t in ("p3.2xlarge", "t2.small", "c4.large")]
    [True, False, True]
    """
    return not _NO_CLUSTER.fullmatch(instance_type)


def quota_code(instance_type: str, *, spot: bool) -> str:
    """The quota in Service Quotas whose vCPUs it uses; '' if unknown.

    >>> quota_code("m4.large", spot=False), quota_code("p3.2xlarge", spot=True)
    ('L-1216C47A', 'L-7212CCBC')
    """
    letters, generation, _ = _split(instance_type)
    codes = _QUOTAS.get(letters + generation) or _QUOTAS.get(letters)
    if codes is None and letters[:1] in _STANDARD and len(letters) <= 2:
        codes = _QUOTAS["standard"]
    return codes[spot] if codes else ""
