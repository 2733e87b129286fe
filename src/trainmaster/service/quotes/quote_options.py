"""`QuoteOptions`: how a recipe is to be quoted."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.dataclass import dataclass, field
from trainmaster.spec.distributed import MAX_WORKERS
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.spec import Recipe


@dataclass(frozen=True, slots=True)
class TaskShare:
    """What of an experiment is in one of several places.

    Attributes:
        machines: that are taken there. tasks: that run there; None is all.
    """

    machines: int
    tasks: int | None = None


@dataclass(frozen=True)
class QuoteOptions:
    """The options of ``trainmaster quote``.

    Attributes:
        policy: see `trainmaster.advisor.papers.policy_quote.POLICIES`; empty is what the recipe says.
        catalogue: a name or a file; its offers are the candidates whatever the provider is.
        bandwidth: CSV ``instance,mbps``. parameter_server, worker_types: instance types, with commas.
        max_workers: of one task. fresh: measure again what was measured before.
        allow_stale: accept old prices without a warning.
        only: quote these experiments; None for all.
        measurements: CSV of points that the user measured; experiments with rows there are not measured.
        latency_ms: between machines, one way; None is what the recipe says, or what was measured.
        measures: False: what is known at once; nothing is measured.
        p: of Scala-Opt. usd_per_hour: of all machines. Both instead of the recipe's.
        shares: of experiments that are quoted in one of several places, by name.
        warm: experiments whose machines an earlier run has kept, with hashes of what it has brought there.
        keep_s: so long rented machines stay warm afterwards.
        asks_queue: a provider with a queue is asked how long machines wait in it, which takes it a while.
    """

    policy: str = ""
    catalogue: str | None = None
    bandwidth: Path | None = None
    parameter_server: str | None = None
    max_workers: int | None = None
    fresh: bool = False
    allow_stale: bool = False
    only: tuple[str, ...] | None = None
    measurements: Path | None = None
    worker_types: str | None = None
    p: float | None = None
    usd_per_hour: float | None = None
    latency_ms: float | None = None
    measures: bool = True
    shares: Mapping[str, TaskShare] = field(default_factory=dict)
    warm: Mapping[str, Collection[str]] = field(default_factory=dict)
    keep_s: float = 0.0
    asks_queue: bool = True

    def for_recipe(self, recipe: Recipe) -> QuoteOptions:
        """With what the recipe says where nothing is said here.

        Raises:
            UsageError: there is no such policy, or an amount is none.
        """
        if self.policy:
            from trainmaster.advisor.papers.policy_quote import POLICIES

            if self.policy not in POLICIES:
                raise UsageError(
                    f"--policy {self.policy}: there is no such policy", f"Take one of {', '.join(POLICIES)}."
                )
        p = recipe.objective.p if self.p is None else self.p
        if p is not None and not 0 < p <= 1:
            raise UsageError(f"p is {p:g}; more than 0 and at most 1 is needed", "Give such as 0.8.")
        if self.usd_per_hour is not None and not 0 < self.usd_per_hour < math.inf:
            raise UsageError(
                f"a budget of {self.usd_per_hour:g} USD per hour buys nothing", "Give more than 0, such as 2."
            )
        if self.max_workers is not None and not 1 <= self.max_workers <= MAX_WORKERS:
            raise UsageError(
                f"the most workers (max_workers): found {self.max_workers:g}",
                f"Give a whole number from 1 to {MAX_WORKERS}.",
            )
        usd_per_hour = self.usd_per_hour or (recipe.budget.usd_per_hour if recipe.budget else None)
        policy = self.policy or recipe.objective.policy or "quote"
        return replace(self, policy=policy, p=p, usd_per_hour=usd_per_hour)


def types_in(text: str | None) -> tuple[str, ...]:
    """Instance types, or patterns of them, with commas between them.

    >>> types_in("m4.large, m4.2xlarge"), types_in(None)
    (('m4.large', 'm4.2xlarge'), ())
    """
    return tuple(name for part in (text or "").split(",") if (name := part.strip()))
