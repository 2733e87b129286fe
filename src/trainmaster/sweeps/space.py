"""`SearchSpace`: the parameters of an experiment as samplers see them, one `Axis` each."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property

from trainmaster.dataclass import dataclass
from trainmaster.spec import Parameter, ParameterValue, TaskSpace
from trainmaster.spec.parameter import Sampling


class AxisKind(StrEnum):
    """How the values of a parameter lie to each other.

    CONTINUOUS: any number between two bounds. ORDERED: positions of a range with a step, or of a list of
    three or more rising or falling numbers. CHOICE: positions of a list without an order. CONSTANT: one
    value.
    """

    CONTINUOUS = "CONTINUOUS"
    ORDERED = "ORDERED"
    CHOICE = "CHOICE"
    CONSTANT = "CONSTANT"


@dataclass(frozen=True)
class Axis:
    """One parameter of a search.

    Attributes:
        name: of the parameter.
        parameter: its values.
    """

    name: str
    parameter: Parameter

    @cached_property
    def kind(self) -> AxisKind:
        """How its values lie to each other."""
        if self.parameter.is_continuous:
            return AxisKind.CONTINUOUS
        if self.parameter.count == 1:
            return AxisKind.CONSTANT
        if self.parameter.range is not None or _has_order(self.parameter.values):
            return AxisKind.ORDERED
        return AxisKind.CHOICE

    @property
    def count(self) -> int:
        """How many values it has; 0 if it is continuous."""
        return self.parameter.count

    @property
    def is_log(self) -> bool:
        """True if orders of magnitude count."""
        return self.parameter.sampling is Sampling.LOG

    @property
    def bounds(self) -> tuple[float, float]:
        """Both ends of a continuous axis."""
        return self.parameter.bounds

    def value(self, position: float) -> ParameterValue:
        """The value at a position: an index, or on a continuous axis the number itself."""
        if self.kind is AxisKind.CONTINUOUS:
            low, high = self.bounds
            return min(max(float(position), low), high)
        return self.parameter.value(min(max(round(position), 0), self.count - 1))

    def position(self, value: ParameterValue) -> float:
        """The position of a value; of the nearest one if a number is none of them.

        Raises:
            ValueError: a text or truth value that is not in the list.
        """
        if self.kind is AxisKind.CONTINUOUS:
            return float(value)
        if self.parameter.range is None:
            for at, known in enumerate(self.parameter.values):
                if type(known) is type(value) and known == value:
                    return at
            raise ValueError(f"{value!r} is no value of {self.name}")
        first = float(self.parameter.value(0))
        step = float(self.parameter.value(1)) - first if self.count > 1 else 1.0
        return min(max(round((float(value) - first) / step), 0), self.count - 1)

    def at_unit(self, unit: float) -> ParameterValue:
        """The value at a number in [0, 1]: all values have equal shares of it."""
        if self.kind is AxisKind.CONTINUOUS:
            return self.parameter.draw(unit)
        return self.parameter.value(min(int(unit * self.count), self.count - 1))

    def unit(self, value: ParameterValue) -> float:
        """The number in [0, 1] that a value stands at (the middle of its share)."""
        if self.kind is not AxisKind.CONTINUOUS:
            return (self.position(value) + 0.5) / self.count
        low, high = self.bounds
        number = min(max(float(value), low), high)
        if self.is_log:
            return math.log(number / low) / math.log(high / low)
        width = high - low
        if math.isinf(width):  # the widest ranges there are
            return (number / 2 - low / 2) / (high / 2 - low / 2)
        return (number - low) / width


class SearchSpace:
    """All parameters of a searching experiment.

    Attributes:
        axes: one per parameter, in the recipe's order.
        samples: how many trials there will be.
        seed: the recipe's.
    """

    def __init__(self, parameters: Mapping[str, Parameter], samples: int, seed: int) -> None:
        self.axes = tuple(Axis(name, parameter) for name, parameter in parameters.items())
        self.samples = samples
        self.seed = seed
        self._tasks = TaskSpace(parameters, samples, seed)

    @property
    def free(self) -> tuple[Axis, ...]:
        """The axes with more than one value."""
        return tuple(axis for axis in self.axes if axis.kind is not AxisKind.CONSTANT)

    def draw(self, number: int) -> dict[str, ParameterValue]:
        """What random search gives trial ``number``: the same that the recipe would run without a search."""
        return self._tasks.parameters(number) or {}

    def complete(self, values: Mapping[str, ParameterValue]) -> dict[str, ParameterValue]:
        """Values of the free axes with the constants between them, in the recipe's order."""
        return {
            axis.name: axis.parameter.value(0) if axis.kind is AxisKind.CONSTANT else values[axis.name]
            for axis in self.axes
        }

    def seed_of(self, purpose: str, number: int) -> int:
        """A seed of 31 bits for one purpose and trial: nothing depends on what was drawn before."""
        digest = hashlib.blake2b(f"{purpose}\0{self.seed}\0{number}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little") >> 1


def _has_order(values: tuple[ParameterValue, ...]) -> bool:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < max(3, len(values)):
        return False
    return numbers == sorted(numbers) or numbers == sorted(numbers, reverse=True)
