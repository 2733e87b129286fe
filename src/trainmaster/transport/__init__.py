"""Commands and byte streams to machines: this one, and others over SSH.

Nothing here imports asyncssh before something is connected; it comes with ``trainmaster[hosts]``.
"""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.transport.base import CommandError as CommandError
    from trainmaster.transport.base import Connection as Connection
    from trainmaster.transport.base import Exchange as Exchange
    from trainmaster.transport.base import HostKeyError as HostKeyError
    from trainmaster.transport.base import LoginRefusedError as LoginRefusedError
    from trainmaster.transport.base import RemoteTimeoutError as RemoteTimeoutError
    from trainmaster.transport.base import Result as Result
    from trainmaster.transport.base import Target as Target
    from trainmaster.transport.base import Transport as Transport
    from trainmaster.transport.base import UnreachableError as UnreachableError
    from trainmaster.transport.host_keys import HostKeys as HostKeys
    from trainmaster.transport.local import Local as Local
    from trainmaster.transport.pool import ConnectionPool as ConnectionPool
    from trainmaster.transport.ssh import Ssh as Ssh
    from trainmaster.transport.ssh import SshSettings as SshSettings

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "base": "Connection Exchange Result Transport Target CommandError HostKeyError LoginRefusedError "
        "RemoteTimeoutError UnreachableError",
        "host_keys": "HostKeys",
        "pool": "ConnectionPool",
        "local": "Local",
        "ssh": "Ssh SshSettings",
    },
)
