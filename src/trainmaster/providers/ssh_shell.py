"""`SshShell`: what the provider `hosts` runs its scripts with."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from trainmaster.providers.host_claims import Answer
from trainmaster.providers.inventory import InventoryHost
from trainmaster.providers.ssh_target import target_of
from trainmaster.spec.errors import TrainmasterError
from trainmaster.transport.keeper import ConnectionKeeper
from trainmaster.transport.ssh import Ssh

_AT_ONCE: Final = 16
_TIMEOUT_S: Final = 30.0


class SshShell:
    """Runs scripts on hosts, many at a time; scripts may be repeated. Connections are kept until `close`.

    Args:
        ssh: connects.
    """

    def __init__(self, ssh: Ssh) -> None:
        self._connections = ConnectionKeeper(ssh)

    def run_all(self, hosts: Sequence[InventoryHost], script: str) -> list[Answer | TrainmasterError]:
        """Run a script on each host; see `HostShell`."""
        if not hosts:
            return []
        with ThreadPoolExecutor(min(_AT_ONCE, len(hosts)), "claims") as pool:
            return list(pool.map(lambda host: self._run(host, script), hosts))

    def close(self) -> None:
        """Hang up everywhere."""
        self._connections.close()

    def _run(self, host: InventoryHost, script: str) -> Answer | TrainmasterError:
        try:
            result = self._connections.use(target_of(host), lambda it: it.shell(script, timeout_s=_TIMEOUT_S))
        except TrainmasterError as error:
            return error
        return Answer(result.code, result.out, result.err)
