"""`LabSettings`: everything about a lab that can be chosen when it is put up."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainmaster.dataclass import dataclass
from trainmaster.lab.instance_types import SizeScale

#: The only region of a lab, unless told otherwise.
REGION = "us-east-1"
#: Zones of the region; addresses are split between four at most.
ZONES = 3
MOST_ZONES = 4
#: What a machine that has been asked to stop gets before it is cut off.
STOP_GRACE_S = 3.0
#: More hosts than this on one machine measure nothing but the machine.
MOST_HOSTS = 64
#: Of the key pair that the lab brings, and whom it lets in.
KEY_NAME = "trainmaster-lab"
#: Of the security group that the lab brings: ssh from everywhere, everything among its members.
GROUP_NAME = "trainmaster-lab"
USER = "admin"


@dataclass(frozen=True, slots=True)
class LabSettings:
    """A lab as it was put up.

    Attributes:
        network: addresses of this lab; the lower half private, the upper half public ones.
        layers: read-only root file systems of the hosts, uppermost first.
        shared: directories and files of this machine that the hosts see at the same path, read-only.
        path: ``PATH`` on the hosts.
        python: this interpreter, as the hosts see it.
        most_hosts: hosts that may run at once.
        stop_grace_s: between asking a host to stop and cutting it off.
        credits_speed: so many times as fast as on EC2 CPU credits run out; 0: they do not.
    """

    region: str
    zones: tuple[str, ...]
    network: str
    scale: SizeScale
    layers: tuple[str, ...]
    shared: tuple[str, ...]
    path: str
    python: str
    access_key_id: str
    secret_access_key: str
    image_id: str
    control_token: str
    port: int = 0
    most_hosts: int = MOST_HOSTS
    stop_grace_s: float = STOP_GRACE_S
    credits_speed: float = 0.0

    @property
    def block(self) -> ipaddress.IPv4Network:
        """All addresses of the lab."""
        return ipaddress.IPv4Network(self.network)

    @property
    def private_block(self) -> ipaddress.IPv4Network:
        """The VPC."""
        return next(self.block.subnets(prefixlen_diff=1))

    @property
    def public_block(self) -> ipaddress.IPv4Network:
        """Where public addresses are from."""
        return list(self.block.subnets(prefixlen_diff=1))[1]

    @property
    def gateway(self) -> str:
        """The bridge."""
        return str(self.block.network_address + 1)

    @property
    def root_address(self) -> str:
        """This machine, as the hosts see it."""
        return str(self.block.network_address + 2)

    def save(self, path: Path) -> None:
        """Write it where only root reads it: keys are in it."""
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> LabSettings:
        """Read what `save` wrote."""
        values: dict[str, Any] = json.loads(path.read_text())
        values["scale"] = SizeScale(**values["scale"])
        for name in ("zones", "layers", "shared"):
            values[name] = tuple(values[name])
        return cls(**values)
