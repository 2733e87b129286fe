"""Two servers with homes of their own: one is lost with its home, the other goes on with what it drove."""

from __future__ import annotations

import base64
import contextlib
import functools
import ipaddress
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from renter import Renter
from running_server import RunningServer

from trainmaster.testing.counting_proxy import CountingProxy
from trainmaster.testing.private_s3 import NoS3Error, PrivateS3

pytestmark = [pytest.mark.ray, pytest.mark.s3, pytest.mark.timeout(600)]

STEPS = 120
#: Takes longer than it takes the other server to come; whoever comes later finds that it has ended.
SCRIPT = f"""
import json, os, time
for step in range(1, {STEPS + 1}):
    print("step", step, flush=True)
    with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
        file.write(json.dumps({{"step": step, "loss": 1 / step}}) + "\\n")
    time.sleep(0.5)
with open(os.environ["TRAINMASTER_OUTPUT_DIR"] + "/model.txt", "w") as file:
    file.write("weights of attempt " + os.environ["TRAINMASTER_ATTEMPT"])
"""
RECIPE = """
name: moved
experiments:
  train: {command: python3 train.py, hardware: {instance: m4.xlarge}}
"""


class Server(RunningServer):
    """A server with a home of its own, which shares database, object store, key and lab."""

    def __init__(self, renter: Renter, place: Path, env: dict[str, str]) -> None:
        self.home, cache = place / "home", place / "cache"
        for directory in (self.home, cache):
            directory.mkdir(parents=True)
        (self.home / "lab").symlink_to(renter.lab.directory)
        runtimes = Path(renter.env["TRAINMASTER_CACHE"]) / "runtimes"
        runtimes.mkdir(parents=True, exist_ok=True)
        (cache / "runtimes").symlink_to(runtimes)  # as large as it is, and the same for all
        self.env = {**env, "TRAINMASTER_HOME": str(self.home), "TRAINMASTER_CACHE": str(cache)}
        super().__init__(functools.partial(renter.start, **self.env))

    def read(self, path: str) -> bytes:
        with self.open("GET", "/api/v1" + path) as answer:
            found: bytes = answer.read()
            return found

    def json(self, path: str) -> Any:
        return self.ask("GET", path)[1]


@pytest.fixture
def servers(lab: Any, renter: Renter, postgres: Any, tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    try:
        s3 = PrivateS3()
    except NoS3Error as error:
        pytest.skip(str(error))
    network = ipaddress.ip_network(lab.json("status")["network"])
    with s3, CountingProxy(s3.url, str(network[2])) as line:
        key = tmp_path / "server.key"
        key.touch(0o600)
        key.write_bytes(base64.b64encode(os.urandom(32)))
        env = {
            **s3.environment(line.url),
            "TRAINMASTER_STORE": f"s3://{s3.new_bucket()}/store",
            "TRAINMASTER_DATABASE": postgres.new_url(),
            "TRAINMASTER_KEY_FILE": str(key),
        }
        both = Server(renter, tmp_path / "a", env), Server(renter, tmp_path / "b", env)
        yield both
        for server in both:  # drivers outlive their servers
            for entry in Path("/proc").iterdir():
                with contextlib.suppress(OSError):
                    if entry.name.isdigit() and f"TRAINMASTER_HOME={server.home}".encode() in (
                        entry / "environ"
                    ).read_bytes().split(b"\0"):
                        os.kill(int(entry.name), signal.SIGKILL)


def test_a_server_is_lost_with_its_home_and_another_one_goes_on(
    lab: Any, renter: Renter, servers: tuple[Server, Server]
) -> None:
    a, b = servers
    before = lab.alive()
    made = renter.call("token", "create", "ci", "--scopes", "read,run", "--json", **a.env)
    a.token = b.token = json.loads(made.stdout)["token"]
    lost, process = a.start(), b.start()
    run = a.send(SCRIPT, {"recipe": RECIPE, "provider": "lab", "max_usd": 50})[1]["run"]

    def log() -> str:
        return b.read(f"/runs/{run}/logs").decode()

    process.until(lambda: "step 5\n" in log(), "the other server shows what is written")
    assert "bound_to" not in b.json(f"/runs/{run}")
    driver = b.json(f"/runs/{run}")["driver"]["pid"]
    lost.kill()
    os.kill(driver, signal.SIGKILL)
    shutil.rmtree(a.home)

    process.until(lambda: b.json(f"/runs/{run}")["state"] == "DONE", "the run has ended")
    found = b.json(f"/runs/{run}")
    events = b.json(f"/runs/{run}/events")["events"]
    told = [(row["kind"], row["attempt"], row["after"], row["reason"], row["message"]) for row in events]
    assert found["reason"] == "SUCCEEDED", told
    assert max(row["attempt"] or 0 for row in events) == 1, told
    assert log() == "".join(f"step {step}\n" for step in range(1, STEPS + 1))
    (curve,) = b.json(f"/runs/{run}/metrics?keys=loss&points=1000")["metrics"]
    assert curve["steps"] == list(range(1, STEPS + 1))
    assert b.read(f"/models/{run}/train/0/files/model.txt") == b"weights of attempt 1"
    process.until(lambda: lab.alive() == before, "no machine is left")
