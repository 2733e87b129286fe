"""Start, observe and stop gangs of processes on a given cluster.

Names are loaded when they are used: the supervisor imports its own modules from this package
and must not pay for the rest.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.executors.base import (
        Capacity,
        Executor,
        GangRequest,
        GangStatus,
        MemberRequest,
        MemberStatus,
        Phase,
    )
    from trainmaster.executors.capacity import NodeCapacity, detect_capacity
    from trainmaster.executors.local import LocalExecutor
    from trainmaster.executors.logs import LogChunk, read_log
    from trainmaster.executors.usage import Usage, read_usage, total_usage

__all__ = [
    "Capacity",
    "Executor",
    "GangRequest",
    "GangStatus",
    "LocalExecutor",
    "LogChunk",
    "MemberRequest",
    "MemberStatus",
    "NodeCapacity",
    "Phase",
    "Usage",
    "detect_capacity",
    "read_log",
    "read_usage",
    "total_usage",
]

_MODULES = {
    "LocalExecutor": "local",
    "LogChunk": "logs",
    "NodeCapacity": "capacity",
    "Usage": "usage",
    "detect_capacity": "capacity",
    "read_log": "logs",
    "read_usage": "usage",
    "total_usage": "usage",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'base')}")
    return getattr(module, name)
