"""Beliefs about time that is not training: preparing, losing machines. Those about a provider are its own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from trainmaster.spec.log_normal import LogNormal

if TYPE_CHECKING:
    from trainmaster.advisor.market.phases import ClusterWait

#: Our own part of a run, most of it before its first task: reading, accepting, starting. On two cores.
OVERHEAD_S: Final = LogNormal(0.5, 0.5)
#: From the end of a run's last task to its own end; measured on two cores, of 78 runs on this machine.
ENDING_S: Final = LogNormal(0.05, 0.7)
#: Our own part of one task.
TASK_OVERHEAD_S: Final = LogNormal(0.05, 0.7)
#: Losses of one machine per hour, before any was seen: places differ by orders of magnitude. Of spot ones AWS
#: tells 5 to 20 % a month, traces of scarce GPUs 0.13 to 1.5 an hour. Of others they count once one was lost.
SPOT_LOSSES_PER_HOUR: Final = LogNormal(0.03, 2.0)
LOSSES_PER_HOUR: Final = LogNormal(1e-4, 2.0)
#: Seconds from the loss of a machine until its members end and another one is asked for: at once where it was
#: announced, else after our own patience.
RESTART_S: Final = LogNormal(8.0, 0.8)
#: Share of runs that replace a slow machine where they may; seconds until its members have stopped.
CHANGES: Final = 0.1
STOPPING_S: Final = 5.0
#: Share of the training that validation takes where no epoch was seen to end.
UNSEEN_PAUSES: Final = LogNormal(0.02, 0.9)
#: Seconds for which a network card with credits goes at full speed: 5 to 60 minutes (AWS' documentation).
NIC_CREDIT_S: Final = LogNormal(1000.0, 0.75)
#: Mbit/s between machines whose network cards are not told: offices have a gigabit, clusters ten.
UNTOLD_CARD_MBPS: Final = LogNormal(1000.0, 1.2)
#: Seconds from the start of the members to the first step where it was not measured.
STARTUP_UNSEEN_S: Final = 10.0
STARTUP_UNSEEN_SPREAD: Final = 0.9
#: How much a start-up elsewhere differs from the measured one: cold caches, another disk.
STARTUP_ELSEWHERE: Final = LogNormal(1.5, 0.5)


def losses_per_hour(waited: Iterable[ClusterWait], provider: str, *, spot: bool) -> LogNormal:
    """How often one machine of a provider is lost: the belief, and what earlier runs have shown.

    The mode and the width of it: what is lost follows Poisson's law, its rate is log-normal.

    >>> from trainmaster.advisor.market.phases import ClusterWait
    >>> run = ClusterWait(9.0, provider="lab", machines=2, spot=True, used_s=120.0)
    >>> [round(losses_per_hour([run] * n, "lab", spot=True).median, 3) for n in (0, 600)]
    [0.03, 0.012]
    >>> from dataclasses import replace
    >>> round(losses_per_hour([replace(run, lost=1)] * 3, "lab", spot=True).median)
    15

    Args:
        waited: of earlier runs; an empty provider is any.
        provider: whose machines.
        spot: of its spot machines, or of the others.
    """
    mine = [each for each in waited if each.provider in ("", provider) and each.spot == spot]
    lost, hours = sum(each.lost for each in mine), sum(each.used_s for each in mine) / 3600
    belief = SPOT_LOSSES_PER_HOUR if spot else LOSSES_PER_HOUR
    if not lost and not spot:
        return LogNormal(0.0, 0.0)
    before, weight = math.log(belief.median), belief.spread**-2
    log = max(before, math.log(lost / hours)) if lost and hours else before
    for _ in range(20):  # Newton's steps, from above: the curve is convex
        expected = hours * math.exp(log)
        log -= (weight * (log - before) + expected - lost) / (weight + expected)
    return LogNormal(math.exp(log), (weight + hours * math.exp(log)) ** -0.5)
