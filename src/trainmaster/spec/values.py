"""The values of parameters, and how they are written into commands and variables."""

from __future__ import annotations

#: What a parameter can be. (``bool`` first: for Python it is an ``int`` too.)
ParameterValue = bool | int | float | str


def format_value(value: ParameterValue) -> str:
    """The text of a value in a command or a variable.

    Integers print as integers, floats as the shortest text that reads back as the same number, true and
    false as YAML and JSON write them. Listed values print as they were written: see `Parameter.text`.

    >>> [format_value(value) for value in (16, 0.1, 1e-05, True, "a b")]
    ['16', '0.1', '1e-05', 'true', 'a b']
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)
