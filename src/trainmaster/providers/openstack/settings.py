"""`OpenstackSettings`: what of an OpenStack is used, and how: ``openstack.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from trainmaster.providers.own_settings import SettingsKind, check_ssh_from, user_name
from trainmaster.spec.node import YamlNode
from trainmaster.spec.reading import (
    Key,
    Noun,
    Problems,
    boolean,
    integer,
    mapping_of,
    noun,
    number,
    size,
    text,
)
from trainmaster.spec.reading import Path as KeyPath

_EXAMPLE: Final = "cloud: ours\nimage: Ubuntu 24.04\nfloating: public"
_NAMED: Final = text("write a name or an id, as `openstack` lists it")


class OpenstackFlavor(Noun):
    """What OpenStack does not say of a flavor.

    Attributes:
        gpus, gpu: how many GPUs it has, and their model; where they are not written, the flavor's own
            properties say it, as far as they do.
        usd_per_hour: what an hour of it costs; 0 if nothing.
    """

    gpus: Annotated[int | None, Key("gpus", integer(0))] = None
    gpu: Annotated[str, Key("gpu", text("write a model such as A100"))] = ""
    usd_per_hour: Annotated[float, Key("usd_per_hour", number(0.0))] = 0.0


class OpenstackSettings(Noun):
    """The whole file.

    Attributes:
        cloud: of ``clouds.yaml``; empty for ``OS_CLOUD``, or what the variables ``OS_...`` say.
        image, gpu_image: that machines boot, and those whose flavor has GPUs; a name or an id.
        user: to log in as.
        network: that machines are in; empty if there is only one.
        floating: network whose addresses machines are reached by; empty if their own are reached from here.
        security_group: of one's own; empty for one that is made for each cluster.
        ssh_from: address block that SSH is let in from, where we make the group.
        zone: availability zone; empty for any.
        volume: machines boot from a volume, which goes with them; else only where their flavor has no disk,
            or too small a one.
        volume_type: of it; empty for the site's default.
        disk_bytes: of it, where a recipe does not say.
        flavors: those that may be asked for; none: all that there are.
        ends_only_from_here: the user knows that machines may not be able to delete themselves there.
        file: where they are from.
    """

    cloud: Annotated[str, Key("cloud", text("write the name of a cloud of clouds.yaml"))] = ""
    image: Annotated[str, Key("image", _NAMED, required="write `image`: a name or an id")]
    gpu_image: Annotated[str, Key("gpu_image", _NAMED)] = ""
    user: Annotated[str, Key("user", user_name)] = "ubuntu"
    network: Annotated[str, Key("network", _NAMED)] = ""
    floating: Annotated[str, Key("floating", _NAMED)] = ""
    security_group: Annotated[str, Key("security_group", _NAMED)] = ""
    ssh_from: Annotated[str, Key("ssh_from", text("write an address block such as 203.0.113.7/32"))] = (
        "0.0.0.0/0"
    )
    zone: Annotated[str, Key("zone", text("write an availability zone"))] = ""
    volume: Annotated[bool, Key("volume", boolean)] = False
    volume_type: Annotated[str, Key("volume_type", text("write a type of volumes"))] = ""
    disk_bytes: Annotated[int, Key("disk", size)] = 64 * 2**30
    flavors: Annotated[
        dict[str, OpenstackFlavor],
        Key(
            "flavors",
            mapping_of(
                noun(OpenstackFlavor),
                "write flavors by their names",
                name=r"\S+",
                what="names of flavors have no spaces",
            ),
        ),
    ] = Field(default={})
    ends_only_from_here: Annotated[bool, Key("ends_only_from_here", boolean)] = False
    file: Path = Path("openstack.yaml")

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: KeyPath, problems: Problems) -> None:
        """Refuse what is no address block."""
        check_ssh_from(values, node, path, problems)


OPENSTACK: Final = SettingsKind("openstack", "OpenStack", "cloud, image", _EXAMPLE, OpenstackSettings)
