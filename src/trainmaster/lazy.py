"""Names of a package that are imported when they are first asked for: importing it must cost nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_exports(package: str, modules: Mapping[str, str]) -> tuple[list[str], Callable[[str], object]]:
    """``__all__`` and ``__getattr__`` of a package (PEP 562).

    Type checkers do not see them: the package imports the same names under ``TYPE_CHECKING``.

    Args:
        package: ``__name__`` of the package.
        modules: module of the package, or the full name of another one of ours -> its names, with spaces
            between them.

    >>> names, look_up = lazy_exports("trainmaster.spec", {"units": "parse_bytes", "batch": "Batch"})
    >>> names, look_up("parse_bytes")("1 kB")
    (['Batch', 'parse_bytes'], 1000)
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def look_up(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = module_of[name]
        here = module if module.startswith("trainmaster.") else f"{package}.{module}"
        value: object = getattr(import_module(here), name)
        setattr(sys.modules[package], name, value)  # asked for once
        return value

    return sorted(module_of), look_up
