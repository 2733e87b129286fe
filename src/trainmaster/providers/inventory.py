"""`Inventory`: the user's own machines, as `hosts.yaml` lists them (docs/hosts.md)."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from trainmaster.providers.own_settings import MOST_PORT, login_place
from trainmaster.spec.errors import Mistake, RecipeError, UsageError
from trainmaster.spec.node import Kind, Wording, YamlNode, compose, read_text
from trainmaster.spec.private_files import require_private
from trainmaster.spec.reading import (
    Key,
    Noun,
    Problems,
    integer,
    keys_of,
    mapping_of,
    pattern,
    read_noun,
    refuse_unknown_keys,
    text,
)
from trainmaster.spec.reading import Path as KeyPath

#: Where it lies below TRAINMASTER_HOME.
FILE_NAME: Final = "hosts.yaml"
#: Names another file than the home's.
VARIABLE: Final = "TRAINMASTER_HOSTS"
#: A range that gives more is a slip.
MAX_HOSTS: Final = 4096

_WORDING: Final = Wording("an inventory", "inventories", "a mapping with the key `hosts`")
_EXAMPLE: Final = "hosts:\n  - {address: 10.0.0.5, user: alice, key: ~/.ssh/id_ed25519}"
_RANGE = re.compile(r"\[([0-9]{1,6})-([0-9]{1,6})\]")
_ADDRESS = (
    r"[A-Za-z0-9_](?:[A-Za-z0-9._-]|\[[0-9]+-[0-9]+\])*"  # a name or IPv4, with ranges
    r"|\[[0-9]+-[0-9]+\][A-Za-z0-9._-]*"
    r"|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*(?:%[A-Za-z0-9.]+)?"  # IPv6
)
_RIGHT_ADDRESS = "write a host name or an IP address such as 10.0.0.5 or node[01-16].lab"
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._:-]|\[[0-9]+-[0-9]+\])*"
_USER = r"[^\s:/\\-][^\s:/]*"
_KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")


def _host_key(node: YamlNode, path: KeyPath, problems: Problems) -> str:
    right = f"write the type and the key as in the host's ssh_host_ed25519_key.pub: {_KEY_TYPES[0]} AAAA..."
    words: list[str] = text(right)(node, path, problems).split()
    if len(words) < 2 or words[0] not in _KEY_TYPES or not re.fullmatch(r"AAAA[A-Za-z0-9+/=]+", words[1]):
        raise problems.refuse(node, path, f"{node.describe()}; {right}")
    return f"{words[0]} {words[1]}"


class InventoryHost(Noun):
    """One machine; as it is written an entry, which may have ranges and stands for several then.

    Attributes:
        name: what it is called in messages and as a node; its address unless given.
        address: where it is reached from here. port: of its SSH server. user: empty for the caller's name.
        key: private key file; None for the user's agent and usual keys.
        host_key: ``type base64`` of its host key; empty if it is pinned at first use.
        private_address: where other hosts reach it.
        jump: ``user@host:port`` to go through; empty for none.
        python: of the runtime; empty to look for one.
        directory: where the runtime is put; empty for ``~/.trainmaster-runtime``.
        slots: processes that it takes at a time; 0 if not said: it is then lent as a whole.
        gpus: that it has.
        labels: whatever the user says of it.
        line: in the inventory.
    """

    address: Annotated[str, Key("address", pattern(_ADDRESS, _RIGHT_ADDRESS), f"{_RIGHT_ADDRESS}")]
    name: Annotated[str, Key("name", pattern(_NAME, "write a name of letters, digits, '.', '-'"))] = ""
    user: Annotated[str, Key("user", pattern(_USER, "write the name to log in as"))] = ""
    port: Annotated[int, Key("port", integer(1, MOST_PORT))] = 22
    key: Annotated[Path | None, Key("key", text("write the path of a private key"))] = None
    host_key: Annotated[str, Key("host_key", _host_key)] = ""
    private_address: Annotated[str, Key("private_address", pattern(_ADDRESS, _RIGHT_ADDRESS))] = ""
    jump: Annotated[str, Key("jump", login_place("write the host to go through as user@gateway:22"))] = ""
    python: Annotated[str, Key("python", text("write the path of a Python on the host"))] = ""
    directory: Annotated[str, Key("directory", text("write a directory on the host"))] = ""
    slots: Annotated[int, Key("slots", integer(1, 4096))] = 0
    gpus: Annotated[int, Key("gpus", integer(0, 64))] = 0
    labels: Annotated[
        dict[str, str],
        Key(
            "labels",
            mapping_of(
                text("write a text"),
                "write a mapping such as {rack: b}",
                name=r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?",
                what="labels are letters, digits, '.', '-', '_' and '/'",
            ),
        ),
    ] = {}  # noqa: RUF012 - pydantic copies it
    line: int = 0

    @classmethod
    def prepare(cls, node: YamlNode, path: KeyPath, problems: Problems) -> YamlNode:
        """Let an address stand for a host of which nothing else is to be said."""
        if node.kind is Kind.SCALAR and not node.is_null:
            return YamlNode(Kind.MAPPING, node.line, node.column, entries={"address": node})
        return super().prepare(node, path, problems)


class Inventory(Noun):
    """All of them, in the order of the file.

    Attributes:
        file: where they are from.
        hosts: see `InventoryHost`.
    """

    file: Path
    hosts: tuple[InventoryHost, ...] = ()

    def find(self, name: str) -> InventoryHost | None:
        """The host of a name."""
        return next((host for host in self.hosts if host.name == name), None)


def inventory_file(root: Path, environ: Mapping[str, str]) -> Path:
    """Where the inventory of a home is: as named, else its ``hosts.yaml``, else that of its lab.

    Args:
        root: ``TRAINMASTER_HOME``.
        environ: of the caller; ``TRAINMASTER_HOSTS`` may name another file.

    >>> inventory_file(Path("/data/tm"), {})
    PosixPath('/data/tm/hosts.yaml')
    >>> inventory_file(Path("/data/tm"), {"TRAINMASTER_HOSTS": "/etc/hosts.yaml"})
    PosixPath('/etc/hosts.yaml')
    """
    if named := environ.get(VARIABLE):
        return Path(named).expanduser()
    own, of_lab = root / FILE_NAME, root / "lab" / FILE_NAME
    return of_lab if of_lab.exists() and not own.exists() else own


def read_inventory(file: Path) -> Inventory:
    """Read and check an inventory.

    Raises:
        RecipeError: with all mistakes that were found.
        UsageError: there is no such file.
    """
    shown = os.fspath(file)
    root = compose(_read_text(file, shown), shown, _WORDING)
    problems = Problems()
    hosts: list[InventoryHost] = []
    if root.kind is not Kind.MAPPING:
        problems.add(root, (), f"{root.describe()}; {_WORDING.one} is {_WORDING.holds}")
    else:
        refuse_unknown_keys(root, (), problems, ("hosts", "defaults"))
        hosts = _hosts(root, file.absolute().parent, problems)
    if problems.mistakes:
        raise RecipeError(shown, problems.in_order())
    return Inventory(file=file.absolute(), hosts=tuple(hosts))


def expand(template: str) -> list[str]:
    """Every text that a template with ranges stands for.

    Raises:
        ValueError: a range runs backwards, or they are too many.

    >>> expand("10.0.0.[8-10]"), expand("n[01-03]"), expand("plain")
    (['10.0.0.8', '10.0.0.9', '10.0.0.10'], ['n01', 'n02', 'n03'], ['plain'])
    """
    choices: list[Sequence[str]] = []
    position, total = 0, 1
    for match in _RANGE.finditer(template):
        first, last = int(match[1]), int(match[2])
        if first > last:
            raise ValueError(f"the range {match[0]} runs backwards; write [{match[2]}-{match[1]}]")
        total *= last - first + 1
        if total > MAX_HOSTS:
            raise ValueError(f"more than {MAX_HOSTS} hosts in '{template}'; write a smaller range")
        width = len(match[1]) if match[1].startswith("0") else 0
        choices += [[template[position : match.start()]], [f"{n:0{width}d}" for n in range(first, last + 1)]]
        position = match.end()
    choices.append([template[position:]])
    return ["".join(parts) for parts in itertools.product(*choices)]


def _hosts(root: YamlNode, directory: Path, problems: Problems) -> list[InventoryHost]:
    listed = root.entries.get("hosts")
    if listed is None:
        if not problems.mistakes:  # it may just be misspelt
            problems.add(root, (), "no `hosts`; list the machines, for instance\n" + _EXAMPLE)
        return []
    if listed.kind is not Kind.LIST or not listed.items:
        problems.add(listed, ("hosts",), f"{listed.describe()}; write a list such as\n{_EXAMPLE}")
        return []
    defaults = _defaults(root.entries.get("defaults"), problems)
    found: list[InventoryHost] = []
    seen: dict[tuple[str, str], InventoryHost] = {}
    for index, item in enumerate(listed.items):
        path = ("hosts", str(index))
        with problems.goes_on():
            for host in _read_entry(item, defaults, path, directory, problems):
                place_key = f"{host.address}:{host.port}" + (f" via {host.jump}" if host.jump else "")
                for what, value in (("address", place_key), ("name", host.name)):
                    first = seen.setdefault((what, value), host)
                    if first is not host:
                        twice = f"the {what} {value} a second time (first in line {first.line})"
                        problems.add(item, path, f"{twice}; list each host once")
                        break
                found.append(host)
    if len(found) > MAX_HOSTS:
        problems.add(listed, ("hosts",), f"{len(found)} hosts; at most {MAX_HOSTS} are allowed")
    return found


def _defaults(node: YamlNode | None, problems: Problems) -> dict[str, YamlNode]:
    """Values for hosts that do not say, each marked with where it stands, so that it is blamed once."""
    if node is None or node.is_null:
        return {}
    if node.kind is not Kind.MAPPING:
        problems.add(node, ("defaults",), f"{node.describe()}; write a mapping such as {{user: alice}}")
        return {}
    allowed = [
        name
        for name, _ in keys_of(InventoryHost)
        if name not in ("address", "name", "private_address", "host_key")
    ]
    refuse_unknown_keys(node, ("defaults",), problems, allowed)
    return {
        name: _standing_at(value, ("defaults", name))
        for name, value in node.entries.items()
        if name in allowed
    }


def _standing_at(node: YamlNode, path: tuple[str, ...]) -> YamlNode:
    return replace(
        node,
        stands_at=path,
        entries={name: _standing_at(child, (*path, name)) for name, child in node.entries.items()},
    )


def _read_entry(
    item: YamlNode, defaults: Mapping[str, YamlNode], path: KeyPath, directory: Path, problems: Problems
) -> list[InventoryHost]:
    node = InventoryHost.prepare(item, path, problems)
    entries = {**defaults, **node.entries}
    own, usual = node.entries.get("labels"), defaults.get("labels")
    if own and usual and own.kind is usual.kind is Kind.MAPPING:
        merged = {**usual.entries, **own.entries}
        entries["labels"] = replace(own, entries=merged, keys={**usual.keys, **own.keys})
    entry = read_noun(InventoryHost, replace(node, entries=entries), path, problems)
    where = {name: (node.entries.get(name, node), (*path, name)) for name, _ in keys_of(InventoryHost)}
    addresses = _expanded(entry.address, *where["address"], problems)
    names = _parallel(entry.name, len(addresses), *where["name"], problems) or addresses
    private = _parallel(entry.private_address, len(addresses), *where["private_address"], problems)
    if entry.host_key and len(addresses) > 1:
        raise problems.refuse(
            *where["host_key"], "one host key for several hosts; leave it out, or list each host by itself"
        )
    return [
        entry.model_copy(
            update={
                "name": names[number],
                "address": address,
                "key": _key_file(entry.key, entries.get("key", node), path, directory, problems),
                "private_address": private[number] if private else "",
                "line": item.line,
            }
        )
        for number, address in enumerate(addresses)
    ]


def _expanded(template: str, node: YamlNode, path: KeyPath, problems: Problems) -> list[str]:
    try:
        return expand(template)
    except ValueError as error:
        raise problems.refuse(node, path, str(error)) from None


def _parallel(template: str, count: int, node: YamlNode, path: KeyPath, problems: Problems) -> list[str]:
    """What goes with each address: as many as there are of them."""
    if not template:
        return []
    found = _expanded(template, node, path, problems)
    if len(found) != count:
        raise problems.refuse(
            node, path, f"{len(found)} of '{template}' for {count} addresses; write as many"
        )
    return found


def _key_file(
    written: Path | None, node: YamlNode, path: KeyPath, directory: Path, problems: Problems
) -> Path | None:
    if written is None:
        return None
    file = directory / written.expanduser()
    if not file.is_file():
        raise problems.refuse(node, (*path, "key"), f"no such file: {file}; give the path of a private key")
    try:
        require_private(file)
    except UsageError as error:
        raise problems.refuse(node, (*path, "key"), f"{error.args[0]}; {error.hint}") from None
    return file


def _read_text(file: Path, shown: str) -> str:
    try:
        return read_text(file, shown, "inventory", "an inventory lists hosts, use ranges")
    except FileNotFoundError:
        raise UsageError(f"there is no inventory {shown}", f"Write one, for instance:\n{_EXAMPLE}") from None
    except (OSError, ValueError) as error:
        found = f"cannot be read ({getattr(error, 'strerror', None) or error}); give the path of an inventory"
        raise RecipeError(shown, [Mistake(1, 1, "", found)]) from None
