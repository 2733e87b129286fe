"""What the program that gets data on a node says when it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "trainmaster.cluster.node_files.node_data_program"


@pytest.mark.parametrize(
    ("url", "trouble", "verdict"),
    [
        ("http://127.0.0.1:9/x", "unreachable", "@@refused http://127.0.0.1:9/x: "),
        ("file:///no/such/file", "other", "@@failed file:///no/such/file cannot be brought here"),
        ("file:///dev/full/x", "refused", "@@failed file:///dev/full/x cannot be brought here"),
    ],
)
def test_the_kind_comes_before_the_words(url: str, trouble: str, verdict: str, tmp_path: Path) -> None:
    order = {"do": "url", "url": url, "directory": str(tmp_path / "data"), "environment": {}}
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM],
        input=json.dumps(order) + "\n",
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    *_, kind, last = done.stdout.splitlines()
    assert kind.split() == ["@@trouble", trouble]
    assert last.startswith(verdict)


def test_what_the_user_has_to_bring_is_told_as_such(tmp_path: Path) -> None:
    order = {"do": "hdfs", "address": "127.0.0.1", "served": None, "copies": 1, "venv": "", "environment": {}}
    order |= {"hadoop": str(tmp_path / "none"), "directory": str(tmp_path / "hdfs")}
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM],
        input=json.dumps(order) + "\n",
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    last = done.stdout.splitlines()[-1]
    assert last.startswith("@@wrong ")
    assert "stage: hdfs" in last, "the hint, be it Java or Hadoop that is missing"
