"""Time and cost of clusters of several types of machines, each type by what was measured on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.market.candidates import Candidates, Outcomes
from trainmaster.advisor.market.machines import joined
from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.devices import Device, speed_ratio
from trainmaster.advisor.model.knowledge import Knowledge
from trainmaster.advisor.model.shapes import Floats
from trainmaster.advisor.quote.equivalence import Equivalence, alike
from trainmaster.advisor.quote.timing import Timing
from trainmaster.dataclass import dataclass
from trainmaster.providers import Offer


def predicted_from(
    known: Knowledge, workload: Workload, offers: Sequence[Offer], per_node: Floats
) -> NDArray[np.int_]:
    """(k,) numbers of what offers are predicted from: of t measured types, and t more by published figures.

    A type that was measured has its own number. Any other one follows from the type that was measured most
    often, and of several such from the one that it is most like: it has the number of that, and t more.

    Args:
        known: of the measured types.
        workload: what is to be done.
        offers: of any types.
        per_node: (k,) workers on one node of each.
    """
    types = known.types
    own = {each.measured.offer: i for i, each in enumerate(types)}
    equals = [i for i, each in enumerate(types) if each.points == known.points]
    if len(equals) == 1:
        return np.array([own.get(offer.instance_type, len(types) + equals[0]) for offer in offers], dtype=int)

    def number(offer: Offer, many: float) -> int:
        if offer.instance_type in own:
            return own[offer.instance_type]
        gpu = offer.accelerator if workload.hardware.gpu_count else ""
        device = Device(gpu, offer.vcpus / max(many, 1.0), offer.instance_type)
        return len(types) + min(equals, key=lambda i: speed_ratio(device, types[i].measured).spread)

    keys = [(offer.instance_type, many) for offer, many in zip(offers, per_node.tolist(), strict=True)]
    first = dict(zip(reversed(keys), reversed(offers), strict=True))
    numbers = {key: number(offer, key[1]) for key, offer in first.items()}
    return np.array([numbers[key] for key in keys], dtype=int)


@dataclass(frozen=True)
class TimingByType:
    """Draws what candidates take, as `Timing` does, each with the timing of its workers' machines.

    Attributes:
        parts: one of each type that was measured, the best known first.
        part: (k,) which of them a machine has, see `predicted_from`.
    """

    parts: tuple[Timing, ...]
    part: NDArray[np.int_]

    @classmethod
    def of(cls, timing: Timing) -> TimingByType:
        """By all that its knowledge says of several types."""
        parts = tuple(replace(timing, knowledge=known) for known in timing.knowledge.types)
        offers = [timing.offers[index] for index in timing.machines.index.tolist()]
        number = predicted_from(timing.knowledge, timing.workload, offers, timing.machines.per_node)
        return cls(parts, number % len(parts))

    @property
    def draws(self) -> int:
        """How many worlds there are."""
        return self.parts[0].draws

    def timing(self, one: Candidates) -> Timing:
        """That of the first candidate."""
        return self.parts[int(self.part[one.machine[0]])]

    def outcomes(self, some: Candidates) -> Outcomes:
        """Draw time and cost of some candidates: (draws, m)."""
        time_s = self.time_s(some)
        return Outcomes(time_s, self.cost_usd(time_s, some))

    def time_s(self, some: Candidates) -> Floats:
        """(draws, m) seconds of some candidates, from asking for machines to the end."""
        return self._each(some, lambda timing, mine: timing.time_s(mine))

    def cost_usd(self, time_s: Floats, some: Candidates) -> Floats:
        """(S, m) dollars of m candidates that take (S, m) seconds; a longer time never costs less."""
        return self.parts[0].cost_usd(time_s, some)

    def replaced_usd(self, time_s: Floats, some: Candidates) -> Floats:
        """(DRAWS, m) dollars that lost machines cost beside the time, as `Timing.replaced_usd`."""
        return self.parts[0].replaced_usd(time_s, some)

    def needed_usd(self, time_s: Floats, some: Candidates) -> Floats:
        """(S, m) dollars that a run must be allowed for m candidates that take (S, m) seconds."""
        return self.parts[0].needed_usd(time_s, some)

    def typical_s(self, some: Candidates) -> Floats:
        """(m,) seconds to be expected, without the draws."""
        return self._each(some, lambda timing, mine: timing.typical_s(mine))

    def at_best_s(self, some: Candidates, *, alone: bool) -> Floats:
        """(posterior draws, m): lower bound, as `Timing.at_best_s`."""
        return self._each(some, lambda timing, mine: timing.at_best_s(mine, alone=alone))

    def at_least_s(self, some: Candidates) -> Floats:
        """(m,) lower bound, as `Timing.at_least_s`."""
        return self._each(some, lambda timing, mine: timing.at_least_s(mine))

    def memory(self, some: Candidates, *, device: bool) -> Floats:
        """(m,) bytes that one member needs, of a device or else of main memory; NaN where unknown."""
        return self._each(some, lambda timing, mine: timing.knowledge.memory_at(mine.batch, device=device))

    def alike(self, some: Candidates, *, alone: bool = False) -> Equivalence:
        """Which candidates take the same time in every draw; those of two timings never do."""
        first = self.parts[0]
        kinds = np.array([timing.kinds for timing in self.parts])[self.part, np.arange(len(self.part))]
        kinds = joined(self.part, kinds)
        return alike(some, first.machines, first.servers, kinds, first.once.server_kinds, alone=alone)

    def rate(self, some: Candidates) -> Floats:
        """(m,) Mbit/s between the machines; NaN if unknown."""
        return self.parts[0].rate(some)

    def _each(self, some: Candidates, drawn: Callable[[Timing, Candidates], Floats]) -> Floats:
        """(..., m) of all candidates, drawn by the timing that each has."""
        part = self.part[some.machine]
        there = np.unique(part).tolist()
        if len(there) <= 1:
            return drawn(self.parts[there[0] if there else 0], some)
        rows = [np.flatnonzero(part == i) for i in there]
        values = [drawn(self.parts[i], some[mine]) for i, mine in zip(there, rows, strict=True)]
        order = np.argsort(np.concatenate(rows))
        return np.concatenate(values, axis=-1)[..., order]
