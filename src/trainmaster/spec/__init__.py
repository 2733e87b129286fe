"""The nouns of a recipe, and the reader that checks it. Pure: the only I/O is reading the recipe.

Names are imported when they are asked for: what needs only errors or states does not pay for the rest.
"""

from __future__ import annotations

import os

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.spec.data_source import DataSource as DataSource
    from trainmaster.spec.distributed import Distributed as Distributed
    from trainmaster.spec.distributed import Strategy as Strategy
    from trainmaster.spec.experiment import Experiment as Experiment
    from trainmaster.spec.hardware import Hardware as Hardware
    from trainmaster.spec.objective import Budget as Budget
    from trainmaster.spec.parameter import Parameter as Parameter
    from trainmaster.spec.parameter import ParameterValue as ParameterValue
    from trainmaster.spec.parameter import Sampling as Sampling
    from trainmaster.spec.recipe import Recipe as Recipe
    from trainmaster.spec.recipe import read_recipe as read_recipe
    from trainmaster.spec.search import Search as Search
    from trainmaster.spec.sections import Checkpoint as Checkpoint
    from trainmaster.spec.states import EndReason as EndReason
    from trainmaster.spec.task_space import TaskSpace as TaskSpace
    from trainmaster.spec.units import parse_duration as parse_duration

_NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
__all__, _look_up = lazy_exports(__name__)


def __getattr__(name: str) -> object:
    # Pydantic looks through all installed packages for plug-ins when it makes its first model: our models
    # need none, and it costs more than reading a recipe. The user's scripts must not see our setting.
    ours = _NO_PLUGINS not in os.environ
    if ours:
        os.environ[_NO_PLUGINS] = "1"
    try:
        return _look_up(name)
    finally:
        if ours:
            os.environ.pop(_NO_PLUGINS, None)
