"""Start, observe and stop gangs of processes on a given cluster.

Names are loaded when they are used: the supervisor imports its own modules from this package
and must not pay for the rest.
"""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.executors.base import Capacity as Capacity
    from trainmaster.executors.base import Executor as Executor
    from trainmaster.executors.base import GangRequest as GangRequest
    from trainmaster.executors.base import GangStatus as GangStatus
    from trainmaster.executors.base import MemberRequest as MemberRequest
    from trainmaster.executors.base import MemberStatus as MemberStatus
    from trainmaster.executors.base import Phase as Phase
    from trainmaster.executors.capacity import NodeCapacity as NodeCapacity
    from trainmaster.executors.capacity import detect_capacity as detect_capacity
    from trainmaster.executors.local import LocalExecutor as LocalExecutor
    from trainmaster.executors.logs import LogChunk as LogChunk
    from trainmaster.executors.logs import read_log as read_log
    from trainmaster.executors.usage import Usage as Usage
    from trainmaster.executors.usage import read_usage as read_usage
    from trainmaster.executors.usage import total_usage as total_usage

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "base": "Capacity Executor GangRequest GangStatus MemberRequest MemberStatus Phase",
        "capacity": "NodeCapacity detect_capacity",
        "local": "LocalExecutor",
        "logs": "LogChunk read_log",
        "usage": "Usage read_usage total_usage",
    },
)
