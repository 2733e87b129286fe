"""Tables, leases and events: the state that survives ``kill -9``. No business rules."""

from __future__ import annotations

from trainmaster.db.changes import (
    Change,
    ClosedAttempt,
    ExperimentChange,
    Note,
    Progress,
    RunChange,
    TaskChange,
)
from trainmaster.db.cluster_rows import ClusterRow
from trainmaster.db.database import Database
from trainmaster.db.leases import Lease, is_alive, this_process
from trainmaster.db.patience import Patience
from trainmaster.db.quote_rows import NewMeasurement, NewQuote, Truth
from trainmaster.db.run_rows import NewRun

__all__ = [
    "Change",
    "ClosedAttempt",
    "ClusterRow",
    "Database",
    "ExperimentChange",
    "Lease",
    "NewMeasurement",
    "NewQuote",
    "NewRun",
    "Note",
    "Patience",
    "Progress",
    "RunChange",
    "TaskChange",
    "Truth",
    "is_alive",
    "this_process",
]
