"""A server that is killed, or whose database is away, in the middle of everything: nothing is lost."""

from __future__ import annotations

import hashlib
import http.client
import http.server
import io
import json
import os
import random
import signal
import tarfile
import threading
import time
import urllib.error
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from running_server import RunningServer

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

pytestmark = pytest.mark.timeout(600)

RUNS = 5
KILLS = 3
MOVES = 6
READERS = 6
PATIENCE_S = 200.0
#: Of more seeds: TRAINMASTER_KILL_SEEDS=50.
SEEDS = range(int(os.environ.get("TRAINMASTER_KILL_SEEDS", "1")))
#: Lines of one write are never mixed.
SCRIPT = """
import os
with open(os.environ["NOTES"] + "/ran", "a", buffering=1) as notes:
    notes.write(os.environ["TRAINMASTER_RUN"] + "\\n")
open(os.environ["TRAINMASTER_OUTPUT_DIR"] + "/weights", "w").write(os.environ["TRAINMASTER_RUN"])
"""
RECIPE = "name: job\nexperiments: {main: {env: {NOTES: %s}, command: python train.py}}\n"
RENTED = """
name: rented
provider: aws
experiments:
  main:
    command: python train.py
    steps: 1000
    batch: {global: 64}
    distributed: {strategy: ps-async, workers: 4}
"""


