"""JSON and YAML that anybody may have written, or a disk may have damaged."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

    from pydantic import TypeAdapter

#: How rows that a disk may have damaged, or a later version has written, are read by Pydantic: exactly.
EXACTLY: Final = {"extra": "forbid", "strict": True, "allow_inf_nan": False}
_Type = TypeVar("_Type")


def parsed_json(data: str | bytes, *, finite: bool = False) -> Any:  # noqa: ANN401 - whatever it says
    """What a text in JSON says.

    Args:
        data: the text.
        finite: whether numbers that are infinite or none are refused.

    Raises:
        ValueError: it is no JSON, or nested too deeply.

    >>> parsed_json("[1, 1e999]")
    [1, inf]
    >>> parsed_json("[1, 1e999]", finite=True)
    Traceback (most recent call last):
    ValueError: 1e999 is no finite number
    >>> parsed_json("[" * 10_000)
    Traceback (most recent call last):
    ValueError: it is nested too deeply
    """
    try:
        if finite:
            return json.loads(data, parse_constant=_refuse, parse_float=_finite)
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parsed_yaml(text: str) -> Any:  # noqa: ANN401 - whatever it says
    """What a text in YAML says, as other tools read it: plain values, and no positions.

    Raises:
        ValueError: it is no YAML, or nested too deeply.

    >>> parsed_yaml("a: [1, b]")
    {'a': [1, 'b']}
    >>> parsed_yaml("[" * 100_000)
    Traceback (most recent call last):
    ValueError: it is nested too deeply
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def yaml_mapping(file: Path, hint: str) -> dict[str, Any]:
    """What a file of another tool's says; empty if that is no mapping.

    Args:
        file: in YAML.
        hint: what to do if it cannot be read.

    Raises:
        UsageError: it cannot be.
    """
    try:
        found = parsed_yaml(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no YAML"
        raise UsageError(f"{file} cannot be read: {why}", hint) from None
    return mapping_in(found)


def mapping_in(said: object) -> dict[str, Any]:
    """A mapping that another tool's file says; empty where it says something else."""
    return said if isinstance(said, dict) else {}


def list_in(said: object) -> list[Any]:
    """The same with a list."""
    return said if isinstance(said, list) else []


class JsonObject:
    """Base of dataclasses that ``--json`` and REST tell by their fields."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """For ``--json`` and REST."""
        told: Any = self
        return {each.name: plain(getattr(self, each.name)) for each in fields(told)}


def plain(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can say
    """A value as JSON has it: amounts to a millionth.

    >>> plain({"usd": 0.1 + 0.2, "names": ("a", "b")})
    {'usd': 0.3, 'names': ['a', 'b']}
    """
    if isinstance(value, JsonObject):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


def typed(kind: type[_Type], value: object, *, strict: bool = True) -> _Type:
    """A value that was read from JSON as a dataclass, whose fields all have the types that they should have.

    Args:
        kind: of what is wanted.
        value: such as `parsed_json` gives; fields that the dataclass does not have are left out.
        strict: 1.0 is no integer.

    Raises:
        ValueError: it is no such thing.
    """
    try:
        found: _Type = _adapter(cast("Hashable", kind)).validate_json(json.dumps(value), strict=strict)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return found


def kept(kind: type[_Type], file: Path) -> _Type | None:
    """What a file of ours says; None if it is not there, damaged, or of another version."""
    with contextlib.suppress(OSError, ValueError):
        return typed(kind, parsed_json(file.read_bytes(), finite=True))
    return None


@cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # few need it

    return TypeAdapter(cast("Any", kind))


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no finite number")
