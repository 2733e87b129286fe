"""Roles with their variables, out of the playbooks that documents of Infrastructure Manager have in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from trainmaster.service.conversion.description import RoleUse
from trainmaster.service.conversion.secrets import without_secrets

#: Of a play whose roles are all that matters in it.
_BESIDE: Final = {"hosts", "roles", "vars", "become", "become_user", "name", "gather_facts"}


def roles_of(source: str, shown: str, on: str) -> Iterator[RoleUse]:
    """The roles that a playbook names, in their order.

    Args:
        source: the playbook.
        shown: the same without values of secrets.
        on: which machines get them.
    """
    for play in _plays(source):
        for entry in play.get("roles") or ():
            role = {"role": entry} if isinstance(entry, str) else entry
            name = role.get("role", role.get("name")) if isinstance(role, dict) else None
            if isinstance(name, str) and re.fullmatch(r"[\w.-]+", name):
                inner: dict[str, Any] = {
                    key: value for key, value in role.items() if key not in ("role", "name", "vars")
                }
                given: dict[Any, Any] = {}
                for some in (play.get("vars"), inner, role.get("vars")):
                    given |= some if isinstance(some, dict) else {}
                yield RoleUse(name, on, {str(key): _safe(key, value, shown) for key, value in given.items()})


def is_roles_only(source: str) -> bool:
    """Whether a playbook has nothing but roles."""
    plays = _plays(source)
    return bool(plays) and all(play.get("roles") and set(play) <= _BESIDE for play in plays)


def _safe(key: object, value: Any, shown: str) -> object:  # noqa: ANN401 - whatever stands there
    """A value, or the name of a secret in its place: what is hidden where the document is shown."""
    if isinstance(value, dict):
        return {str(name): _safe(name, each, shown) for name, each in value.items()}
    if isinstance(value, list):
        return [_safe(key, each, shown) for each in value]
    line = f"{key}: {value}"
    if isinstance(value, str) and value and (value not in shown or without_secrets(line) != line):
        return {"secret": re.sub(r"\W", "_", str(key)).upper()}
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def _plays(source: str) -> list[dict[str, Any]]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        found = YAML(typ="safe", pure=True).load(source)
    except YAMLError:  # it is dropped, with its lines
        return []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
