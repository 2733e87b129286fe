"""`Session`: a run that this process holds the lease of and is about to drive."""

from __future__ import annotations

from collections.abc import Mapping

from trainmaster.dataclass import dataclass, field
from trainmaster.db import Lease
from trainmaster.spec import Recipe


@dataclass(slots=True)
class Session:
    """A run that this process has accepted or taken over, see `sessions`, and holds the lease of.

    Attributes:
        secrets: per experiment, names and values; never written anywhere.
        notes: what the user may want to know.
    """

    run: str
    lease: Lease
    recipe: Recipe
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