class Receiver:
    """Takes webhooks and remembers how often each came."""

    def __init__(self) -> None:
        told = self.told = Counter()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                event = json.loads(self.rfile.read(int(self.headers["content-length"])))
                told[event["subject"], event["type"], self.headers["webhook-id"]] += 1
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/told"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class Client:
    """Asks until there is an answer, as a client that does not know whether the last try has arrived.

    Attributes:
        asked: how many requests were begun.
    """

    def __init__(self, server):
        self.server, self.asked = server, 0

    def ask(self, method, path, body=None, **headers):
        """Status and JSON of an answer that is no trouble of the server itself."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.asked += 1
            try:
                with self.server.open(method, "/api/v1" + path, body, **headers) as answer:
                    found = answer.read()
                    return answer.status, json.loads(found) if found else dict(answer.headers)
            except urllib.error.HTTPError as refused:
                if refused.code < 500 and refused.code != 429:
                    return refused.code, {}
            except (OSError, http.client.HTTPException):
                pass
            assert time.monotonic() < deadline, f"nobody answers {method} {path}"
            time.sleep(0.05)

    def until(self, path, condition):
        """What is there as soon as it is so."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition(found := self.ask("GET", path)[1]):
            assert time.monotonic() < deadline, found
            time.sleep(0.2)
        return found

    def send(self, number, code, recipe):
        """A run, by a key; its id, whichever server has answered at last."""
        status, found = self.ask(
            "POST", "/runs", {"recipe": recipe, "code": code}, Idempotency_Key=f"key-{number}"
        )
        assert status in (200, 201)
        return found["run"]

    def quote(self):
        """A quote, which is answered whichever server worked on it."""
        wanted = {"recipe": RENTED, "policy": "cost-opt", "catalogue": "fc2-2018"}
        name = self.ask("POST", "/quotes", wanted)[1]["id"]
        found = self.until(f"/quotes/{name}", is_over)
        assert found["error"] is None
        assert found["answer"]["policy"] == "cost-opt"

    def volume(self, data):
        """An upload in pieces that becomes a volume."""
        wanted = {"name": "pets.tar", "size_bytes": len(data), "kind": "volume"}
        upload = self.ask("POST", "/uploads", wanted)[1]["upload"]
        at = 0
        while at < len(data):
            piece = {"Upload_Offset": str(at), "Content_Type": "application/offset+octet-stream"}
            self.ask("PATCH", f"/uploads/{upload}", data[at : at + len(data) // 5 + 1], **piece)
            at = self.ask("GET", f"/uploads/{upload}")[1]["offset"]  # 409: the last try had arrived
        deadline = time.monotonic() + PATIENCE_S
        while (asked := self.ask("POST", f"/uploads/{upload}/finish", {"volume": "pets"}))[0] != 201:
            assert time.monotonic() < deadline, asked
            time.sleep(0.2)
        return asked[1]["result"]

    def moves(self):
        """An alias goes to and fro."""
        for number in range(MOVES):
            before, after = number % 2 + 1, (number + 1) % 2 + 1
            wanted = {"version": str(after), "expected": before}
            assert self.ask("PUT", "/registry/net/aliases/prod", wanted)[0] == 200


def is_over(found):
    return found["state"] == "DONE"


def packed(files):
    """A tar of files by name."""
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return found.getvalue()


def drivers_of(home):
    """Processes that drive runs of a home."""
    found, mark = [], f"TRAINMASTER_HOME={home}".encode()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            is_driver = entry.name.isdigit() and b"\0_driver\0" in (entry / "cmdline").read_bytes()
            if is_driver and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


@pytest.fixture
def receiver():
    found = Receiver()
    yield found
    found.close()


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.crossings), "postgresql"])
def server(request, tm):
    if request.param == "postgresql":
        tm.env["TRAINMASTER_DATABASE"] = request.getfixturevalue("postgres").new_url()
    tm.env["TRAINMASTER_DATABASE_PATIENCE"] = "15s"  # far less than a test waits to be told
    tm.env["TRAINMASTER_WEBHOOK_NETWORKS"] = "127.0.0.0/8"
    made = tm.call("token", "create", "ci", "--scopes", "admin", "--json").json
    found = RunningServer(tm.start, made["token"])
    found.start()
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_and_nothing_is_done_twice(tm, server, receiver, seed):
    rng, client = random.Random(seed), Client(server)
    recipe = RECIPE % tm.notes
    code = packed({"train.py": SCRIPT.encode()})
    digest = hashlib.sha256(code).hexdigest()
    client.ask("PUT", f"/code/{digest}", code)
    first, second = (client.send(each, digest, recipe) for each in ("first", "second"))
    for run in (first, second):
        client.until(f"/runs/{run}", is_over)
        assert client.ask("POST", "/registry", {"model": run, "name": "net"})[0] == 201
    client.ask("PUT", "/registry/net/aliases/prod", {"version": "1"})
    client.ask("POST", "/webhooks", {"target": receiver.url, "topics": ["run.ended"]})
    images = {f"{number}.bin": rng.randbytes(20_000) for number in range(8)}

    with ThreadPoolExecutor(RUNS + 3) as pool:
        sent = [pool.submit(client.send, number, digest, recipe) for number in range(RUNS)]
        others = [pool.submit(client.quote), pool.submit(client.moves)]
        volume = pool.submit(client.volume, packed(images))
        for _ in range(KILLS):
            asked = client.asked + rng.randrange(1, 12)
            until = time.monotonic() + 5 * rng.random()  # or in the middle of what nobody asks for
            while client.asked < asked and time.monotonic() < until:
                time.sleep(0.002)
            time.sleep(rng.random() / 10)
            server.process.kill()
            if rng.random() < 0.5:
                for driver in drivers_of(tm.home):
                    with suppress(ProcessLookupError):
                        os.kill(driver, signal.SIGKILL)
            server.start()
        runs = [each.result() for each in sent]
        for each in others:
            each.result()
        made = volume.result()

    assert len(set(runs)) == RUNS
    for run in runs:
        assert client.until(f"/runs/{run}", is_over)["reason"] == "SUCCEEDED"
    listed = client.ask("GET", "/runs")[1]["runs"]
    assert {each["run"] for each in listed} == {first, second, *runs}
    assert Counter((tm.notes / "ran").read_text().split()) == dict.fromkeys([first, second, *runs], 1)
    assert [client.send(number, digest, recipe) for number in range(RUNS)] == runs, "by the same keys"
    moves = [each["version"] for each in client.ask("GET", "/registry/net")[1]["moves"]]
    assert moves == [number % 2 + 1 for number in range(MOVES, -1, -1)]
    assert made["files"] == len(images)
    with server.open("GET", f"/api/v1/volume-content/pets?path=3.bin&version={made['version']}") as answer:
        assert answer.read() == images["3.bin"]

    deadline = time.monotonic() + PATIENCE_S
    while not {subject for subject, _, _ in receiver.told} >= set(runs):
        assert time.monotonic() < deadline, receiver.told
        time.sleep(0.2)
    assert Counter(subject for subject, _, _ in receiver.told) == dict.fromkeys(runs, 1), "one id for each"


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_a_database_that_is_away_under_load_is_told_and_comes_back_to_everything(tm, server, postgres):
    client, told, is_over_now = Client(server), Counter(), threading.Event()
    code = packed({"train.py": SCRIPT.encode()})
    digest = hashlib.sha256(code).hexdigest()
    client.ask("PUT", f"/code/{digest}", code)

    def read():
        while not is_over_now.is_set():
            try:
                with server.open("GET", "/api/v1/runs") as answer:
                    told[answer.status] += 1
                    answer.read()
            except urllib.error.HTTPError as refused:
                told[refused.code] += 1
                time.sleep(0.05)

    def until_more(status):
        """All who read are told so from now on."""
        wanted = told[status] + READERS
        tm.until(lambda: told[status] >= wanted, f"{status} of {told}")

    with ThreadPoolExecutor(READERS + RUNS) as pool:
        readers = [pool.submit(read) for _ in range(READERS)]
        try:
            until_more(200)
            sent = [pool.submit(client.send, number, digest, RECIPE % tm.notes) for number in range(RUNS)]
            for how in (signal.SIGINT, signal.SIGQUIT):
                postgres.stop(how)
                try:
                    until_more(503)
                finally:
                    postgres.start()  # other tests ask it as well
                until_more(200)
            runs = [each.result() for each in sent]
        finally:
            is_over_now.set()
        for each in readers:
            each.result()
    assert told.keys() == {200, 503}
    for run in runs:
        assert client.until(f"/runs/{run}", is_over)["reason"] == "SUCCEEDED"
    assert Counter((tm.notes / "ran").read_text().split()) == dict.fromkeys(runs, 1)
    assert tm.call("server", "audit").code == 0
