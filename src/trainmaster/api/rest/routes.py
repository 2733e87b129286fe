"""`Routes`: a router on which every route finds out who asks, and refuses who may not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, get_type_hints

from fastapi import APIRouter

_Dependency = TypeVar("_Dependency", bound=Callable[..., Any])
_FINDING: Final[set[Callable[..., Any]]] = set()


def finds_caller(dependency: _Dependency) -> _Dependency:
    """Mark a dependency that refuses who may not ask."""
    _FINDING.add(dependency)
    return dependency


class Routes(APIRouter):
    """Routes for callers. What anybody may ask for is on a plain `APIRouter`."""

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # noqa: ANN401
        """Add a route.

        Raises:
            TypeError: (when its module is imported) it has no scope.
        """
        if not _finds(endpoint):
            raise TypeError(f"{endpoint.__qualname__}: {path} has no scope: add a parameter such as Reader")
        super().add_api_route(path, endpoint, **options)


def _finds(function: Callable[..., Any]) -> bool:
    if function in _FINDING:
        return True
    marks = [
        mark
        for kind in get_type_hints(function, include_extras=True).values()
        for mark in getattr(kind, "__metadata__", ())
    ]
    return any(_finds(mark.dependency) for mark in marks if getattr(mark, "dependency", None))
