"""The step-time model itself: parameters and shapes in, seconds out.

Lengths: S parameter vectors, m shapes; everything broadcasts to (S, m).
Equations and symbols: docs/advisor.md. The combination of compute and communication by a p-norm
is Pollux's (Qiao et al., OSDI 2021, section 3.2); linear-then-saturated parameter servers are
FC2's knee (Ta, 2019, section 5.2.4) made smooth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainmaster.advisor.model.priors import INDEX, NAMES
from trainmaster.advisor.model.shapes import Floats, Shapes

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
    "server": "parameter server: its processors are saturated by updates",
    "shared": "parameter server: updates that more servers do not divide",
    "server_nic": "parameter server: its network card is saturated by updates",
}


@dataclass(frozen=True)
class _Parameters:
    """The columns of theta, each (S, 1), out of the logarithm."""

    compute: Floats
    fixed: Floats
    input: Floats
    straggle: Floats
    overlap: Floats
    exposed: Floats
    queueing: Floats
    burst: Floats
    gradient: Floats
    nic: Floats
    congestion: Floats
    intra: Floats
    hop_intra: Floats
    hop_inter: Floats
    hop_flat: Floats
    rounds: Floats
    trips: Floats
    server: Floats
    shared: Floats
    flat: Floats


def step_time(theta: Floats, shapes: Shapes, free: str = "", slowness: Floats | float = 1.0) -> Floats:
    """Seconds per step (per global step for asynchronous parameter servers).

    Args:
        theta: (S, P) log parameters in the order of ``priors.NAMES``.
        shapes: of length m.
        free: the part (see `bottleneck`) to be taken as free of cost; empty for none.
        slowness: broadcast to (S, m): compute time of these devices over that of the measured one.

    Returns:
        (S, m) seconds, positive.
    """
    natural = np.exp(theta)
    par = _Parameters(**{name: natural[:, INDEX[name], None] for name in NAMES})
    compute = _compute(par, shapes, free) * slowness
    out = np.empty(compute.shape)
    for rows, formula in (
        (shapes.kind == 0, _allreduce),
        (shapes.kind > 0, _parameter_server),
    ):
        if rows.all():
            return formula(par, shapes, compute, free)
        if rows.any():
            out[:, rows] = formula(par, shapes[rows], compute[:, rows], free)
    return out


def name_bottlenecks(theta: Floats, shapes: Shapes, slowness: Floats | float = 1.0) -> tuple[str, ...]:
    """Name for each shape the part whose absence would save most time.

    Args:
        theta: (P,) log parameters.
        shapes: of length m.
        slowness: as in ``step_time``.
    """
    vector = theta[None]
    parts = [part for part in WORDS if part != "server_nic"]
    left = np.array([step_time(vector, shapes, free=part, slowness=slowness)[0] for part in parts])
    worst = left.argmin(axis=0)
    has_server = shapes.kind > 0
    names = []
    for index, server in zip(worst.tolist(), has_server.tolist(), strict=True):
        part = parts[index]
        names.append(WORDS["server_nic" if server and part == "nic" else part])
    return tuple(names)


def own_time(theta: Floats, shapes: Shapes) -> Floats:
    """(S, m) seconds that a worker needs for itself: no step is shorter (of one worker, if asynchronous)."""
    natural = np.exp(theta)
    par = _Parameters(**{name: natural[:, INDEX[name], None] for name in NAMES})
    return _compute(par, shapes, "") / np.where(shapes.kind == 2, shapes.workers, 1.0)


def _compute(par: _Parameters, x: Shapes, free: str) -> Floats:
    """One worker's own time: device and input pipeline, the slower wins (softly)."""
    device = par.compute * (par.fixed + x.batch) / (par.fixed + 1)
    if free == "compute":
        device = device * 1e-6
    if free == "input":
        return device
    feed = par.compute * par.input * (x.batch * x.per_node)
    return _norm(device, feed, 4.0)


def _straggle(par: _Parameters, x: Shapes, free: str) -> Floats:
    """How much the slowest of n workers is behind one worker: expected maximum of n normals."""
    if free == "straggle":
        return np.ones((len(par.compute), len(x)))
    return 1 + par.straggle * np.sqrt(2 * np.log(x.workers))


