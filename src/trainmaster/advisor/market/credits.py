"""Credits: machines whose cores, or whose network cards, are fast only for a while."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.market.pairs import NetworkCards
from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.physics import flatness, gradient_bytes
from trainmaster.advisor.model.shapes import ASYNCHRONOUS, Floats, MeasuredContext, Shapes
from trainmaster.spec import Strategy

_MBIT_BYTES: Final = 1e6 / 8

#: Credits that a T2 starts with: 30 minutes of one core for each of its cores (AWS' documentation).
LAUNCH_CREDIT_S = 1800.0


def with_credits(
    busy_s: Floats, baseline: Floats | float, launch_s: Floats | float = LAUNCH_CREDIT_S
) -> Floats:
    """Seconds that work takes on cores which slow down when their credits are used up.

    At full speed a core spends ``1 - baseline`` credits per second more than it earns; after that it
    goes on at ``baseline`` of its speed. Jorge et al. saw it happen to a parameter server on a t2.small.

    Args:
        busy_s: (..., m) seconds of work at full speed, all cores busy.
        baseline: (m,) share of the cores that is theirs for good; NaN or 1 is all of it.
        launch_s: credits at the start, in seconds of one core for each core; (m,) or one for all.

    >>> with_credits(np.array([600.0, 7200.0]), 0.25).tolist()
    [600.0, 21600.0]
    """
    share = np.where(np.isnan(baseline), 1.0, baseline)
    burst = np.where(share < 1, launch_s / np.maximum(1 - share, 1e-9), np.inf)
    beyond = np.maximum(busy_s - burst, 0.0)
    return busy_s - beyond + beyond / np.maximum(share, 1e-3)


def with_nic_credits(
    busy_s: Floats, sent_mbit: Floats, fast: Floats, sustained: Floats, launch_s: Floats
) -> Floats:
    """Seconds that work takes over a network card that slows down when its credits are used up.

    A card that sends more than it sustains draws on a reserve, which lets it go at full speed for
    ``launch_s``. When that is used up, no more goes through on average than it sustains: pauses between the
    sends earn what the next one needs.

    Args:
        busy_s: (S, m) seconds of work while the card is fast.
        sent_mbit: (S, m) what it sends meanwhile.
        fast: (m,) Mbit/s that the card reaches, NaN if unknown.
        sustained: (m,) Mbit/s that it does for good.
        launch_s: (S, m) seconds at full speed that the reserve is good for.

    >>> of = lambda *some: [np.array([x]) for x in some]
    >>> with_nic_credits(*of(7200.0, 72e6, 10e3, 1e3, 1800.0)).item()  # a fourth, then a tenth of it
    55800.0
    >>> with_nic_credits(*of(7200.0, 6e6, 10e3, 1e3, 1800.0)).item()  # it rests most of the time
    7200.0
    """
    beyond = sent_mbit - (fast - sustained) * launch_s
    return np.fmax(busy_s, beyond / np.maximum(sustained, 1e-3))


def sent_mbit(theta: Floats, shapes: Shapes, context: MeasuredContext) -> tuple[Floats, Floats]:
    """Mbit per step that a worker's card and a server's send, (S, m) each; as much comes in.

    A ring between N nodes takes ``2 (N-1)/N`` gradients through each card, and one of all workers more, see
    `step_time`; with servers, each worker sends one to them, shared out, and gets one back.

    It is bytes that count, however long they take: collectives reach about half of what a card can.

    Args:
        theta: (S, P) parameters.
        shapes: of length m.
        context: of what was measured: the card that it went over, and the gradient if it is known.
    """
    kind = int(shapes.kind.max(initial=0))
    one = gradient_bytes(theta, kind, context) / _MBIT_BYTES * shapes.gradient
    if not kind:
        members = shapes.nodes * shapes.per_node ** flatness(theta)
        return one * np.where(shapes.nodes > 1, 2 - 2 / members, 0.0), np.zeros_like(one)
    each = shapes.workers if kind == ASYNCHRONOUS else 1.0  # global steps: one worker's at a time
    return one * shapes.per_node / each, one * shapes.workers / shapes.servers / each


def slowed(busy_s: Floats, sent: tuple[Floats, Floats], cards: NetworkCards, launch_s: Floats) -> Floats:
    """(S, m) seconds of work whose cards may slow down.

    Args:
        busy_s: (S, m) seconds while they are fast.
        sent: Mbit that the worker's and the server's card send meanwhile.
        cards: of the m clusters.
        launch_s: (S, m) what their credits are good for at full speed.
    """
    result = with_nic_credits(busy_s, sent[0], cards.worker, cards.worker_sustained, launch_s)
    return with_nic_credits(result, sent[1], cards.server, cards.server_sustained, launch_s)


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
    updates = some.steps * np.where(workload.sync is Strategy.PS_SYNC, some.workers, 1.0)
    all_busy_s = updates * work_s / max(workload.servers, 1) / servers.vcpus[some.server]
    slow = with_credits(all_busy_s, servers.baseline[some.server], LAUNCH_CREDIT_S / waves)
    return np.where(some.server >= 0, slow, 0.0)
