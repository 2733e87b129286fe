"""`PrivateAzurite`: the blob service of Azure on one's own machine, imitated by Microsoft's Azurite."""

import base64
import contextlib
import email.utils
import hashlib
import hmac
import http.client
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

from trainmaster.testing.private_server import START_TIMEOUT_S, PrivateServer, free_ports

#: `scripts/system.sh` installs this one.
RELEASE = "azurite-3.35.0"
_MAIN = "node_modules/azurite/dist/src/blob/main.js"
_ACCOUNT = "private"
_KEY = base64.b64encode(bytes(range(64))).decode()
_API = "2021-08-06"


class NoAzuriteError(Exception):
    """There is no Azurite on this machine that could be started."""


class PrivateAzurite(PrivateServer):
    """A server on the loopback that keeps everything in memory; it ends with its context.

    Attributes:
        url: of the service; the account is the first folder of its paths.

    Raises:
        NoAzuriteError: it, or Node.js, is not installed.
    """

    def __init__(self) -> None:
        cache = Path(os.environ.get("TRAINMASTER_CACHE") or "~/.cache/trainmaster").expanduser()
        node, self._main = shutil.which("node"), cache / RELEASE / _MAIN
        if node is None:
            raise NoAzuriteError("no node on PATH")
        if not self._main.is_file():
            raise NoAzuriteError(f"no {self._main}: scripts/system.sh installs it where there is npm")
        self._node = node
        self._directory = Path(tempfile.mkdtemp(prefix="tm-azurite-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._containers = 0
        (self._port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self._port}"

    def environment(self, url: str | None = None) -> dict[str, str]:
        """The variables by which Trainmaster and obstore find it.

        Args:
            url: of a proxy in front of it.
        """
        return {
            "AZURE_STORAGE_ENDPOINT": f"{url or self.url}/{_ACCOUNT}",
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
        }

    def sas_token(self, container: str, permissions: str) -> str:
        """Gives a token for a container, for an hour.

        Args:
            container: its name.
            permissions: ``r``, ``w``, ``d``, ``l``, ``c`` and so on, in Azure's order.
        """
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
        # Between what is given here: start, identifier, addresses, protocol; snapshot and what follows it.
        text = [permissions, "", end, f"/blob/{_ACCOUNT}/{container}", "", "", "", _API, "c", *[""] * 7]
        fields = {"sp": permissions, "se": end, "sv": _API, "sr": "c", "sig": _signature("\n".join(text))}
        return "&".join(f"{name}={quote(value, safe='')}" for name, value in fields.items())

    def new_container(self) -> str:
        """Makes an empty container and gives its name."""
        self._containers += 1
        name = f"container-{self._containers}"
        status = self._create(name)
        if status != 201:
            raise NoAzuriteError(f"Azurite makes no container: it answers {status}")
        return name

    def start(self) -> None:
        """Starts it and waits until it answers.

        Raises:
            NoAzuriteError: it does not.
        """
        log = self._directory / "log"
        options = ("--inMemoryPersistence", "--silent", "--disableTelemetry", "--disableProductStyleUrl")
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                # obstore may speak a newer version of the protocol than this Azurite has heard of.
                [self._node, self._main, "--blobPort", str(self._port), "--skipApiVersionCheck", *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._directory,
                env={**os.environ, "AZURITE_ACCOUNTS": f"{_ACCOUNT}:{_KEY}"},
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise NoAzuriteError(f"Azurite does not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def close(self) -> None:
        """Ends it and removes everything."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        shutil.rmtree(self._directory, ignore_errors=True)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return self._create("probe") in (201, 409)
        return False

    def _create(self, container: str) -> int:
        place = f"/{_ACCOUNT}/{container}"
        headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": _API}
        named = [f"{name}:{value}" for name, value in headers.items()]
        # Twelve standard headers, none of which is sent with a value.
        text = "\n".join(["PUT", *[""] * 11, *named, f"/{_ACCOUNT}{place}", "restype:container"])
        headers["Authorization"] = f"SharedKey {_ACCOUNT}:{_signature(text)}"
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=10)
        with contextlib.closing(connection):
            connection.request("PUT", f"{place}?restype=container", headers=headers)
            return connection.getresponse().status


def _signature(text: str) -> str:
    return base64.b64encode(hmac.digest(base64.b64decode(_KEY), text.encode(), hashlib.sha256)).decode()
