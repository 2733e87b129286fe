"""Trainmaster: from a recipe to a trained model, at the price that was quoted.

Importing this package costs nothing: the supervisor and the user's scripts do so. All names but `report` are
imported when they are asked for. Nodes have this file and `report` only.
"""

from trainmaster.metrics_file import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster import errors as errors
    from trainmaster.advisor.quote.interval import Interval as Interval
    from trainmaster.advisor.quote.quote import Quote as Quote
    from trainmaster.api.client import Client as Client
    from trainmaster.api.run import Run as Run
    from trainmaster.api.verbs import convert as convert
    from trainmaster.api.verbs import init as init
    from trainmaster.api.verbs import quote as quote
    from trainmaster.api.verbs import run as run
    from trainmaster.spec import Recipe as Recipe
    from trainmaster.spec.schema import recipe_schema as recipe_schema
    from trainmaster.volumes.reading.datasets import VolumeLoader as VolumeLoader
    from trainmaster.volumes.reading.volume import Volume as Volume

__version__: str
_NOT_INSTALLED = "0+unknown"

_MODULES = {
    "Client": "api.client",
    "Interval": "advisor.quote.interval",
    "Quote": "advisor.quote.quote",
    "Recipe": "spec",
    "Run": "api.run",
    "Volume": "volumes.reading.volume",
    "VolumeLoader": "volumes.reading.datasets",
    "convert": "api.verbs",
    "init": "api.verbs",
    "quote": "api.verbs",
    "recipe_schema": "spec.schema",
    "run": "api.verbs",
}

__all__ = [
    "Client",
    "Interval",
    "Quote",
    "Recipe",
    "Run",
    "Volume",
    "VolumeLoader",
    "__version__",
    "convert",
    "errors",
    "init",
    "quote",
    "recipe_schema",
    "report",
    "run",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # not before: `report` does without

    value: object
    try:
        if name == "__version__":
            value = _version()
        elif name == "errors":
            value = import_module("trainmaster.errors")
        else:
            value = getattr(import_module(f"trainmaster.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if _version() != _NOT_INSTALLED:
            raise
        raise ImportError(
            f"trainmaster.{name} needs {error.name}, which is not here: a task has `trainmaster.report` in "
            "any case. Let the experiment's `setup` install trainmaster for the rest."
        ) from None
    globals()[name] = value  # asked for once
    return value


def __dir__() -> "list[str]":
    return __all__


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trainmaster")
    except PackageNotFoundError:  # a source tree that is not installed
        return _NOT_INSTALLED
