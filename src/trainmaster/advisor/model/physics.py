"""The step-time model itself: parameters and shapes in, seconds out.

Lengths: S parameter vectors, m shapes of one kind; everything broadcasts to (S, m). All but the level is
relative to what one worker computes in a step. Equations and symbols: docs/advisor.md. That compute and
communication are combined by a p-norm is Pollux's idea (Qiao et al., OSDI 2021, section 3.2); parameter
servers that are linear first and saturated later are FC2's knee (Ta, 2019, section 5.2.4) made smooth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from trainmaster.advisor.model.priors import INDEX, achieved_bytes_per_second
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
#: What a card of unknown rate is taken for where bytes are asked for, Mbit/s.
_COMMON_MBPS: Final = 10_000.0


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
    return np.exp(log_time(theta, shapes, free, slowness))


def log_time(theta: Floats, shapes: Shapes, free: str = "", slowness: Floats | float = 1.0) -> Floats:
    """The logarithm of `step_time`."""
    kind = int(shapes.kind.max(initial=0))
    par = {name: theta[:, i, None] for name, i in INDEX[kind].items()}
    compute = _log_compute(par, shapes, free) + np.log(slowness)
    formula = _servers if kind else _allreduce
    return np.asarray(par["level"] + formula(par, shapes, compute, free), dtype=float)


def own_time(theta: Floats, shapes: Shapes) -> Floats:
    """(S, m) seconds that a worker needs for itself: no step is shorter (of one worker, if asynchronous)."""
    kind = int(shapes.kind.max(initial=0))
    par = {name: theta[:, i, None] for name, i in INDEX[kind].items()}
    alone = np.exp(par["level"] + _log_compute(par, shapes, ""))
    return alone / shapes.workers if kind == ASYNCHRONOUS else alone


def name_bottlenecks(theta: Floats, shapes: Shapes, slowness: Floats | float = 1.0) -> tuple[str, ...]:
    """Name for each of m shapes the part whose absence would save most time, over (S, P) parameters."""
    parts = PARTS[bool(shapes.kind.max(initial=0))]
    left = np.array([log_time(theta, shapes, part, slowness).mean(0) for part in parts])
    return tuple(WORDS[parts[i]] for i in left.argmin(axis=0).tolist())


def gradient_bytes(theta: Floats, kind: int, context: MeasuredContext) -> Floats:
    """(S, 1) bytes that one exchange of gradients sends between machines, as the times tell."""
    if np.isfinite(context.gradient):
        return np.full((len(theta), 1), context.gradient)
    par = {name: theta[:, i, None] for name, i in INDEX[kind].items()}
    seconds = par["wire"] + np.log(1 - _card_share(par)) if kind else par["rho_out"]
    rate = achieved_bytes_per_second(context.nic if np.isfinite(context.nic) else _COMMON_MBPS)
    return np.asarray(np.exp(par["level"] + seconds) * rate, dtype=float)


def flatness(theta: Floats) -> Floats:
    """(S, 1) all-reduce over several nodes: from 0, a ring of the nodes, to 1, one ring of all workers."""
    return _logistic(theta[:, INDEX[0]["flat"], None])


def _log_compute(par: Mapping[str, Floats], x: Shapes, free: str) -> Floats:
    """What a worker computes: from affine in the batch to a roofline, with what n of them cost each other."""
    if free == "compute":
        return np.full((1, len(x)), np.log(_LEAST))
    total = np.zeros((1, len(x)))
    batch = np.log(x.batch)
    if batch.any():
        k = 1 + np.exp(par["knee"]) if "knee" in par else 1.0
        fixed = k * par["fixed"]
        total = (np.logaddexp(fixed, k * batch) - np.logaddexp(fixed, 0)) / k
    if "contend" in par and free != "input":
        total = total + np.exp(par["contend"]) * np.log(x.per_node)
    if free != "straggle":
        total = total + np.exp(par["straggle"]) * np.log(x.workers)
    return np.asarray(total, dtype=float)


def _allreduce(par: Mapping[str, Floats], x: Shapes, compute: Floats, free: str) -> Floats:
    """Rings within the nodes and between them, in part one flat ring; latency cannot hide."""
    r, nodes = x.per_node, x.nodes
    several = nodes > 1
    traffic = np.full((1, len(x)), _LEAST)
    if (r > 1).any():
        if free != "intra":
            traffic = traffic + np.exp(par["rho_in"]) * (2 * (r - 1) / r * x.gradient)
        if free != "hop_intra":
            traffic = traffic + np.exp(par["hop_in"]) * (r - 1)
    wait: Floats | float = 0.0
    if several.any():
        log_r = np.log(r)
        if free != "nic":
            grown = par["crowd"] * np.log(np.maximum(nodes / 2, 1)) + par["share"] * log_r
            sent = np.where(several, 2 - 2 / (nodes * np.exp(_logistic(par["flat"]) * log_r)), 0.0)
            traffic = traffic + np.exp(par["rho_out"] + grown) * sent * (x.gradient / x.nic)
        rounds = np.where(
            several, np.exp(1.2 * _logistic(par["rounds"]) * np.log(np.maximum(nodes - 1, 1))), 0.0
        )
        if free != "hop_inter":
            traffic = traffic + np.exp(par["hop_out"]) * rounds
        if free != "trips" and x.latency.any():
            wait = np.exp(par["trips"]) * rounds * x.latency
    exposed = _logistic(par["exposed"])
    g = 1 + np.minimum(np.exp(par["overlap"]), 9)
    hidden = np.log(1 - exposed) + compute
    together = hidden + np.logaddexp(0, g * (np.log(traffic) - hidden)) / g
    return np.asarray(np.log(exposed * np.exp(compute) + np.exp(together) + wait), dtype=float)


def _servers(par: Mapping[str, Floats], x: Shapes, compute: Floats, free: str) -> Floats:
    """Workers' cycles, with an exchange per server, and updates that queue there: the longer wins, softly."""
    if free != "trips" and x.latency.any():
        compute = np.logaddexp(compute, par["trips"] + np.log(np.maximum(x.latency, _LEAST)))
    if "fan" in par and free != "fan" and (x.servers > 1).any():
        compute = np.logaddexp(compute, par["fan"] + np.log(np.maximum(x.servers - 1, _LEAST)))
    wire = _card_share(par)
    push = (wire * x.gradient / x.nic * (free != "server_nic")) + (1 - wire) * (free != "server")
    split = 1 / x.servers + np.exp(par["shared"]) * (free != "shared")
    served = par["serve"] + np.log(np.maximum(push * split, _LEAST)) + par["pile"] * np.log(x.workers)
    if (x.kind == ASYNCHRONOUS).all():
        compute = compute - np.log(x.workers)
    else:
        served = served + np.log(x.workers)
    g = 1 + np.minimum(np.exp(par["queue"]), 9)
    return np.asarray(np.logaddexp(g * compute, g * served) / g, dtype=float)


def _card_share(par: Mapping[str, Floats]) -> Floats:
    """Of an update, what the server's card takes: its own seconds, and never more than all of it."""
    return _logistic(par["wire"] - par["serve"])


def _logistic(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)), dtype=float)
