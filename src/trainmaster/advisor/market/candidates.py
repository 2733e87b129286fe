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
        gpus: int = 0,
    ) -> Candidates:
        """All of them.

        As many tasks run at the same time as the machines have slots and GPUs for; fewer are candidates, too:
        memory may hold no more.

        Args:
            workload: what is to be done.
            machines: for the workers, or for tasks that are a single process.
            servers: for parameter servers; empty where none are needed.
            slots: processes that run at once on the user's own machine; None where nodes are rented.
            hosts: how many machines the user has; None where nodes are rented.
            pairs: of workers' and servers' machines; None for all that are in one place.
            gpus: of the user's own machine; 0 if it is not known.
        """
        workers = np.array(sorted(workload.lengths), dtype=float)
        lengths = [workload.lengths[int(n)] for n in workers]
        most = workload.side_by_side
        at_once = np.array([g for g in _AT_ONCE if g < most] + [most], dtype=float)
        if workload.machines is not None or slots is not None:  # as many tasks as they have room for
            at_once = at_once[-1:]
        if pairs is None:
            pairs = Pairs.all_of(machines, servers if workload.servers else servers[:0])
        is_gang = workload.servers > 0 or max(workload.lengths) > 1
        fills = np.zeros(len(at_once), dtype=bool)  # with as many tasks as the machines have room for
        if slots is None and not is_gang and workload.machines is None:
            at_once, fills = np.tile(at_once, 2), np.repeat([False, True], len(at_once))
        pair, n, g = (
            axis.ravel()
            for axis in np.meshgrid(np.arange(len(pairs)), np.arange(len(workers)), at_once, indexing="ij")
        )
        pair, n = pair.astype(int), n.astype(int)
        k, s = pairs.machine[pair], pairs.server[pair]
        per_node = machines.per_node[k]
        if slots is not None:  # one machine that is there already
            nodes, total, helpers = np.ones(len(k)), np.ones(len(k)), np.zeros(len(k))
            fitting, members = _at_once_here(workload, workers[n], slots, gpus)
            g = np.clip(fitting, 1, most)
            good = (workers[n] == workers.min()) | (members <= slots)
        elif is_gang:
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
            total = np.minimum(np.ceil(g / per_node), min(workload.spread or MOST_NODES, hosts or MOST_NODES))
            room = np.minimum(total * per_node, most)
            g = np.where(np.tile(fills, len(g) // len(fills)), room, np.minimum(g, room))
            helpers = np.zeros(len(k))
            good = np.zeros(len(k), dtype=bool)
            good[np.unique(np.column_stack([pair, n, total, g]), axis=0, return_index=True)[1]] = True
        if workload.machines is not None and slots is None:
            gangs = np.floor(workload.machines / nodes) * (1 if is_gang else per_node)
            g = np.clip(gangs, 1, most)
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


def _at_once_here(workload: Workload, workers: Floats, slots: int, gpus: int) -> tuple[Floats, Floats]:
    """(m,) tasks of so many workers that run at the same time on the user's own machine; slots of one.

    As `control.task.gangs.tasks_here` has it for the run itself.
    """
    members = (workers + workload.servers + workload.chief) * workload.slots_per_member
    found = np.floor(slots / members)
    on_node = np.minimum(workload.members_on_node, workers)
    if workload.spread is not None:
        found = np.minimum(found, np.floor(workload.spread / np.ceil(workers / on_node)))
    wanted = workers * ((workload.hardware.gpus or 0) // workload.members_on_node)
    if gpus and wanted.any():
        found = np.minimum(found, np.floor(gpus / np.maximum(wanted, 1)))
    return found, members
