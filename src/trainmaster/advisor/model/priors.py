"""What is believed of a job before it is measured: one row per parameter of the step-time model.

The medians and spreads are what clusters of the last ten years show: network cards from 1 to
400 Gbit/s of which collectives achieve 40-85 %, 5-300 GB/s between the devices of a node, tens
of microseconds to tens of milliseconds per hop, 1-2 GB/s of gradient per parameter server. They
are deliberately wide: a prior that is wrong by a factor of three must still contain the truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainmaster.advisor.model.experience import Experience
from trainmaster.advisor.model.shapes import Columns, Floats, MeasuredContext


@dataclass(frozen=True)
class Belief:
    """A log-normal prior.

    Attributes:
        median: in ``unit``.
        spread: standard deviation of the natural logarithm.
        follows_compute: exponent with which the median grows with the compute time of the job
            (a job with longer steps tends to have larger gradients and slower machines).
        unit, meaning: for the reader.
    """

    median: float
    spread: float
    follows_compute: float
    unit: str
    meaning: str


BELIEFS: Final[dict[str, Belief]] = {
    "compute": Belief(
        0.2, 1.5, 0.0, "s", "one worker's step at the reference batch; median replaced by the data"
    ),
    "fixed": Belief(0.2, 1.6, 0.0, "-", "constant part of compute : part that grows with the batch"),
    "input": Belief(0.04, 1.2, 0.0, "-", "time a node needs to feed one worker : compute"),
    "straggle": Belief(0.02, 0.8, 0.0, "-", "spread of the workers' compute times in one step"),
    "overlap": Belief(1.0, 0.9, 0.0, "-", "g - 1: 0 none, 10 all of the communication hides behind compute"),
    "exposed": Belief(
        0.4, 0.8, 0.0, "-", "compute that nothing hides behind (forward) : the rest (backward)"
    ),
    "queueing": Belief(1.0, 0.9, 0.0, "-", "g - 1 of the parameter servers' queue: 0 soft knee, 10 sharp"),
    "burst": Belief(0.3, 0.9, 0.0, "-", "g - 1 of a synchronous burst at the servers: 0 nothing hides"),
    "gradient": Belief(80e6, 0.9, 0.6, "B", "bytes of one gradient"),
    "nic": Belief(1.1e9, 1.0, 0.0, "B/s", "achieved rate of the network card of a node with one worker"),
    "congestion": Belief(0.08, 0.9, 0.0, "-", "exponent by which that rate falls with the nodes"),
    "intra": Belief(1.2e10, 1.1, 0.0, "B/s", "achieved rate between the devices of a node"),
    "hop_intra": Belief(2e-4, 1.3, 0.4, "s", "fixed cost of one hop in a node, all buckets"),
    "hop_inter": Belief(1.5e-3, 1.4, 0.5, "s", "fixed cost of one round between nodes, all buckets"),
    "hop_flat": Belief(
        1e-4, 1.8, 0.5, "s", "fixed cost of one worker more where several nodes form one ring"
    ),
    "rounds": Belief(0.6, 0.4, 0.0, "-", "rounds between N nodes = (N-1)^this: ring 1, tree about 0.5"),
    "trips": Belief(4.0, 1.0, 0.0, "-", "serial one-way trips per round"),
    "server": Belief(1e-9, 0.9, 0.0, "s/B", "parameter server's processor time per byte of a push"),
    "shared": Belief(0.06, 1.1, 0.0, "-", "part of a push that more servers do not shorten"),
    "flat": Belief(
        1.0, 1.2, 0.0, "-", "all-reduce over several nodes: one ring of all workers : a ring of the nodes"
    ),
}
NAMES: Final = tuple(BELIEFS)
INDEX: Final = {name: i for i, name in enumerate(NAMES)}

#: Where ``follows_compute`` is anchored: the medians of the table are those of a step of this length.
TYPICAL_COMPUTE_S: Final = 0.2
#: Steps longer than this are long because of their batch or accumulated gradients, not because of the model.
LONGEST_COMPUTE_S: Final = 2.0
#: A node with more devices is sold with a faster network card: exponent of the devices per node.
NIC_PER_DEVICE: Final = 0.5


#: Median gradient, bytes, of jobs that are run with parameter servers: they keep up to ten workers busy.
SERVER_GRADIENT: Final = 25e6

#: Median and spread of the network's parameters where it is unknown whether the workers share a node.
ANY_LINK: Final = {"nic": (2.5e9, 1.5), "hop_inter": (7e-4, 1.7)}


@dataclass(frozen=True)
class Prior:
    """Normal prior of the log parameters: ``theta = mean + root @ z`` with z standard normal.

    Attributes:
        mean: (P,). root: (P, P), lower triangular.
    """

    mean: Floats
    root: Floats

    @classmethod
    def of(cls, columns: Columns, context: MeasuredContext, times: Floats) -> Prior:
        """The prior of a job, given what is known of it.

        Args:
            columns: measured shapes.
            context: their typical values; a known NIC or gradient makes its prior narrow.
            times: (n,) measured seconds per step; only their scale is used.
        """
        mean = np.log([belief.median for belief in BELIEFS.values()])
        spread = np.array([belief.spread for belief in BELIEFS.values()])
        follows = np.array([belief.follows_compute for belief in BELIEFS.values()])
        if np.isfinite(context.gradient):
            i = INDEX["gradient"]
            mean[i], spread[i], follows[i] = np.log(context.gradient), 0.25, 0.0
        elif (columns.kind > 0).all():
            mean[INDEX["gradient"]] = np.log(SERVER_GRADIENT)
        if not context.nodes_known:  # the "network" may be the inside of one machine
            for name, (median, width) in ANY_LINK.items():
                mean[INDEX[name]], spread[INDEX[name]] = np.log(median), width
        if np.isfinite(context.nic):
            i = INDEX["nic"]
            mean[i], spread[i] = np.log(achieved_bytes_per_second(context.nic)), 0.55
        elif context.nodes_known:
            mean[INDEX["nic"]] += NIC_PER_DEVICE * np.log(context.per_node)
        compute = np.log(_compute_guess(columns, context, times))
        mean += follows * (min(compute, np.log(LONGEST_COMPUTE_S)) - np.log(TYPICAL_COMPUTE_S))
        mean[INDEX["compute"]] = compute
        root = np.diag(spread)
        root[:, INDEX["compute"]] += follows * spread[INDEX["compute"]]
        return cls(mean, root)

    def learnt(self, experience: Experience | None) -> Prior:
        """The prior after what other jobs have shown; how long this one computes is its own business."""
        if experience is None:
            return self
        shift, width = experience.shift.copy(), experience.width.copy()
        shift[INDEX["compute"]], width[INDEX["compute"]] = 0.0, 1.0
        return Prior(self.mean + self.root @ shift, self.root * width)


def achieved_bytes_per_second(nic_mbps: float) -> float:
    """What collectives achieve of a network card: 85 % at 1 Gbit/s, 64 % at 10, 49 % at 100."""
    return float(0.85 * (nic_mbps / 1000) ** -0.12 * nic_mbps * 1e6 / 8)


def _compute_guess(columns: Columns, context: MeasuredContext, times: Floats) -> float:
    """Seconds of one worker's step at the reference batch, to a factor of a few."""
    alone = np.where(columns.kind == 2, times * columns.workers, times)
    if not np.isfinite(context.batch):
        return float(alone.min())
    away = np.abs(np.log(columns.batch / context.batch))
    away = np.where(np.isnan(away), np.inf, away)
    return float(alone[away <= away.min() + 0.5].min())
