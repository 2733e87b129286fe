"""Trainmaster: from a recipe to a trained model, at the price that was quoted.

Importing this package costs nothing: the supervisor and the user's scripts do so.
"""

from trainmaster.metrics_file import report

__all__ = ["__version__", "report"]

__version__: str


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version  # takes longer than the rest together

    try:
        found = version("trainmaster")
    except PackageNotFoundError:  # a source tree that nobody has installed
        found = "0+unknown"
    globals()[name] = found
    return found
