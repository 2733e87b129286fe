"""Options of samplers and pruners: texts of the recipe, read as numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from trainmaster.spec.errors import MissingPartError, UsageError


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
