"""``trainmaster volume`` with a server: what is named is the team's, by the command line and over TCP."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("blake3", reason="the extra `volumes` is not installed")
from served_tcp import serving

from trainmaster.cli import opening
from trainmaster.cli.app import app
from trainmaster.control.layout import Home
from trainmaster.spec.errors import UsageError


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir()
    return Home(
        tmp_path / "home", tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path}/t.db"
    )


@pytest.fixture
def server(home, tmp_path, monkeypatch):
    """A server that this machine's command line asks; its own home is an empty one."""
    with serving(home, ["read", "run"]) as connection:
        monkeypatch.setattr(opening, "_is_local", False)
        for name, value in {
            "TRAINMASTER_URL": connection.url,
            "TRAINMASTER_TOKEN": connection._token,
            "TRAINMASTER_HOME": str(tmp_path / "laptop"),
            "TRAINMASTER_CACHE": str(tmp_path / "laptop-cache"),
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("TRAINMASTER_STORE", raising=False)
        yield connection


@pytest.fixture
def files(tmp_path):
    place = tmp_path / "files"
    (place / "deep" / "empty").mkdir(parents=True)
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o755)
    (place / "deep" / "ü.bin").write_bytes(bytes(range(256)) * 300)
    (place / "link").symlink_to("deep/ü.bin")
    return place


def call(*words):
    done = CliRunner().invoke(app, ["volume", *map(str, words)])
    if done.exception is not None:
        raise done.exception
    return done


def test_a_push_prints_what_it_prints_at_home(server, files, tmp_path):
    done = call("push", files, "pets")
    assert done.stderr.startswith("pets@1: 2 files, 77 kB in 1 chunk, "), done.stderr
    found = json.loads(call("push", files, "pets", "--json").stdout)
    right = json.loads(call("push", files, f"file://{tmp_path}/other", "--json").stdout)
    assert (found["uri"], right["uri"]) == ("pets@2", f"file://{tmp_path}/other@1")
    assert set(right) - set(found) == {"sent_chunks", "shared_chunks"}
    for key in ("kind", "files", "bytes", "chunks", "notes"):
        assert found[key] == right[key]
    assert [
        each["version"] for each in json.loads(call("versions", "pets", "--json").stdout)["versions"]
    ] == [1, 2]
    with pytest.raises(UsageError, match="Leave them out"):
        call("push", files, "pets", "--chunk-size", "1MiB")
