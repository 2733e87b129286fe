"""`PrivateNova`: an OpenStack of one's own for tests of the provider ``openstack``: a real Nova and Keystone.

Nova 34 with Placement, and Keystone 30, from PyPI in an environment of their own (451 MB), which `make nova`
makes. Neutron and Glance are doubles: those of Nova's own functional tests.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from trainmaster.providers.openstack.client import OpenstackClient
from trainmaster.providers.openstack.login import read_login
from trainmaster.testing.private_server import (
    PrivateServer,
    ending_with_us,
    free_ports,
    kill_group,
    spawn,
    wait_until,
)

#: Below the cache of the user; another version is another directory.
DIRECTORY: Final = "nova-34"


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
    if not python.with_name("keystone-manage").exists():
        raise NoNovaError(f"Nova is not installed in {cache}; `make nova` does that")
    return python


class PrivateNova(PrivateServer):
    """A Nova, on the loopback unless said otherwise; it ends with its context.

    Args:
        python: as `installed` gives it.
        program: that runs in it: ``tests/contract/nova_process.py``.
        address: that it answers at.
        hook: address that boots machines, and ends them; empty for none that are real.

    Attributes:
        url: of Keystone.
    """

    def __init__(self, python: Path, program: Path, hook: str = "", address: str = "127.0.0.1") -> None:
        self._python, self._program, self._hook = python, program, hook
        self._directory = Path(tempfile.mkdtemp(prefix="tm-nova-"))
        self._port, self._keystone = free_ports(2)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._address = address
        self._cloud = f"http://{address}:{self._port}"
        self.url = f"http://{address}:{self._keystone}/v3"

    def start(self) -> None:
        """Starts it and waits until it answers.

        Raises:
            NoNovaError: it does not.
        """
        keystone = self._program.with_name("keystone_process.py")
        self._launch("keystone", keystone, self._address, str(self._keystone), self._cloud)
        self._launch("nova", self._program, self._address, str(self._port), self.url, self._hook)
        logs = [self._directory / name / "log" for name in ("keystone", "nova")]

        def failed() -> NoNovaError:
            said = "\n".join(log.read_text()[-3000:] for log in logs)
            return NoNovaError(f"Nova or Keystone does not start:\n{said}")

        for log in logs:
            wait_until(partial(_is_ready, log), self._processes, failed)

    def _launch(self, name: str, program: Path, *arguments: str) -> None:
        (directory := self._directory / name).mkdir()
        words = ending_with_us([str(self._python), "-W", "ignore", str(program), *arguments])
        environ = {"HOME": str(directory), "PATH": "/usr/bin:/bin", "TMPDIR": str(directory)}
        self._processes.append(spawn(words, directory / "log", environ, directory))

    def close(self) -> None:
        """See `PrivateServer`."""
        for process in self._processes:
            kill_group(process)
        shutil.rmtree(self._directory, ignore_errors=True)

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
        address = self._cloud + path
        headers = {"X-Auth-Token": f"{user}:", "Content-Type": "application/json"}
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

    def credentials(self) -> list[str]:
        """Names of the user's application credentials, and paths of their access rules."""
        client = OpenstackClient(read_login("", self.environ()))
        mine = f"/users/{client.said['user']['id']}"
        made = client.get("identity", f"{mine}/application_credentials")["application_credentials"]
        rules = client.get("identity", f"{mine}/access_rules")["access_rules"]
        return [*(each["name"] for each in made), *(each["path"] for each in rules)]

    @contextlib.contextmanager
    def credential(self, *, unrestricted: bool = False) -> Iterator[dict[str, str]]:
        """Variables of an application credential; ``unrestricted``: it may make others."""
        client = OpenstackClient(read_login("", self.environ()))
        path = f"/users/{client.said['user']['id']}/application_credentials"
        asked = {"application_credential": {"name": "of a test", "unrestricted": unrestricted}}
        made = client.call("POST", "identity", path, asked)["application_credential"]
        yield {
            "OS_AUTH_URL": self.url,
            "OS_APPLICATION_CREDENTIAL_ID": made["id"],
            "OS_APPLICATION_CREDENTIAL_SECRET": made["secret"],
        }
        client.call("DELETE", "identity", f"{path}/{made['id']}")

    def close_hosts(self, *, closed: bool) -> None:
        """Have the scheduler find no host, or find one again."""
        (service,) = self.asked("GET", "/v2.1/os-services?binary=nova-compute")["services"]
        status = {"status": "disabled" if closed else "enabled"}
        self.asked("PUT", f"/v2.1/os-services/{service['id']}", status)


def _is_ready(log: Path) -> bool:
    return b"\nready\n" in b"\n" + log.read_bytes()
