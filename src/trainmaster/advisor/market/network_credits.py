"""How much network cards send in a step: what their credits are spent on."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainmaster.advisor.market.credits import with_nic_credits
from trainmaster.advisor.market.pairs import Cards
from trainmaster.advisor.model.priors import INDEX
from trainmaster.advisor.model.shapes import Floats, Shapes

_ASYNCHRONOUS: Final = 2
_MBIT_BYTES: Final = 1e6 / 8


def sent_mbit(theta: Floats, shapes: Shapes, nic_mbps: float) -> tuple[Floats, Floats]:
    """Mbit per step that a worker's card and a server's send, (S, m) each; as much comes in.

    A ring between N nodes takes ``2 (N-1)/N`` gradients through each card, and one of all workers more, see
    `step_time`; with servers, each worker sends one to them, shared out, and gets one back.

    It is bytes that count, however long they take: collectives reach about half of what a card can.

    Args:
        theta: (S, P) log parameters.
        shapes: of length m.
        nic_mbps: of the card with which the job was measured: no gradient was larger than what that could
            have sent in the time. NaN if unknown.
    """
    natural = np.exp(theta)
    achieved = natural[:, INDEX["nic"]] / _MBIT_BYTES
    possible = np.fmin(nic_mbps / achieved, 1.0)
    one = (natural[:, INDEX["gradient"]] / _MBIT_BYTES * possible)[:, None] * shapes.gradient
    flat = natural[:, INDEX["flat"], None]
    members = shapes.nodes * shapes.per_node ** (flat / (1 + flat))
    ring = np.where(shapes.nodes > 1, 2 - 2 / members, 0.0)
    has_servers = shapes.kind > 0
    each = np.where(shapes.kind == _ASYNCHRONOUS, shapes.workers, 1.0)  # global steps: one worker's at a time
    worker: Floats = one * np.where(has_servers, shapes.per_node, ring) / each
    server: Floats = one * np.where(has_servers, shapes.workers / shapes.servers, 0.0) / each
    return worker, server


def slowed(busy_s: Floats, sent: tuple[Floats, Floats], cards: Cards, launch_s: Floats) -> Floats:
    """(S, m) seconds of work whose cards may slow down.

    Args:
        busy_s: (S, m) seconds while they are fast.
        sent: Mbit that the worker's and the server's card send meanwhile.
        cards: of the m clusters.
        launch_s: (S, m) what their credits are good for at full speed.
    """
    result = with_nic_credits(busy_s, sent[0], cards.worker, cards.worker_sustained, launch_s)
    return with_nic_credits(result, sent[1], cards.server, cards.server_sustained, launch_s)
