"""`PrivateIm`: an Infrastructure Manager of one's own, the real one, for tests of the provider ``im``.

IM 2.0.0 from PyPI in an environment of its own (736 MB, half of it collections of Ansible), which `make im`
makes. Its EC2 connector is pointed at any API that speaks EC2's, such as a lab's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from trainmaster.testing.private_server import (
    PrivateServer,
    ending_with_us,
    free_ports,
    kill_group,
    spawn,
    wait_until,
)

VERSION: Final = "2.0.0"
#: Below the cache of the user; another version is another directory.
DIRECTORY: Final = f"im-{VERSION}"
#: IM's own settings are files of the machine or of its installation; here they are those of the process. It
#: would fetch the list of EC2's types from the internet, and parse EC2's API at each call.
_PROGRAM: Final = """
import functools, json, sys
import botocore.loaders
botocore.loaders.create_loader = functools.cache(botocore.loaders.create_loader)
from IM.config import Config
told = json.loads(sys.argv[1])
for name, value in told["config"].items():
    setattr(Config, name, value)
from IM.connectors.EC2 import EC2CloudConnector, InstanceTypeInfo
EC2CloudConnector.instance_type_list = [
    InstanceTypeInfo(name, ["x86_64"], num_cpu=cpus, mem=mib, price=usd)
    for name, cpus, mib, usd in told["types"]
]
sys.argv = sys.argv[:1]
from IM.im_service import main
main()
"""


class NoImError(Exception):
    """There is no Infrastructure Manager that could be started here."""


def installed(cache: Path) -> Path:
    """The Python that has it.

    Args:
        cache: of the user, such as ``~/.cache/trainmaster``.

    Raises:
        NoImError: it was not installed.
    """
    python = cache / DIRECTORY / "bin" / "python"
    if not python.exists():
        raise NoImError(f"Infrastructure Manager {VERSION} is not installed in {cache}; `make im` does that")
    return python


class PrivateIm(PrivateServer):
    """An IM on the loopback; it ends with its context, and may be ended and started in between.

    Args:
        python: as `installed` gives it.
        ec2: address of the API that stands for EC2.
        types: of EC2's machines: name, cores, MiB, dollars per hour.

    Attributes:
        url: of its REST API.
    """

    def __init__(self, python: Path, ec2: str, types: Sequence[tuple[str, int, int, float]]) -> None:
        self._python = python
        self._ec2 = ec2
        self._types = list(types)
        self._directory = Path(tempfile.mkdtemp(prefix="tm-im-"))
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Starts it with what it knew when it ended, and waits until it answers.

        Raises:
            NoImError: it does not.
        """
        config = {
            "DATA_DB": f"sqlite:///{self._directory}/inf.dat",
            "REST_ADDRESS": "127.0.0.1",
            "REST_PORT": self._port,
            "LOG_FILE": str(self._directory / "im.log"),
            "SSH_REVERSE_TUNNELS": False,
            "VM_INFO_UPDATE_FREQUENCY": 4,
            "DELAY_BETWEEN_VM_RETRIES": 1,
            "MAX_VM_FAILS": 1,
        }
        told = json.dumps({"config": config, "types": self._types})
        words = ending_with_us([str(self._python), "-c", _PROGRAM, told])
        log, environ = self._directory / "out.log", self._environment(os.environ)
        self._process = spawn(words, log, environ, self._directory)

        def failed() -> NoImError:
            return NoImError(f"Infrastructure Manager does not start:\n{self.log()}")

        wait_until(self._answers, [self._process], failed)

    def stop(self) -> None:
        """Ends it at once; what it has written stays."""
        kill_group(self._process)
        self._process = None

    def close(self) -> None:
        """See `PrivateServer`."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def log(self) -> str:
        """The end of what it has said."""
        found = [path for name in ("out.log", "im.log") if (path := self._directory / name).exists()]
        return "\n".join(
            line for path in found for line in path.read_text(errors="replace").splitlines()[-40:]
        )

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/version", timeout=2) as answer:  # noqa: S310 - the loopback
                return bool(answer.read())
        except OSError:
            return False

    def _environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in environ.items() if not name.startswith(("AWS_", "PYTHON"))}
        return kept | {"AWS_ENDPOINT_URL": self._ec2, "HOME": str(self._directory)}
