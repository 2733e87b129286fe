"""Into members on rented machines through a server: exec, cp, ssh and port-forward, and what fails there."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("websockets", reason="the extra `tunnel` is not installed")

from command_server import TRAINMASTER
from renter import DEADLINE_S, Renter, Renting

pytestmark = [pytest.mark.ray, pytest.mark.s3, pytest.mark.timeout(900)]

#: Each member serves a page of its own on the loopback of its machine.
RECIPE = """
name: steps
provider: lab
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2}
    framework: plain
    hardware: {instance: m4.xlarge}
    command: |
      mkdir -p /tmp/served; cd /tmp/served
      head -c 300000 /dev/urandom > page
      echo serves
      python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1
"""
BIG_BYTES = 8_000_000
CONNECTIONS = 24


class User:
    """Somebody at a machine of her own who has logged in to the server."""

    def __init__(self, renter: Renter, url: str, place: Path) -> None:
        self._renter, self._url = renter, url
        self.env = {"TRAINMASTER_HOME": str(place / "home"), "XDG_CONFIG_HOME": str(place / "config")}

    def login(self, token: str) -> None:
        command = [TRAINMASTER, "login", self._url, "--token", "-"]
        env = {**self._renter.env, **self.env}
        subprocess.run(command, input=token + "\n", env=env, text=True, check=True, capture_output=True)

    def call(self, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self._renter.call(*arguments, code=code, **self.env)

    def start(self, *arguments: object) -> Renting:
        return self._renter.start(*arguments, **self.env)

    def stay(self, run: str, command: str) -> Renting:
        """A command on worker-1 that has begun and does not end by itself."""
        begun = self.start("exec", run, "worker-1", "--", f"echo began; {command}")
        begun.until(lambda: "began" in begun.out, "it has begun")
        return begun

    def forward(self, run: str, port: int) -> tuple[Renting, str]:
        """It, and where it leads from."""
        forward = self.start("port-forward", run, f":{port}", "--member", "worker-1")
        return forward, forward.until_said(r"(http://127\.0\.0\.1:\d+) is").group(1)


def ends(begun: Renting, code: int) -> None:
    assert begun.process.wait(DEADLINE_S) == code, begun.text


def fetch(url: str) -> str:
    with urllib.request.urlopen(f"{url}/page", timeout=120) as answer:
        return hashlib.sha256(answer.read()).hexdigest()


@pytest.mark.crossings  # `test_lab_ssh.py` comes into a member, too
def test_members_are_worked_on_from_afar(lab: Any, renter: Renter, lab_servers: Any, tmp_path: Path) -> None:
    server = lab_servers("a")
    server.start()

    def token(name: str) -> str:
        made = renter.call("token", "create", name, "--scopes", "read,run", "--json", **server.env)
        return str(json.loads(made.stdout)["token"])

    server.token = token("other")
    user = User(renter, server.url, tmp_path / "ann")
    user.login(token("first"))
    renting = user.start("run", renter.recipe(RECIPE), "--yes", "--json")
    run = renting.until_said(r"^(steps-\w+): runs on http").group(1)
    renting.until_said("^serves$")

    for verb, member in (("exec", "worker-0"), ("exec", "worker-1"), ("ssh", "worker-1")):
        said = user.call(verb, run, member, "--", "echo $TRAINMASTER_INDEX; echo apart >&2; exit 7", code=7)
        assert (said.stdout.strip(), "apart" in said.stderr) == (member[-1], True)
    big, back = tmp_path / "big", tmp_path / "back"
    big.write_bytes(os.urandom(BIG_BYTES))
    user.call("cp", big, f"{run}/worker-1:/tmp/there/big")
    there = user.call("exec", run, "worker-1", "--", "cat /tmp/there/big | sha256sum").stdout
    assert there.split()[0] == hashlib.sha256(big.read_bytes()).hexdigest()
    user.call("cp", f"{run}/worker-1:/tmp/there/big", back)
    assert back.read_bytes() == big.read_bytes()
    refused = user.call("cp", f"{run}/worker-1:/nothing", tmp_path / "none", code=2)
    assert "has no /nothing there" in refused.stderr

    page = user.call("exec", run, "worker-1", "--", "sha256sum /tmp/served/page").stdout.split()[0]
    forward, url = user.forward(run, 8123)
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        assert set(pool.map(fetch, [url] * 3 * CONNECTIONS)) == {page}
    wrong, nowhere = user.forward(run, 9)
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        fetch(nowhere)
    wrong.until_said("Connection refused")
    wrong.interrupt()
    ends(wrong, 0)

    staying = user.stay(run, "sleep 600")
    staying.interrupt()
    ends(staying, 130)

    # Who may not any more is cut off, told so, and lets nobody in; the run goes on.
    cut = user.stay(run, "sleep 600")
    renter.call("token", "revoke", "first", **server.env)
    ends(cut, 255)
    assert "you may not use this run any more" in cut.text
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        fetch(url)
    forward.until_said("the token was revoked")
    forward.interrupt()
    ends(forward, 0)
    user.login(token("second"))

    # A machine that is lost ends what is done there; its member is found where it runs next.
    # Members are numbered by their gang, machines by their cluster: the second may have the first member.
    lost = user.call("exec", run, "worker-1", "--", "hostname -I").stdout.split()[0]
    staying = user.stay(run, "sleep 600")
    lab.call("terminate", lost)
    ends(staying, 255)
    user.call("cancel", run)
    renting.end(None)
    assert server.json(f"/runs/{run}")["reason"] == "CANCELLED"
    assert "has no machines now" in user.call("exec", run, "worker-1", "--", "true", code=2).stderr
