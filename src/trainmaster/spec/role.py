"""A role in a gang."""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster.spec.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Role:
    """Members of a gang that do the same.

    Attributes:
        name: ``chief``, ``worker`` or ``ps``.
        count: how many members; their indices are 0..count-1.
        hardware: what each of their nodes needs.
        essential: the gang has succeeded when every essential member has exited 0.
    """

    name: str
    count: int
    hardware: Hardware
    essential: bool = True
