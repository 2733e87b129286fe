"""`ClusterDescription`: what a document says of machines, and which of its lines no recipe says."""

from __future__ import annotations

import re
from typing import Final

from trainmaster.dataclass import dataclass, field

#: Characters that were hidden: how many is private, too.
_HIDDEN: Final = re.compile(r"\*{2,}")
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)


@dataclass(slots=True)
class MachineGroup:
    """Machines that are alike.

    Attributes:
        name: in the document.
        line: where it begins there.
        count: how many are asked for.
        hardware: keys of a recipe's ``hardware`` with their values in YAML.
        lines: of each of these keys, with what stands there.
    """

    name: str
    line: int
    count: int = 0
    hardware: dict[str, str] = field(default_factory=dict)
    lines: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def is_server(self) -> bool:
        """By its name it has parameter servers."""
        return re.match(r"(?i)ps(?![a-z])|param", self.name) is not None

    def want(self, key: str, value: str, line: int, text: str) -> None:
        """Note a key of ``hardware``."""
        self.hardware[key] = value
        self.lines[key] = (line, text)


@dataclass(slots=True)
class RoleUse:
    """A role of Ansible that machines get.

    Attributes:
        name: of the role.
        on: which machines: ``all``, ``ps`` or ``worker``.
        variables: that it is given; a secret's value is not in them, but ``{"secret": NAME}``.
    """

    name: str
    on: str
    variables: dict[str, object]


@dataclass(slots=True)
class ClusterDescription:
    """What a document says.

    Attributes:
        kind: of document, for people.
        machines: types of machines, in their order there.
        dropped: what stands on lines that no recipe says, and why not.
        roles: in their order.
        sources: where roles are had from, by name.
        settings: of the cloud that machines come from, as in ``im.yaml``.
        cloud: the id of its credentials.
    """

    kind: str
    machines: list[MachineGroup] = field(default_factory=list)
    dropped: list[tuple[int, str, str]] = field(default_factory=list)

    roles: list[RoleUse] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    cloud: str = "CLOUD"

    def set(self, key: str, value: str) -> bool:
        """Note a setting; False if it has another value already. Of two images the second is of GPUs."""
        for name in (key, "gpu_image") if key == "image" else (key,):
            if self.settings.setdefault(name, value) == value:
                return True
        return False

    def use(self, role: RoleUse) -> bool:
        """Note a role; False if such machines have it with other variables already."""
        for other in self.roles:
            if other.name == role.name and {other.on, role.on} & {"all", *({other.on} & {role.on})}:
                return other.variables == role.variables
            if other.name == role.name and other.variables == role.variables:
                other.on = "all"
                return True
        self.roles.append(role)
        return True

    def drop(self, line: int, text: str, reason: str) -> None:
        """Note what is not taken over, from a text without secrets."""
        for number, part in enumerate(text.splitlines() or [""]):
            if part.strip():
                self.dropped.append((line + number, _HIDDEN.sub("***", part.strip()), reason))


def size_of(text: str) -> str | None:
    """A size as a recipe has it; None if it is none. Units are binary, as these documents mean them.

    >>> size_of("512M"), size_of("10 GB"), size_of("many")
    ('512MiB', '10GiB', None)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        return None
    size_bytes = int(float(match[1]) * _UNITS[match[2].lower()])
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if size_bytes % unit == 0:
            return f"{size_bytes // unit}{name}"
    return f"{size_bytes}B" if size_bytes else None
