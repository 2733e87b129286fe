"""Machines that can matter: of offers that are alike the cheapest, and none that another beats in everything.

Fifty thousand offers are mostly the same few hundred machines at different places and prices. Time
depends on what a machine is, not on where it is; so a dearer one of the same kind never wins, and neither
does one that is dearer and nowhere better. What is left is what brute force could choose, up to ties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.shapes import Floats
from trainmaster.providers import OfferColumns

_BLOCK: Final = 512


@dataclass(frozen=True)
class Machines:
    """Offers worth a look, as columns of length k.

    Attributes:
        index: (k,) positions in the offers they were taken from.
        group: (k,) which machines may be compared by their figures alone: same accelerator, workers per
            node, provider and terms.
        per_node: (k,) workers on one node.
        price: USD per hour of one node. nic: Mbit/s, NaN if unknown. vcpus: of one node.
        memory: bytes of main memory. device_memory: bytes of one accelerator, NaN without.
        baseline: share of the cores that CPU credits sustain, NaN if not rationed.
        quantum, minimum: of the bill, seconds. spot: True if it can be taken back.
        place: (k,) number of the region, where that matters: a cluster is in one; else 0.
    """

    index: NDArray[np.int_]
    group: NDArray[np.int_]
    per_node: Floats
    price: Floats
    nic: Floats
    vcpus: Floats
    memory: Floats
    device_memory: Floats
    baseline: Floats
    quantum: Floats
    minimum: Floats
    spot: NDArray[np.bool_]
    place: NDArray[np.int_]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: object) -> Machines:
        return Machines(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})

    @classmethod
    def of(cls, columns: OfferColumns, per_node: Floats, place: NDArray[np.int_] | None = None) -> Machines:
        """All offers of a catalogue.

        Args:
            columns: of the catalogue.
            per_node: workers (or tasks) that each offer takes on one node, at least 1.
            place: (k,) numbers of their regions; None if it does not matter where they are.
        """
        place = np.zeros(len(per_node), dtype=int) if place is None else place
        terms = [_codes(columns.accelerator), _codes(columns.provider), columns.spot.astype(int)]
        terms += [_codes(per_node), _codes(columns.billing_quantum_s), _codes(columns.billing_minimum_s)]
        terms += [_codes(columns.accelerators), _codes(columns.cpu_baseline_share), place]
        group = np.zeros(len(per_node), dtype=int)
        for code in terms:
            group = np.unique(group * (int(code.max(initial=0)) + 1) + code, return_inverse=True)[1]
        burst = np.where(np.isnan(columns.nic_gbps), columns.nic_burst_gbps * 0.5, columns.nic_gbps)
        return cls(
            index=np.arange(len(per_node)),
            group=group,
            per_node=per_node,
            price=columns.price_usd_per_hour,
            nic=burst * 1000.0,
            vcpus=columns.vcpus,
            memory=columns.memory_bytes,
            device_memory=columns.accelerator_memory_bytes,
            baseline=columns.cpu_baseline_share,
            quantum=columns.billing_quantum_s,
            minimum=columns.billing_minimum_s,
            spot=columns.spot,
            place=place,
        )

    def undominated(self, apart: NDArray[np.bool_] | None = None) -> Machines:
        """Without those that another of their group beats: cheaper or as cheap, and nowhere worse.

        Args:
            apart: (k,) of the type that was measured: it is better known than any other that looks alike.
        """
        features = np.column_stack(
            [self.vcpus, self.memory, np.nan_to_num(self.nic, nan=-1.0), np.nan_to_num(self.device_memory)]
        )
        # an unknown network card is neither better nor worse than a known one: a group of its own
        group = self.group * 2 + np.isnan(self.nic)
        if apart is not None:
            group = group * 2 + apart
        keep = [
            _front(rows, self.price, features)
            for rows in np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
            if len(rows)
        ]
        return self[np.sort(np.concatenate(keep))] if keep else self


def _front(rows: NDArray[np.int_], price: Floats, features: Floats) -> NDArray[np.int_]:
    """Rows that no cheaper (or as cheap, earlier) row equals or beats in every feature."""
    order = rows[np.lexsort((rows, -features[rows].sum(1), price[rows]))]
    front = order[:0]
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        if len(front):
            beaten = np.any(np.all(features[front][None] >= features[block][:, None], axis=-1), axis=1)
            block = block[~beaten]
        alive = np.ones(len(block), dtype=bool)
        values = features[block]
        for i in range(len(block)):
            if alive[i]:
                alive[i + 1 :] &= ~(values[i] >= values[i + 1 :]).all(-1)
        front = np.concatenate([front, block[alive]])
    return front


def _codes(values: NDArray[np.generic] | NDArray[np.object_]) -> NDArray[np.int_]:
    if values.dtype == object:
        known: dict[object, int] = {}
        return np.array([known.setdefault(value, len(known)) for value in values], dtype=int)
    codes: NDArray[np.int_] = np.unique(values, return_inverse=True)[1].astype(int)
    return codes
