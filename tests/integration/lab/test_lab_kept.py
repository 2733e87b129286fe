"""Machines that a run leaves warm: the next one takes them over in a moment, and they can be ended early."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")

from renter import Renter

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
SAYS = """
name: steps
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2}
    framework: plain
    hardware: {instance: m4.xlarge}
    command: cat words.txt
"""


def clusters(renter: Renter, **env: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(renter.call("clusters", "--json", **env).stdout)["clusters"]
    return found


def said(renter: Renter, run: str) -> list[str]:
    return [line.split("| ")[-1] for line in renter.call("logs", run).stdout.splitlines()]


def require_few_imports(log: str) -> None:
    """Importing is most of what comes before the first line of a run on machines that are there."""
    imported = set(re.findall(r"\| +([\w.]+)$", log, re.MULTILINE))
    ours = {name for name in imported if name.startswith("trainmaster")}
    assert 300 < len(ours) <= 400, sorted(ours)
    for heavy in ("boto3", "trainmaster.volumes.packed", "trainmaster.hdfs", "trainmaster.cluster.roles"):
        assert heavy not in imported


def test_warm_machines_are_used_again_and_ended_early(renter: Renter, lab: Any, tmp_path: Path) -> None:
    before = lab.alive()
    words, recipe = renter.work / "words.txt", renter.recipe(SAYS)
    words.write_text("first\n")
    first = renter.run(recipe, "--keep", "20m")
    assert first.end()["reason"] == "SUCCEEDED"
    assert "ends it" in first.text
    (kept,) = clusters(renter)
    assert (kept["state"], len(kept["machines"]), kept["run"]) == ("kept", 2, first.run)
    machines = {machine["id"] for machine in kept["machines"]}

    words.write_text("second\n")  # other code on the same machines
    second = renter.run(recipe, "--keep", "20m")
    found = second.end()
    assert found["reason"] == "SUCCEEDED"
    assert f"{kept['id']} is still warm and used again" in second.text
    assert said(renter, found["run"]) == ["second", "second"]
    assert machines <= lab.alive()

    # A run that knows nothing of it, as its database is another one, does not take it for nobody's.
    other = f"sqlite:///{tmp_path}/other.db"
    alone = renter.recipe(SAYS.replace("workers: 2", "workers: 1"))
    stranger = renter.run(alone, "--keep", "20m", TRAINMASTER_DATABASE=other)
    assert stranger.end()["reason"] == "SUCCEEDED"
    theirs = lab.alive() - before - machines
    assert len(theirs) == 1
    (cluster,) = clusters(renter, TRAINMASTER_DATABASE=other)
    done = renter.call("clusters", "end", cluster["id"], TRAINMASTER_DATABASE=other)
    assert "1 machine given back" in done.stderr
    assert lab.alive() == before | machines
    assert clusters(renter, TRAINMASTER_DATABASE=other) == []
    assert "no cluster" in renter.call("clusters", "end", cluster["id"], code=2).stderr
    end_all = ("clusters", "end", "--all")
    assert renter.call(*end_all, TRAINMASTER_DATABASE=other).stderr.startswith("no machines")

    last = renter.run(renter.recipe(SAYS), PYTHONPROFILEIMPORTTIME="1")
    assert last.end()["reason"] == "SUCCEEDED"
    assert "still warm" in last.text
    require_few_imports(last.text)
    assert lab.alive() == before, "nobody wanted them any longer"
    assert clusters(renter) == []
