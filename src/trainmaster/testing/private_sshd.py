"""Hosts for tests: an OpenSSH server each, on a free port, usually of the loopback, with a home and a key."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from trainmaster.providers.hosts_over_ssh import target_of
from trainmaster.providers.inventory import InventoryHost
from trainmaster.transport.base import Target

SSHD = shutil.which("sshd") or next((p for p in ("/usr/sbin/sshd",) if Path(p).exists()), "")
PATH = "/usr/local/bin:/usr/bin:/bin"
#: What hosts run our runtime on: the Python under the venv that runs the tests, so that libraries fit.
PYTHON = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
_CONFIG = """\
ListenAddress {address}
Port {port}
HostKey {place}/host_key
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AuthorizedKeysFile {home}/.ssh/authorized_keys
PermitUserEnvironment no
LogLevel ERROR
SetEnv HOME={home} PATH={path} TRAINMASTER_CLAIMS={place}/claims {env}
"""


def make_key(path: Path) -> str:
    """A key pair; the public half, ``type base64``."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return " ".join(path.with_name(path.name + ".pub").read_text().split()[:2])


class SshHost:
    """One host. Its processes are those whose HOME is its home."""

    def __init__(
        self,
        place: Path,
        name: str,
        key: Path,
        path: str = PATH,
        home: Path | None = None,
        address: str = "127.0.0.1",
        **env: str,
    ) -> None:
        self.place, self.name, self.key, self.address = place, name, key, address
        self.home = home or place / "home"
        self.path, self.env = path, env
        self.python = PYTHON
        self.port = 0
        self._server: subprocess.Popen[bytes] | None = None
        (self.home / ".ssh").mkdir(parents=True, exist_ok=True)
        self.authorized_keys = self.home / ".ssh" / "authorized_keys"
        self.authorized_keys.write_text(key.with_name(key.name + ".pub").read_text())
        self.new_host_key()

    @property
    def entry(self) -> InventoryHost:
        """As the inventory has it."""
        return InventoryHost(
            name=self.name,
            address=self.address,
            port=self.port,
            user=getpass.getuser(),
            key=self.key,
            python=self.python,
            slots=2,
        )

    @property
    def target(self) -> Target:
        """As `Ssh` reaches it."""
        return target_of(self.entry)

    @property
    def root(self) -> Path:
        """Where our things go."""
        return self.home / ".trainmaster-runtime"

    def new_host_key(self) -> str:
        """From its next start on it shows another key, whose public half this is."""
        for file in self.place.glob("host_key*"):
            file.unlink()
        return make_key(self.place / "host_key")

    def start(self) -> None:
        """It listens, on the port that it had before."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((self.address, self.port))
            self.port = probe.getsockname()[1]
        env = " ".join(f"{name}={value}" for name, value in self.env.items())
        config = _CONFIG.format(
            address=self.address, place=self.place, home=self.home, port=self.port, path=self.path, env=env
        )
        (self.place / "sshd_config").write_text(config)
        if os.geteuid() == 0:  # where it goes before a login
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with (self.place / "log").open("ab") as log:
            command = [SSHD, "-D", "-e", "-f", str(self.place / "sshd_config")]
            self._server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), 1):
                return
            assert self._server.poll() is None, (self.place / "log").read_text()
            time.sleep(0.01)
        raise AssertionError(f"{self.name} does not listen: {(self.place / 'log').read_text()}")

    def logins(self) -> list[psutil.Process]:
        """Processes of the server for connections, and what they have started."""
        assert self._server is not None
        return psutil.Process(self._server.pid).children(recursive=True)

    def processes(self) -> list[psutil.Process]:
        """What runs in its home."""
        wanted = f"HOME={self.home}".encode()
        found = []
        for file in Path("/proc").glob("[0-9]*/environ"):  # psutil takes seconds for all of them
            with contextlib.suppress(psutil.Error, OSError):
                if wanted in file.read_bytes().split(b"\0"):
                    found.append(psutil.Process(int(file.parent.name)))
        return found

    def cut(self) -> None:
        """Every connection is lost, with what ran in it; the server goes on."""
        for process in self.logins():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def freeze(self) -> None:
        """Nothing in it moves any more; its network does."""
        assert self._server is not None
        for pid in (self._server.pid, *(process.pid for process in self.logins())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """As before `freeze`."""
        assert self._server is not None
        for pid in (self._server.pid, *(process.pid for process in self.logins())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        """Neither server nor anything that runs in its home is left."""
        if self._server is None:
            return
        server, self._server = self._server, None
        everything: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            everything = psutil.Process(server.pid).children(recursive=True)
        server.kill()
        server.wait()
        for process in [*everything, *self.processes()]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        deadline = time.monotonic() + 30
        while any(map(_moves, everything)) and time.monotonic() < deadline:
            time.sleep(0.01)


def _moves(process: psutil.Process) -> bool:
    """Not yet gone; what only waits to be reaped, by an init that takes its time, is."""
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
