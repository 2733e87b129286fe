"""What rows are told as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def columns(row: Mapping[Any, Any], *names: str) -> dict[str, Any]:
    """Some of its values, by name.

    >>> columns({"name": "a", "state": "DONE", "owner": None}, "name", "state")
    {'name': 'a', 'state': 'DONE'}
    """
    return {name: row[name] for name in names}
