"""A parameter: a list of values, a range in steps, or a continuous range.

The values of parameters, and how they are written into commands and variables.
"""

from __future__ import annotations

import math
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Final

from trainmaster.lazy import regex
from trainmaster.spec.node import Kind, YamlNode
from trainmaster.spec.reading import (
    Key,
    Noun,
    Path,
    Problems,
    ReportedMistake,
    choice,
    noun,
    read_noun,
    takes,
)

#: What a parameter can be. (``bool`` first: for Python it is an ``int`` too.)
ParameterValue = bool | int | float | str


def format_value(value: ParameterValue) -> str:
    """The text of a value in a command or a variable.

    Integers print as integers, floats as the shortest text that reads back as the same number, true and
    false as YAML and JSON write them. Listed values print as they were written: see `Parameter.text`.

    >>> [format_value(value) for value in (16, 0.1, 1e-05, True, "a b")]
    ['16', '0.1', '1e-05', 'true', 'a b']
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


_NUMBER: Final = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_RANGE = regex(rf"\s*({_NUMBER})\s*-\s*({_NUMBER})\s*")
_ONE_NUMBER = regex(_NUMBER)
_RIGHT: Final = "write range: a-b or range: [a, b] with a < b"


class Sampling(StrEnum):
    """How values of a continuous range are drawn."""

    UNIFORM = "uniform"
    LOG = "log"


def _end(node: YamlNode, path: Path, problems: Problems, right: str) -> str:
    """The source text of a finite number."""
    value = node.value if node.kind is Kind.SCALAR else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise problems.refuse(node, path, f"{node.describe()}; {right}")
    written = node.text if _ONE_NUMBER.fullmatch(node.text) else str(value)
    if not _is_ordinary(written):
        raise problems.refuse(node, path, f"{node.describe()} is out of bounds; write a number within ±1e300")
    return written


def _is_ordinary(text: str) -> bool:
    if len(text) > 100 or not _ONE_NUMBER.fullmatch(text):
        return False
    value = Decimal(text)
    return value == 0 or -300 <= value.adjusted() <= 299


def _range(node: YamlNode, path: Path, problems: Problems) -> tuple[str, str]:
    if node.kind is Kind.LIST:
        if len(node.items) != 2:
            raise problems.refuse(node, path, f"a list of {len(node.items)} values; {_RIGHT}")
        low, high = (_end(item, (*path, str(at)), problems, _RIGHT) for at, item in enumerate(node.items))
    else:
        match = _RANGE.fullmatch(node.text) if node.kind is Kind.SCALAR else None
        if match is None:
            raise problems.refuse(node, path, f"{node.describe()}; {_RIGHT}")
        low, high = match.groups()
        if not (_is_ordinary(low) and _is_ordinary(high)):
            raise problems.refuse(
                node, path, f"{node.describe()} is out of bounds; write numbers within ±1e300"
            )
    if Decimal(low) == Decimal(high):
        raise problems.refuse(
            node, path, f"an empty range, both ends are {low}; {_RIGHT}, or the value itself"
        )
    if Decimal(low) > Decimal(high):
        raise problems.refuse(node, path, f"a reversed range, {low} is more than {high}; write {high}-{low}")
    return low, high


def _step(node: YamlNode, path: Path, problems: Problems) -> str:
    step = _end(node, path, problems, "write a number above 0")
    if Decimal(step) <= 0:
        raise problems.refuse(node, path, f"{node.describe()}; write a step above 0")
    return step


takes(
    _range,
    any=[
        {"type": "string", "pattern": _RANGE.pattern.join("^$")},
        {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
    ],
)
takes(_step, type="number", exclusiveMinimum=0)


class Parameter(Noun):
    """What `{{name}}` can be.

    Attributes:
        range: both ends of a range, inclusive, as written; None for a list.
        sampling: how a continuous range is drawn from.
        step: the distance of a discrete range's values, as written; without it a range is continuous,
            also one between whole numbers.
        values: the values of a list, in order.
        texts: the same as written: ``3.10`` stays ``3.10`` in the command.
    """

    range: Annotated[tuple[str, str] | None, Key("range", _range)] = None
    sampling: Annotated[Sampling, Key("sampling", choice("uniform", "log"))] = Sampling.UNIFORM
    step: Annotated[str | None, Key("step", _step)] = None
    values: tuple[ParameterValue, ...] = ()
    texts: tuple[str, ...] = ()
    one_of = ("range",)

    @classmethod
    def check(cls, values: dict[str, Any], node: YamlNode, path: Path, problems: Problems) -> None:
        """Check keys against each other."""
        if "range" not in node.entries:
            problems.add(node, path, f"a parameter without values; {_RIGHT}, or a list of values")
            return
        ends, step = values.get("range"), values.get("step")
        if ends and step and Decimal(step) > Decimal(ends[1]) - Decimal(ends[0]):
            problems.add(
                node.entries["step"],
                (*path, "step"),
                f"a step of {step} in {ends[0]}-{ends[1]}; write a smaller step",
            )
        if values.get("sampling") == "log":
            where, key = node.entries["sampling"], (*path, "sampling")
            if step:
                problems.add(where, key, "log sampling of a range with `step`; leave out one of them")
            elif ends and Decimal(ends[0]) <= 0:
                problems.add(where, key, f"log sampling from {ends[0]}; a logarithm needs a range above 0")

    @property
    def is_continuous(self) -> bool:
        """True if it has no list of values to choose from."""
        return self.range is not None and self.step is None

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """Both ends of a range as numbers.

        Raises:
            ValueError: it is a list.
        """
        if self.range is None:
            raise ValueError("a list of values has no bounds")
        return float(self.range[0]), float(self.range[1])

    @cached_property
    def count(self) -> int:
        """How many values there are; 0 if it is continuous."""
        if self.range is None:
            return len(self.values)
        if self.step is None:
            return 0
        start, step, unit, _ = self._grid
        return (_scaled(self.range[1], unit) - start) // step + 1

    def value(self, index: int) -> ParameterValue:
        """The value at a position, for a discrete parameter."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        if self.range is None:
            return self.values[index]
        start, step, unit, whole = self._grid
        scaled = start + index * step
        # Dividing two integers rounds once and correctly: 0.1 steps never show as 0.30000000000000004.
        power: int = 10**unit
        return scaled // power if whole else scaled / power

    def draw(self, uniform: float) -> float:
        """The value of a continuous parameter at a number in [0, 1]."""
        low, high = self.bounds
        if self.sampling is Sampling.LOG:
            drawn = math.exp(math.log(low) * (1 - uniform) + math.log(high) * uniform)
        else:
            drawn = low * (1 - uniform) + high * uniform
        return min(max(drawn, low), high)

    def text(self, value: ParameterValue) -> str:
        """A value as it stands in the command: as written if it is one of a list."""
        found: str | None = self._texts.get((type(value), value)) if self.values else None
        return format_value(value) if found is None else found

    @cached_property
    def _texts(self) -> dict[tuple[type, ParameterValue], str]:
        return {(type(value), value): text for value, text in zip(self.values, self.texts, strict=True)}

    @cached_property
    def _grid(self) -> tuple[int, int, int, bool]:
        """First value and step in units of 10^-unit, the unit, and whether all values are whole."""
        if self.range is None or self.step is None:
            raise ValueError("no range with a step")
        written = (self.range[0], self.step)
        exponents = [Decimal(text).as_tuple().exponent for text in (*written, self.range[1])]
        unit = max(0, *(-exponent for exponent in exponents if isinstance(exponent, int)))
        start, step = (_scaled(text, unit) for text in written)
        # `0.0` and `1.` were written as decimals and stay so; `1e3` is a whole number.
        whole = not any("." in text for text in written) and not (start % 10**unit or step % 10**unit)
        return start, step, unit, whole


