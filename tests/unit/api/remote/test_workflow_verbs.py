"""Recipes with `on`, and what looks after workflows, by command line and Python, at home and at a server."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing

import pytest

from command_line import invoke

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("cronsim", reason="the extra `server` is not installed")
from served_tcp import serving

from trainmaster.api import Client
from trainmaster.cli import opening
from trainmaster.control.task.layout import Home
from trainmaster.service.workflows.triggers import Triggers
from trainmaster.spec.errors import NotFoundError, UsageError

RECIPE = """name: nightly
on: [webhook, {schedule: "0 3 * * *"}, {volume: pets}]
experiments: {main: {command: 'true'}}
"""


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "project").mkdir()
    file = tmp_path / "project" / "recipe.yaml"
    file.write_text(RECIPE)
    return file


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server that this machine's command line asks; its own home is an empty one."""
    monkeypatch.setattr(Triggers, "look", lambda _: None)  # nothing runs
    root = tmp_path / "home"
    root.mkdir()
    home = Home(root, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path}/t.db")
    with serving(home, ["read", "run"]) as connection:
        monkeypatch.setattr(opening, "_is_local", False)
        monkeypatch.setenv("TRAINMASTER_URL", connection.url)
        monkeypatch.setenv("TRAINMASTER_TOKEN", connection._token)
        monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "laptop"))
        yield connection


def call(*words):
    done = invoke(*words)
    assert done.exit_code == 0, done.stderr
    return done


def test_a_server_keeps_it_and_the_verbs_look_after_it(server, recipe, tmp_path):
    uses, *said = call("run", recipe).stderr.splitlines()
    assert uses.startswith(f"uses the server {server.url} ")
    assert said[0] == f"nightly is kept by {server.url}, revision 1"
    assert said[1].startswith(f"  webhook  POST {server.url}/api/v1/hooks/wf-")
    assert said[2].startswith("  schedule 0 3 * * * UTC  next 20")
    assert said[3] == "  volume pets  no version yet"
    assert said[4].startswith("its webhook's secret, shown this once: whsec_")
    assert "nothing runs yet" in said[5]
    assert "nightly   enabled  webhook, schedule 0 3 * * * UTC, volume pets" in call("workflows").stdout
    assert call("workflows", "pause", "nightly").stderr == "nightly is paused\n"
    assert "nightly: paused, revision 1, by t, 20" in call("workflows", "show", "nightly").stdout
    again = call("run", recipe).stderr.splitlines()[1]
    assert again == f"nightly is kept by {server.url}, revision 1, and goes on: it was paused"
    changed = call("run", recipe, "--set", "concurrency=skip").stderr.splitlines()[1]
    assert changed == f"nightly is kept by {server.url}, revision 2, instead of revision 1 by t"
    call("workflows", "pause", "nightly")
    assert call("workflows", "resume", "nightly").stderr == "nightly goes on\n"
    assert call("workflows", "resume", "nightly", "--take-over").stderr == (
        "nightly goes on, with the token in use\n"
    )
    of_ann = "UPDATE workflow SET registered_by = 'ann'"
    with closing(sqlite3.connect(tmp_path / "t.db")) as database, database:
        database.execute(of_ann)
    assert "its webhook keeps the secret, which ann knows: `trainmaster workflows secret nightly`" in (
        call("run", recipe).stderr
    )
    assert "which" not in call("run", recipe).stderr, "it is one's own by now"
    with closing(sqlite3.connect(tmp_path / "t.db")) as database, database:
        database.execute(of_ann)
    goes_on, secret, what = call("workflows", "resume", "nightly", "--take-over").stderr.splitlines()
    assert goes_on == "nightly goes on, as t instead of ann"
    assert secret.startswith("its webhook's secret, shown this once: whsec_")
    assert what == ("the one before, which ann knows, is good no more: give the new one to what sends to it")
    with closing(sqlite3.connect(tmp_path / "t.db")) as database, database:
        database.execute("UPDATE token SET expires_at = ?", [time.time() + 3 * 86400 + 60])
    told = call("status")  # though it has started no run so far
    assert "needs you: workflow nightly: its token t ends in 3 d" in told.stdout
    assert "no runs yet" in told.stderr
    assert "whsec_" in call("workflows", "secret", "nightly").stderr
    found = json.loads(call("workflows", "trigger", "nightly", "--json").stdout)
    (start,) = found["history"]
    assert start["trigger"] == "by hand"
    assert call("workflows").stdout.rstrip().endswith("  by hand: waiting")
    shown = call("workflows", "show", "nightly").stdout
    assert shown.rstrip().endswith("  by hand  waiting")
    assert start["cause"] not in shown + call("workflows").stdout, "it is a key of ours"
    call("workflows", "rm", "nightly")
    assert "there is none" in call("workflows").stderr


def test_each_run_of_a_workflow_waits_for_money_if_that_is_asked_for(server, recipe, tmp_path):
    def waits():
        with sqlite3.connect(tmp_path / "t.db") as connection:
            ((request,),) = connection.execute("SELECT request FROM workflow").fetchall()
        return json.loads(request)["wait"]

    call("run", recipe, "--queue")
    assert waits()
    call("run", recipe)
    assert not waits()


def test_from_python(server, recipe, tmp_path):
    with pytest.raises(UsageError, match="only a server keeps a recipe"):
        Client(tmp_path / "home-2").register_workflow(recipe)
    client = Client(server.url, server._token)
    found = client.register_workflow(recipe, now=True)
    assert (found["new"], found["secret"][:6], found["state"]) == (True, "whsec_", "ENABLED")
    again = client.register_workflow(recipe, overrides={"concurrency": "skip"})
    assert (again["new"], again["revision"], again["concurrency"]) == (False, 2, "skip")
    assert client.workflows.pause("nightly")["state"] == "PAUSED"
    assert [each["workflow"] for each in client.workflows.listed()] == ["nightly"]
    assert client.workflows.show("nightly")["history"][0]["trigger"] == "by hand"
    with pytest.raises(UsageError, match="nothing would start it"):
        client.register_workflow(recipe, overrides={"on": None})
    assert client.services() == []
    with pytest.raises(NotFoundError):
        client.service("digits")
    client.close()


def test_without_a_server_it_is_refused_with_what_to_do(recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "laptop"))
    monkeypatch.delenv("TRAINMASTER_URL", raising=False)
    monkeypatch.setattr(opening, "_is_local", True)
    with pytest.raises(UsageError, match="only a server keeps a recipe") as refused:
        call("run", recipe)
    assert "--set on=null" in refused.value.hint
    assert "note: on: webhook; only a server keeps a recipe" in call("check", recipe).stderr
    with pytest.raises(UsageError, match="--now is for"):
        call("run", recipe, "--set", "on=null", "--now")
