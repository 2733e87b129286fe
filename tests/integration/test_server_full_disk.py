"""A server whose disk is full: what is written is refused, the rest can be read, and room is all it needs."""

from __future__ import annotations

import os
import subprocess
import urllib.error
from contextlib import suppress
from pathlib import Path

import pytest
from running_server import RunningServer

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

PIECE = os.urandom(1 << 20)


@pytest.fixture
def small_disk(tm):
    """A file system of 24 MiB, with the home."""
    tm.home.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", str(tm.home)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield tm.home
    tm.clean_up()
    subprocess.run(["umount", "--lazy", str(tm.home)], check=True)


@pytest.fixture
def server(tm, small_disk):
    tm.call("team", "create", "news")
    scopes = "read,run,manage"
    made = tm.call("token", "create", "ci", "--team", "news", "--scopes", scopes, "--json").json
    found = RunningServer(tm.start, made["token"])
    found.start()
    return found


def fill(path):
    """Leave no byte free."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def test_uploads_the_audit_and_capsules_wait_for_room(tm, server, small_disk):
    ended = tm.run(tm.task("echo hello"))["run"]
    capsule = tm.root / "job.capsule"
    tm.call("export", ended, capsule)
    wanted = {"name": "x.bin", "size_bytes": 2 * len(PIECE), "kind": "volume"}
    upload = server.ask("POST", "/uploads", wanted)[1]["upload"]

    def send(offset):
        told = {"Upload_Offset": str(offset), "Content_Type": "application/offset+octet-stream"}
        return server.open("PATCH", f"/api/v1/uploads/{upload}", PIECE, **told)

    send(0).close()
    fill(small_disk / "filler")
    elsewhere = {
        **tm.env,
        "TRAINMASTER_HOME": str(tm.root / "home-2"),
        "TRAINMASTER_CACHE": f"{small_disk}/c",
    }

    with pytest.raises(urllib.error.HTTPError, match="507") as found:
        send(len(PIECE))
    assert "Cannot write store:/uploads/" in found.value.read().decode(), "a member is told no path"
    with pytest.raises(urllib.error.HTTPError, match="507") as found:  # its key would be the first
        server.open("PUT", "/api/v1/secrets/BIG", {"value": "x" * 60_000})
    assert "Free some " in found.value.read().decode()
    assert server.ask("GET", f"/uploads/{upload}")[1]["offset"] == len(PIECE)
    assert server.ask("GET", "/runs")[1]["runs"] == []
    failed = tm.call("run", capsule, code=None, env=elsewhere)
    assert failed.code != 0
    assert "o space left" in failed.err, failed.err
    assert not list(Path(elsewhere["TRAINMASTER_CACHE"]).rglob("recipe.yaml")), "half a capsule is none"
    assert "the audit cannot be written" in server.process.err, "what it has no row of, its log has"

    (small_disk / "filler").unlink()
    send(len(PIECE)).close()
    assert server.ask("POST", f"/uploads/{upload}/finish", {"volume": "pets"})[0] in (201, 202)
    assert server.open("PUT", "/api/v1/secrets/BIG", {"value": "x" * 60_000}).status == 204
    assert tm.call("run", capsule, "--json", env=elsewhere).json["reason"] == "SUCCEEDED"
    assert tm.call("server", "audit").code == 0