def _allreduce(par: _Parameters, x: Shapes, compute: Floats, free: str) -> Floats:
    """Rings within the nodes and between them, in part one flat ring; latency cannot hide."""
    r, nodes = x.per_node, x.nodes
    gradient = par.gradient * x.gradient
    rounds = _rounds(par, x)
    traffic = np.zeros_like(compute)
    if free != "intra":
        traffic += gradient / par.intra * (2 * (r - 1) / r)
    if free != "hop_intra":
        traffic += par.hop_intra * (r - 1)
    if free != "nic":
        crowd = np.exp(par.congestion * np.log(np.maximum(nodes / 2, 1)))
        flat = par.flat / (1 + par.flat)  # one ring of all workers sends nearly all of it from two nodes on
        share = np.where(nodes > 1, 2 - 2 / (nodes * np.exp(flat * np.log(r))), 0.0)
        traffic += gradient / par.nic * crowd * share / x.nic
    if free != "hop_inter":
        traffic += par.hop_inter * rounds + par.hop_flat * np.where(nodes > 1, x.workers - 1, 0)
    compute = compute * _straggle(par, x, free)
    g = 1 + np.minimum(par.overlap, 9.0)
    exposed = par.exposed / (1 + par.exposed)
    time = exposed * compute + _norm((1 - exposed) * compute, traffic, g)
    if free != "trips":
        time = time + par.trips * rounds * x.latency
    return time


def _rounds(par: _Parameters, x: Shapes) -> Floats:
    many = x.nodes > 1
    return np.where(many, np.exp(par.rounds * np.log(np.where(many, x.nodes - 1, 1))), 0.0)


def _parameter_server(par: _Parameters, x: Shapes, compute: Floats, free: str) -> Floats:
    """A worker's cycle C alone, and its wait for the pushes S of the others at the servers.

    ``(C^g + (n^g - 1) S^g)^(1/g)``: C for one worker, n S for many. With g = 1 it is Optimus' speed
    function (Peng et al., EuroSys 2018, section 3.2), with g = 10 nearly the
    bound min(n / cycle, 1 / push) of a closed queueing network. A worker alone never queues.
    """
    gradient = par.gradient * x.gradient
    wire = gradient / (par.nic * x.nic) * (0.0 if free == "nic" else 1.0)
    processor = gradient * par.server * (0.0 if free == "server" else 1.0)
    share = 1 / x.servers + par.shared * (0.0 if free == "shared" else 1.0)
    barrier = x.kind == 1  # all push at once, then all pull: the phases add up and collide
    crowd = np.where(barrier, np.exp(par.congestion * np.log(x.workers)), 1.0)
    push = np.where(barrier, 2 * wire * crowd + processor, _norm(wire, processor, 4.0)) * share
    cycle = compute * np.where(barrier, _straggle(par, x, free), 1.0)
    cycle = cycle + np.maximum(2 * wire * x.per_node, (2 * wire + processor) * share)
    if free != "trips":
        cycle = cycle + par.trips * x.latency
    g = 1 + np.minimum(np.where(barrier, par.burst, par.queueing), 9.0)
    queue = np.expm1(g * np.log(x.workers)) * np.exp(g * np.log(np.maximum(push / cycle, 1e-30)))
    time = cycle * np.exp(np.log1p(queue) / g)
    return time / np.where(x.kind == 2, x.workers, 1.0)


def _norm(a: Floats, b: Floats, g: Floats | float) -> Floats:
    """``(a^g + b^g)^(1/g)`` without overflow: between ``a + b`` (g = 1) and the maximum."""
    high = np.maximum(a, b)
    low = np.minimum(a, b)
    ratio = low / np.maximum(high, 1e-300)
    if isinstance(g, float) and g == 4.0:
        square = ratio * ratio
        return high * np.sqrt(np.sqrt(1 + square * square))
    return high * np.exp(np.log1p(np.exp(g * np.log(np.maximum(ratio, 1e-300)))) / g)
