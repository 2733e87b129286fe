"""The user's own machine as a cluster that is there already: nothing to choose but how much of it to use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.knowledge import Knowledge
from trainmaster.advisor.model.shapes import Floats
from trainmaster.advisor.quote.timing import Timing
from trainmaster.providers import Catalogue


def own_timing(
    workload: Workload, knowledge: Knowledge, catalogue: Catalogue, slots: int, seed: int = 0
) -> Timing:
    """What draws times on this machine.

    Args:
        workload: what is to be done.
        knowledge: what was measured of it.
        catalogue: with this machine only.
        slots: processes that run at once.
        seed: of all draws.
    """
    machines = Machines.of(catalogue.columns(), np.full(len(catalogue), float(slots)))
    return Timing(workload, knowledge, machines, machines[:0], catalogue.offers, own_machine=True, seed=seed)


def own_load(workload: Workload, some: Candidates, slots: int) -> Floats:
    """(m,) share of the machine that an experiment keeps busy."""
    members = (some.workers + workload.servers + workload.chief) * workload.slots_per_member
    return np.minimum(members * some.at_once / max(slots, 1), 1.0)


def own_cluster(timing: Timing, slots: int, workers: int, at_once: int, nodes: int = 1) -> Candidates:
    """The one candidate with so many workers on so many machines, and so many tasks at once."""
    found = Candidates.of(timing.workload, timing.machines, timing.servers, slots)
    row = int(np.flatnonzero(found.workers == workers)[0])
    return replace(found[np.array([row])], at_once=np.array([float(at_once)]), nodes=np.array([float(nodes)]))
