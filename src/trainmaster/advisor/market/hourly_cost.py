"""What machines cost per hour that may be there at the same time.

What a cluster costs that is there for so long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, reduce
from graphlib import TopologicalSorter
from operator import and_
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.knowledge import Knowledge
from trainmaster.advisor.model.shapes import Floats
from trainmaster.dataclass import dataclass
from trainmaster.providers import Offer
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec.processor_limit import check_processor_limit

#: Of all prices, less is rounding.
_LEAST_USD: Final = 1e-12


@dataclass(frozen=True)
class Bill:
    """Prices of one experiment's candidates. A longer time never costs less.

    Attributes:
        workload: what is to be done. knowledge: what was measured of it.
        machines, servers: that candidates index. offers: what they index.
        data_leaves: models and checkpoints are kept outside of the cloud.
    """

    workload: Workload
    knowledge: Knowledge
    machines: Machines
    servers: Machines
    offers: tuple[Offer, ...]
    data_leaves: bool

    def cost_usd(self, time_s: Floats, some: Candidates) -> Floats:
        """(S, m) dollars of m candidates that are there for (S, m) seconds."""
        return self.rent_usd(time_s, some) + self._egress_usd(time_s, some)

    def needed_usd(self, time_s: Floats, some: Candidates, end_s: Callable[[int], float]) -> Floats:
        """(S, m) dollars that the cap of a run must allow for (S, m) seconds, lest it ends the run before.

        It is ended as soon as machines that go on as long as its end may take would come to more, at the
        highest price (`Meter.must_end`). Data that leaves is paid for, but no cap counts it.

        Args:
            time_s: from asking for machines to the last moment before they are given back.
            some: candidates.
            end_s: for how long money is kept, by tasks at once.
        """
        at_once, back = np.unique(np.minimum(some.at_once, self.workload.tasks), return_inverse=True)
        kept_s = np.array([end_s(int(count)) for count in at_once])[back]
        return np.maximum(self.cost_usd(time_s, some), self.rent_usd(time_s + kept_s, some, at_most=True))

    def rent_usd(self, time_s: Floats, some: Candidates, *, at_most: bool = False) -> Floats:
        """(S, m) dollars of their machines alone; ``at_most``: at the highest price."""

        def rent(machines: Machines, which: NDArray[np.int_], count: Floats) -> Floats:
            price = self._most_usd_per_hour[machines.index[which]] if at_most else machines.price[which]
            least = 0.0 if self.workload.is_warm else machines.minimum[which]  # who kept them has paid it
            return _billed(time_s, machines.quantum[which], least) * (price * count / 3600)

        cost = rent(self.machines, some.machine, some.machines)
        if len(self.servers) and (some.server >= 0).any():
            cost = cost + rent(self.servers, some.server, some.servers)
        return cost

    def replaced_usd(self, time_s: Floats, at: Floats, some: Candidates, rates: Sequence[Floats]) -> Floats:
        """(S, m) dollars more that a machine costs whose place another one has taken.

        Args:
            time_s: (S, m) seconds for which machines are there.
            at: (S, 1) share of it after which that happens.
            some: candidates.
            rates: how often the workers' machines are lost, and the servers'.
        """
        total = sum(rates, np.zeros((1, 1)))
        usd = np.zeros((1, 1))
        for machines, which, rate in zip(
            (self.machines, self.servers), (some.machine, some.server), rates, strict=False
        ):
            quantum, least = machines.quantum[which], machines.minimum[which]
            parts = _billed(time_s * at, quantum, least) + _billed(time_s * (1 - at), quantum, least)
            more = parts - _billed(time_s, quantum, least)
            usd = usd + more * (machines.price[which] / 3600) * rate / np.maximum(total, 1e-300)
        return np.asarray(usd)

    @cached_property
    def _most_usd_per_hour(self) -> Floats:
        """(offers,) of one machine."""
        return np.array([offer.most_usd_per_hour() for offer in self.offers])

    def _egress_usd(self, time_s: Floats, some: Candidates) -> Floats | float:
        """Models once, and each task's checkpoints as often as they are taken."""
        known = self.knowledge
        if not self.data_leaves or not (known.output_bytes or known.checkpoint_bytes):
            return 0.0
        every = self.workload.saves_every_s(known.saves_every_s)
        taken = np.ceil(time_s / every) * np.minimum(some.at_once, self.workload.tasks)
        leaving = known.output_bytes * self.workload.tasks + known.checkpoint_bytes * taken
        return self._usd_per_gb[some.machine] * leaving / 1e9

    @cached_property
    def _usd_per_gb(self) -> Floats:
        offers = [self.offers[i] for i in self.machines.index.tolist()]
        return np.array([capabilities_of(offer.provider).billing.egress_usd_per_gb for offer in offers])


def _billed(time_s: Floats, quantum: Floats, minimum: Floats | float) -> Floats:
    """Seconds on the bill: at least the minimum, rounded up to the quantum."""
    quantum = np.maximum(quantum, 1e-3)
    return np.asarray(np.ceil(np.maximum(time_s, minimum) / quantum) * quantum, dtype=float)


