"""Machines that can matter: of offers that are alike the cheapest, and none that another beats in everything.

Fifty thousand offers are mostly the same few hundred machines at different places and prices. Time
depends on what a machine is, not on where it is; so a dearer one of the same kind never wins, and neither
does one that is dearer and nowhere better. What is left is what brute force could choose, up to ties.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.model.shapes import Floats, Frame
from trainmaster.dataclass import dataclass
from trainmaster.providers import OfferColumns
from trainmaster.providers.capabilities import capabilities_of

_BLOCK: Final = 512
#: Share of what a network card reaches that it sustains, where only the former is published.
_SUSTAINED: Final = 0.5
#: Gbit/s of a rented machine whose network is not published: as in small general-purpose types of AWS.
_GBPS_PER_CPU: Final = 0.2
_ASSUMED_GBPS: Final = (0.25, 10.0)


@dataclass(frozen=True)
class Machines(Frame):
    """Offers worth a look, as columns of length k.

    Attributes:
        index: (k,) positions in the offers they were taken from.
        group: (k,) which machines may be compared by their figures alone: same accelerator, workers per
            node, provider and terms.
        terms: (k,) which may be compared as parameter servers: same terms of rent and bill.
        per_node: (k,) workers on one node.
        price: USD per hour of one node. vcpus: of one node.
        nic: Mbit/s that its network card reaches, NaN if unknown. sustained: and for hours.
        memory: bytes of main memory. device_memory: bytes of one accelerator, NaN without.
        baseline: share of the cores that CPU credits sustain, NaN if not rationed.
        quantum, minimum: of the bill, seconds. spot: True if it can be taken back.
        place: (k,) number of the region, where that matters: a cluster is in one; else 0.
    """

    index: NDArray[np.int_]
    group: NDArray[np.int_]
    terms: NDArray[np.int_]
    per_node: Floats
    price: Floats
    nic: Floats
    sustained: Floats
    vcpus: Floats
    memory: Floats
    device_memory: Floats
    baseline: Floats
    quantum: Floats
    minimum: Floats
    spot: NDArray[np.bool_]
    place: NDArray[np.int_]

    @classmethod
    def of(cls, columns: OfferColumns, per_node: Floats, place: NDArray[np.int_] | None = None) -> Machines:
        """All offers of a catalogue.

        Args:
            columns: of the catalogue.
            per_node: workers (or tasks) that each offer takes on one node, at least 1.
            place: (k,) numbers of their regions; None if it does not matter where they are.
        """
        place = np.zeros(len(per_node), dtype=int) if place is None else place
        reached, sustained = card_mbps(columns)
        spot = columns.spot.astype(int)
        terms = joined(spot, codes(columns.billing_quantum_s), codes(columns.billing_minimum_s))
        machine = [codes(columns.accelerator), codes(columns.accelerators), codes(per_node)]
        machine += [codes(columns.cpu_baseline_share), codes(columns.provider)]
        return cls(
            index=np.arange(len(per_node)),
            group=joined(terms, *machine),
            terms=terms,
            per_node=per_node,
            price=columns.price_usd_per_hour,
            nic=reached,
            sustained=sustained,
            vcpus=columns.vcpus,
            memory=columns.memory_bytes,
            device_memory=columns.accelerator_memory_bytes,
            baseline=columns.cpu_baseline_share,
            quantum=columns.billing_quantum_s,
            minimum=columns.billing_minimum_s,
            spot=columns.spot,
            place=place,
        )

    def undominated(self, known_by: NDArray[np.int_] | None = None) -> Machines:
        """Without those that another of their group and place beats: as cheap, and nowhere worse.

        Args:
            known_by: (k,) numbers of what they are predicted from: figures compare only those that are alike.
        """
        # an unknown network card is neither better nor worse than a known one: a group of its own
        group = joined(self.group, self.place, np.isnan(self.nic).astype(int))
        if known_by is not None:
            group = joined(group, known_by)
        return self[front(group, self.price, self.features())]

    def as_servers(self, *, by_cores: bool) -> Machines:
        """Those that can matter as parameter servers, of which price, network card and processors count.

        Args:
            by_cores: what an update takes of processors is known; else there is as if no end of them.
        """
        some = self
        if not by_cores:
            endless, never = np.full(len(self), np.inf), np.full(len(self), np.nan)
            some = replace(self, vcpus=endless, baseline=never)
        group = joined(self.terms, self.place, np.isnan(self.nic).astype(int), codes(some.baseline))
        features = np.nan_to_num(np.column_stack([self.nic, self.sustained]), nan=-1.0)
        return some[front(group, self.price, np.column_stack([features, some.vcpus]))]

    def features(self) -> Floats:
        """(k, 5) what more of is never worse."""
        some = [self.vcpus, self.memory, self.device_memory, self.nic, self.sustained]
        return np.nan_to_num(np.column_stack(some), nan=-1.0)


def card_mbps(columns: OfferColumns) -> tuple[Floats, Floats]:
    """(k,) Mbit/s that network cards reach, and sustain; NaN where that is unknown and nothing is paid.

    Of what is rented by size, the size tells of the network, too. What is assumed there is little: an unknown
    network must not win.
    """
    assumed = np.clip(columns.vcpus * _GBPS_PER_CPU, *_ASSUMED_GBPS)
    own = np.array([not capabilities_of(name).costs for name in columns.provider.tolist()], dtype=bool)
    known, burst = columns.nic_gbps, columns.nic_burst_gbps
    reached = np.fmax(known, burst)
    reached = np.where(np.isnan(reached) & ~own, assumed, reached)
    sustained = np.where(np.isnan(known), np.where(np.isnan(burst), reached, burst * _SUSTAINED), known)
    return reached * 1000.0, sustained * 1000.0


def front(group: NDArray[np.int_], price: Floats, features: Floats) -> NDArray[np.int_]:
    """Rows that no other of their group beats: as cheap, and as good in every feature. In their order.

    Args:
        group: (k,) only rows of one group are compared.
        price: (k,) less is better.
        features: (k, f) more is better.
    """
    if not len(group):
        return np.arange(0)
    order = np.argsort(group, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    return np.sort(np.concatenate([_front(rows, price, features) for rows in parts]))


def _front(rows: NDArray[np.int_], price: Floats, features: Floats) -> NDArray[np.int_]:
    if len(rows) == 1:
        return rows
    order = rows[np.lexsort((rows, -features[rows].sum(1), price[rows]))]
    kept = order[:0]
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        if len(kept):
            beaten = np.any(np.all(features[kept][None] >= features[block][:, None], axis=-1), axis=1)
            block = block[~beaten]
        alive = np.ones(len(block), dtype=bool)
        values = features[block]
        for i in range(len(block)):
            if alive[i]:
                alive[i + 1 :] &= ~(values[i] >= values[i + 1 :]).all(-1)
        kept = np.concatenate([kept, block[alive]])
    return kept


def codes(values: NDArray[np.generic] | NDArray[np.object_]) -> NDArray[np.int_]:
    """(k,) numbers from 0 that are equal where the values are; unknown ones are equal."""
    if values.dtype == object:
        known: dict[object, int] = {}
        return np.array([known.setdefault(value, len(known)) for value in values], dtype=int)
    return np.unique(values, return_inverse=True)[1].astype(int)


def joined(*parts: NDArray[np.int_]) -> NDArray[np.int_]:
    """(k,) numbers from 0 that are equal where all the parts' are."""
    found = np.zeros_like(parts[0])
    for part in parts:
        found = np.unique(found * (int(part.max(initial=0)) + 1) + part, return_inverse=True)[1]
    return found
