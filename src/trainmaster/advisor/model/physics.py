"""The step-time model itself: parameters and shapes in, seconds out.

Lengths: S parameter vectors, m shapes of one kind; everything broadcasts to (S, m), inside to (m, S), because
fits have many more vectors than shapes. All but the level is relative to what one worker computes in a step.
Equations and symbols: docs/advisor.md. That compute and communication are combined by a p-norm is Pollux's
idea (Qiao et al., OSDI 2021, section 3.2); parameter servers that are linear first and saturated later are
FC2's knee (Ta, 2019, section 5.2.4) made smooth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from trainmaster.advisor.model.priors import INDEX, NAMES, achieved_bytes_per_second
from trainmaster.advisor.model.shapes import ASYNCHRONOUS, Floats, MeasuredContext, Shapes

#: What limits a shape, in the words of somebody who trains models.
WORDS: Final[dict[str, str]] = {
    "compute": "compute: the workers' devices are busy nearly all the time",
    "input": "input: a node cannot feed or run its workers fast enough",
    "straggle": "stragglers: every step waits for the slowest worker",
    "intra": "links inside the node: gradients between its devices",
    "hop_intra": "coordination inside the node: fixed cost of each exchange",
    "nic": "network between nodes: bandwidth for the gradients",
    "hop_inter": "coordination between nodes: fixed cost of each exchange",
    "trips": "network latency: workers wait for round trips",
    "fan": "parameter servers: each worker exchanges with every one of them",
    "server": "parameter server: its processors are saturated by updates",
    "shared": "parameter server: updates that more servers do not divide",
    "server_nic": "parameter server: its network card is saturated by updates",
}
#: The parts that can be taken as free of cost, by whether there are servers.
PARTS: Final = {
    False: ("compute", "input", "straggle", "intra", "hop_intra", "nic", "hop_inter", "trips"),
    True: ("compute", "straggle", "trips", "fan", "server", "shared", "server_nic"),
}
#: No part of a step is shorter than this share of one worker's compute.
_LEAST: Final = 1e-12
#: What a card of unknown rate is taken for, Mbit/s: priors of the network are those of such cards.
COMMON_MBPS: Final = 10_000.0


def step_time(theta: Floats, shapes: Shapes, free: str = "", slowness: Floats | float = 1.0) -> Floats:
    """Seconds per step (per global step for asynchronous parameter servers).

    Args:
        theta: (S, P) parameters in the order of ``priors.NAMES`` of the shapes' kind.
        shapes: of length m, all of one kind.
        free: the part (of ``PARTS``) to be taken as free of cost; empty for none.
        slowness: broadcast to (S, m): compute time of these devices over that of the measured one.

    Returns:
        (S, m) seconds, positive.
    """
    return np.exp(log_time(theta, shapes, free, slowness), order="C")


def log_time(theta: Floats, shapes: Shapes, free: str = "", slowness: Floats | float = 1.0) -> Floats:
    """The logarithm of `step_time`."""
    par, x = _columns(theta, shapes)
    compute = _log_compute(par, x, free) + np.log(np.atleast_2d(slowness)).T
    formula = _servers if x.kind.any() else _allreduce
    return np.asarray((par["level"] + formula(par, x, compute, free)).T, dtype=float)


def own_time(theta: Floats, shapes: Shapes) -> Floats:
    """(S, m) seconds that a worker needs for itself: no step is shorter (of one worker, if asynchronous)."""
    par, x = _columns(theta, shapes)
    alone = np.exp(par["level"] + _log_compute(par, x, ""))
    return np.ascontiguousarray((alone / x.workers if (x.kind == ASYNCHRONOUS).any() else alone).T)


def _columns(theta: Floats, shapes: Shapes) -> tuple[dict[str, Floats], Shapes]:
    """(S,) each parameter by its name, and shapes with columns (m, 1)."""
    kind = int(shapes.kind.max(initial=0))
    return dict(zip(NAMES[kind], np.ascontiguousarray(theta.T), strict=True)), shapes.upright


def name_bottlenecks(theta: Floats, shapes: Shapes, slowness: Floats | float = 1.0) -> tuple[str, ...]:
    """Name for each of m shapes the part whose absence would save most time, over (S, P) parameters."""
    parts = PARTS[bool(shapes.kind.max(initial=0))]
    left = np.array([log_time(theta, shapes, part, slowness).mean(0) for part in parts])
    return tuple(WORDS[parts[i]] for i in left.argmin(axis=0).tolist())


def gradient_bytes(theta: Floats, kind: int, context: MeasuredContext) -> Floats:
    """(S, 1) bytes that one exchange of gradients sends between machines, as the times tell."""
    if np.isfinite(context.gradient):
        return np.full((len(theta), 1), context.gradient)
    par = dict(zip(NAMES[kind], theta.T[:, :, None], strict=True))
    seconds = par["wire"] + np.log(1 - _card_share(par)) if kind else par["rho_out"]
    rate = achieved_bytes_per_second(context.nic if np.isfinite(context.nic) else COMMON_MBPS)
    return np.asarray(np.exp(par["level"] + seconds) * rate, dtype=float)


def flatness(theta: Floats) -> Floats:
    """(S, 1) all-reduce over several nodes: from 0, a ring of the nodes, to 1, one ring of all workers."""
    return _logistic(theta[:, INDEX[0]["flat"], None])


def _log_compute(par: Mapping[str, Floats], x: Shapes, free: str) -> Floats:
    """What a worker computes: from affine in the batch to a roofline, with what n of them cost each other."""
    if free == "compute":
        return np.full((len(x), 1), np.log(_LEAST))
    total = np.zeros((len(x), 1))
    sizes, which = x.batches
    if sizes.any():
        k = 1 + np.exp(par["knee"]) if "knee" in par else 1.0
        fixed = k * par["fixed"]
        total = ((_log_sum(fixed, k * sizes[:, None]) - _log_sum(fixed, 0.0)) / k)[which]
    if "contend" in par and free != "input" and (x.per_node > 1).any():
        total = total + np.exp(par["contend"]) * np.log(x.per_node)
    if free != "straggle":
        total = total + np.exp(par["straggle"]) * np.log(x.workers)
    return np.asarray(total, dtype=float)


def _allreduce(par: Mapping[str, Floats], x: Shapes, compute: Floats, free: str) -> Floats:
    """Rings within the nodes and between them, in part one flat ring; latency cannot hide."""
    r, nodes = x.per_node, x.nodes
    several = nodes > 1
    traffic = np.full((len(x), 1), _LEAST)
    inside = bool((r > 1).any())
    if inside:
        if free != "intra":
            traffic = traffic + np.exp(par["rho_in"]) * (2 * (r - 1) / r * x.gradient)
        if free != "hop_intra":
            traffic = traffic + np.exp(par["hop_in"]) * (r - 1)
    wait: Floats | float = 0.0
    if several.any():
        if free != "nic":
            grown, ring = par["crowd"] * np.log(np.maximum(nodes / 2, 1)), nodes
            if inside:
                log_r = np.log(r)
                grown = grown + par["share"] * log_r
                ring = nodes * np.exp(_logistic(par["flat"]) * log_r)
            sent = np.where(several, 2 - 2 / ring, 0.0)
            traffic = traffic + np.exp(par["rho_out"] + grown) * sent * (x.gradient / x.nic)
        rounds = np.exp(1.2 * _logistic(par["rounds"]) * np.log(np.maximum(nodes - 1, 1))) * several
        if free != "hop_inter":
            traffic = traffic + np.exp(par["hop_out"]) * rounds
        if free != "trips" and x.latency.any():
            wait = np.exp(par["trips"]) * rounds * x.latency
    exposed = _logistic(par["exposed"])
    g = 1 + np.minimum(np.exp(par["overlap"]), 9)
    hidden = np.log(1 - exposed) + compute
    together = hidden + _log_sum(0.0, g * (np.log(traffic) - hidden)) / g
    return np.asarray(np.log(exposed * np.exp(compute) + np.exp(together) + wait), dtype=float)


def _servers(par: Mapping[str, Floats], x: Shapes, compute: Floats, free: str) -> Floats:
    """Workers' cycles, with an exchange per server, and updates that queue there: the longer wins, softly."""
    if free != "trips" and x.latency.any():
        compute = _log_sum(compute, par["trips"] + np.log(np.maximum(x.latency, _LEAST)))
    if "fan" in par and free != "fan" and (x.servers > 1).any():
        compute = _log_sum(compute, par["fan"] + np.log(np.maximum(x.servers - 1, _LEAST)))
    loads, which = x.loads  # one logarithm for all shapes with as many bytes and servers
    sent, servers = loads.T[:, :, None]
    wire = _card_share(par)
    push = (wire * sent * (free != "server_nic")) + (1 - wire) * (free != "server")
    split = 1 / servers + np.exp(par["shared"]) * (free != "shared")
    served = par["serve"] + np.log(np.maximum(push * split, _LEAST))[which]
    served = served + par["pile"] * np.log(x.workers)
    if (x.kind == ASYNCHRONOUS).all():
        compute = compute - np.log(x.workers)
    else:
        served = served + np.log(x.workers)
    g = 1 + np.minimum(np.exp(par["queue"]), 9)
    return np.asarray(_log_sum(g * compute, g * served) / g, dtype=float)


def _log_sum(a: Floats | float, b: Floats | float) -> Floats:
    """log(e^a + e^b): a third of what `np.logaddexp` takes, whose loop is not vectorised."""
    return np.asarray(np.maximum(a, b) + np.log1p(np.exp(-np.abs(a - b))), dtype=float)


def _card_share(par: Mapping[str, Floats]) -> Floats:
    """Of an update, what the server's card takes: its own seconds, and never more than all of it."""
    return _logistic(par["wire"] - par["serve"])


def _logistic(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)), dtype=float)
