"""A service on rented machines: its requests, and replicas whose machines are taken back or lost."""

from __future__ import annotations

import json
import sqlite3
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from renter import Renter

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

#: A replica fills its machine.
SERVES = """
name: steps
experiments:
  api:
    hardware: {instance: m4.xlarge, spot: true, cpus: 4}
    grace: 3s
    serve: {command: 'exec python3 server.py {{port}}', replicas: 2, hang: 20s}
"""
#: It ends at once at SIGTERM, whatever it is answering.
SERVER = """
import http.server, os, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["TRAINMASTER_TASK"].encode())

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(0.2)
        self.do_GET()

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@contextmanager
def asking(answer: Callable[[bytes | None], str]) -> Iterator[list[str]]:
    """Somebody asks all the time; what was answered."""
    answers: list[str] = []
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.1):
            answers.append(answer(b"something" if len(answers) % 2 else None))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        over.set()
        thread.join()


def test_replicas_answer_on_machines_and_no_request_is_lost_with_one_that_is_taken_back(
    renter: Renter,
) -> None:
    (renter.work / "server.py").write_text(SERVER)
    renting = renter.run(renter.recipe(SERVES))
    run = renting.run

    def ready() -> dict[int, str]:
        with sqlite3.connect(renter.lab.home / "trainmaster.db") as rows:
            return dict(rows.execute("select task, node from replica where state = 'READY'").fetchall())

    renting.until(lambda: len(ready()) == 2, "both are ready")
    before = ready()
    assert len(set(before.values())) == 2
    server = renter.start("server", "--port", "0", "--json")
    server.until(lambda: server.out.endswith("\n"), "the server is ready")
    token = json.loads(renter.call("token", "create", "caller", "--scopes", "infer", "--json").stdout)
    address = json.loads(server.out)["apps_url"] + "/services/steps/"

    def answer(body: bytes | None = None) -> str:
        wanted = urllib.request.Request(address, body)
        wanted.add_header("Authorization", f"Bearer {token['token']}")
        try:
            with urllib.request.urlopen(wanted, timeout=60) as found:
                return str(found.read().decode()) or "nothing"
        except urllib.error.HTTPError as error:
            return f"status {error.code}: {error.read().decode()}"

    renting.until(lambda: answer() in ("0", "1"), "somebody answers")
    # The other one knows all that runs: without it all begins anew.
    leaving = renter.machines(run)["worker-1"]

    def elsewhere() -> dict[int, str] | None:
        now = ready()
        return now if len(now) == 2 and leaving not in now.values() else None

    with asking(answer) as answers:
        renter.lab.call("interrupt", leaving, "--notice", "120")
        after: dict[int, str] = renting.until(elsewhere, "another one is ready elsewhere")
        (new,) = set(after) - set(before)
        renting.until(lambda: str(new) in answers, "it is asked, too")
    assert [each for each in answers if not each.isdigit()] == [], renting.text
    assert f"replica {next(t for t, node in before.items() if node == leaving)} drains" in renting.text

    renter.lab.call("terminate", after[new])
    renting.until(lambda: new not in ready(), "its replica gets no requests")
    assert next(task for task, node in before.items() if node != leaving) in ready()
    assert answer().isdigit()
    renter.call("cancel", run)
    assert renting.end(code=1)["reason"] == "CANCELLED"