def _scaled(text: str, unit: int) -> int:
    """A decimal in units of 10^-unit, without the rounding of decimal contexts."""
    sign, digits, exponent = Decimal(text).as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(text)
    value: int = int("".join(map(str, digits))) * 10 ** (exponent + unit)
    return -value if sign else value


def read_parameter(node: YamlNode, path: Path, problems: Problems) -> Parameter:
    """Read a scalar, a list of scalars or ``{range, sampling, step}``."""
    if node.kind is Kind.MAPPING:
        return read_noun(Parameter, node, path, problems)
    items = node.items if node.kind is Kind.LIST else [node]
    if not items:
        raise problems.refuse(node, path, "an empty list; write at least one value")
    seen: dict[tuple[type, ParameterValue], YamlNode] = {}
    refused = False
    for at, item in enumerate(items):
        where = (*path, str(at)) if node.kind is Kind.LIST else path
        value = item.value if item.kind is Kind.SCALAR else None
        if value is None:
            problems.add(item, where, f"{item.describe()}; write a text, a number, true or false")
        elif isinstance(value, float) and not math.isfinite(value):
            problems.add(item, where, f"{item.describe()}; write a finite number, or put it in quotes")
        elif (type(value), value) in seen:
            first = seen[type(value), value].text
            same = f"the same number as {first}" if first != item.text else "given a second time"
            problems.add(
                item, where, f"{item.describe()} is {same}; leave one out, or put them in quotes as texts"
            )
        else:
            seen[type(value), value] = item
            continue
        refused = True
    if refused:
        raise ReportedMistake
    return Parameter(
        values=tuple(value for _, value in seen), texts=tuple(item.text for item in seen.values())
    )


_VALUE: Final = {"type": ["string", "number", "boolean"]}
takes(
    read_parameter,
    any=[_VALUE, {"type": "array", "items": _VALUE, "minItems": 1, "uniqueItems": True}, noun(Parameter)],
)
