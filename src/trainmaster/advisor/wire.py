"""How long network cards send in a step: what their credits are spent on."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainmaster.advisor.credits import with_nic_credits
from trainmaster.advisor.pairs import Cards
from trainmaster.advisor.priors import INDEX
from trainmaster.advisor.shapes import Floats, Shapes

_ASYNCHRONOUS: Final = 2


def sending_s(theta: Floats, shapes: Shapes) -> tuple[Floats, Floats]:
    """Seconds per step that a worker's card and a server's send, (S, m) each; as much comes in.

    A ring between N nodes takes ``2 (N-1)/N`` gradients through each card; with servers, each worker sends
    one to them, shared out, and gets one back.

    Args:
        theta: (S, P) log parameters.
        shapes: of length m; their rate is that of the slower card.
    """
    natural = np.exp(theta)
    one = (natural[:, INDEX["gradient"]] / natural[:, INDEX["nic"]])[:, None] * shapes.gradient / shapes.nic
    has_servers = shapes.kind > 0
    ring = np.where(shapes.nodes > 1, 2 * (shapes.nodes - 1) / shapes.nodes, 0.0)
    each = np.where(shapes.kind == _ASYNCHRONOUS, shapes.workers, 1.0)  # global steps: one worker's at a time
    worker: Floats = one * np.where(has_servers, shapes.per_node, ring) / each
    server: Floats = one * np.where(has_servers, shapes.workers / shapes.servers, 0.0) / each
    return worker, server


def slowed(busy_s: Floats, sending: tuple[Floats, Floats], cards: Cards, launch_s: Floats) -> Floats:
    """(S, m) seconds of work whose cards may slow down.

    Args:
        busy_s: (S, m) seconds while they are fast.
        sending: seconds of these that the worker's and the server's card send.
        cards: of the m clusters.
        launch_s: (S, m) what their credits are good for at full speed.
    """
    result = with_nic_credits(busy_s, sending[0], cards.rate, cards.worker, cards.worker_sustained, launch_s)
    return with_nic_credits(result, sending[1], cards.rate, cards.server, cards.server_sustained, launch_s)
