"""Clients of released versions are served by the present server; `scripts/make_client.py` has packed them."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from running_server import RunningServer

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

ROOT = Path(__file__).parents[2]
CLIENTS = sorted((Path(__file__).parent / "clients").glob("*.tar.xz"))


@pytest.mark.parametrize("packed", CLIENTS, ids=lambda path: path.name.partition(".")[0])
def test_a_released_client_is_served(packed, tm):
    made = runpy.run_path(str(ROOT / "scripts" / "make_client.py"))
    server = RunningServer(tm.start)
    server.start()
    token = tm.call("token", "create", "old", "--scopes", "read,run", "--json").json["token"]
    with tarfile.open(packed) as archive:
        archive.extractall(tm.root / "client", filter="data")
    tm.write("recipe.yaml", made["RECIPE"])
    tm.write("train.py", made["SCRIPT"])
    environment = tm.env | {
        "PYTHONPATH": str(tm.root / "client"),
        "TRAINMASTER_HOME": str(tm.root / "laptop"),
        "TRAINMASTER_URL": server.url,
        "TRAINMASTER_TOKEN": token,
        "XDG_CONFIG_HOME": str(tm.root / "config"),
    }
    told = {}
    for verb in made["VERBS"]:
        call = [sys.executable, "-P", "-m", "trainmaster", *verb.split()]
        asked = subprocess.run(
            call, cwd=tm.work, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert asked.returncode == 0, f"{verb}: {asked.stderr}"
        assert "Traceback" not in asked.stderr
        told[verb] = asked.stdout
    (run,) = json.loads(told["status --json"])["runs"]
    assert json.loads(told["status latest --json"])["reason"] == run["reason"] == "SUCCEEDED"
    assert told["logs latest"] == told["logs latest -f"] == "trained\n"
    (model,) = json.loads(told["models --json"])["models"]
    assert model["run"] == run["run"]
    assert (tm.work / "got" / "model.txt").read_text() == "weights"


def test_there_are_released_clients():
    assert CLIENTS
