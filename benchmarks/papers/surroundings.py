"""`Surroundings`: what the user of Jorge et al.'s service had around: a cloud, Infrastructure Manager, S3.

The cloud is a lab, whose API Infrastructure Manager's own EC2 connector calls; the S3 server is SeaweedFS,
and a mirror gives out Hadoop, as Apache's did. The hosts reach both at this machine's end of their network.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import ipaddress
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from images import cache
from laboratory import ExperimentError, Laboratory

from trainmaster.testing.counting_proxy import CountingProxy
from trainmaster.testing.private_hdfs import fetched_jars
from trainmaster.testing.private_im import PrivateIm, installed
from trainmaster.testing.private_s3 import PrivateS3

#: As published: vCPUs, GiB, dollars per hour. The hosts of a lab have no GPUs, so none is asked for.
TYPES = {"t2.small": (1, 2, 0.023), "p2.xlarge": (4, 61, 0.9)}
LOGIN = "type = InfrastructureManager; username = jorge; password = of-the-thesis"
JAVA_MODULES = "java.se,jdk.unsupported,jdk.security.auth"
TIMEOUT_S = 60


class Surroundings:
    """All of it, for one experiment; nothing of it stays.

    Args:
        lab: that is up.
        manager: Infrastructure Manager in front of it.
        store: the S3 server.
        line: where hosts reach that server; it counts what each of them gets.
        mirror: URL of the directory with ``hadoop.tar``.
        mirrored: when something was fetched from it, in seconds since 1970.
    """

    def __init__(
        self,
        lab: Laboratory,
        manager: PrivateIm,
        store: PrivateS3,
        line: CountingProxy,
        mirror: str,
        mirrored: list[float],
    ) -> None:
        self.lab, self.manager, self.line, self.mirror, self.mirrored = lab, manager, line, mirror, mirrored
        self.bucket = store.new_bucket()
        lab.env |= store.environment(line.url)
        lab.env["TRAINMASTER_STORE"] = f"s3://{self.bucket}/store"
        lab.env["EVENTS"] = str(lab.work.parent / "events.jsonl")
        lab.env["TRAINMASTER_IM"] = str(self._settings(lab.work.parent / "im"))
        self._access = json.loads((lab.home / "lab" / "lab.json").read_text())
        self._store = _client("s3", store.environment())
        access = {"AWS_ENDPOINT_URL": self._access["endpoint_url"], "AWS_REGION": self._access["region"]}
        access["AWS_ACCESS_KEY_ID"] = self._access["access_key_id"]
        access["AWS_SECRET_ACCESS_KEY"] = self._access["secret_access_key"]
        self._cloud = _client("ec2", access)

    def _settings(self, place: Path) -> Path:
        """Credentials, prices and settings, as docs/im.md teaches them."""
        access = json.loads((self.lab.home / "lab" / "lab.json").read_text())
        place.mkdir()
        credentials = place / "im.auth"
        credentials.touch(0o600)
        credentials.write_text(
            f"{LOGIN}\nid = ec2; type = EC2; username = {access['access_key_id']}; "
            f"password = {access['secret_access_key']}\n"
        )
        rows = [f"im,ec2,{name},{v},{gib},{usd},2026-11-01" for name, (v, gib, usd) in TYPES.items()]
        head = "provider,region,instance_type,vcpus,memory_gib,price_usd_per_hour,as_of"
        (place / "prices.csv").write_text("\n".join([head, *rows]) + "\n")
        file = place / "im.yaml"
        image = f"aws://{access['region']}/{access['image_id']}"
        file.write_text(
            f"url: {self.manager.url}\ncredentials: im.auth\nprices: prices.csv\n"
            f"clouds:\n  ec2: {{image: '{image}', disk: 10GiB, user: tm}}\n"
        )
        return file

    def upload(self, files: list[Path], prefix: str) -> int:
        """Puts files into the bucket; their bytes."""
        for file in files:
            self._store.upload_file(str(file), self.bucket, f"{prefix}/{file.name}")
        return sum(file.stat().st_size for file in files)

    def generate(self, prefix: str, count: int, size: int) -> int:
        """Puts so many files of random bytes into the bucket; their bytes."""
        for number in range(count):
            self._store.put_object(Bucket=self.bucket, Key=f"{prefix}/{number:06}", Body=os.urandom(size))
        return count * size

    def objects(self, prefix: str) -> dict[str, int]:
        """Sizes of what is in the bucket, by key."""
        pages = self._store.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return {each["Key"]: each["Size"] for page in pages for each in page.get("Contents", [])}

    def machines(self) -> dict[str, str]:
        """The lab's own list: types of what is not terminated, by id."""
        return {each["InstanceId"]: each["InstanceType"] for each in self._instances()}

    def machine_at(self, addresses: str) -> str:
        """The id of that with one of these private addresses."""
        found = {each.get("PrivateIpAddress"): each["InstanceId"] for each in self._instances()}
        return next(str(found[each]) for each in addresses.split() if each in found)

    def _instances(self) -> list[dict[str, Any]]:
        found = self._cloud.describe_instances()["Reservations"]
        every = [each for reservation in found for each in reservation["Instances"]]
        return [each for each in every if each["State"]["Name"] != "terminated"]

    def infrastructures(self) -> list[str]:
        """Infrastructure Manager's own list."""
        asked = urllib.request.Request(
            f"{self.manager.url}/infrastructures", headers={"Authorization": LOGIN}
        )
        with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:
            return [line for line in answer.read().decode().split() if line]


