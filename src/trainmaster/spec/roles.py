"""Ansible roles that make machines ready."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Annotated, Any, Final

from pydantic import Field

from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.reading import (
    Key,
    Noun,
    Path,
    Problems,
    duration,
    list_of,
    refuse_unknown_keys,
    takes,
    text,
)

#: Files that name roles (and collections) of others, as Ansible's ``ansible-galaxy`` reads them.
REQUIREMENTS_SUFFIXES: Final = (".yml", ".yaml")
_RIGHT: Final = "write a role's directory, or a requirements.yml, in the code"
_LIST_RIGHT: Final = "write a list of directories, or a mapping from all, chief, worker or ps to lists"
_USE: Final = "write {role: DIR, vars: {NAME: VALUE}}"
_GROUPS: Final = ("all", "chief", "worker", "ps")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _entry(node: YamlNode, path: Path, problems: Problems) -> str:
    """Read where a role lies: it travels with the code, so it lies in it."""
    if node.kind is Kind.MAPPING:  # with variables: `Roles.check` reads those
        refuse_unknown_keys(node, path, problems, ["role", "vars", "on"])
        if (role := node.entries.get("role")) is None:
            raise problems.refuse(node, path, f"no `role`; {_USE}")
        if "on" in node.entries:
            right = "`on` is for a list of roles; here the group is said already: leave it out"
            raise problems.refuse(node.keys["on"], (*path, "on"), right)
        return _entry(role, (*path, "role"), problems)
    found = text(_RIGHT)(node, path, problems)
    place = PurePosixPath(found)
    if place.is_absolute() or ".." in place.parts or found.startswith("~") or "://" in found:
        raise problems.refuse(node, path, f"{node.describe()} is not in the code; {_RIGHT}")
    if "{{" in found or not found.isprintable():
        raise problems.refuse(node, path, f"{node.describe()}; {_RIGHT}")
    return found


_PLACE_SHAPE: Final = {
    "type": ["string", "number", "boolean"],
    "pattern": r"\S",
}  # YAML takes a role `3` for a number
_ENTRY_SHAPE: Final = {
    "type": "object",
    "properties": {"role": _PLACE_SHAPE, "vars": {"type": "object"}, "on": {"enum": list(_GROUPS)}},
    "required": ["role"],
    "additionalProperties": False,
}
takes(_entry, any=[_PLACE_SHAPE, _ENTRY_SHAPE])
_ENTRIES: Final = list_of(_entry, "write a list of directories", single=True)


class Roles(Noun):
    """Which roles machines get, in this order; those of a member's role come after those of all.

    Attributes:
        everywhere: of each machine (``all`` in the recipe).
        chief, worker, ps: of machines that have such a member.
        timeout_s: seconds after which they are ended.
        variables: what roles are given, by group and role; ``{"secret": NAME}`` stands for a secret's value.
    """

    everywhere: Annotated[tuple[str, ...], Key("all", _ENTRIES)] = ()
    chief: Annotated[tuple[str, ...], Key("chief", _ENTRIES)] = ()
    worker: Annotated[tuple[str, ...], Key("worker", _ENTRIES)] = ()
    ps: Annotated[tuple[str, ...], Key("ps", _ENTRIES)] = ()
    timeout_s: Annotated[float, Key("timeout", duration())] = 1800.0
    variables: dict[str, dict[str, dict[str, Any]]] = Field(default={})
    also = (_ENTRIES,)

    @classmethod
    def prepare(cls, node: YamlNode, path: Path, problems: Problems) -> YamlNode:
        """A list, or a single directory, is for all machines."""
        if node.kind is Kind.MAPPING:
            return node
        if node.kind is Kind.SCALAR and node.is_null:
            raise problems.refuse(node, path, f"{node.describe()}; {_LIST_RIGHT}")
        items = [replace(item, stands_at=(*path, str(at))) for at, item in enumerate(node.items)]
        here = replace(node, items=items, stands_at=path)
        lists: dict[str, list[YamlNode]] = {}
        for item in items or [here]:
            lists.setdefault(_group_of(item, path, problems), []).append(_without_group(item))
        entries = {
            group: replace(here, items=its) if node.kind is Kind.LIST else its[0]
            for group, its in lists.items()
        }
        keys = {group: its[0] if items else here for group, its in lists.items()}
        return YamlNode(Kind.MAPPING, node.line, node.column, entries=entries, keys=keys)

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """There is a role at least."""
        if not {"all", "chief", "worker", "ps"} & set(node.entries):
            problems.add(node, path, f"no role; {_LIST_RIGHT}")
        for name, child in node.entries.items():
            if child.kind is Kind.LIST and not child.items:
                problems.add(child, (*path, name), f"an empty list; {_LIST_RIGHT}")
            for item in child.items if child.kind is Kind.LIST else [child]:
                where = item.entries.get("vars")
                if item.kind is not Kind.MAPPING or where is None or "role" not in item.entries:
                    continue
                with problems.goes_on():
                    given = _variables(where, (*path, name, "vars"), problems)
                    its = values.setdefault("variables", {}).setdefault(name, {})
                    its[item.entries["role"].text] = given

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """What each group of machines gets, that of all of them first; groups without roles are left out."""
        found = {"all": self.everywhere, "chief": self.chief, "ps": self.ps, "worker": self.worker}
        return {name: entries for name, entries in found.items() if entries}

    def variables_of(self, group: str, name: str) -> dict[str, Any]:
        """What a role is given; one of a requirements.yml, what all of that file are given.

        Args:
            group: of machines.
            name: as it is named, or ``FILE: NAME``.
        """
        its = self.variables.get(group, {})
        return its.get(name) or its.get(name.partition(": ")[0]) or {}

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the secrets that variables stand for."""
        given = (its for groups in self.variables.values() for its in groups.values())
        return tuple(dict.fromkeys(name for its in given for name in map(secret_of, its.values()) if name))

    @property
    def entries(self) -> tuple[str, ...]:
        """All that is named, each once."""
        return tuple(dict.fromkeys(entry for entries in self.groups.values() for entry in entries))


