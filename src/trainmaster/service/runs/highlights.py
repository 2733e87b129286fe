"""`Highlights`: what people are shown of a run beside its summary, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.dataclass import dataclass, field


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task that people are shown by itself.

    Attributes:
        experiment, task, attempt: its names.
        reason: why it ended; None before.
        message: for people; may be empty.
        metrics: the last values that it reported.
        place: of a run in several, that of its machines; else empty.
        parameters: with which it was started.
    """

    experiment: str
    task: int
    attempt: int
    reason: str | None
    message: str
    metrics: Mapping[str, Any]
    place: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NoteLine:
    """Something that a run has said.

    Attributes:
        at: seconds since 1970.
        experiment, task: what it is about; None if that is the run.
        message: for people.
    """

    at: float
    experiment: str | None
    task: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Highlights:
    """What people are shown of a run beside its summary: the first tasks that run or did not succeed.

    Attributes:
        notes: of a run that goes on, the last ones: for what it waits, what was given up.
        without_model: of one that is over, experiments of which tasks succeeded and left no model: its name
            as ``experiment``, how many ``tasks``, how many of them ``silent``: without any metrics, and the
            ``metrics`` of one of them.
        beside: with these, the first files that tasks have written beside their code, where that is known.
    """

    running: tuple[TaskLine, ...]
    bad: tuple[TaskLine, ...]
    notes: tuple[NoteLine, ...]
    without_model: tuple[Mapping[str, Any], ...] = ()
    beside: tuple[str, ...] = ()
