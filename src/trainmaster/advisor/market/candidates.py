"""Every cluster that could do the job: machines x workers x tasks at once."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.market.pairs import Pairs
from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.shapes import Floats, Frame
from trainmaster.dataclass import dataclass

#: Most nodes of one cluster that are considered, beside what the recipe itself asks for.
MOST_NODES: Final = 256
#: Ways to share out many tasks that are tried: 1, 2, 4, ... at once.
_AT_ONCE: Final = tuple(2**i for i in range(13))


@dataclass(frozen=True)
class Outcomes:
    """What may become of m clusters.

    Attributes:
        time_s: (DRAWS, m). cost_usd: (DRAWS, m).
    """

    time_s: Floats
    cost_usd: Floats


@dataclass(frozen=True)
class Candidates(Frame):
    """Clusters as columns of length m.

    Attributes:
        machine: index into the workers' machines. server: index into the servers', -1 without.
        workers: training processes of one task. nodes: machines of one task's workers.
        at_once: tasks (gangs) that run at the same time.
        machines: nodes of the whole cluster, without servers.
        servers: machines for parameter servers in all.
        steps: of one task, NaN where unknown. epochs: of one task. batch: per worker, NaN if unknown.
        price: USD per hour of all its machines.
    """

    machine: NDArray[np.int_]
    server: NDArray[np.int_]
    workers: Floats
    nodes: Floats
    at_once: Floats
    machines: Floats
    servers: Floats
    steps: Floats
    epochs: Floats
    batch: Floats
    price: Floats

    @classmethod
    def of(
        cls,
        workload: Workload,
        machines: Machines,
        servers: Machines,
        slots: int | None,
        hosts: int | None = None,
        pairs: Pairs | None = None,
    ) -> Candidates:
        """All of them.

        Args:
            workload: what is to be done.
            machines: for the workers, or for tasks that are a single process.
            servers: for parameter servers; empty where none are needed.
            slots: processes that run at once on the user's own machine; None where nodes are rented.
            hosts: how many machines the user has; None where nodes are rented.
            pairs: of workers' and servers' machines; None for all that are in one place.
        """
        workers = np.array(sorted(workload.lengths), dtype=float)
        lengths = [workload.lengths[int(n)] for n in workers]
        at_once = np.array([g for g in _AT_ONCE if g < workload.tasks] + [workload.tasks], dtype=float)
        if workload.machines is not None:  # as many tasks as they have room for
            at_once = at_once[-1:]
        if pairs is None:
            pairs = Pairs.all_of(machines, servers if workload.servers else servers[:0])
        pair, n, g = (
            axis.ravel()
            for axis in np.meshgrid(np.arange(len(pairs)), np.arange(len(workers)), at_once, indexing="ij")
        )
        pair, n = pair.astype(int), n.astype(int)
        k, s = pairs.machine[pair], pairs.server[pair]
        per_node = machines.per_node[k]
        if slots is not None:  # one machine that is there already
            members = (workers[n] + workload.servers + workload.chief) * g * workload.slots_per_member
            nodes, total, helpers = np.ones(len(k)), np.ones(len(k)), np.zeros(len(k))
            most_at_once = np.minimum(slots, workload.spread or slots)
            must = (g == 1) & (workers[n] == workers.min())
            good = must | ((members <= slots) & (g <= most_at_once))
        elif workload.servers > 0 or max(workload.lengths) > 1:  # gangs
            nodes = np.ceil(workers[n] / per_node)
            total = nodes * g
            helpers = np.full(len(k), float(workload.servers if len(servers) else 0)) * g
            if hosts is None:
                good = total <= np.maximum(MOST_NODES, nodes)
            else:  # the fewest workers that are allowed share hosts if they must
                good = (total <= hosts) | ((g == 1) & (workers[n] == workers.min()))
                nodes = np.minimum(nodes, hosts)
                total = nodes * g
            if workload.spread is not None:
                good &= (total <= workload.spread) | (g == 1)
        else:  # single processes, several on a node
            nodes = np.ones(len(k))
            total = np.ceil(g / per_node)
            helpers = np.zeros(len(k))
            good = total <= min(workload.spread or MOST_NODES, hosts or MOST_NODES)
        if workload.machines is not None and slots is None:
            is_gang = workload.servers > 0 or max(workload.lengths) > 1
            gangs = np.floor(workload.machines / nodes) * (1 if is_gang else per_node)
            g = np.clip(gangs, 1, workload.tasks)
            helpers = helpers / np.maximum(at_once[0], 1) * g
            total, good = np.maximum(workload.machines, nodes), np.ones(len(k), dtype=bool)
        price = machines.price[k] * total
        if workload.servers and len(servers) and slots is None:
            price = price + servers.price[s] * helpers
        found = cls(
            machine=k,
            server=s,
            workers=workers[n],
            nodes=nodes,
            at_once=g,
            machines=total,
            servers=helpers,
            steps=np.array([np.nan if x.steps is None else x.steps for x in lengths])[n],
            epochs=np.array([x.epochs for x in lengths], dtype=float)[n],
            batch=np.array([np.nan if x.local_batch is None else x.local_batch for x in lengths])[n],
            price=price,
        )
        return found[good]