def secret_of(value: object) -> str | None:
    """Name of the secret that a variable stands for, None if it is a plain value.

    >>> secret_of({"secret": "KEY"}), secret_of({"secret": "KEY", "a": 1}), secret_of("KEY")
    ('KEY', None, None)
    """
    if isinstance(value, dict) and set(value) == {"secret"} and isinstance(value["secret"], str):
        return value["secret"]
    return None


def _group_of(item: YamlNode, path: Path, problems: Problems) -> str:
    """Which machines get a role of a list."""
    on = item.entries.get("on")
    if on is None:
        return "all"
    if on.kind is not Kind.SCALAR or on.text not in _GROUPS:
        raise problems.refuse(on, (*path, "on"), f"{on.describe()}; write {' or '.join(_GROUPS)}")
    return on.text


def _without_group(item: YamlNode) -> YamlNode:
    entries = {name: child for name, child in item.entries.items() if name != "on"}
    return replace(item, entries=entries, keys={name: item.keys[name] for name in entries})


def _variables(node: YamlNode, path: Path, problems: Problems) -> dict[str, Any]:
    if node.kind is not Kind.MAPPING:
        raise problems.refuse(node, path, f"{node.describe()}; {_USE}")
    for name, key in node.keys.items():
        if not _NAME.fullmatch(name):
            raise problems.refuse(
                key, (*path, name), f"the name '{name}'; Ansible takes letters, digits and '_'"
            )
    return {name: child.plain_value() for name, child in node.entries.items()}


def is_requirements(entry: str) -> bool:
    """Whether an entry is a file that names roles, and no role itself.

    >>> is_requirements("ansible/requirements.yml"), is_requirements("ansible/base")
    (True, False)
    """
    return entry.endswith(REQUIREMENTS_SUFFIXES)
