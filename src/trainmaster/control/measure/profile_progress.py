"""`ProfileProgress`: how far a profiling attempt is, to be shown."""

from __future__ import annotations

from enum import StrEnum

from trainmaster.dataclass import dataclass


class ProfilePhase(StrEnum):
    """What is being done."""

    WAITING = "waiting for a free slot"
    STAGING = "setting up"
    STARTING = "waiting for the first step"
    MEASURING = "measuring"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class ProfileProgress:
    """How far a profiling attempt is.

    Attributes:
        experiment: name.
        workers: how many it has.
        phase: what is being done.
        elapsed_s: since its members started; 0 before.
        left_s: at most so long still, once steps are seen; None before.
        steps: measured so far.
        step_time_s: as it looks now, None if unknown.
    """

    experiment: str
    workers: int
    phase: ProfilePhase
    elapsed_s: float = 0.0
    left_s: float | None = None
    steps: int = 0
    step_time_s: float | None = None
