"""How much each parameter matters for the result of a search."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from importlib.util import find_spec

from trainmaster.sweeps.space import Axis, AxisKind, SearchSpace
from trainmaster.sweeps.trial import Goal, Trial, TrialState

#: Fewer trials than this tell nothing by density estimates.
PED_ANOVA_TRIALS = 20
LEAST_TRIALS = 4


def importance(trials: Sequence[Trial], space: SearchSpace, goal: Goal) -> tuple[str, dict[str, float]]:
    """Shares of the parameters that sum to 1, and the name of the measure.

    With Optuna and 20 trials or more it is PED-ANOVA (Watanabe et al., IJCAI 2023, arXiv 2304.10255): how far
    the distribution of the best trials' values is from that of all. Otherwise it is the squared rank
    correlation (Spearman), for choices the correlation ratio of the ranks: the share of the ranks' variance
    that one parameter explains by itself. Nothing here sees interactions.

    Args:
        trials: of one search; only those that are COMPLETE with a finite value count.
        space: what was searched.
        goal: which values are better.
    """
    good = [
        trial
        for trial in trials
        if trial.state is TrialState.COMPLETE and goal.score(trial.value) > -math.inf
    ]
    if len(good) < LEAST_TRIALS or not space.free or len({trial.value for trial in good}) == 1:
        return "too few finished tasks", {}
    if len(good) >= PED_ANOVA_TRIALS and find_spec("optuna"):
        return "PED-ANOVA", _normal(_ped_anova(good, space, goal))
    ranks = _ranks([goal.score(trial.value) for trial in good])
    return "rank correlation", _normal({axis.name: _explained(axis, good, ranks) for axis in space.free})


def _ped_anova(trials: Sequence[Trial], space: SearchSpace, goal: Goal) -> dict[str, float]:
    import optuna

    from trainmaster.sweeps.tpe import distribution

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize" if goal is Goal.MAX else "minimize")
    distributions = {axis.name: distribution(axis) for axis in space.free}
    for trial in trials:
        positions = {axis.name: axis.position(trial.parameters[axis.name]) for axis in space.free}
        study.add_trial(
            optuna.trial.create_trial(params=positions, distributions=distributions, value=trial.value)
        )
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    return optuna.importance.get_param_importances(study, evaluator=evaluator)


def _explained(axis: Axis, trials: Sequence[Trial], ranks: Sequence[float]) -> float:
    positions = [axis.position(trial.parameters[axis.name]) for trial in trials]
    if axis.kind is not AxisKind.CHOICE:
        return _correlation(_ranks(positions), ranks) ** 2
    mean = statistics.fmean(ranks)
    groups: dict[float, list[float]] = {}
    for position, rank in zip(positions, ranks, strict=True):
        groups.setdefault(position, []).append(rank)
    between = sum(len(group) * (statistics.fmean(group) - mean) ** 2 for group in groups.values())
    total = sum((rank - mean) ** 2 for rank in ranks)
    return between / total if total else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0; equal values share the mean of theirs."""
    ordered = sorted(values)
    places: dict[float, list[int]] = {}
    for place, value in enumerate(ordered):
        places.setdefault(value, []).append(place)
    return [statistics.fmean(places[value]) for value in values]


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    try:
        return statistics.correlation(one, other)
    except statistics.StatisticsError:  # one of them is constant
        return 0.0


def _normal(shares: dict[str, float]) -> dict[str, float]:
    total = sum(shares.values())
    return {name: share / total if total else 0.0 for name, share in shares.items()}
