"""How long the processors of parameter servers need: they may be smaller than where it was measured."""

from __future__ import annotations

import numpy as np

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.credits import LAUNCH_CREDIT_S, with_credits
from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.profile import Sync
from trainmaster.advisor.model.shapes import Floats


def served_s(
    some: Candidates, workload: Workload, servers: Machines, work_s: float | None, waves: Floats
) -> Floats:
    """(m,) seconds for all updates of a task, with CPU credits that run out; 0 if unknown.

    Args:
        some: m candidates.
        workload: what is to be done.
        servers: machines that they index.
        work_s: of one core for one update, at all servers together; None if unknown.
        waves: (m,) tasks that each machine is given, one after the other.
    """
    if work_s is None or not len(servers):
        return np.zeros(len(some))
    updates = some.steps * np.where(workload.sync is Sync.PS_SYNC, some.workers, 1.0)
    all_busy_s = updates * work_s / max(workload.servers, 1) / servers.vcpus[some.server]
    slow = with_credits(all_busy_s, servers.baseline[some.server], LAUNCH_CREDIT_S / waves)
    return np.where(some.server >= 0, slow, 0.0)
