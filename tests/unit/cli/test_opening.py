"""Verbs that read runs, or ask for their end, speak to any `ClientProtocol`."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from command_line import invoke
from trainmaster.api import Model
from trainmaster.api.remote.contexts import Contexts, ServerContext
from trainmaster.cli import opening
from trainmaster.service.runs.highlights import Highlights, NoteLine, TaskLine
from trainmaster.spec.errors import UsageError

STATUS = {"run": "r-1", "state": "RUNNING", "reason": None, "seconds": 1.0, "cost_usd": 0.0,
          "experiments": {}, "models": [], "driver": None}  # fmt: skip


class Elsewhere:
    """A `ClientProtocol` with one run, whose driver has died."""

    def __init__(self):
        self.cancelled = 0

    def resolve(self, text):
        return f"r-{text}"

    def brief(self, run):
        over = {"state": "DONE", "reason": "CANCELLED"} if self.cancelled else {}
        return {**STATUS, **over}

    def status(self, run):
        return SimpleNamespace(json=self.brief(run))

    def highlights(self, run):
        running = (TaskLine("main", 0, 1, None, "", {"loss": 0.5}), TaskLine("main", 2, 1, None, "", {}))
        return Highlights(
            running, (TaskLine("main", 1, 2, "OOM", "", {}),), (NoteLine(0.0, None, None, "waits"),)
        )

    def models(self, run=None):
        return [Model("r-1", "main", 0, "s3://b/m", {"loss": 0.5}, {"lr": 1})]

    def logs(self, run, query):
        return iter([f"{run} {query.grep}".encode()])

    def cancel(self, run):
        self.cancelled += 1


@pytest.fixture
def call(monkeypatch):
    client = Elsewhere()
    monkeypatch.setattr("trainmaster.api.EmbeddedClient", lambda **_: client)
    return invoke


def test_status_models_logs_and_cancel_need_no_home(call):
    lines = call("status", "1").stdout.splitlines()
    assert lines[0].startswith("r-1: RUNNING (nobody drives it")
    running = ["  main/0 attempt 1  loss=0.5", "  main/2 attempt 1  no metrics yet"]
    assert lines[2:5] == [*running, "  main/1 OOM"]
    assert lines[5].endswith("ago: waits")
    assert json.loads(call("models", "1", "--json").stdout)["models"][0]["parameters"] == {"lr": 1}
    assert call("logs", "1", "--grep", "a").stdout == "r-1 a"
    done = call("cancel", "1")
    assert (done.exit_code, done.stderr) == (0, "r-1: CANCELLED\n"), "nothing of a driver that it needs not"


@pytest.fixture
def contexts(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("TRAINMASTER_URL", raising=False)
    monkeypatch.setattr(opening, "_is_local", False)
    monkeypatch.setattr(opening, "_chosen", None)
    return Contexts()


def test_on_server_asks_the_one_server_that_was_logged_in_to(contexts):
    contexts.add(ServerContext("lab", "https://lab.example.org", "token"))
    contexts.use("local")
    assert opening.context() is None
    opening.ask_server()
    assert opening.context().url == "https://lab.example.org"


def test_on_server_asks_the_one_in_use(contexts):
    contexts.add(ServerContext("a", "https://a.example.org", "token"))
    contexts.add(ServerContext("b", "https://b.example.org", "token"))
    opening.ask_server()
    assert opening.context().url == "https://b.example.org"


def test_on_server_says_what_is_missing(contexts):
    with pytest.raises(UsageError, match="not logged in"):
        opening.ask_server()
    contexts.add(ServerContext("a", "https://a.example.org", "token"))
    contexts.add(ServerContext("b", "https://b.example.org", "token"))
    contexts.use("local")
    with pytest.raises(UsageError, match="a, b"):
        opening.ask_server()
    opening.stay_local()
    with pytest.raises(UsageError, match="contradict"):
        opening.ask_server()
