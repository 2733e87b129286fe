"""Pseudo-random draws that are addressed, not stored: the i-th is computed without those before it."""

from __future__ import annotations

import hashlib
import math
from typing import Final

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
