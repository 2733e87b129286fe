"""What a start leaves undone: names of a package, and regular expressions, are made when first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module

__all__ = ["lazy_exports", "regex"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import compile as regex
    from typing import Any
else:

    class regex:  # noqa: N801 - it is called as `re.compile` is
        """`re.compile`, of an expression of which a start may need nothing."""

        def __init__(self, *given: object) -> None:
            self._given = given

        def __getattr__(self, name: str) -> object:
            from re import compile

            found = getattr(compile(*self._given), name)
            setattr(self, name, found)  # asked for once
            return found


def lazy_exports(package: str) -> tuple[list[str], Callable[[str], object]]:
    """``__all__`` and ``__getattr__`` of a package (PEP 562): what it imports under ``TYPE_CHECKING``.

    Type checkers see those imports. Here they are read from its file: a line each, such as
    ``from trainmaster.spec.units import parse_bytes as parse_bytes``.

    Args:
        package: ``__name__`` of the package.

    >>> import trainmaster.spec
    >>> names, look_up = lazy_exports("trainmaster.spec")
    >>> "parse_duration" in names, look_up("parse_duration")("1 min")
    (True, 60.0)
    """
    spec: Any = sys.modules[package].__spec__
    module_of = {
        words[3]: words[1]
        for line in spec.loader.get_data(spec.origin).decode().splitlines()
        if line.startswith("    from ") and (words := line.split())[-2:] == ["as", words[3]]
    }

    def look_up(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)  # asked for once
        return value

    return sorted(module_of), look_up
