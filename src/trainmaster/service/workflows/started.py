"""`started_by`: what has started a run of a workflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.db import workflow_rows

if TYPE_CHECKING:
    from trainmaster.db import Database


def started_by(database: Database, run: str) -> dict[str, str] | None:
    """``workflow``, ``trigger`` and ``cause``; None of other runs, and when that was forgotten."""
    start = workflow_rows.start_of(database, run)
    if start is None:
        return None
    return {"workflow": start["name"], "trigger": start["trigger"], "cause": start["cause"]}
