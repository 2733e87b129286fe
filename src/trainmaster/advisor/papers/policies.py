"""FC2's policies: one type of worker and one parameter server for a budget per hour.

Ta, "FC2: cloud-based cluster provisioning for distributed machine learning", Cluster Computing 2019,
section 5.2. They know prices and bandwidths, no times; the paper leaves corners open, and each
function says how its corners are decided here:

* counts are rounded down: it is the only rounding that keeps ``count * traffic <= p * bandwidth``;
* ties go to the cheaper type: the paper's printed rule (strictly smaller, dearest first) does not
  reproduce its own section 8.4, this one does;
* a budget that the best-connected server uses up is tried with the cheaper servers before giving up;
* a type whose traffic is unknown is skipped, and named in ``PolicyPick.skipped``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import MeasurementNeeded, UsageError

#: Share of the server's bandwidth that the workers may use (section 8.2, footnote 11).
HEADROOM: Final = 0.95


@dataclass(frozen=True, slots=True)
class PricedType:
    """An instance type as FC2 sees it.

    Attributes:
        name: of the type.
        usd_per_hour: its price, more than 0.
        mbps: of a server: what its network card carries. Of a worker: the traffic that one worker
            causes (b_t), the larger of its two directions; None if it was not measured.
    """

    name: str
    usd_per_hour: float
    mbps: float | None = None

    def __post_init__(self) -> None:
        """Refuse prices and rates that would win by mistake.

        Raises:
            ValueError: a price or rate that is not positive and finite.
        """
        for what, value in (("price", self.usd_per_hour), ("Mbit/s", self.mbps)):
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{self.name}: {what} is {value:g}; more than 0 is needed")


@dataclass(frozen=True, slots=True)
class PolicyPick:
    """What a policy chose.

    Attributes:
        worker: the type of the workers. count: how many.
        unrounded: the count before rounding down.
        server: the parameter server, or None to train without one.
        limit: what set the count: ``budget``, ``max workers``, ``server bandwidth``.
        skipped: worker types left out because their traffic is unknown.
    """

    worker: PricedType
    count: int
    unrounded: float
    server: PricedType | None
    limit: str
    skipped: tuple[str, ...] = ()

    @property
    def usd_per_hour(self) -> float:
        """Price of the whole cluster per hour."""
        return self.count * self.worker.usd_per_hour + (self.server.usd_per_hour if self.server else 0.0)


class NoFeasibleCluster(UsageError):  # noqa: N818 - the name of what happened
    """No cluster fits the budget.

    Attributes:
        nearest_budget: the smallest budget per hour that the policy could use, USD.
    """

    def __init__(self, policy: str, budget: float, nearest_budget: float) -> None:
        self.nearest_budget = nearest_budget
        super().__init__(
            f"{policy}: no cluster fits {budget:g} USD per hour",
            f"A server and one worker cost at least {nearest_budget:g} USD per hour.",
        )


class BandwidthUnknown(MeasurementNeeded):
    """The policy compares traffic, and that of no worker type (or of no server) is known."""


def choose_server(servers: Sequence[PricedType]) -> list[PricedType]:
    """The servers in the order in which they are tried: FC2 section 5.2.1.

    Largest bandwidth first whatever it costs, ties to the cheaper; those whose bandwidth is
    unknown come last. A server that the user names is the only one in the list.

    Raises:
        UsageError: there are none.
    """
    if not servers:
        raise UsageError("no parameter server to choose from", "Name one with --parameter-server.")
    return sorted(servers, key=lambda server: (-(server.mbps or 0.0), server.usd_per_hour))


def cost_opt(
    workers: Sequence[PricedType],
    servers: Sequence[PricedType],
    *,
    budget_per_hour: float | None = None,
    max_workers: int | None = None,
) -> PolicyPick:
    """Cost-Opt, FC2 section 5.2.2: the cheapest worker type, as many as the budget allows.

    Args:
        workers: candidates; of equal prices the first is taken.
        servers: candidates, or the one that the user named.
        budget_per_hour: USD per hour for the whole cluster (a rate, not a total).
        max_workers: instead of a budget, or besides.

    Raises:
        NoFeasibleCluster: the budget buys no server with one worker.
        UsageError: neither a budget nor a maximum, or no candidates.
    """
    worker = min(_some(workers), key=lambda t: t.usd_per_hour)
    return _by_price("cost-opt", worker, servers, budget_per_hour, max_workers)


def time_opt(
    workers: Sequence[PricedType],
    servers: Sequence[PricedType],
    *,
    budget_per_hour: float | None = None,
    max_workers: int | None = None,
) -> PolicyPick:
    """Time-Opt, FC2 section 5.2.3: the dearest worker type; nothing about time is measured.

    Arguments and errors are those of ``cost_opt``.
    """
    worker = max(_some(workers), key=lambda t: t.usd_per_hour)
    return _by_price("time-opt", worker, servers, budget_per_hour, max_workers)


def scala_opt(
    workers: Sequence[PricedType],
    servers: Sequence[PricedType],
    *,
    budget_per_hour: float | None = None,
    max_workers: int | None = None,
    headroom: float = HEADROOM,
) -> PolicyPick:
    """Scala-Opt, FC2 section 5.2.4: the type of which the fewest saturate the server.

    Types are considered from the dearest to the cheapest, a smaller or equal count wins. Known to
    be wrong (and kept, it is their rule): when the budget binds, the count is smallest for the
    dearest type, so it degenerates to Time-Opt; prices play no part after that.

    Args:
        workers: candidates with their measured traffic.
        servers: candidates, or the one that the user named.
        budget_per_hour: USD per hour for the whole cluster.
        max_workers: instead of a budget, or besides.
        headroom: p, the share of the server's bandwidth to use.

    Returns:
        The pick. If one worker of every type is already too much for the server: one worker of the
        type with the most traffic, without a server.

    Raises:
        BandwidthUnknown: no worker's traffic, or no server's bandwidth, is known.
        NoFeasibleCluster: the budget buys no server with one worker.
        UsageError: ``headroom`` is not in (0, 1], or there are no candidates.
    """
    if not 0 < headroom <= 1:
        raise UsageError(f"p is {headroom:g}; more than 0 and at most 1 is needed")
    known = [worker for worker in _some(workers) if worker.mbps is not None]
    skipped = tuple(worker.name for worker in workers if worker.mbps is None)
    if not known:
        raise BandwidthUnknown(
            f"the traffic of {_few(skipped)} is unknown",
            "Have it measured: `quote` and the page of a quote offer that for rented machines. "
            "Or give it (bandwidth).",
        )
    if all(server.mbps is None for server in choose_server(servers)):
        raise BandwidthUnknown(
            "the bandwidth of no parameter server is known", "Name one whose bandwidth is."
        )
    dearest_first = sorted(known, key=lambda t: -t.usd_per_hour)

    def fit(server: PricedType) -> PolicyPick | None:
        if server.mbps is None:
            return None
        best: PolicyPick | None = None
        slow: PolicyPick | None = None
        for worker in dearest_first:
            carried = headroom * server.mbps / (worker.mbps or math.inf)
            pick = _count(worker, server, budget_per_hour, max_workers, carried)
            if pick.count < 1 and pick.limit == "server bandwidth":
                alone = PolicyPick(worker, 1, pick.unrounded, None, pick.limit, skipped)
                affordable = budget_per_hour is None or worker.usd_per_hour <= budget_per_hour
                if affordable and (slow is None or pick.unrounded <= slow.unrounded):
                    slow = alone
            elif pick.count >= 1 and (best is None or pick.count <= best.count):
                best = PolicyPick(worker, pick.count, pick.unrounded, server, pick.limit, skipped)
        return best or slow

    return _first_server("scala-opt", dearest_first, servers, budget_per_hour, fit)


def _some(workers: Sequence[PricedType]) -> Sequence[PricedType]:
    if not workers:
        raise UsageError("no worker type to choose from", "Widen the hardware asked for.")
    return workers


def _count(
    worker: PricedType,
    server: PricedType,
    budget: float | None,
    maximum: int | None,
    carried: float = math.inf,
) -> PolicyPick:
    """The smallest of what the server carries, the budget buys and the user allows."""
    limits = [(carried, "server bandwidth")]
    if budget is not None:
        limits.append(((budget - server.usd_per_hour) / worker.usd_per_hour, "budget"))
    if maximum is not None:
        limits.append((float(maximum), "max workers"))
    unrounded, limit = min(
        limits, key=lambda pair: math.floor(pair[0] + 1e-9) if pair[0] < math.inf else pair[0]
    )
    if unrounded == math.inf:
        raise UsageError(
            "neither a budget per hour nor a largest number of workers",
            "Set budget.per_hour, or the most workers (max_workers).",
        )
    return PolicyPick(worker, max(0, math.floor(unrounded + 1e-9)), unrounded, server, limit)


def _by_price(
    policy: str, worker: PricedType, servers: Sequence[PricedType], budget: float | None, maximum: int | None
) -> PolicyPick:
    def fit(server: PricedType) -> PolicyPick | None:
        pick = _count(worker, server, budget, maximum)
        return pick if pick.count >= 1 else None

    return _first_server(policy, [worker], servers, budget, fit)


def _first_server(
    policy: str,
    workers: Sequence[PricedType],
    servers: Sequence[PricedType],
    budget: float | None,
    fit: Callable[[PricedType], PolicyPick | None],
) -> PolicyPick:
    """The pick of the first server, in FC2's order, that leaves a cluster possible."""
    for server in choose_server(servers):
        if (pick := fit(server)) is not None:
            return pick
    nearest = min(server.usd_per_hour for server in servers) + min(worker.usd_per_hour for worker in workers)
    raise NoFeasibleCluster(policy, math.nan if budget is None else budget, nearest)


def _few(types: Sequence[str]) -> str:
    """Some of many names.

    >>> _few(["a", "b"]), _few(list("abcde"))
    ('a, b', '5 types (a, b, c, ...)')
    """
    return ", ".join(types) if len(types) <= 3 else f"{len(types)} types ({', '.join(types[:3])}, ...)"
