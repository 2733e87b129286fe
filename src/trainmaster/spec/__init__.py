"""The nouns of a recipe, and the reader that checks it. Pure: the only I/O is reading the recipe.

Names are imported when they are asked for: who needs only errors or states does not pay for the rest.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.spec.batch import Batch
    from trainmaster.spec.budget import Budget
    from trainmaster.spec.data_source import DataSource
    from trainmaster.spec.distributed import Distributed, Strategy
    from trainmaster.spec.experiment import Experiment
    from trainmaster.spec.habits import Checkpoint, Metrics, ProfilePlan
    from trainmaster.spec.hardware import Hardware
    from trainmaster.spec.objective import Objective
    from trainmaster.spec.parameter import Parameter, Sampling
    from trainmaster.spec.recipe import Recipe
    from trainmaster.spec.recipe_file import read_recipe
    from trainmaster.spec.role import Role
    from trainmaster.spec.search import Search
    from trainmaster.spec.states import EndReason, State
    from trainmaster.spec.task_space import TaskSpace
    from trainmaster.spec.units import parse_bytes, parse_duration, parse_money
    from trainmaster.spec.values import ParameterValue, format_value

__all__ = [
    "Batch",
    "Budget",
    "Checkpoint",
    "DataSource",
    "Distributed",
    "EndReason",
    "Experiment",
    "Hardware",
    "Metrics",
    "Objective",
    "Parameter",
    "ParameterValue",
    "ProfilePlan",
    "Recipe",
    "Role",
    "Sampling",
    "Search",
    "State",
    "Strategy",
    "TaskSpace",
    "format_value",
    "parse_bytes",
    "parse_duration",
    "parse_money",
    "read_recipe",
]

_NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
_MODULES = {
    "Batch": "batch",
    "Budget": "budget",
    "Checkpoint": "habits",
    "DataSource": "data_source",
    "Distributed": "distributed",
    "EndReason": "states",
    "Experiment": "experiment",
    "Hardware": "hardware",
    "Metrics": "habits",
    "Objective": "objective",
    "Parameter": "parameter",
    "ParameterValue": "values",
    "ProfilePlan": "habits",
    "Recipe": "recipe",
    "Role": "role",
    "Sampling": "parameter",
    "Search": "search",
    "State": "states",
    "Strategy": "distributed",
    "TaskSpace": "task_space",
    "format_value": "values",
    "parse_bytes": "units",
    "parse_duration": "units",
    "parse_money": "units",
    "read_recipe": "recipe_file",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of the above
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Pydantic looks through all installed packages for plug-ins when it makes its first model: our models
    # need none, and it costs more than reading a recipe. The user's scripts must not see our setting.
    ours = _NO_PLUGINS not in os.environ
    if ours:
        os.environ[_NO_PLUGINS] = "1"
    try:
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    finally:
        if ours:
            os.environ.pop(_NO_PLUGINS, None)
    globals()[name] = value  # asked for once
    return value
