"""Searches for the best parameters: who chooses them (`Sampler`) and who ends hopeless trials (`Pruner`).

Pure towards the caller: a suggestion follows from the space, the seed and the table of trials, a verdict
from the trials' curves. So nothing is lost with a control process, and a lost trial is retried as it was.
Optuna and ``cmaes`` (the extra ``[sweep]``) are imported only by the samplers that need them.
"""

from __future__ import annotations

from trainmaster.sweeps.curve import Curve
from trainmaster.sweeps.plugins import check_search, make_pruner, make_sampler, pruner_class, sampler_class
from trainmaster.sweeps.pruner import Pruner
from trainmaster.sweeps.sampler import Sampler, Suggestion
from trainmaster.sweeps.space import Axis, AxisKind, SearchSpace
from trainmaster.sweeps.trial import Goal, Trial, TrialState

__all__ = [
    "Axis",
    "AxisKind",
    "Curve",
    "Goal",
    "Pruner",
    "Sampler",
    "SearchSpace",
    "Suggestion",
    "Trial",
    "TrialState",
    "check_search",
    "make_pruner",
    "make_sampler",
    "pruner_class",
    "sampler_class",
]
