"""`SlurmShell`: runs scripts where Slurm's commands are: on a login node, or on this machine."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.sent_settings import host_key_variable
from trainmaster.providers.slurm.settings import SLURM, SlurmSettings
from trainmaster.spec.processes import this_user
from trainmaster.transport.base import Result, Target, Transport, jump_target
from trainmaster.transport.checked_connection import team_may_reach
from trainmaster.transport.host_keys import FILE_NAME, HostKeys
from trainmaster.transport.local import Local
from trainmaster.transport.pool import ConnectionPool
from trainmaster.transport.ssh import ssh_transport

_TIMEOUT_S: Final = 120.0
#: What Slurm hands on to jobs: of this process only this, and nothing of ours or of clouds.
_KEPT: Final = ("HOME", "PATH", "USER", "LOGNAME", "LANG", "SLURM_CONF")


class SlurmShell:
    """Threads share it.

    Args:
        settings: say where that is.
        place: of the home.

    Attributes:
        environ: what commands on this machine are started with.
    """

    def __init__(self, settings: SlurmSettings, place: ProviderPlace) -> None:
        self.environ: Mapping[str, str] = {
            "PATH": os.environ.get("PATH", os.defpath),
            "USER": this_user(),
            "HOME": str(Path.home()),  # else some shells make a directory called ~
            **{name: place.environ[name] for name in _KEPT if name in place.environ},
        }
        words = ["env", "-i", *(f"{name}={value}" for name, value in self.environ.items())]
        login = jump_target(settings.login, settings.key_file)
        sent = place.environ.get(host_key_variable(SLURM.provider), "")
        if login is not None and sent and not (keys := HostKeys(place.root / FILE_NAME)).pins(login):
            keys.accept(login, sent)  # as the home that has sent its settings knows it
        transport: Transport = Local(lambda _: words)
        if login is not None:
            transport = ssh_transport(place.root, team_may_reach(place.environ))
        self._target = login or Target("Slurm on this machine", "localhost")
        self._pool = ConnectionPool(transport)
        weakref.finalize(self, transport.close)  # also when the process ends

    def run(self, script: str) -> Result:
        """Run a script; it may be repeated.

        Raises:
            ProviderError: the login node does not answer, or not in time.
        """
        return self._pool.use(self._target, lambda it: it.shell(script, timeout_s=_TIMEOUT_S))

    def close(self) -> None:
        """Hang up."""
        self._pool.close()
