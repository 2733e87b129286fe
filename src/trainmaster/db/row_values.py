"""`columns`: some values of a row of the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def columns(row: Mapping[Any, Any], *names: str) -> dict[str, Any]:
    """Some values of a row, by name.

    >>> columns({"name": "a", "state": "DONE", "owner": None}, "name", "state")
    {'name': 'a', 'state': 'DONE'}
    """
    return {name: row[name] for name in names}
