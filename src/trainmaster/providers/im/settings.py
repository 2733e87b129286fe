"""`ImSettings`: where Infrastructure Manager is, and what of each cloud no price list says: ``im.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

from trainmaster.providers.own_settings import SettingsKind, check_ssh_from, user_name
from trainmaster.spec.addresses import is_loopback, url_parts
from trainmaster.spec.errors import UsageError
from trainmaster.spec.node import YamlNode
from trainmaster.spec.reading import Key, Noun, Problems, boolean, mapping_of, noun, pattern, size, text
from trainmaster.spec.reading import Path as KeyPath

#: Whom IM's own examples log in as.
USER: Final = "cloudadm"
DISK_BYTES: Final = 64 * 2**30

_EXAMPLE: Final = (
    "url: https://im.example.org/im\n"
    "credentials: im.auth\n"
    "clouds:\n"
    "  ec2: {image: 'aws://us-east-1/ami-0123456789abcdef0'}"
)
_IMAGE: Final = pattern(r"[^\s'\\]+", "write an image as IM names it, such as aws://us-east-1/ami-012345")
_URL: Final = pattern(r"https?://[^\s@]+", "write the address of IM's REST API, without a login")
_NETWORK: Final = pattern(r"[^\s'\\]+", "write the network's id as the cloud names it")
_CLOUD: Final = r"[A-Za-z_.][A-Za-z0-9_.-]*"


class ImCloud(Noun):
    """A cloud.

    Attributes:
        image: that machines boot.
        gpu_image: the same of machines with GPUs; empty for the same.
        user: to log in as.
        disk_bytes: of the root disk, where a recipe does not say.
        public_addresses: machines get one; without, this machine must reach their private ones.
        public_network, private_network: as the cloud names them; empty for what IM takes.
        ssh_from: address block that SSH is let in from; empty for anywhere.
    """

    image: Annotated[str, Key("image", _IMAGE, required="write `image`, as IM names it")]
    gpu_image: Annotated[str, Key("gpu_image", _IMAGE)] = ""
    user: Annotated[str, Key("user", user_name)] = USER
    disk_bytes: Annotated[int, Key("disk", size)] = DISK_BYTES
    public_addresses: Annotated[bool, Key("public_addresses", boolean)] = True
    public_network: Annotated[str, Key("public_network", _NETWORK)] = ""
    private_network: Annotated[str, Key("private_network", _NETWORK)] = ""
    ssh_from: Annotated[str, Key("ssh_from", text("write an address block such as 203.0.113.7/32"))] = ""

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: KeyPath, problems: Problems) -> None:
        """Refuse what is no address block."""
        check_ssh_from(values, node, path, problems)


class ImSettings(Noun):
    """The whole file.

    Attributes:
        url: of the REST API.
        credentials: IM's own file of them; from where the settings are, unless it is absolute.
        clouds: those that may be used, by the id that the credentials have; the first one is the default.
        prices: a price list of ours, with rows of the provider ``im`` whose region is a cloud's id.
        file: where they are from.
    """

    url: Annotated[str, Key("url", _URL, required="write `url`: the address of IM's REST API")]
    credentials: Annotated[str, Key("credentials", text("write the path of IM's credentials"))] = "im.auth"
    clouds: Annotated[
        dict[str, ImCloud],
        Key(
            "clouds",
            mapping_of(
                noun(ImCloud),
                "write the clouds by the ids of your credentials",
                name=_CLOUD,
                what="ids of clouds begin with a letter, then letters, digits, '.', '-' and '_'",
            ),
            required="write `clouds`: those of your credentials that may be used",
        ),
    ]
    prices: Annotated[str, Key("prices", text("write the path of a price list"))] = ""
    file: Path = Path("im.yaml")

    @property
    def credentials_file(self) -> Path:
        """Where the credentials are."""
        return self.file.parent / Path(self.credentials).expanduser()

    @property
    def prices_file(self) -> Path | None:
        """Where the price list is, if there is one."""
        return self.file.parent / Path(self.prices).expanduser() if self.prices else None

    def cloud(self, name: str) -> ImCloud:
        """The settings of a cloud.

        Raises:
            UsageError: it is none of them.
        """
        if name not in self.clouds:
            raise UsageError(
                f"{self.file} has no cloud {name!r}",
                f"It has {', '.join(self.clouds)}: add it, or name another.",
            )
        return self.clouds[name]


IM: Final = SettingsKind("im", "IM", "url, credentials, clouds", _EXAMPLE, ImSettings)


def read_settings(file: Path) -> ImSettings:
    """Read and check the settings.

    Raises:
        RecipeError: with all mistakes that were found.
        UsageError: there is no such file, or credentials would go over a network in clear.
    """
    found = IM.read_file(file)
    address = url_parts(found.url, f"{file}: url")
    if address.scheme == "http" and not is_loopback(address.hostname or ""):
        raise UsageError(
            f"{file}: credentials of clouds would go to {found.url} in clear",
            "Write https, or forward a port of this machine to it (`ssh -L`) and write that.",
        )
    return found
