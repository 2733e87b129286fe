"""Pairs of a worker's and a parameter server's machine that can matter: in one region, and not beaten.

There may be thousands of millions of pairs. Time depends on what the two machines are, not on where; so of
pairs that are alike only those with a price that no other beats in both parts are left, and none that is
dearer and nowhere better. Like `Machines.undominated` that leaves what brute force could choose, up to ties.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.market.machines import Machines, codes, front, joined
from trainmaster.advisor.model.shapes import Floats, Frame
from trainmaster.dataclass import dataclass


@dataclass(frozen=True)
class Pairs(Frame):
    """Machines that go together, as columns of length p.

    Attributes:
        machine: (p,) row of the workers' machines. server: (p,) row of the servers'; -1 without.
    """

    machine: NDArray[np.int_]
    server: NDArray[np.int_]

    @classmethod
    def all_of(cls, machines: Machines, servers: Machines) -> Pairs:
        """Every pair of one place; without servers every machine."""
        if not len(servers):
            return cls(np.arange(len(machines)), np.full(len(machines), -1))
        which = [
            np.meshgrid(
                np.flatnonzero(machines.place == p), np.flatnonzero(servers.place == p), indexing="ij"
            )
            for p in np.intersect1d(machines.place, servers.place).tolist()
        ]
        if not which:
            return cls(np.arange(0), np.arange(0))
        return cls(*(np.concatenate([grid[i].ravel() for grid in which]) for i in range(2)))

    @classmethod
    def that_matter(cls, machines: Machines, servers: Machines, known_by: NDArray[np.int_]) -> Pairs:
        """Those that no other pair beats.

        Args:
            machines: for the workers, undominated in their places.
            servers: such as `Machines.as_servers` leaves.
            known_by: (k,) numbers of what the former are predicted from, see `Machines.undominated`.
        """
        pairs = cls.all_of(machines, servers)
        k, s = pairs.machine, pairs.server
        cards = NetworkCards.of(machines, servers, k, s)
        unknown = np.isnan(np.column_stack([machines.nic[k], servers.nic[s]])).astype(int)
        group = joined(
            machines.group[k], servers.terms[s], codes(servers.baseline[s]), known_by[k], *unknown.T
        )
        features = np.column_stack([machines.features()[k, :3], cards.features(), servers.vcpus[s]])
        price, other = machines.price[k], servers.price[s]
        rows = _cheapest(group, features, price, other)
        kept = rows[front(group[rows], price[rows], np.column_stack([features[rows], -other[rows]]))]
        return pairs[kept]


@dataclass(frozen=True)
class NetworkCards:
    """The network cards of m pairs, Mbit/s; NaN is unknown.

    Attributes:
        rate: what goes from one machine to another at first: that of the slower card.
        worker, worker_sustained, server, server_sustained: what each card reaches, and for hours. A card that
            sustains `rate` counts as no better than that.
    """

    rate: Floats
    worker: Floats
    worker_sustained: Floats
    server: Floats
    server_sustained: Floats

    @classmethod
    def of(
        cls, machines: Machines, servers: Machines, machine: NDArray[np.int_], server: NDArray[np.int_]
    ) -> NetworkCards:
        """Of pairs; those without a server's machine have the worker's card only."""
        nic, slow = machines.nic[machine], machines.sustained[machine]
        if not len(servers):
            unknown = np.full(len(nic), np.nan)
            return cls(nic, nic, slow, unknown, unknown)
        has = server >= 0
        theirs = np.where(has, servers.nic[server], np.nan)
        theirs_slow = np.where(has, servers.sustained[server], np.nan)
        rate = np.fmin(nic, theirs)
        steady, steady_too = slow >= rate, theirs_slow >= rate
        return cls(
            rate,
            np.where(steady, rate, nic),
            np.where(steady, rate, slow),
            np.where(steady_too, rate, theirs),
            np.where(steady_too, rate, theirs_slow),
        )

    @property
    def are_known(self) -> bool:
        """True if the rate of any card is."""
        return bool(np.isfinite(np.column_stack([self.worker, self.server])).any())

    def features(self) -> Floats:
        """(m, 5) what more of is never worse."""
        columns = [self.rate, self.worker, self.worker_sustained, self.server, self.server_sustained]
        return np.nan_to_num(np.column_stack(columns), nan=-1.0)


def _cheapest(group: NDArray[np.int_], features: Floats, price: Floats, other: Floats) -> NDArray[np.int_]:
    """Pareto-optimal rows by the two prices among rows with equal features; quick for many rows."""
    alike = joined(group, *(np.unique(column, return_inverse=True)[1] for column in features.T))
    order = np.lexsort((other, price, alike))
    # ranks fall from group to group, so that a running minimum begins again in each
    rank = np.unique(other, return_inverse=True)[1][order] - alike[order] * (len(order) + 1)
    before = np.concatenate([[np.iinfo(rank.dtype).max], np.minimum.accumulate(rank)[:-1]])
    return order[rank < before]
