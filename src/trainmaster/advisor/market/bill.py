"""What a cluster costs that is there for so long."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.knowledge import Knowledge
from trainmaster.advisor.model.shapes import Floats
from trainmaster.providers import Offer
from trainmaster.providers.capabilities import capabilities_of

#: How often checkpoints are taken where the recipe says nothing.
_CHECKPOINT_EVERY_S: Final = 60.0


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
        billed = _billed(time_s, self.machines, some.machine)
        cost = billed * (self.machines.price[some.machine] * some.machines / 3600)
        if len(self.servers) and (some.server >= 0).any():
            billed = _billed(time_s, self.servers, some.server)
            cost = cost + billed * (self.servers.price[some.server] * some.servers / 3600)
        return cost + self._egress_usd(time_s, some)

    def _egress_usd(self, time_s: Floats, some: Candidates) -> Floats | float:
        """Models once, and each task's checkpoints as often as they are taken."""
        known = self.knowledge
        if not self.data_leaves or not (known.output_bytes or known.checkpoint_bytes):
            return 0.0
        every = self.workload.checkpoint_every_s or _CHECKPOINT_EVERY_S
        taken = np.ceil(time_s / every) * np.minimum(some.at_once, self.workload.tasks)
        leaving = known.output_bytes * self.workload.tasks + known.checkpoint_bytes * taken
        return self._usd_per_gb[some.machine] * leaving / 1e9

    @cached_property
    def _usd_per_gb(self) -> Floats:
        offers = [self.offers[i] for i in self.machines.index.tolist()]
        return np.array([capabilities_of(offer.provider).billing.egress_usd_per_gb for offer in offers])


def _billed(time_s: Floats, machines: Machines, which: NDArray[np.int_]) -> Floats:
    """Seconds on the bill: at least the minimum, rounded up to the quantum."""
    quantum = np.maximum(machines.quantum[which], 1e-3)
    return np.ceil(np.maximum(time_s, machines.minimum[which]) / quantum) * quantum
