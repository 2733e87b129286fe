"""What is believed of a job before it is measured: one row per parameter of the step-time model.

All but the level is relative to one worker's compute, so that jobs of all lengths can be compared. The
numbers were learnt from published tables and simulated jobs by `experience.py`;
``benchmarks/replay/sources.py`` learns them without one source after the other, and predicts that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from trainmaster.advisor.model.discrepancy import AMPLITUDES, NOISES
from trainmaster.advisor.model.shapes import ASYNCHRONOUS, Bools, Columns, Floats, MeasuredContext
from trainmaster.dataclass import dataclass

#: The value of a term that is absent: of a logarithm (of an exponent it is 0).
ABSENT: Final = -9.0
#: Exponents that may have either sign, and how far they may go.
EXPONENTS: Final = ("crowd", "share", "pile")
_LEAST_EXPONENT: Final = -0.6
_MOST: Final[Mapping[str, float]] = {
    "fixed": 6.0,
    "contend": -0.3,
    "straggle": -0.3,
    "crowd": 1.0,
    "share": 1.2,
    "knee": 2.2,
    "exposed": 5.0,
    "flat": 5.0,
    "rounds": 5.0,
    "pile": 0.8,
    "shared": 3.0,
}
#: Prior: name, mean, spread, slopes on the job's `traits`, probability that the term is absent.
_Rows = tuple[tuple[str, float, float, float, float, float, float], ...]

_ALLREDUCE: Final[_Rows] = (
    ("fixed", -1.57, 0.96, -0.31, -0.16, -0.98, 0.0),  # constant part of compute : what grows with the batch
    ("knee", -0.98, 1.11, 0.0, 0.0, 0.0, 0.0),  # how sharply the first ends and the second begins
    ("rho_in", -2.91, 0.97, -0.17, -0.18, -0.95, 0.0),  # gradient over the links inside a node
    ("hop_in", -4.11, 1.44, -0.33, -0.28, -1.0, 0.58),  # one more hop there
    ("contend", -3.92, 0.95, 0.0, -0.26, 0.0, 0.36),  # exponent of the workers of a node: they share it
    ("rho_out", -1.6, 1.33, -0.49, 0.0, -1.04, 0.0),  # gradient over a node's network card
    ("crowd", 0.0, 0.21, 0.0, 0.0, 0.0, 0.58),  # exponent of the nodes of that
    ("share", 0.09, 0.23, 0.0, 0.0, 0.0, 0.55),  # exponent of the workers of a node of that
    ("hop_out", -3.83, 1.54, -0.26, 0.0, -1.03, 0.41),  # one more round between nodes
    ("rounds", -0.1, 1.01, 0.0, 0.11, 0.0, 0.0),  # rounds = (nodes - 1) ^ (1.2 logistic)
    ("straggle", -3.37, 0.96, 0.0, -0.35, 0.0, 0.53),  # exponent of all workers: the slowest is waited for
    ("overlap", -0.05, 1.0, 0.0, 0.21, 0.0, 0.0),  # 0: compute + communication, 9: the larger one
    ("exposed", -0.83, 0.99, 0.0, 0.0, 0.0, 0.0),  # logistic: compute that nothing hides behind
    ("trips", 2.2, 1.2, 0.0, 0.1, 0.0, 0.0),  # one-way latencies per round: of a buffer, or of each tensor
    ("flat", -0.59, 1.35, 0.0, 0.3, 0.0, 0.0),  # logistic: a ring of the nodes, or of all workers
)
_SYNCHRONOUS: Final[_Rows] = (
    ("fixed", -2.01, 1.06, -0.19, 0.0, -0.89, 0.0),
    ("serve", -2.33, 1.04, -0.44, 0.0, -0.18, 0.0),  # one update at one server
    ("queue", 0.04, 1.15, 0.12, 0.0, -0.7, 0.0),  # 0: cycle + updates, 9: the larger one
    ("straggle", -2.39, 0.66, -0.68, 0.0, 0.28, 0.14),
    ("pile", 0.01, 0.05, 0.0, 0.0, 0.0, 0.52),  # exponent of the workers of an update
    ("shared", -2.64, 0.82, 0.29, 0.0, 0.06, 0.06),  # part of an update that more servers do not shorten
)
_ASYNCHRONOUS: Final[_Rows] = (
    ("fixed", -1.47, 0.93, -0.47, 0.0, -0.95, 0.0),
    ("serve", -2.42, 0.81, 0.16, 0.0, -0.47, 0.0),
    ("queue", -0.13, 1.19, -0.41, 0.0, 0.41, 0.0),
    ("straggle", -3.0, 0.82, -0.19, 0.0, 0.0, 0.28),
    ("pile", 0.0, 0.05, 0.0, 0.0, 0.0, 0.47),
    ("shared", -2.82, 0.97, 0.0, 0.0, -0.1, 0.24),
)
#: A second opinion of parameter servers, wide and simple; the job's own evidence decides between both.
_WIDE: Final[_Rows] = (
    ("fixed", -0.85, 1.5, 0.0, 0.0, 0.0, 0.0),
    ("serve", -2.3, 1.5, 0.0, 0.0, 0.0, 0.0),
    ("queue", 0.0, 0.7, 0.0, 0.0, 0.0, 0.0),
    ("straggle", -3.5, 0.8, 0.0, 0.0, 0.0, 0.5),
    ("pile", 0.0, 0.05, 0.0, 0.0, 0.0, 0.9),
    ("shared", -2.8, 1.0, 0.0, 0.0, 0.0, 0.3),
)
#: What times alone do not tell of servers: one update at their card, trips of a cycle.
_SERVERS_TOO: Final[_Rows] = (
    ("wire", -2.3, 1.5, 0.0, 0.0, 0.0, 0.0),
    ("trips", 1.4, 1.0, 0.0, 0.0, 0.0, 0.0),
)
#: One more server that a worker exchanges with. Only where workers wait for all: no asynchronous job was
#: measured with several servers.
_FAN_OUT: Final[_Rows] = (("fan", -4.41, 1.35, -0.49, 0.0, -0.93, 0.49),)
#: Probabilities of `AMPLITUDES` and `NOISES`.
_MARGINS: Final = (
    ((0.31, 0.34, 0.25, 0.10), (0.46, 0.36, 0.15, 0.02)),
    ((0.23, 0.34, 0.29, 0.14), (0.34, 0.43, 0.20, 0.03)),
    ((0.14, 0.32, 0.35, 0.18), (0.27, 0.45, 0.25, 0.02)),
)
NAMES: Final = tuple(
    ("level", *(row[0] for row in rows))
    for rows in (_ALLREDUCE, (*_SYNCHRONOUS, *_SERVERS_TOO, *_FAN_OUT), (*_ASYNCHRONOUS, *_SERVERS_TOO))
)
INDEX: Final = tuple({name: i for i, name in enumerate(names)} for names in NAMES)

#: Mean and spread of the network's parameters where it is unknown whether the workers share a node.
_ANY_LINK: Final = {"rho_out": (-2.3, 1.6), "hop_out": (-4.0, 1.8)}
#: Spread of ``rho_out`` or ``wire`` where gradient and network card are known.
_KNOWN_SPREAD: Final = 0.45
#: Published steps of several nodes are about this long (`traits`). How what a network costs follows from the
#: length of shorter ones is an extrapolation, whose slope may be off by half, its own size.
_PUBLISHED: Final = 1.0
_SLOPE_DOUBT: Final = 0.5
_EXTRAPOLATED: Final = ("rho_out", "hop_out")
#: Traits of a job count so far only, log: its step, in units of `TYPICAL_STEP_S`.
TYPICAL_STEP_S: Final = 0.2
_SHORTEST: Final = -3.5
_LONG: Final = 2.3
_LONGEST: Final = 6.0


@dataclass(frozen=True)
class Prior:
    """Of the parameters of a kind of job, but for the level.

    Attributes:
        rows: (4, P) mean for a job whose `traits` are zero, and slopes on these.
        spread: (P,) standard deviation, of a mixture with `HEAVY` draws of twice that.
        absent: (P,) probability that a term is absent.
        grid: (A, S) probabilities of amplitudes and noises.
    """

    rows: Floats
    spread: Floats
    absent: Floats
    grid: Floats

    @classmethod
    def of(cls, rows: _Rows, grid: Floats) -> Prior:
        """Out of a table."""
        table = np.array([row[1:] for row in rows])
        return cls(table[:, [0, 2, 3, 4]].T, table[:, 1], table[:, 5], grid / grid.sum())

    def mean(self, traits: Floats) -> Floats:
        """(P,) for a job with these traits."""
        return np.asarray(self.rows[0] + traits @ self.rows[1:], dtype=float)


_HUMPS: Final = (
    np.exp(-0.5 * (np.log(AMPLITUDES / 0.08) / 0.7) ** 2),
    np.exp(-0.5 * (np.log(NOISES / 0.03) / 0.8) ** 2),
)
#: Probabilities of amplitudes and noises as people have them.
PEOPLE: Final = np.multiply.outer(*(each / each.sum() for each in _HUMPS))


def doubted(grid: Floats) -> Floats:
    """Half of learnt probabilities, half of `PEOPLE`'s.

    Published figures are means of long runs of tuned jobs on quiet machines.
    """
    return np.asarray((grid / grid.sum() + PEOPLE) / 2, dtype=float)


def shipped(kind: int) -> tuple[Prior, ...]:
    """The priors of one kind of job; each gets the same share of the draws, their evidence decides."""
    grid = np.multiply.outer(*map(np.array, _MARGINS[kind]))
    if not kind:
        return (Prior.of(_ALLREDUCE, grid),)
    is_async = kind == ASYNCHRONOUS
    more = _SERVERS_TOO if is_async else (*_SERVERS_TOO, *_FAN_OUT)
    both = (_ASYNCHRONOUS if is_async else _SYNCHRONOUS, grid), (_WIDE, PEOPLE)
    return tuple(Prior.of((*rows, *more), g) for rows, g in both)


def shortest_s(columns: Columns, times: Floats) -> float:
    """The shortest step of one worker with the typical batch, as far as it was measured.

    Where gradients are accumulated, a step takes as long as its batch is large.
    """
    alone = times * columns.workers if columns.kind[0] == ASYNCHRONOUS else times
    typical = MeasuredContext.of(columns).batch
    return float((alone * np.fmax(typical / columns.batch, 1.0)).min())


def traits(columns: Columns, shortest_s: float) -> Floats:
    """(3,) what priors follow: log length of a step, log workers of a node, and log length of long steps.

    Args:
        columns: what was measured.
        shortest_s: the shortest of its steps.
    """
    length = np.log(shortest_s / TYPICAL_STEP_S)
    per_node = np.ceil(columns.workers / np.fmax(np.fmin(columns.nodes, columns.workers), 1))
    most = np.log(np.nanmax(per_node, initial=1.0)) if columns.kind.max() == 0 else 0.0
    return np.array([np.clip(length, _SHORTEST, _LONG), most, np.clip(length - _LONG, 0, _LONGEST)])


def informed(kind: int, prior: Prior, at: Floats, shortest_s: float, context: MeasuredContext) -> Prior:
    """The prior of one job, with what is known of its network; slopes no longer count.

    Args:
        kind: of the job.
        prior: of such jobs.
        at: its `traits`.
        shortest_s: its shortest step.
        context: what its measured rows have in common.
    """
    mean, spread, names = prior.mean(at), prior.spread.copy(), NAMES[kind][1:]
    mean[names.index("trips")] -= np.log(shortest_s)
    for name in () if kind else _EXTRAPOLATED:
        i = names.index(name)
        spread[i] = np.hypot(spread[i], _SLOPE_DOUBT * min(at[0] - _PUBLISHED, 0.0))
    if not kind and not context.nodes_known:  # the "network" may be the inside of one machine
        for name, (middle, width) in _ANY_LINK.items():
            i = names.index(name)
            mean[i] += middle - prior.rows[0, i]
            spread[i] = width
    if np.isfinite(context.gradient) and np.isfinite(context.nic):
        wire = np.log(context.gradient / achieved_bytes_per_second(context.nic) / shortest_s)
        i = names.index("wire" if kind else "rho_out")
        mean[i], spread[i] = wire, _KNOWN_SPREAD
        if kind:  # no update is shorter than what its bytes take
            serve = names.index("serve")
            mean[serve] = max(mean[serve], wire)
    return Prior(np.vstack([mean, np.zeros((3, len(mean)))]), spread, prior.absent, prior.grid)


def priors_of(
    columns: Columns, times: Floats, context: MeasuredContext, priors: tuple[Prior, ...]
) -> tuple[Prior, ...]:
    """Those of one job, from those of such jobs, by what was measured of it."""
    kind, shortest = int(columns.kind[0]), shortest_s(columns, times)
    at = traits(columns, shortest)
    return tuple(informed(kind, prior, at, shortest, context) for prior in priors)


def bounded(kind: int, theta: Floats, absent: Bools) -> Floats:
    """(S, P) parameters within what can be, and at nothing where ``absent`` (S, P) says so."""
    names = NAMES[kind][1:]
    exponents = np.array([name in EXPONENTS for name in names])
    low = np.where(exponents, _LEAST_EXPONENT, -12.0)
    high = np.array([_MOST.get(name, 8.0) for name in names])
    return np.where(absent, np.where(exponents, 0.0, ABSENT), np.clip(theta, low, high))


def achieved_bytes_per_second(nic_mbps: float) -> float:
    """What collectives achieve of a network card: 85 % at 1 Gbit/s, 64 % at 10, 49 % at 100."""
    return float(min(0.85 * (nic_mbps / 1000) ** -0.12, 0.95) * nic_mbps * 1e6 / 8)
