"""RADL, Infrastructure Manager's own language: written for what is asked for, read of what there is. Pure.

One document asks for the machines of one request: a kind of machine, how many, in which cloud. IM adds it to
what the infrastructure has. Nothing is configured by IM: that is done over SSH. What it hands to cloud-init
for us is the dead-man switch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from textwrap import indent
from typing import Final

from trainmaster.dataclass import dataclass, field

PUBLIC: Final = "pub"
PRIVATE: Final = "priv"
#: Name of what machines do when they boot.
BOOT: Final = "tm-boot"
_MIB: Final = 2**20
_GIB: Final = 2**30
_FEATURE: Final = re.compile(
    r"(?P<name>[A-Za-z][\w.]*) *(?P<sign>>=|<=|=|>|<) *"
    r"(?:'(?P<text>(?:[^'\\]|\\.)*)'|(?P<number>[0-9][0-9.]*)(?P<unit>[A-Za-z]*))"
)
_SYSTEM: Final = re.compile(r"^\s*system\s+([\w.-]+)\s*\(", re.MULTILINE)
_DESCRIPTION: Final = re.compile(r"description\s+trainmaster\s*\(([^)]*)\)")
_ADDRESS: Final = re.compile(r"net_interface\.(\d+)\.ip")


@dataclass(frozen=True, slots=True)
class InfrastructureOwner:
    """Whose an infrastructure is.

    Attributes:
        home: identity of the home.
        cluster: that its machines are for.
        until: Unix seconds until which somebody may want them.
    """

    home: str
    cluster: str
    until: float

    @property
    def radl(self) -> str:
        """As a description, which IM keeps; a later one takes its place."""
        values = {"home": self.home, "cluster": self.cluster, "until": f"{self.until:.0f}"}
        return f"description trainmaster ({_features(values)})"


@dataclass(frozen=True, slots=True)
class WantedMachines:
    """What a document asks for.

    Attributes:
        system: their name in the document; of machines of one request it is the same.
        role: names of hosts begin with it.
        count: how many.
        cloud: id of its record among the credentials.
        image: as IM names it, such as ``aws://us-east-1/ami-...``.
        user: to log in as.
        instance_type: of the cloud; empty for one by size.
        zone: empty for any.
        cpus, memory_bytes: at least; 0 where the type says it.
        gpu, gpus: model and number per machine; empty and 0 where the type says it.
        disk_bytes: of the root disk; 0 for the image's.
        public_network, private_network: as the cloud names them; empty for what IM takes.
        has_public: whether machines have a public address.
        ssh_from: address block that SSH is let in from; empty for anywhere.
        tags: on machines, for people who look at the cloud's console.
        boot_script: for ``/bin/sh``, run by cloud-init as root when a machine boots for the first time.
    """

    system: str
    role: str
    count: int
    cloud: str
    image: str
    user: str
    instance_type: str = ""
    zone: str = ""
    cpus: float = 0.0
    memory_bytes: int = 0
    gpu: str = ""
    gpus: int = 0
    disk_bytes: int = 0
    public_network: str = ""
    private_network: str = ""
    has_public: bool = True
    ssh_from: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    boot_script: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ImMachine:
    """What a document says of a machine.

    Attributes:
        system: its name in the document that asked for it.
        address: where it is reached from here; empty as long as it has none.
        private_address: where the others of its infrastructure reach it.
        user: to log in as.
        key: private key, as in a file; empty if IM has none.
        instance_type, zone: what it is.
    """

    system: str
    address: str = ""
    private_address: str = ""
    user: str = ""
    key: str = field(default="", repr=False)
    instance_type: str = ""
    zone: str = ""


def written(mark: InfrastructureOwner, wanted: WantedMachines) -> str:
    """The document.

    Args:
        mark: whose the infrastructure is, and for which cluster: found again by `mark_of`.
        wanted: what it asks for.

    Raises:
        ValueError: a text that no document can hold.
    """
    ports = f"{wanted.ssh_from}-22/tcp" if wanted.ssh_from else "22/tcp"
    public = {"outbound": "yes", "outports": ports} | _named(wanted.public_network)
    private = {"outbound": "no"} | _named(wanted.private_network)
    networks = [f"network {PRIVATE} ({_features(private)})"]
    if wanted.has_public:
        networks.insert(0, f"network {PUBLIC} ({_features(public)})")
    features = " and\n  ".join(_of_system(wanted))
    lines = [
        mark.radl,
        *networks,
        f"system {wanted.system} (\n  {features}\n)",
        f"deploy {wanted.system} {wanted.count} {wanted.cloud}",
        *_at_boot(wanted),
    ]
    return "\n".join(lines) + "\n"


def renewed(mark: InfrastructureOwner) -> str:
    """A document that only says again until when machines are wanted."""
    return f"{mark.radl}\ncontextualize ()\n"


def mark_of(radl: str) -> InfrastructureOwner | None:
    """What an infrastructure is marked with; None if it is not ours."""
    found = _DESCRIPTION.search(radl)
    told = features_of(found[1]) if found else {}
    try:
        return InfrastructureOwner(told["home"], told["cluster"], float(told["until"]))
    except (KeyError, ValueError):
        return None


def features_of(radl: str) -> dict[str, str]:
    """Every feature of a document that has one system: name -> value, the last one counts.

    >>> features_of("system a ( cpu.count >= 2 and disk.0.size = 10G and state = 'running' )")
    {'cpu.count': '2', 'disk.0.size': '10G', 'state': 'running'}
    """
    return {
        each["name"]: each["text"].replace(r"\'", "'")
        if each["text"] is not None
        else each["number"] + each["unit"]
        for each in _FEATURE.finditer(radl)
    }


def machine_of(radl: str) -> ImMachine:
    """What IM says of a machine."""
    named = _SYSTEM.search(radl)
    told = features_of(radl)
    addresses = {
        told.get(f"net_interface.{found[1]}.connection", ""): told[name]
        for name in sorted(told)
        if (found := _ADDRESS.fullmatch(name))
    }
    private = addresses.get(PRIVATE) or next(iter(addresses.values()), "")
    return ImMachine(
        system=named[1] if named else "",
        address=addresses.get(PUBLIC) or private,
        private_address=private,
        user=told.get("disk.0.os.credentials.username", ""),
        key=told.get("disk.0.os.credentials.private_key", ""),
        instance_type=told.get("instance_type", ""),
        zone=told.get("availability_zone", ""),
    )


def _of_system(wanted: WantedMachines) -> list[str]:
    found = []
    if wanted.instance_type:
        found.append(f"instance_type = {_text(wanted.instance_type)}")
    if wanted.zone:
        found.append(f"availability_zone = {_text(wanted.zone)}")
    if wanted.cpus:
        found.append(f"cpu.count >= {wanted.cpus:g}")
    if wanted.memory_bytes:
        found.append(f"memory.size >= {wanted.memory_bytes // _MIB}M")
    if wanted.gpus:
        found.append(f"gpu.count >= {wanted.gpus}")
        if wanted.gpu:
            found.append(f"gpu.model = {_text(wanted.gpu)}")
    if wanted.tags:
        pairs = ",".join(f"{name}={value}" for name, value in sorted(wanted.tags.items()))
        found.append(f"instance_tags = {_text(pairs)}")
    networks = [PRIVATE, PUBLIC] if wanted.has_public else [PRIVATE]
    found += [f"net_interface.{i}.connection = '{network}'" for i, network in enumerate(networks)]
    found.append(f"net_interface.0.dns_name = {_text(f'{wanted.role}-#N#')}")
    found.append("disk.0.os.name = 'linux'")
    found.append(f"disk.0.image.url = {_text(wanted.image)}")
    found.append(f"disk.0.os.credentials.username = {_text(wanted.user)}")
    if wanted.disk_bytes:
        found.append(f"disk.0.size = {-(-wanted.disk_bytes // _GIB)}G")
    return found


def _at_boot(wanted: WantedMachines) -> list[str]:
    """What cloud-init is told besides whom to let in: IM adds the user to it."""
    if not wanted.boot_script:
        return ["contextualize ()"]
    if "@end" in wanted.boot_script:
        raise ValueError("a script with @end cannot be said in RADL")
    script = indent(wanted.boot_script.strip(), "    ")
    return [
        f"configure {BOOT} (\n@begin\nruncmd:\n- - sh\n  - -c\n  - |\n{script}\n@end\n)",
        f"contextualize (\n  system {wanted.system} configure {BOOT} with cloud_init\n)",
    ]


def _named(network: str) -> dict[str, str]:
    return {"provider_id": network} if network else {}


def _features(values: Mapping[str, str]) -> str:
    return " and ".join(f"{name} = {_text(value)}" for name, value in values.items())


def _text(value: str) -> str:
    if "\\" in value or "\n" in value or "'" in value:
        raise ValueError(f"{value!r} cannot be said in RADL: no quotes, backslashes or new lines")
    return f"'{value}'"
