"""What `trainmaster server` is while it serves."""

import gc

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from typer.testing import CliRunner

from trainmaster.api import serving
from trainmaster.cli.app import app


def test_a_server_gives_back_what_requests_leave(tmp_path, monkeypatch):
    """`main` turns the collector off for quick verbs; a server without it grew with each request."""
    monkeypatch.setenv("TRAINMASTER_HOME", str(tmp_path / "home"))
    found = []
    monkeypatch.setattr(serving, "serve", lambda *_: found.append(gc.isenabled()))
    monkeypatch.setattr(gc, "freeze", lambda: None)  # of this process of all tests
    gc.disable()
    try:
        answer = CliRunner().invoke(app, ["server"])
    finally:
        gc.enable()
    assert answer.exit_code == 0, answer.output
    assert found == [True]
