"""What of a run is under way, what of that is late, and when it will end: plain objects of ``--json``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from trainmaster.control.measure.run_phases import PhaseProgress

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.db import Database

_BACK: Final = "giving back"


def phase_summary(database: Database, row: RowMapping, driven_s: float) -> dict[str, Any]:
    """Of one run; empty where its phases were not followed.

    Args:
        database: the database.
        row: of the run.
        driven_s: for how long it has been driven.

    Returns:
        ``phases`` (by experiment, see `PhaseLine.as_dict`), ``late`` (the one that is most, with its
        ``experiment``) and, while it goes on, ``ends`` (``time_s``: of the whole run without waiting).
    """
    stored = json.loads(database.forecast_of(row["id"]) or "{}")
    if not stored:
        return {}
    phases, late = {}, []
    for name, data in stored["courses"].items():
        course = PhaseProgress.of_dict(data)
        if row["ended_at"] is not None:
            end_s = row["earlier_s"] + max(row["ended_at"] - row["session_at"], 0.0)
            course = course.seen("", end_s).seen(_BACK if _BACK in course.expected else "", end_s)
            course = course if row["closed_at"] is None else course.seen("", driven_s)
        lines = [
            line
            for line in course.lines(driven_s)
            if row["ended_at"] is None or line.state != "ahead"  # too short to be seen
        ]
        phases[name] = [line.as_dict() for line in lines]
        late += [(line.late_s, {"experiment": name, **line.as_dict()}) for line in lines if line.late_s]
    found: dict[str, Any] = {"phases": phases}
    if late:
        found["late"] = max(late, key=lambda each: each[0])[1]
    if stored["ends"] and row["ended_at"] is None:
        found["ends"] = stored["ends"]
    return found
