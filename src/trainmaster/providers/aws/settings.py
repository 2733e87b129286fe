"""`AwsSettings`: what can be chosen about renting on EC2, from the environment or the lab's file."""

from __future__ import annotations

import configparser
import ipaddress
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from trainmaster.dataclass import dataclass, field
from trainmaster.providers.base import ProviderGoneError
from trainmaster.providers.dead_man_switch import USER
from trainmaster.providers.offer import Extras
from trainmaster.spec.addresses import is_link_local, is_loopback, url_parts
from trainmaster.spec.errors import UsageError

_GIB: Final = 2**30
#: PyTorch with CUDA, a venv, a dataset's cache: an image's own 8 GiB would be full at once.
DISK_BYTES: Final = 64 * _GIB
#: What is rented with every machine by default.
USUAL_EXTRAS: Final = Extras(DISK_BYTES, public_address=True)
_ANYWHERE: Final = "0.0.0.0/0"


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """How to rent.

    Attributes:
        name: of the provider: ``aws`` or ``lab``.
        region: where a request that names none goes; empty for what the AWS configuration says.
        endpoint_url: of the API; empty for Amazon's.
        access_key_id, secret_access_key: empty for what the AWS configuration says.
        image: ``ami-...`` or a name with ``*`` and ``?``, of which the newest is taken; empty for a choice by
            type.
        image_owner: account id or alias that must have published an image found by name.
        user: to log in as; empty if the image is our choice.
        vpc: network to rent in; empty for the region's default one.
        ssh_from: address block from which SSH is let in; empty to ask for our own address.
        disk_bytes: of the root disk, where a request does not say.
        public_addresses: machines get one; without, this machine must be in their network.
        placement_groups: machines of a request stand close together; None: where the API is Amazon's.
        attempts: of a call that fails for reasons that pass.
        backoff_s: before the second attempt; it doubles.
        timeout_s: for an answer.
        inside_vpc: network that this machine is in: machines of it are reached at their private addresses.
        facts_file: of a lab: goes when the lab is taken down; None for clouds that stay.
        release_patience_s: how long `release` waits for machines to be gone, to remove what they used.
    """

    name: str = "aws"
    region: str = ""
    endpoint_url: str = ""
    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    image: str = ""
    image_owner: str = ""
    user: str = ""
    vpc: str = ""
    ssh_from: str = ""
    disk_bytes: int = DISK_BYTES
    public_addresses: bool = True
    placement_groups: bool | None = None
    inside_vpc: str = ""
    facts_file: Path | None = None
    attempts: int = 6
    backoff_s: float = 0.5
    timeout_s: float = 30.0
    release_patience_s: float = 240.0

    def __post_init__(self) -> None:
        """Refuse what AWS would refuse later and in worse words.

        Raises:
            UsageError: an address, a block of them or a user that is none; an image without its user.
        """
        if self.ssh_from:
            try:
                ipaddress.ip_network(self.ssh_from)
            except ValueError as error:
                raise UsageError(
                    f"TRAINMASTER_AWS_SSH_FROM is {self.ssh_from!r}, which is no address block: {error}",
                    "Write one such as 203.0.113.7/32.",
                ) from None
        url_parts(self.endpoint_url, "AWS_ENDPOINT_URL")
        if self.user and not re.fullmatch(USER, self.user):
            raise UsageError(
                f"TRAINMASTER_AWS_USER is {self.user!r}, which is no name of a user",
                "Write whom to log in as, such as ubuntu, admin or ec2-user.",
            )
        if self.image and not self.user:
            raise UsageError(
                f"TRAINMASTER_AWS_IMAGE is {self.image!r}, but nothing says whom to log in as there",
                "Set TRAINMASTER_AWS_USER, such as ubuntu, admin or ec2-user.",
            )

    @property
    def is_own_cloud(self) -> bool:
        """Whether the API is a stand-in on this machine, or a lab's, rather than Amazon's."""
        host = urlsplit(self.endpoint_url).hostname or ""
        return is_loopback(host) or is_link_local(host)  # a host of a lab sees its API at such an address

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> AwsSettings:
        """Read ``TRAINMASTER_AWS_*``; what is AWS's own (keys, profile) boto3 reads itself.

        Raises:
            UsageError: a value that means nothing.
        """

        def text(name: str) -> str:
            return environ.get(f"TRAINMASTER_AWS_{name}", "").strip()

        ignored = environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true"
        owner, _, image = text("IMAGE").rpartition("/")
        return cls(
            # boto3 reads the second only; everything else of AWS reads both.
            region=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION", ""),
            endpoint_url="" if ignored else environ.get("AWS_ENDPOINT_URL", ""),
            image=image,
            image_owner=owner,
            user=text("USER"),
            vpc=text("VPC"),
            ssh_from=text("SSH_FROM"),
            inside_vpc=text("INSIDE_VPC"),
            disk_bytes=_disk_bytes(text("DISK_GIB")),
            public_addresses=_yes(text("PUBLIC_ADDRESSES"), "PUBLIC_ADDRESSES"),
        )

    @classmethod
    def from_lab(cls, directory: Path) -> AwsSettings:
        """Read what `trainmaster lab up` has left in the home.

        Args:
            directory: the lab's (``$TRAINMASTER_HOME/lab``).

        Raises:
            UsageError: no lab is up there, or the file is not what a lab writes.
        """
        path = directory / "lab.json"
        try:
            facts: dict[str, Any] = json.loads(path.read_text())
            return cls(
                name="lab",
                region=str(facts["region"]),
                endpoint_url=str(facts["endpoint_url"]),
                access_key_id=str(facts["access_key_id"]),
                secret_access_key=str(facts["secret_access_key"]),
                image=str(facts["image_id"]),
                user=str(facts["user"]),
                ssh_from=_ANYWHERE,  # only this machine can reach the lab's hosts anyway
                disk_bytes=8 * _GIB,
                placement_groups=False,  # the lab's API knows none; its hosts are all on one machine
                inside_vpc=str(facts.get("inside_vpc", "")),
                facts_file=path,
                backoff_s=0.1,  # it answers at once, and its hosts are gone within seconds
            )
        except FileNotFoundError:
            raise ProviderGoneError(
                f"no lab is up in {directory}", "Put one up: `trainmaster lab up`."
            ) from None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path} cannot be used: {type(error).__name__}: {error}",
                "Put the lab up again: `trainmaster lab down`, then `trainmaster lab up`.",
            ) from None


