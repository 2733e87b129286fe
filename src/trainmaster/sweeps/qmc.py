"""`QmcSampler`: points that fill the space more evenly than random ones."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cached_property

from trainmaster.spec import ParameterValue
from trainmaster.sweeps.sampler import Sampler, Suggestion
from trainmaster.sweeps.trial import Trial

#: A digit behind this many others moves a point by less than a float can tell.
_RESOLUTION = 1 << 53


class QmcSampler(Sampler):
    """Halton's sequence with randomly permuted digits.

    Halton, "On the efficiency of certain quasi-random sequences of points", Numer. Math. 2 (1960); digits
    of each place permuted at random as in Owen, "A randomized Halton algorithm in R", arXiv 1706.02808,
    section 2, which also removes the stripes between large bases. Random access: point i needs no other
    point, so it neither looks back nor has a state to resume. Each parameter has a prime of its own as
    base.
    """

    name = "qmc"
    looks_back = False

    def ask(self, history: Sequence[Trial], number: int) -> Suggestion | None:
        """See `Sampler.ask`."""
        values: dict[str, ParameterValue] = {
            axis.name: axis.at_unit(digits.point(number))
            for axis, digits in zip(self.space.free, self._digits, strict=True)
        }
        return Suggestion(self.space.complete(values))

    @cached_property
    def _digits(self) -> list[_Digits]:
        return [
            _Digits(base, self.space.seed_of(f"qmc\0{axis.name}", base))
            for axis, base in zip(self.space.free, _primes(len(self.space.free)), strict=True)
        ]


class _Digits:
    """The randomised radical inverse in one base: 0 to below 1."""

    def __init__(self, base: int, seed: int) -> None:
        self._base = base
        rng = random.Random(seed)  # noqa: S311 - no secret
        self._orders: list[list[int]] = []
        place = 1
        while place < _RESOLUTION:
            self._orders.append(rng.sample(range(base), base))
            place *= base

    def point(self, number: int) -> float:
        """The point of a number; its endless leading zeros are permuted too."""
        total, scale = 0.0, 1.0
        for order in self._orders:
            scale /= self._base
            number, digit = divmod(number, self._base)
            total += order[digit] * scale
        return total


def _primes(count: int) -> Mapping[int, None]:
    found: dict[int, None] = {}
    candidate = 2
    while len(found) < count:
        if all(candidate % prime for prime in found):
            found[candidate] = None
        candidate += 1
    return found
