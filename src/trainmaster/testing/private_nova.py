"""`PrivateNova`: an OpenStack of one's own for tests of the provider ``openstack``: a real Nova.

Nova 34 with Placement from PyPI in an environment of its own (451 MB), which `make nova` makes. Keystone is a
double, as are Neutron and Glance: those of Nova's own functional tests.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

from trainmaster.testing.private_server import START_TIMEOUT_S, PrivateServer, free_ports, kill_group

#: Below the cache of the user; another version is another directory.
DIRECTORY: Final = "nova-34"
PROJECT: Final = "6f70656e737461636b20342065766572"


class NoNovaError(Exception):
    """There is no Nova that could be started here."""


def installed(cache: Path) -> Path:
    """The Python that has it.

    Args:
        cache: of the user, such as ``~/.cache/trainmaster``.

    Raises:
        NoNovaError: it was not installed.
    """
    python = cache / DIRECTORY / "bin" / "python"
    if not python.exists():
        raise NoNovaError(f"Nova is not installed in {cache}; `make nova` does that")
    return python


class PrivateNova(PrivateServer):
    """A Nova on the loopback; it ends with its context.

    Args:
        python: as `installed` gives it.
        program: that runs in it: ``tests/contract/nova_process.py``.
        hook: address that boots machines, and ends them; empty for none that are real.

    Attributes:
        url: of Keystone.
    """

    def __init__(self, python: Path, program: Path, hook: str = "") -> None:
        self._command = [str(python), "-W", "ignore", str(program)]
        self._hook = hook
        self._directory = Path(tempfile.mkdtemp(prefix="tm-nova-"))
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}/v3"

    def start(self) -> None:
        """Starts it and waits until it answers.

        Raises:
            NoNovaError: it does not.
        """
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, str(self._port), self._hook],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env={"HOME": str(self._directory), "PATH": "/usr/bin:/bin", "TMPDIR": str(self._directory)},
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while b"\nready\n" not in b"\n" + self._log.read_bytes():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise NoNovaError(f"Nova does not start:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.1)

    def close(self) -> None:
        """See `PrivateServer`."""
        kill_group(self._process)
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def environ(self, user: str = "me") -> dict[str, str]:
        """Variables of a login; ``viewer`` may only look."""
        return {
            "OS_AUTH_URL": self.url,
            "OS_USERNAME": user,
            "OS_PASSWORD": "right",
            "OS_PROJECT_NAME": "demo",
        }

    def asked(self, method: str, path: str, body: object = None, *, user: str = "admin") -> dict[str, Any]:
        """What it answers, past the provider."""
        address = self.url.removesuffix("/v3") + path
        headers = {"X-Auth-Token": f"{user}:{PROJECT}", "Content-Type": "application/json"}
        headers["OpenStack-API-Version"] = "compute 2.67"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, data, headers, method=method)  # noqa: S310 - the loopback
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            found: dict[str, Any] = json.loads(answer.read() or b"{}")
        return found

    def left(self) -> list[str]:
        """Everything that is there: machines, key pairs, groups, addresses."""
        servers = self.asked("GET", "/v2.1/servers", user="me")["servers"]
        keys = self.asked("GET", "/v2.1/os-keypairs", user="me")["keypairs"]
        groups = self.asked("GET", "/network/v2.0/security-groups")["security_groups"]
        floating = self.asked("GET", "/network/v2.0/floatingips")["floatingips"]
        return [
            *(each["id"] for each in servers),
            *(each["keypair"]["name"] for each in keys),
            *(each["name"] for each in groups if each["name"].startswith("tm-")),
            *(each["floating_ip_address"] for each in floating),
        ]

    def close_hosts(self, *, closed: bool) -> None:
        """Have the scheduler find no host, or find one again."""
        (service,) = self.asked("GET", "/v2.1/os-services?binary=nova-compute")["services"]
        status = {"status": "disabled" if closed else "enabled"}
        self.asked("PUT", f"/v2.1/os-services/{service['id']}", status)