def processes_of(mark: str, patience_s: float) -> list[str]:
    """Command lines of the processes in whose environment something stands, but for this one's.

    Args:
        mark: that stands there.
        patience_s: they may take so long to end.
    """
    deadline = time.monotonic() + patience_s
    while (found := _marked(mark.encode())) and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def _marked(wanted: bytes) -> list[str]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        if place.name == str(os.getpid()):
            continue
        with contextlib.suppress(OSError):
            if wanted in (place / "environ").read_bytes():
                command = (place / "cmdline").read_bytes()
                found.append(command.replace(b"\0", b" ").decode(errors="replace")[:200])
    return found


@contextlib.contextmanager
def surroundings(cpu: float, network: float) -> Iterator[Surroundings]:
    """Starts all of it, and ends it in any case.

    Args:
        cpu: cores of this machine per vCPU.
        network: Mbit/s per published Mbit/s.
    """
    python = installed(cache().parent)
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainmaster-mirror-")))
        pack_hadoop(place / "hadoop.tar")
        lab = stack.enter_context(Laboratory(cpu=cpu, network=network, memory=1, files=[]))
        here = str(ipaddress.ip_network(json.loads(lab.call("lab", "status", "--json"))["network"])[2])
        access = json.loads((lab.home / "lab" / "lab.json").read_text())
        types = [(name, vcpus, gib << 10, usd) for name, (vcpus, gib, usd) in TYPES.items()]
        manager = stack.enter_context(PrivateIm(python, access["endpoint_url"], types))
        store = stack.enter_context(PrivateS3())
        line = stack.enter_context(CountingProxy(store.url, here))
        mirror, mirrored = stack.enter_context(serving(place, here))
        yield Surroundings(lab, manager, store, line, mirror, mirrored)


def pack_hadoop(target: Path) -> None:
    """The jars of HDFS with a small Java, kept for the next time."""
    kept = cache() / "hadoop.tar"
    if not kept.exists():
        if (jlink := shutil.which("jlink")) is None:
            raise ExperimentError("no jlink on PATH: install a JDK")
        jars = fetched_jars(cache().parent / "hdfs")
        with tempfile.TemporaryDirectory() as place:
            options = ["--strip-debug", "--no-man-pages", "--no-header-files"]
            made = [jlink, "--add-modules", JAVA_MODULES, *options, "--output", f"{place}/jre"]
            subprocess.run(made, check=True, capture_output=True)
            draft = kept.with_name(f".{os.getpid()}-hadoop.tar")
            subprocess.run(["tar", "-cf", draft, "-C", place, "jre", "-C", jars, "."], check=True)
            draft.rename(kept)
    target.symlink_to(kept)


@contextlib.contextmanager
def serving(directory: Path, address: str) -> Iterator[tuple[str, list[float]]]:
    """A directory by HTTP; its URL, and when somebody got a file of it."""
    fetched: list[float] = []

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            super().do_GET()
            fetched.append(time.time())

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nobody reads it."""

    handler = functools.partial(Quiet, directory=str(directory))
    with http.server.ThreadingHTTPServer((address, 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{address}:{server.server_address[1]}", fetched
        finally:
            server.shutdown()
            thread.join()


def _client(service: str, environment: dict[str, str]) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client(
        service,
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name=environment["AWS_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        config=Config(retries={"max_attempts": 10}, s3={"addressing_style": "path"}),
    )
