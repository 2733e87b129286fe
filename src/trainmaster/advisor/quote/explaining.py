"""Where the time of a quote goes, where its doubt comes from, and what a minute of measuring would buy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.model.shapes import Floats
from trainmaster.advisor.quote.next_point import LOOK_S
from trainmaster.advisor.quote.quantiles import interval
from trainmaster.advisor.quote.quote import ExplainedPhase, MoreMeasuring
from trainmaster.advisor.quote.timing import Timing

#: What is left of the doubt (log) about a phase that was seen once on the very kind of machine.
_SEEN_ONCE: Final = 0.35
#: Phases that a minute on one machine of a kind shows.
_SHOWN: Final = ("machines", "image", "setup", "data", "staging", "first step")
#: What buys less than this of the interval's width is not worth telling.
_LEAST: Final = 0.05


def explained(timing: Timing, one: Candidates) -> tuple[ExplainedPhase, ...]:
    """The phases of a candidate.

    Args:
        timing: of the experiment.
        one: the candidate.
    """
    return explained_phases(dict(_by_cause(timing, one)))


def explained_phases(phases: Mapping[str, Floats]) -> tuple[ExplainedPhase, ...]:
    """Each of some phases with its interval, and its share of the doubt about all of them.

    The shares are ``cov(phase, whole) / var(whole)``: they add up to 1, and a phase that makes up for another
    one has a negative share.

    Args:
        phases: (DRAWS,) seconds of each.
    """
    whole = np.sum(list(phases.values()), axis=0)
    variance = float(np.var(whole))
    return tuple(
        ExplainedPhase(name, interval(each), _covariance(each, whole) / variance if variance else 0.0)
        for name, each in phases.items()
    )


def _by_cause(timing: Timing, one: Candidates) -> Iterator[tuple[str, Floats]]:
    """The phases; of the steps what is due to the curve of the target apart."""
    late = timing.until_target_s(one)
    for name, each in timing.phases_s(one).items():
        if name == "steps" and late is not None:
            yield name, each - np.minimum(late, each)
            yield "learning curve", np.minimum(late, each)
        else:
            yield name, each


def bought(timing: Timing, one: Candidates) -> MoreMeasuring | None:
    """What a minute on one of its machines would make of the interval; None if that is next to nothing.

    Args:
        timing: of the experiment.
        one: the candidate.
    """
    phases = dict(_by_cause(timing, one))
    now = interval(np.sum(list(phases.values()), axis=0))
    shown = (*_SHOWN, "steps") if float(one.workers[0]) == 1 else _SHOWN
    then = interval(
        np.sum([_narrowed(each) if name in shown else each for name, each in phases.items()], axis=0)
    )
    if then.p95 - then.p5 > (1 - _LEAST) * (now.p95 - now.p5):
        return None
    machine = int(one.machine[0])
    offer = timing.offers[int(timing.machines.index[machine])]
    seconds = LOOK_S + sum(float(np.median(phases[name])) for name in _SHOWN if name in phases)
    usd = float(timing.machines.price[machine]) * seconds / 3600
    return MoreMeasuring(offer.instance_type, seconds, usd, now, then)


def _narrowed(phase: Floats) -> Floats:
    """(DRAWS,) of a phase that was seen once more: nearer to its median, which stays."""
    middle = float(np.median(phase))
    if middle <= 0:
        return phase
    return np.asarray(middle * np.exp(_SEEN_ONCE * np.log(np.maximum(phase, 1e-9) / middle)))


def _covariance(one: Floats, other: Floats) -> float:
    found = float(np.mean((one - one.mean()) * (other - other.mean())))
    return found if math.isfinite(found) else 0.0
