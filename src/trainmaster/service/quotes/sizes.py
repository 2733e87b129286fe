"""`outlooks`: what the rest of a task would take with other numbers of workers or parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainmaster.advisor.market.workload import Workload
from trainmaster.control.decide.resizing import SizeForecast
from trainmaster.control.task.gangs import resized, slots_of
from trainmaster.spec import Experiment

if TYPE_CHECKING:
    from trainmaster.advisor.model.devices import Device
    from trainmaster.advisor.model.measurement import Measurement
    from trainmaster.providers import Catalogue

#: A gang becomes at most so many times as large, or as small, by one change: beyond is little known.
MOST_TIMES: Final = 4
#: A change must pay with this probability.
SURE: Final = 0.75


def outlooks(
    experiment: Experiment,
    seed: int,
    measured: Sequence[Measurement],
    device: Device,
    catalogue: Catalogue,
    room: int,
    nodes: Callable[[Experiment], int],
) -> tuple[SizeForecast, ...]:
    """All sizes that an experiment may have instead, by the step-time model; empty if nothing is known.

    What a step learns stays the same: only sizes that share the same global batch are looked at.

    Args:
        experiment: as its present attempt has it.
        seed: of the recipe.
        measured: with this size and others, on the machines that it has.
        device: what a worker computes on.
        catalogue: of this machine.
        room: processes that there may be at most.
        nodes: how many machines workers of such an experiment sit on.
    """
    from trainmaster.advisor.model.knowledge import Knowledge

    shape = experiment.distributed
    learnt = Knowledge.of(measured, [], {device.offer: device}, {}, seed)
    if shape is None or learnt is None or learnt.model is None:
        return ()
    import numpy as np

    from trainmaster.advisor.market.candidates import Candidates
    from trainmaster.advisor.model.shapes import Floats
    from trainmaster.advisor.quote.supply import own_timing

    at = (int(shape.workers), shape.parameter_servers)
    here = [m.point for m in measured if m.point and (m.point.workers, m.point.parameter_servers) == at]
    latency_ms = next((each.latency_ms for each in here if each.latency_ms is not None), shape.latency_ms)
    known: dict[tuple[int, int], Floats] = {}
    for servers, workload in _workloads(experiment, seed):
        workload = replace(workload, latency_ms=latency_ms)  # of now, whatever it was earlier
        timing = own_timing(workload, learnt, catalogue, room)
        some = Candidates.of(workload, timing.machines, timing.servers, room)
        some = some[some.at_once == 1]
        sizes = [int(n) for n in some.workers]
        some = replace(some, nodes=np.array([float(nodes(resized(experiment, n, servers))) for n in sizes]))
        known |= {(n, servers): drawn for n, drawn in zip(sizes, timing.training_s(some).T, strict=True)}
    found = []
    for size, drawn in known.items() if at in known else ():
        if size != at and slots_of(resized(experiment, *size)) > room:
            continue  # it would never begin
        usual, sure = np.quantile(drawn / known[at], (0.5, SURE)).tolist()
        found.append(SizeForecast(*size, usual, sure))
    return tuple(found)


def _workloads(experiment: Experiment, seed: int) -> Iterator[tuple[int, Workload]]:
    """The numbers of servers that it may have, with what is to be done by each number of workers then."""
    shape = experiment.distributed
    assert shape is not None
    workers, servers = int(shape.workers), shape.parameter_servers
    fewest, most = servers, servers
    if shape.chooses_servers:
        fewest, most = max(servers // 2, 1), min(max(workers, servers), 2 * servers)
    now = experiment.builtin_values()
    for count in range(fewest, most + 1):
        open_one = shape.reopened.model_copy(update={"parameter_servers": count})
        workload = Workload.of(experiment.model_copy(update={"distributed": open_one}), seed)
        lengths = {
            n: length
            for n, length in workload.lengths.items()
            if n * MOST_TIMES >= workers
            and n <= MOST_TIMES * workers
            and (length.steps, (length.local_batch or 0) * n)
            == (now.get("steps"), now.get("batch_global", 0))
        }
        if lengths:
            yield count, replace(workload, lengths=lengths)