def ancestors(after: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Of each experiment, all that have ended before it begins.

    Args:
        after: which experiments each waits for; those that are not named themselves do not count.

    >>> sorted(ancestors({"a": [], "b": ["a"], "c": ["b"]})["c"])
    ['a', 'b']
    """
    direct = {name: {each for each in earlier if each in after} for name, earlier in after.items()}
    found: dict[str, set[str]] = {}
    for name in TopologicalSorter(direct).static_order():
        found[name] = direct[name].union(*(found[each] for each in direct[name]))
    return found


def most_at_once(
    usd_per_hour: Mapping[str, float], serves: Mapping[str, Sequence[str]], before: Mapping[str, set[str]]
) -> float:
    """The most that clusters which may be there at the same time cost per hour.

    Two are never there together if every experiment of the one has to wait for every experiment of the other.

    Args:
        usd_per_hour: of each cluster, by its name.
        serves: the experiments that each is for.
        before: see `ancestors`.

    >>> chain = ancestors({"a": [], "b": ["a"], "c": []})
    >>> most_at_once({"x": 3.0, "y": 2.0, "z": 1.0}, {"x": ["a"], "y": ["b"], "z": ["c"]}, chain)
    4.0
    """
    bits = {name: 1 << number for number, name in enumerate(before)}
    serving = [sum(bits[name] for name in serves[cluster]) for cluster in usd_per_hour]
    ended = {name: sum(bits[each] for each in earlier) for name, earlier in before.items()}
    have_ended = [reduce(and_, (ended[name] for name in serves[cluster])) for cluster in usd_per_hour]
    follows = np.array([[mine & ~later == 0 for later in have_ended] for mine in serving], dtype=bool)
    prices = np.array([*usd_per_hour.values()], dtype=float)
    check_processor_limit()
    return max(float(prices.sum() - _given_on(prices, follows)), float(prices.max(initial=0.0)))


def _given_on(prices: Floats, follows: NDArray[np.bool_]) -> float:
    """The most that clusters may give on of what they cost, to those that follow, each up to its own price.

    What is left is what the dearest clusters side by side cost (Dilworth, with weights). It is a maximal
    flow, along shortest ways (Edmonds and Karp).

    Args:
        prices: of each cluster.
        follows: (clusters, clusters) whether the second of a pair follows the first.
    """
    gives, takes, given = prices.copy(), prices.copy(), np.zeros(follows.shape)
    for one, later in enumerate(follows):
        wanted = takes * later
        given[one] = np.clip(gives[one] - (np.cumsum(wanted) - wanted), 0.0, wanted)
        gives[one] -= given[one].sum()
        takes -= given[one]
    least = _LEAST_USD * max(float(prices.sum()), 1.0)
    while (way := _way(gives > least, takes > least, follows, given > least)) is not None:
        check_processor_limit()
        (first, _), (_, last) = way[0], way[-1]
        back = [(way[at + 1][0], way[at][1]) for at in range(len(way) - 1)]
        usd = min(gives[first], takes[last], *(given[pair] for pair in back), math.inf)
        gives[first] -= usd
        takes[last] -= usd
        for pair in way:
            given[pair] += usd
        for pair in back:
            given[pair] -= usd
    return float(given.sum())


def _way(
    gives: NDArray[np.bool_], takes: NDArray[np.bool_], follows: NDArray[np.bool_], given: NDArray[np.bool_]
) -> list[tuple[int, int]] | None:
    """The shortest way from one that has something to give to one that has something to take, as pairs.

    From the taker of a pair it goes on with the giver of the next, who gives this taker less.
    """
    giver_of, taker_of = np.full(len(gives), -1), np.full(len(gives), -1)
    givers, seen_givers, seen_takers = np.flatnonzero(gives), gives.copy(), np.zeros_like(takes)
    while len(givers):
        reached = follows[givers]
        new = reached.any(axis=0) & ~seen_takers
        giver_of[new] = givers[reached[:, new].argmax(axis=0)]
        seen_takers |= new
        if (ends := np.flatnonzero(new & takes)).size:
            way, taker = [], int(ends[0])
            while taker >= 0:
                way.append((int(giver_of[taker]), taker))
                taker = int(taker_of[giver_of[taker]])
            return way[::-1]
        takers = np.flatnonzero(new)
        less = given[:, takers]
        fresh = less.any(axis=1) & ~seen_givers
        taker_of[fresh] = takers[less[fresh].argmax(axis=1)] if len(takers) else -1
        seen_givers |= fresh
        givers = np.flatnonzero(fresh)
    return None


def least_cap(usd_per_hour: float) -> float:
    """The least cap that machines keep, for people: in ten-thousandths of a dollar.

    Args:
        usd_per_hour: that they cost.

    >>> least_cap(3 * 0.2), least_cap(0.12341)
    (0.6, 0.1235)
    """
    return math.ceil(usd_per_hour * 1e4 - 1e-6) / 1e4
