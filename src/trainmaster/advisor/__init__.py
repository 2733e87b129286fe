"""Step times, policies and quotes: pure maths over measured points, NumPy only.

Nothing is imported until it is used: ``import trainmaster.advisor`` does not load NumPy.
"""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.advisor.model.profile import Point as Point
    from trainmaster.advisor.model.profile import Sync as Sync
    from trainmaster.advisor.model.steptime import Prediction as Prediction
    from trainmaster.advisor.model.steptime import StepTimeModel as StepTimeModel
    from trainmaster.advisor.papers.policies import BandwidthUnknown as BandwidthUnknown
    from trainmaster.advisor.papers.policies import NoFeasibleCluster as NoFeasibleCluster
    from trainmaster.advisor.papers.policies import Pick as Pick
    from trainmaster.advisor.papers.policies import PricedType as PricedType

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "model.profile": "Point Sync",
        "model.steptime": "Prediction StepTimeModel",
        "papers.policies": "BandwidthUnknown NoFeasibleCluster Pick PricedType",
    },
)
