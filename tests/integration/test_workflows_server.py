"""Two servers on one PostgreSQL keep a workflow: each cause starts one run, whichever is killed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from running_server import RunningServer

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("cronsim", reason="the extra `server` is not installed")
pytest.importorskip("pyarrow", reason="the extra `volumes` is not installed")

RECIPE = """name: nightly
on: [{volume: pets}, webhook]
experiments:
  main:
    data: {pets: {volume: pets}}
    command: echo "$TRAINMASTER_RUN $(cat "$TRAINMASTER_DATA_PETS/a.txt")" >> %s/ran
"""


@pytest.fixture
def servers(tm, postgres, tmp_path):
    """Two of them, with homes of their own and one store."""
    (tmp_path / "other").mkdir()
    other = type(tm)(tmp_path / "other")
    tm.env["TRAINMASTER_DATABASE"] = other.env["TRAINMASTER_DATABASE"] = postgres.new_url()
    tm.env["TRAINMASTER_STORE"] = other.env["TRAINMASTER_STORE"] = f"file://{tmp_path}/store"
    key = tmp_path / "key"
    key.write_bytes(base64.b64encode(os.urandom(32)))
    key.chmod(0o600)
    tm.env["TRAINMASTER_KEY_FILE"] = other.env["TRAINMASTER_KEY_FILE"] = str(key)
    token = tm.call("token", "create", "ci", "--scopes", "read,run", "--json").json["token"]
    found = [RunningServer(user.start, token) for user in (tm, other)]
    for server in found:
        server.start()
    yield found
    other.clean_up()


def test_each_cause_starts_one_run_whoever_is_killed(tm, servers, tmp_path):
    one, two = servers
    folder = tmp_path / "pets"
    folder.mkdir()

    def push(text):
        (folder / "a.txt").write_text(text)
        tm.call("volume", "push", str(folder), "pets", "--json")

    def ended(count):
        history = two.ask("GET", "/workflows/nightly")[1]["history"]
        return len(history) == count and all(each["run_reason"] for each in history) and history

    push("first")
    found = one.ask("POST", "/workflows", {"recipe": RECIPE % tm.notes})[1]
    push("second")
    (start,) = tm.until(lambda: ended(1), "the new version has started a run")
    assert (start["cause"], start["run_reason"]) == ("pets@2", "SUCCEEDED")
    bearer = {"Authorization": f"Bearer {found['secret']}", "webhook_id": "m-1"}
    with ThreadPoolExecutor(6) as pool:
        sent = list(pool.map(lambda at: hook(servers[at % 2], found["hook"], bearer), range(6)))
    assert sorted(sent) == [False] * 5 + [True]
    tm.until(lambda: ended(2), "the webhook has started a run")
    for server in servers:
        server.process.kill()
    push("third")
    push("fourth")
    for server in servers:
        server.start()
    last, *_ = tm.until(lambda: ended(3), "what came meanwhile has started a run")
    assert (last["cause"], last["message"]) == ("pets@4", "version 3 was skipped: 4 is newer")
    lines = (tm.notes / "ran").read_text().split("\n")[:-1]
    assert [line.split()[1] for line in lines] == ["second", "second", "fourth"]
    assert len({line.split()[0] for line in lines}) == 3
    shutil.rmtree(folder)


def hook(server, path, headers):
    request = urllib.request.Request(server.url + path, b"{}", method="POST")
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["starts"]
