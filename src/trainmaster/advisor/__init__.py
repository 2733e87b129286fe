"""Step times, policies and quotes: pure maths over measured points, NumPy only.

Nothing is imported until it is used: ``import trainmaster.advisor`` does not load NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster.advisor.policies import BandwidthUnknown as BandwidthUnknown
    from trainmaster.advisor.policies import NoFeasibleCluster as NoFeasibleCluster
    from trainmaster.advisor.policies import Pick as Pick
    from trainmaster.advisor.policies import PricedType as PricedType
    from trainmaster.advisor.profile import Point as Point
    from trainmaster.advisor.profile import Profile as Profile
    from trainmaster.advisor.profile import Sync as Sync
    from trainmaster.advisor.steptime import Prediction as Prediction
    from trainmaster.advisor.steptime import StepTimeModel as StepTimeModel

_HOME = {
    "BandwidthUnknown": "policies",
    "NoFeasibleCluster": "policies",
    "Pick": "policies",
    "Point": "profile",
    "Prediction": "steptime",
    "PricedType": "policies",
    "Profile": "profile",
    "StepTimeModel": "steptime",
    "Sync": "profile",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(importlib.import_module(f"trainmaster.advisor.{_HOME[name]}"), name)
    raise AttributeError(f"module 'trainmaster.advisor' has no attribute {name!r}")