def configured_region(environ: Mapping[str, str]) -> str:
    """The region of the user's AWS settings; empty if there is none.

    Args:
        environ: ``AWS_REGION``, ``AWS_DEFAULT_REGION``, else the profile in AWS's configuration file.

    Raises:
        UsageError: the file cannot be read.
    """
    if found := environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"):
        return found
    path = environ.get("AWS_CONFIG_FILE") or f"{environ.get('HOME', '~')}/.aws/config"
    profile = environ.get("AWS_PROFILE") or "default"
    config = configparser.RawConfigParser(strict=False)
    try:
        config.read(Path(path).expanduser())
    except (configparser.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "Correct it, or set AWS_REGION.") from None
    for section in (f"profile {profile}", profile):
        if config.has_option(section, "region"):
            return config.get(section, "region").strip()
    return ""


def _disk_bytes(value: str) -> int:
    if not value:
        return DISK_BYTES
    if not re.fullmatch(r"[0-9]{1,5}", value) or not 8 <= int(value) <= 16384:
        raise UsageError(
            f"TRAINMASTER_AWS_DISK_GIB is {value!r}", "Write a whole number of GiB from 8 to 16384."
        )
    return int(value) * _GIB


def _yes(value: str, name: str) -> bool:
    known = {"": True, "1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if value.lower() not in known:
        raise UsageError(f"TRAINMASTER_AWS_{name} is {value!r}", "Write yes or no.")
    return known[value.lower()]
