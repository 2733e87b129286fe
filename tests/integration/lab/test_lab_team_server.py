"""A team trains on a server by the command line: its secret, volume, budget and webhooks, and what fails."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.server
import io
import ipaddress
import json
import os
import random
import signal
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("fastapi", reason="the extra `server` is not installed")

import sqlalchemy as sa
from command_server import TRAINMASTER
from renter import DEADLINE_S, Renter, Renting
from server_of_lab import LabServer
from spread_tasks import spread

from trainmaster.testing.waits import until

pytestmark = [pytest.mark.ray, pytest.mark.s3, pytest.mark.timeout(1200)]

SECRET = "hf_" + hashlib.sha256(b"of a test").hexdigest()
EXAMPLES = 60
#: Each member reads its half of the examples and goes on behind those that were saved; in the middle it goes
#: no further until it is told to, and only reads.
SCRIPT = f"""
import hashlib, json, os, time, urllib.request
from pathlib import Path


def may_go_on():
    with urllib.request.urlopen(os.environ["TELLS"], timeout=60) as answer:
        return answer.read() == b"yes"


index, attempt = int(os.environ["TRAINMASTER_INDEX"]), os.environ["TRAINMASTER_ATTEMPT"]
pets, place = Path(os.environ["TRAINMASTER_DATA_PETS"]), Path(os.environ["TRAINMASTER_CHECKPOINT_DIR"])
mine = place / f"next-{{index}}"
first = int(mine.read_text()) if mine.exists() else index
print("attempt", attempt, "starts at", first, flush=True)
print("secret", hashlib.sha256(os.environ["HF_TOKEN"].encode()).hexdigest(), flush=True)
for example in range(first, {EXAMPLES}, 2):
    found = (pets / "images" / f"{{example}}.bin").read_bytes()
    print("example", example, hashlib.sha256(found).hexdigest(), flush=True)
    draft = place.parent / f"draft-{{index}}"
    draft.write_text(str(example + 2))
    draft.replace(mine)
    with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
        file.write(json.dumps({{"step": example, "loss": 1 / (example + 1)}}) + "\\n")
    time.sleep(0.1)
    while example >= {EXAMPLES // 2} and not may_go_on():
        time.sleep(0.2)
        (pets / "images" / f"{{example}}.bin").read_bytes()
(Path(os.environ["TRAINMASTER_OUTPUT_DIR"]) / f"model-{{index}}").write_text("weights of attempt " + attempt)
"""
RECIPE = """
name: pets
provider: lab
budget: {total: $5}
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2}
    framework: plain
    hardware: {instance: m4.xlarge}
    secrets: [HF_TOKEN]
    data: {pets: {volume: pets}}
    checkpoint: {every: 3s}
    grace: 5s
    env: {TELLS: "%s"}
    command: python3 train.py
