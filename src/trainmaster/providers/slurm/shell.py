"""`SlurmShell`: runs scripts where Slurm's commands are: on a login node, or on this machine."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.hosts_over_ssh import jump_target
from trainmaster.providers.slurm.settings import SlurmSettings
from trainmaster.spec.errors import ProviderError
from trainmaster.transport.base import Result
from trainmaster.transport.pool import ConnectionPool

_TIMEOUT_S: Final = 120.0
#: What Slurm hands on to jobs: of this process only this, and nothing of ours or of clouds.
_KEPT: Final = ("HOME", "PATH", "USER", "LOGNAME", "LANG", "SLURM_CONF")


class SlurmShell:
    """Threads share it.

    Args:
        settings: say where that is.
        place: of the home.
    """

    def __init__(self, settings: SlurmSettings, place: ProviderPlace) -> None:
        self._settings, self._place = settings, place
        self._environ = {name: place.environ[name] for name in _KEPT if name in place.environ}
        self._pool: ConnectionPool | None = None
        self._opening = threading.Lock()

    @property
    def environ(self) -> Mapping[str, str]:
        """What commands on this machine are started with."""
        return self._environ

    def run(self, script: str) -> Result:
        """Run a script; it may be repeated.

        Raises:
            ProviderError: the login node does not answer, or not in time.
        """
        if not self._settings.login:
            return self._run_here(script)
        target = jump_target(self._settings.login, self._settings.key_file)
        assert target is not None
        return self._connections().use(target, lambda it: it.shell(script, timeout_s=_TIMEOUT_S))

    def close(self) -> None:
        """Hang up."""
        if self._pool is not None:
            self._pool.close()

    def _run_here(self, script: str) -> Result:
        environ = {"PATH": os.environ.get("PATH", os.defpath), **self._environ}
        environ.setdefault("USER", getpass.getuser())
        environ.setdefault("HOME", str(Path.home()))  # else some shells make a directory called ~
        pipe = subprocess.PIPE
        with subprocess.Popen(
            ["/bin/sh", "-s"],
            stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environ, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                out, err = process.communicate(script, _TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise ProviderError(
                    f"Slurm has not answered for {_TIMEOUT_S:g} s", "Is its controller well?"
                ) from None
            finally:
                if process.returncode is None:  # with it all that it has started: no `sbatch` comes late
                    os.killpg(process.pid, signal.SIGKILL)
        return Result(process.returncode, out, err)

    def _connections(self) -> ConnectionPool:
        with self._opening:
            if self._pool is None:
                from trainmaster.transport import host_keys
                from trainmaster.transport.ssh import Ssh

                ssh = Ssh(host_keys.HostKeys(self._place.root / host_keys.FILE_NAME))
                self._pool = ConnectionPool(ssh)
                weakref.finalize(self, ssh.close)  # also when the process ends
            return self._pool
