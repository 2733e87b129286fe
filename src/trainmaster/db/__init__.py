"""Tables, leases and events: the state that survives ``kill -9``. No business rules.

Names are loaded when they are used: a client of a server needs the plain ones only.
"""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.db.changes import Change as Change
    from trainmaster.db.changes import ClosedAttempt as ClosedAttempt
    from trainmaster.db.changes import ExperimentChange as ExperimentChange
    from trainmaster.db.changes import Note as Note
    from trainmaster.db.changes import Progress as Progress
    from trainmaster.db.changes import RunChange as RunChange
    from trainmaster.db.changes import TaskChange as TaskChange
    from trainmaster.db.cluster_rows import ClusterRow as ClusterRow
    from trainmaster.db.database import Database as Database
    from trainmaster.db.leases import Lease as Lease
    from trainmaster.db.leases import is_alive as is_alive
    from trainmaster.db.leases import this_process as this_process
    from trainmaster.db.quote_rows import ActualOutcome as ActualOutcome
    from trainmaster.db.quote_rows import NewMeasurement as NewMeasurement
    from trainmaster.db.quote_rows import NewQuoteRow as NewQuoteRow
    from trainmaster.db.retry_policy import RetryPolicy as RetryPolicy
    from trainmaster.db.run_rows import AcceptedRun as AcceptedRun
    from trainmaster.db.run_rows import Submission as Submission

__all__, __getattr__ = lazy_exports(__name__)