"""


class Receiver:
    """Takes webhooks, believing only what is signed as Standard Webhooks has it; tells tasks to go on.

    Args:
        address: that machines of the lab reach.

    Attributes:
        url: of it.
        may_go_on: what tasks are told.
        told: what came, by id: what comes twice counts once.
        forged: bodies whose signature was not right.
    """

    def __init__(self, address: str) -> None:
        self.may_go_on = False
        self.told: dict[str, dict[str, Any]] = {}
        self.forged: list[bytes] = []
        self.secret = ""
        told, forged = self.told, self.forged
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"yes" if receiver.may_go_on else b"no")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                name, at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
                key = base64.b64decode(receiver.secret.removeprefix("whsec_"))
                mac = hmac.new(key, f"{name}.{at}.".encode() + body, hashlib.sha256).digest()
                if f"v1,{base64.b64encode(mac).decode()}" in self.headers["webhook-signature"].split():
                    told[name] = json.loads(body)
                else:
                    forged.append(body)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer((address, 0), Handler)
        self.url = f"http://{address}:{self._server.server_address[1]}/told"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def of(self, topic: str) -> list[dict[str, Any]]:
        """What was told of it."""
        return [each for each in [*self.told.values()] if each["type"] == f"trainmaster.{topic}"]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver(lab: Any) -> Iterator[Receiver]:
    found = Receiver(str(ipaddress.ip_network(lab.json("status")["network"])[2]))
    yield found
    found.close()


class Team:
    """A team of the server, and one of its members at a machine of her own."""

    def __init__(self, renter: Renter, server: LabServer, place: Path) -> None:
        self._renter, self._server = renter, server
        for command in (
            ("team", "create", "vision", "--monthly-usd", "20"),
            ("team", "add-member", "vision", "ann"),
            ("team", "add-member", "vision", "mia", "--role", "manager"),
        ):
            renter.call(*command, **server.env)
        ours = ("--team", "vision")
        self.member = self._token("ann", "read,run", "--user", "ann", *ours)
        self.manager = self._token("mia", "read,run,manage", "--user", "mia", *ours)
        self.admin = self._token("owner", "admin")
        self.env = {"TRAINMASTER_HOME": str(place / "home"), "XDG_CONFIG_HOME": str(place / "config")}
        (renter.work / "train.py").write_text(SCRIPT)

    def _token(self, name: str, scopes: str, *more: str) -> str:
        made = self._renter.call(
            "token", "create", name, "--scopes", scopes, *more, "--json", **self._server.env
        )
        return str(json.loads(made.stdout)["token"])

    def as_(self, token: str, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The answer of the server to a client with this token."""
        self._server.token = token
        with self._server.open(method, "/api/v1" + path, body, **headers) as answer:
            found = answer.read()
            return json.loads(found) if found else None

    def login(self) -> str:
        """By the command line, with the token on standard input."""
        done = subprocess.run(
            [TRAINMASTER, "login", self._server.url, "--token", "-"],
            input=self.member + "\n",
            env={**self._renter.env, **self.env},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stderr

    def call(self, *arguments: object, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        return self._renter.call(*arguments, code=code, **self.env)

    def start(self, *arguments: object) -> Renting:
        return self._renter.start(*arguments, **self.env)

    def limit(self, usd: float) -> None:
        """The budget of a month from now on."""
        self.as_(self.admin, "PUT", "/budgets", {"team": "vision", "monthly_usd": usd})

    def send_volume(self, files: dict[str, bytes]) -> Any:
        """By tus, in two pieces."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(f"images/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        data = packed.getvalue()
        wanted = {"name": "pets.tar", "size_bytes": len(data), "kind": "volume"}
        upload = self.as_(self.member, "POST", "/uploads", wanted)["upload"]
        for begin, end in ((0, len(data) // 3), (len(data) // 3, len(data))):
            at = {"Upload_Offset": str(begin), "Content_Type": "application/offset+octet-stream"}
            self.as_(self.member, "PATCH", f"/uploads/{upload}", data[begin:end], **at)
        return self.as_(self.member, "POST", f"/uploads/{upload}/finish", {"volume": "pets"})


@pytest.fixture
def server(lab: Any, lab_servers: Any) -> LabServer:
    found: LabServer = lab_servers("a")
    found.env["TRAINMASTER_WEBHOOK_NETWORKS"] = lab.json("status")["network"]
    found.env["TRAINMASTER_NODE_PATIENCE"] = "120s"  # of a machine that is gone its provider says so
    return found


def test_a_team_is_kept_to_its_promises_while_machines_and_processes_are_lost(
    lab: Any, renter: Renter, server: LabServer, receiver: Receiver, tmp_path: Path
) -> None:
    before = lab.alive()
    process = server.start()
    team = Team(renter, server, tmp_path / "ann")
    team.as_(team.manager, "PUT", "/secrets/HF_TOKEN", {"value": SECRET})
    hook = team.as_(team.manager, "POST", "/webhooks", {"target": receiver.url})
    receiver.secret = hook["secret"]
    rng = random.Random(0)
    images = {f"{number}.bin": rng.randbytes(20_000 + number) for number in range(EXAMPLES)}
    assert team.send_volume(images)["result"]["files"] == EXAMPLES
    assert "as ann, team vision" in team.login()

    recipe = renter.recipe(RECIPE % receiver.url)
    renting = team.start("run", recipe, "--yes", "--json")
    run = renting.until_said(r"^(pets-\w+): runs on http").group(1)
    assert "2 x m4.xlarge in us-east-1 at $0.4 per hour" in renting.text

    def seen() -> Any:
        return team.as_(team.member, "GET", f"/runs/{run}")

    renting.until_said(rf"^example {EXAMPLES // 2} ", 2 * DEADLINE_S)
    assert "bound_to" not in seen()

    # What machines cost is on the bill of the team, whose budget may be smaller than it was when they began.
    for percent in (50, 80, 100):
        spent = renting.until(lambda: seen()["cost_usd"], "a bill")
        team.limit(round(spent * 100 / percent, 6))
        renting.until(
            lambda percent=percent: any(  # type: ignore[misc]
                int(each["data"]["message"].split(" %")[0].rpartition(" ")[2]) >= percent
                for each in receiver.of("budget.reached")
            ),
            f"{percent} % are told of",
        )
    team.limit(5.5)
    refused = team.call("run", recipe, "--yes", code=1)
    assert "may cost $5.00, and this month's budget of team vision has $0." in refused.stderr, refused.stderr
    second = json.loads(team.call("run", recipe, "--yes", "--queue", "--detach", "--json").stdout)["run"]
    assert "of the month's budget: team vision has $0." in team.call("status", second).stdout

    # A machine breaks while it reads the volume; then what drives the run, and what answers, are killed.
    lab.call("terminate", sorted(lab.alive() - before)[-1])
    renting.until(lambda: receiver.of("run.node_lost"), "a machine that is lost is told of")
    driver = seen()["driver"]["pid"]
    os.kill(driver, signal.SIGKILL)
    process.kill()
    server.start()
    receiver.may_go_on = True

    assert renting.end(timeout_s=2 * DEADLINE_S)["reason"] == "SUCCEEDED"
    found = seen()
    events = team.as_(team.member, "GET", f"/runs/{run}/events")["events"]
    assert "NODE_LOST" in {row["reason"] for row in events}
    attempts = max(row["attempt"] or 0 for row in events)
    assert attempts >= 2, "a busy machine may lose more than we have it lose"
    logs = "".join(team.call("logs", run, "--member", f"worker-{index}").stdout for index in (0, 1))
    lines = [line.rpartition(" | ")[2] for line in logs.splitlines()]  # before it is whose each is
    assert f"secret {hashlib.sha256(SECRET.encode()).hexdigest()}" in lines
    read = {line for line in lines if line.startswith("example ")}
    digests = enumerate(hashlib.sha256(content).hexdigest() for content in images.values())
    assert read == {f"example {number} {digest}" for number, digest in digests}
    starts = [int(line.split()[-1]) for line in lines if line.startswith(f"attempt {attempts} starts at")]
    assert len(starts) == 2
    assert min(starts) > EXAMPLES // 4, "what was saved was not read again"

    team.call("models", "get", f"{run}/train/0", str(tmp_path / "model"))
    assert (tmp_path / "model" / "model-0").read_text() == f"weights of attempt {attempts}"

    # The second one has its turn as soon as there is money.
    team.limit(20)
    again = server.process

    def line_of_second() -> Any:
        return team.as_(team.member, "GET", f"/runs/{second}")

    again.until(lambda: "waits_for" not in line_of_second().get("queued", {}), "its turn")
    team.call("cancel", second)
    again.until(lambda: line_of_second()["state"] == "DONE", "its end")
    again.until(lambda: lab.alive() == before, "no machine is left")

    again.until(lambda: len(receiver.of("run.ended")) == 2, "the receiver is told")
    assert not receiver.forged
    started = [each["subject"] for each in receiver.of("run.started")]
    assert started.count(run) == 1
    assert {each["subject"] for each in receiver.of("run.node_lost")} == {run}
    shares = [
        int(each["data"]["message"].split(" %")[0].rpartition(" ")[2])
        for each in receiver.of("budget.reached")
    ]
    assert sorted(set(shares)) == shares, "each is told of once, in their order"

    def is_billed() -> bool:
        entries = team.as_(team.manager, "GET", f"/ledger?run={run}")["entries"]
        charged = sum(each["usd"] for each in entries if each["kind"] == "charge")
        return bool(charged == pytest.approx(seen()["cost_usd"], abs=2e-6) and charged > 0)

    again.until(is_billed, "the ledger has what the run has cost")
    assert found["cost_usd"] > 0
    _nobody_has(SECRET.encode(), server, renter)


def _nobody_has(secret: bytes, server: LabServer, renter: Renter) -> None:
    """In no row of the database, no file of the server, and nothing that it or the command line has said."""
    engine = sa.create_engine(
        server.env["TRAINMASTER_DATABASE"].replace("postgresql:", "postgresql+psycopg:")
    )
    with engine.connect() as connection:
        for name in sa.inspect(connection).get_table_names():
            rows = connection.execute(sa.text(f'SELECT * FROM "{name}"')).all()
            values = (value for row in rows for value in row)
            for value in values:
                raw = bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()
                assert secret not in raw, name
    engine.dispose()
    for place in (server.home, renter.work.parent):
        for path in place.rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file() and not path.is_symlink():
                    assert secret not in path.read_bytes(), path


@pytest.mark.crossings
def test_a_search_and_a_sweep_fill_both_machines(
    lab: Any, renter: Renter, server: LabServer, tmp_path: Path
) -> None:
    """As at home, with a member who is logged in."""
    before = lab.alive()
    process = server.start()
    team = Team(renter, server, tmp_path / "ann")
    team.login()
    spread(renter, "lab", "m4.large", 4, "--set", "budget.total=$5", **team.env)
    until(lambda: lab.alive() == before, "its machines are gone")
    process.interrupt()
