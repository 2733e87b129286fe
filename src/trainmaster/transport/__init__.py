"""Commands and byte streams to other machines, over SSH.

Nothing here imports asyncssh before something is connected; it comes with ``trainmaster[hosts]``.
"""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.transport.errors import CommandError as CommandError
    from trainmaster.transport.errors import HostKeyError as HostKeyError
    from trainmaster.transport.errors import LoginRefusedError as LoginRefusedError
    from trainmaster.transport.errors import RemoteTimeoutError as RemoteTimeoutError
    from trainmaster.transport.errors import UnreachableError as UnreachableError
    from trainmaster.transport.files import upload as upload
    from trainmaster.transport.host_keys import HostKeys as HostKeys
    from trainmaster.transport.ssh import Connection as Connection
    from trainmaster.transport.ssh import Ssh as Ssh
    from trainmaster.transport.ssh import SshSettings as SshSettings
    from trainmaster.transport.ssh_command import Result as Result
    from trainmaster.transport.target import Target as Target

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "errors": "CommandError HostKeyError LoginRefusedError RemoteTimeoutError UnreachableError",
        "files": "upload",
        "host_keys": "HostKeys",
        "ssh": "Connection Ssh SshSettings",
        "ssh_command": "Result",
        "target": "Target",
    },
)
