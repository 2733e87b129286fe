"""Tables, leases and events: the state that survives ``kill -9``. No business rules."""

from __future__ import annotations

from trainmaster.store.changes import (
    Change,
    ClosedAttempt,
    ExperimentChange,
    Note,
    Progress,
    QueueChange,
    RunChange,
    TaskChange,
)
from trainmaster.store.cluster_rows import ClusterRow
from trainmaster.store.leases import Lease, is_alive, this_process
from trainmaster.store.patience import Patience
from trainmaster.store.quote_rows import NewMeasurement, NewQuote, Truth
from trainmaster.store.run_rows import NewRun
from trainmaster.store.store import Store

__all__ = [
    "Change",
    "ClosedAttempt",
    "ClusterRow",
    "ExperimentChange",
    "Lease",
    "NewMeasurement",
    "NewQuote",
    "NewRun",
    "Note",
    "Patience",
    "Progress",
    "QueueChange",
    "RunChange",
    "Store",
    "TaskChange",
    "Truth",
    "is_alive",
    "this_process",
]
