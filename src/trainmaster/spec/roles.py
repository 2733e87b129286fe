"""Ansible roles that make machines ready."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Annotated, Any, Final

from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.reading import Key, Noun, Path, Problems, duration, list_of, text

#: Files that name roles (and collections) of others, as Ansible's ``ansible-galaxy`` reads them.
REQUIREMENTS_SUFFIXES: Final = (".yml", ".yaml")
_RIGHT: Final = "write a role's directory, or a requirements.yml, in the code"
_LIST_RIGHT: Final = "write a list of directories, or a mapping from all, chief, worker or ps to lists"


def _entry(node: YamlNode, path: Path, problems: Problems) -> str:
    """Read where a role lies: it travels with the code, so it lies in it."""
    found = text(_RIGHT)(node, path, problems)
    place = PurePosixPath(found)
    if place.is_absolute() or ".." in place.parts or found.startswith("~") or "://" in found:
        raise problems.refuse(node, path, f"{node.describe()} is not in the code; {_RIGHT}")
    if "{{" in found or not found.isprintable():
        raise problems.refuse(node, path, f"{node.describe()}; {_RIGHT}")
    return found


_ENTRIES: Final = list_of(_entry, "write a list of directories", single=True)


class Roles(Noun):
    """Which roles machines get, in this order; those of a member's role come after those of all.

    Attributes:
        everywhere: of each machine (``all`` in the recipe).
        chief, worker, ps: of machines that have such a member.
        timeout_s: seconds after which they are ended.
    """

    everywhere: Annotated[tuple[str, ...], Key("all", _ENTRIES)] = ()
    chief: Annotated[tuple[str, ...], Key("chief", _ENTRIES)] = ()
    worker: Annotated[tuple[str, ...], Key("worker", _ENTRIES)] = ()
    ps: Annotated[tuple[str, ...], Key("ps", _ENTRIES)] = ()
    timeout_s: Annotated[float, Key("timeout", duration())] = 1800.0

    @classmethod
    def prepare(cls, node: YamlNode, path: Path, problems: Problems) -> YamlNode:
        """A list, or a single directory, is for all machines."""
        if node.kind is Kind.MAPPING:
            return node
        if node.kind is Kind.SCALAR and node.is_null:
            raise problems.refuse(node, path, f"{node.describe()}; {_LIST_RIGHT}")
        items = [replace(item, stands_at=(*path, str(at))) for at, item in enumerate(node.items)]
        here = replace(node, items=items, stands_at=path)
        return YamlNode(Kind.MAPPING, node.line, node.column, entries={"all": here}, keys={"all": here})

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """There is a role at least."""
        if not {"all", "chief", "worker", "ps"} & set(node.entries):
            problems.add(node, path, f"no role; {_LIST_RIGHT}")
        for name, child in node.entries.items():
            if child.kind is Kind.LIST and not child.items:
                problems.add(child, (*path, name), f"an empty list; {_LIST_RIGHT}")

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """What each group of machines gets, that of all of them first; groups without roles are left out."""
        found = {"all": self.everywhere, "chief": self.chief, "ps": self.ps, "worker": self.worker}
        return {name: entries for name, entries in found.items() if entries}

    @property
    def entries(self) -> tuple[str, ...]:
        """All that is named, each once."""
        return tuple(dict.fromkeys(entry for entries in self.groups.values() for entry in entries))


def is_requirements(entry: str) -> bool:
    """Whether an entry is a file that names roles, and no role itself.

    >>> is_requirements("ansible/requirements.yml"), is_requirements("ansible/base")
    (True, False)
    """
    return entry.endswith(REQUIREMENTS_SUFFIXES)
