"""A command that leads to an app without a server leaves it, however the command ends."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext

import pytest

from command_line import invoke
from trainmaster.cli import opening
from trainmaster.spec.errors import MissingPartError, RunError, UsageError


class Home:
    """A `ClientProtocol` and its `apps`, of which there is one.

    Args:
        state: of the app, always.
        enter: what happens when a browser is to be let in.
    """

    def __init__(self, state, enter):
        self.state, self.enter, self.ended, self.apps = state, enter, [], self

    def resolve(self, run):
        return run

    def port(self, run, member, port):
        return {"app": "po-1", "kind": "port", "state": self.state, "reason": "it fell", "idle_s": 60}

    def show(self, app):
        os.kill(os.getpid(), signal.SIGTERM)
        return {}

    def leave(self, app):
        self.ended.append(app)


def missing(_):
    raise MissingPartError("h11 is not installed", "Run: pip install 'trainmaster[apps]'")


def there(_):
    return "http://127.0.0.1:1/"


@pytest.fixture(autouse=True)
def signals_as_before():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("state", "enter", "fails"),
    [
        ("RUNNING", missing, pytest.raises(MissingPartError)),
        ("DONE", missing, pytest.raises(RunError, match="it fell")),
        ("RUNNING", there, nullcontext()),
        ("WAITING", missing, nullcontext()),
    ],
)
def test_what_was_opened_is_left(monkeypatch, state, enter, fails):
    home = Home(state, enter)
    monkeypatch.setattr("trainmaster.api.EmbeddedClient", lambda **_: home)
    monkeypatch.setattr(opening, "context", lambda: None)
    with fails:
        invoke("open", "r-1", "8265")
    assert home.ended == ["po-1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--provider", "aws", "--idle", "soon"], "--idle: 'soon' is no duration"),
        (["--provider", "aws", "--idle", "0s"], "--idle 0s: it would end before"),
        (["--idle", "1m"], "--idle is of a machine that is rented"),
    ],
)
def test_an_idle_that_cannot_be_kept_is_refused(monkeypatch, words, said):
    """Jupyter takes 0 for never: the machine would be paid for without an end."""
    monkeypatch.setattr("trainmaster.api.EmbeddedClient", lambda **_: Home("RUNNING", there))
    with pytest.raises(UsageError, match=said):
        invoke("notebook", *words)
