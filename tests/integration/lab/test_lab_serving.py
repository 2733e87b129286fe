"""A service on rented machines: its requests, and a replica whose machine is lost."""

from __future__ import annotations

import json
import sqlite3
import urllib.error
import urllib.request

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from renter import Renter

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

SERVES = """
name: steps
experiments:
  api:
    hardware: {instance: m4.xlarge}
    serve: {command: 'exec python3 server.py {{port}}', replicas: 2, hang: 20s}
"""
SERVER = """
import http.server, os, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["TRAINMASTER_TASK"].encode())

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_replicas_answer_on_machines_and_one_that_is_lost_comes_back(renter: Renter) -> None:
    (renter.work / "server.py").write_text(SERVER)
    renting = renter.run(renter.recipe(SERVES))
    run = renting.run

    def ready() -> dict[int, tuple[str, int]]:
        with sqlite3.connect(renter.lab.home / "trainmaster.db") as rows:
            found = rows.execute("select task, node, attempt from replica where state = 'READY'").fetchall()
        return {task: (node, attempt) for task, node, attempt in found}

    renting.until(lambda: len(ready()) == 2, "both are ready")
    before = ready()
    assert len({node for node, _ in before.values()}) == 2
    server = renter.start("server", "--port", "0", "--json")
    server.until(lambda: server.out.endswith("\n"), "the server is ready")
    token = renter.call("token", "create", "caller", "--scopes", "infer", "--json").stdout
    address = json.loads(server.out)["apps_url"] + "/services/steps/"

    def answer() -> str:
        wanted = urllib.request.Request(address)
        wanted.add_header("Authorization", f"Bearer {json.loads(token)['token']}")
        try:
            with urllib.request.urlopen(wanted, timeout=60) as found:
                return str(found.read().decode())
        except urllib.error.HTTPError as error:
            return f"status {error.code}"

    renting.until(lambda: answer() in ("0", "1"), "somebody answers")
    lost = renter.machines(run)["worker-1"]  # the other one knows all that runs: without it all begins anew
    (gone,) = [task for task, (node, _) in before.items() if node == lost]
    renter.lab.call("terminate", lost)
    renting.until(lambda: gone not in ready(), "its replica gets no requests")
    assert ready() == {task: how for task, how in before.items() if task != gone}
    assert answer() == str(1 - gone)
    renting.until(lambda: len(ready()) == 2 and lost not in {n for n, _ in ready().values()}, "it is back")
    renting.until(lambda: answer() in ("0", "1", "2"), "somebody answers again")
    renter.call("cancel", run)
    assert renting.end(code=1)["reason"] == "CANCELLED"
