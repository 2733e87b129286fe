"""Searches for the best parameters: what chooses them (`Sampler`) and what ends hopeless trials (`Pruner`).

Pure towards the caller: a suggestion follows from the space, the seed and the table of trials, a verdict
from the trials' curves. So nothing is lost with a control process, and a lost trial is retried as it was.
Optuna and ``cmaes`` (the extra ``[sweep]``) are imported only by the samplers that need them.
"""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.sweeps.plugins import first_parameters as first_parameters
    from trainmaster.sweeps.plugins import make_pruner as make_pruner
    from trainmaster.sweeps.plugins import make_sampler as make_sampler
    from trainmaster.sweeps.plugins import pruner_class as pruner_class
    from trainmaster.sweeps.plugins import sampler_class as sampler_class
    from trainmaster.sweeps.plugins import wrong_options as wrong_options
    from trainmaster.sweeps.pruner import Pruner as Pruner
    from trainmaster.sweeps.sampler import Sampler as Sampler
    from trainmaster.sweeps.sampler import Suggestion as Suggestion
    from trainmaster.sweeps.space import Axis as Axis
    from trainmaster.sweeps.space import AxisKind as AxisKind
    from trainmaster.sweeps.space import SearchSpace as SearchSpace
    from trainmaster.sweeps.trial import Curve as Curve
    from trainmaster.sweeps.trial import Goal as Goal
    from trainmaster.sweeps.trial import Trial as Trial
    from trainmaster.sweeps.trial import TrialState as TrialState

__all__, __getattr__ = lazy_exports(__name__)
