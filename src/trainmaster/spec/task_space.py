"""All tasks of an experiment, none of them stored: the i-th task's parameters are computed from i.

Pseudo-random draws that are addressed, not stored: the i-th is computed without those before it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Final

from trainmaster.spec.parameter import Parameter, ParameterValue

_MASK: Final = (1 << 64) - 1
_ROUNDS: Final = 6
#: Rows and columns must both fit into the 64-bit mixing function with room to spare.
MAX_SIZE: Final = 1 << 62
#: Uniforms have as many bits as a float's mantissa; the largest is exactly 1, since ranges are inclusive.
_UNIFORM_STEPS: Final = (1 << 53) - 1


class Uniforms:
    """Numbers in [0, 1], addressed by (seed, name, index)."""

    __slots__ = ("_hash",)

    def __init__(self, seed: int, name: str) -> None:
        self._hash = hashlib.blake2b(f"uniform\0{seed}\0{name}\0".encode(), digest_size=8)

    def __getitem__(self, index: int) -> float:
        addressed = self._hash.copy()
        addressed.update(index.to_bytes(8, "little"))
        return (int.from_bytes(addressed.digest(), "little") >> 11) / _UNIFORM_STEPS


class Permutation:
    """A pseudo-random order of ``range(size)`` in constant memory: a Feistel network that walks cycles.

    The network permutes a rectangle of a x b cells, a little more than ``size``. A cell beyond ``size`` is
    sent through again until it is within, which keeps the map one-to-one.
    """

    __slots__ = ("_columns", "_keys", "_rows", "_size")

    def __init__(self, size: int, seed: int, number: int) -> None:
        """Args: size: 1 to `MAX_SIZE`. seed: of the recipe. number: another number is another order."""
        self._size = size
        self._rows = max(1, math.isqrt(size - 1) + 1)
        self._columns = -(-size // self._rows)
        digest = hashlib.blake2b(f"order\0{seed}\0{number}".encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = [int.from_bytes(digest[at : at + 8], "little") for at in range(0, len(digest), 8)]

    def __getitem__(self, index: int) -> int:
        size, rows, columns = self._size, self._rows, self._columns
        while True:
            left, right = divmod(index, columns)
            for at in range(0, _ROUNDS, 2):
                left = (left + _mix(right, self._keys[at])) % rows
                right = (right + _mix(left, self._keys[at + 1])) % columns
            index = left * columns + right
            if index < size:
                return index


def _mix(value: int, key: int) -> int:
    value = ((value ^ key) * 0x9E3779B97F4A7C15 + key) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


#: More tasks than this in one experiment are a slip.
MAX_TASKS: Final = 1_000_000_000


class TaskSpace:
    """The parameters of every task, by random access and in constant memory.

    Without ``samples`` the tasks are the Cartesian product of all parameters, the last one varying fastest.
    With ``samples`` n, tasks 0..k-1 are the k combinations of the discrete parameters in a random order,
    tasks k..2k-1 again in another, and so on: each appears floor(n/k) or ceil(n/k) times. Continuous
    parameters are drawn for each task by itself. A larger n keeps the first tasks as they were.
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        samples: int | None,
        seed: int,
        *,
        chosen_later: bool = False,
        first: int = 0,
    ) -> None:
        """Describe a space.

        Args:
            parameters: by name, in order.
            samples: how many tasks to draw; None for the whole product.
            seed: the same seed gives the same tasks.
            chosen_later: a search sampler will choose the parameters.
            first: so many tasks of the same space were tried before, and are left out.
        """
        discrete = [
            (name, parameter) for name, parameter in parameters.items() if not parameter.is_continuous
        ]
        continuous = [(name, parameter) for name, parameter in parameters.items() if parameter.is_continuous]
        if continuous and samples is None:
            raise ValueError(f"continuous without samples: {continuous[0][0]}")
        self.combinations = math.prod(parameter.count for _, parameter in discrete)
        self._length = max(self.combinations - first, 0) if samples is None else samples
        self._first = first
        self._is_drawn = samples is not None
        self._chosen_later = chosen_later
        self._seed = seed
        self._names = tuple(parameters)
        self._discrete = tuple((name, parameter, parameter.count) for name, parameter in reversed(discrete))
        self._continuous = tuple((name, parameter, Uniforms(seed, name)) for name, parameter in continuous)
        self._round = -1
        self._order: Permutation | None = None

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[dict[str, ParameterValue] | None]:
        return map(self.parameters, range(self._length))

    def parameters(self, index: int) -> dict[str, ParameterValue] | None:
        """The parameters of a task, in the recipe's order; None where a sampler chooses them later.

        Raises:
            IndexError: there is no such task.
        """
        if not 0 <= index < self._length:
            raise IndexError(index)
        if self._chosen_later:
            return None
        index += self._first
        values: dict[str, ParameterValue] = dict.fromkeys(self._names, 0)
        combination = self._combination(index) if self._is_drawn else index
        for name, parameter, count in self._discrete:
            combination, position = divmod(combination, count)
            values[name] = parameter.value(position)
        for name, parameter, uniforms in self._continuous:
            values[name] = parameter.draw(uniforms[index])
        return values

    def _combination(self, index: int) -> int:
        round_number, position = divmod(index, self.combinations)
        if self.combinations == 1:
            return 0
        if round_number != self._round or self._order is None:
            # Neighbouring tasks are of the same round nearly always: keep its order at hand.
            self._order = Permutation(self.combinations, self._seed, round_number)
            self._round = round_number
        return self._order[position]
