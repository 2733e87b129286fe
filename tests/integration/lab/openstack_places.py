"""A real Nova whose machines are hosts of the lab, and who uses it."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent / "places"))

from place_runs import until
from renter import Renter

from trainmaster.lab.settings import LabSettings
from trainmaster.testing.private_nova import NoNovaError, PrivateNova, installed

PROGRAM = Path(__file__).parents[2] / "contract" / "nova_process.py"
SETTINGS = """\
image: 155d900f-4e14-4e4c-a73d-069cbf4541e6
user: admin
flavors: {m1.tiny: {}, m1.small: {usd_per_hour: 3}}
"""


class LabHosts(ThreadingHTTPServer):
    """What boots the machines of a Nova: hosts of a lab.

    Attributes:
        booted: instance of the lab by server.
        faults: so many of the next machines do not boot.
    """

    daemon_threads = True

    def __init__(self, lab: Any) -> None:
        super().__init__(("127.0.0.1", 0), Booting)
        self.lab, self.faults = lab, 0
        self.booted = dict[str, str]()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def boot(self, server: str, user_data: str, key: str) -> dict[str, str]:
        """A host with what Nova was sent; its address, or its fault."""
        with self.lock:
            if self.faults:
                self.faults -= 1
                return {"fault": "no power, as asked for"}
            self.lab.ec2.import_key_pair(KeyName=server, PublicKeyMaterial=key.encode())
            (name,) = self.lab.rent("m4.large", KeyName=server, UserData=base64.b64decode(user_data).decode())
            self.booted[server] = name
        host = self.lab.instance(name)
        return {"address": host["PrivateIpAddress"], "floating": host["PublicIpAddress"]}

    def end(self, server: str) -> dict[str, str]:
        """Its host ends."""
        if name := self.booted.get(server):
            self.lab.ec2.terminate_instances(InstanceIds=[name])
        return {}


class Booting(BaseHTTPRequestHandler):
    """See `LabHosts`."""

    server: LabHosts

    def do_POST(self) -> None:
        """Boot or end."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        hosts = self.server
        told = (
            hosts.boot(asked["boot"], asked["user_data"], asked["key"])
            if "boot" in asked
            else hosts.end(asked["end"])
        )
        said = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Cloud:
    """A Nova, and the hosts behind it."""

    nova: PrivateNova
    hosts: LabHosts

    def servers(self) -> list[str]:
        """Ids of those that there are."""
        listed = self.nova.asked("GET", "/v2.1/servers", user="me")["servers"]
        return sorted(each["id"] for each in listed)


def running_cloud(lab: Any, cache: Path) -> Iterator[Cloud]:
    """One whose servers are hosts of a lab.

    Args:
        lab: that has them. cache: where Nova is installed.
    """
    try:
        python = installed(cache)
    except NoNovaError as error:
        pytest.skip(str(error))
    hosts = LabHosts(lab)
    threading.Thread(target=hosts.serve_forever, daemon=True).start()
    here = LabSettings.load(lab.directory / "settings.json").root_address  # hosts delete themselves there
    with PrivateNova(python, PROGRAM, hosts.url, here) as nova:
        yield Cloud(nova, hosts)
    hosts.shutdown()
    hosts.server_close()


def renter_of(cloud: Cloud, renter: Renter, folder: Path) -> Iterator[Renter]:
    """They run recipes there; what is left of that is a failure."""

    def left() -> list[str]:
        return cloud.nova.left() + cloud.nova.credentials()

    (file := folder / "openstack.yaml").write_text(SETTINGS)
    renter.env |= {**cloud.nova.environ(), "TRAINMASTER_OPENSTACK": str(file)}
    before = renter.lab.alive()
    yield renter
    renter.kill_all()
    until(lambda: not left(), 60, left)
    until(lambda: renter.lab.alive() == before, 60, renter.lab.alive)
