"""Samplers and pruners by name: built in first, then installed plug-ins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from trainmaster.spec import Experiment, ParameterValue, Search, TaskSpace
from trainmaster.spec.errors import MissingPartError, UsageError
from trainmaster.spec.node import nearest
from trainmaster.spec.plugins import PluginRegistry
from trainmaster.sweeps.pruner import Pruner
from trainmaster.sweeps.sampler import Sampler
from trainmaster.sweeps.space import SearchSpace
from trainmaster.sweeps.trial import Goal

#: Writing it is the same as writing nothing.
NO_PRUNER: Final = "none"
SAMPLERS: Final = PluginRegistry(
    "sampler",
    {
        "grid": "trainmaster.sweeps.fixed:GridSampler",
        "random": "trainmaster.sweeps.fixed:RandomSampler",
        "tpe": "trainmaster.sweeps.tpe:TpeSampler",
        "cmaes": "trainmaster.sweeps.cma_es:CmaesSampler",
        "qmc": "trainmaster.sweeps.qmc:QmcSampler",
        "pbt": "trainmaster.sweeps.pbt:PbtSampler",
    },
)
PRUNERS: Final = PluginRegistry(
    "pruner",
    {
        "asha": "trainmaster.sweeps.halving:AshaPruner",
        "forecast": "trainmaster.sweeps.forecasting:ForecastPruner",
        "hyperband": "trainmaster.sweeps.halving:HyperbandPruner",
        "median": "trainmaster.sweeps.median:MedianPruner",
    },
    also=(NO_PRUNER,),
)


def sampler_class(name: str) -> type[Sampler]:
    """The sampler of a name.

    Raises:
        UsageError: the name is unknown; the message lists those that are known.
        MissingPartError: it is installed but cannot be loaded.
    """
    found: type[Sampler] = SAMPLERS.load(name)
    return found


def pruner_class(name: str) -> type[Pruner] | None:
    """The pruner of a name; None for ``none``. Raises as `sampler_class` does."""
    if name == NO_PRUNER:
        return None
    found: type[Pruner] = PRUNERS.load(name)
    return found


def make_sampler(experiment: Experiment, seed: int) -> Sampler:
    """The sampler of a searching experiment.

    Args:
        experiment: with a ``search``.
        seed: the recipe's.

    Raises:
        UsageError: an unknown name or option, or a space that this sampler cannot search.
        MissingPartError: a library that it needs is not installed.
    """
    search = experiment.search
    if search is None:
        raise ValueError(f"{experiment.name} does not search")
    for error in wrong_options(search).values():
        raise error
    space = SearchSpace(experiment.parameters, search.earlier_count + len(experiment.tasks(seed)), seed)
    return sampler_class(search.sampler)(space, Goal(search.goal), search.all_options)


def first_parameters(experiment: Experiment, seed: int) -> Mapping[str, ParameterValue]:
    """Of task 0; where a sampler chooses, its first suggestion. Raises as `make_sampler` does."""
    found = experiment.tasks(seed).parameters(0)
    if found is not None:
        return found
    suggestion = make_sampler(experiment, seed).ask([], 0)
    if suggestion is not None:
        return suggestion.parameters
    return TaskSpace(experiment.parameters, 1, seed).parameters(0) or {}


def make_pruner(search: Search) -> Pruner | None:
    """The pruner of a search, if it has one. Raises as `make_sampler` does."""
    kind = None if search.pruner is None else pruner_class(search.pruner)
    return None if kind is None else kind(Goal(search.goal), search.all_options)


def wrong_options(search: Search) -> dict[str, UsageError]:
    """What is wrong with each option that neither the sampler nor the pruner knows.

    Raises:
        UsageError: an unknown sampler or pruner.
        MissingPartError: a plug-in has the name, but cannot be loaded.
    """
    pruner = None if search.pruner is None else pruner_class(search.pruner)
    found = {}
    known = [*sampler_class(search.sampler).option_names, *(pruner.option_names if pruner else ())]
    for name in search.all_options:
        if name not in known:
            near = nearest(name, known)
            right = f"did you mean {near!r}?" if near else f"known are {', '.join(known) or 'none'}."
            named = search.sampler if pruner is None else f"{search.sampler} and {search.pruner}"
            found[name] = UsageError(f"search option {name!r} means nothing to {named}", right)
    return found


def integer(options: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    """An option that is a whole number.

    Raises:
        UsageError: it is none, or too small.
    """
    text = options.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise UsageError(f"search option {name}: {text!r}; write a whole number of at least {least}")
    return value


def number(options: Mapping[str, str], name: str, *, above: float) -> float | None:
    """An option that is a number, or None where it is not given.

    Raises:
        UsageError: it is no number, or too small.
    """
    text = options.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= above:
        raise UsageError(f"search option {name}: {text!r}; write a number above {above:g}")
    return value


def require(module: str, what: str, extra: str = "sweep") -> None:
    """Make sure that an optional library is installed, without importing it.

    Raises:
        MissingPartError: how to install it.
    """
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise MissingPartError(
            f"{what} needs the Python package {module}, which is not installed",
            f"pip install 'trainmaster[{extra}]'",
        )
