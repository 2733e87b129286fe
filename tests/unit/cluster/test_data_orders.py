"""What is told of data that cannot be brought to a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_worker import Node, worker

from trainmaster.cluster.node_files.worker_client import OrderError


def refusal(tmp_path: Path, **order: Any) -> OrderError:
    with pytest.raises(OrderError) as raised, worker(Node(tmp_path)) as ours:
        ours.provide(order, {}, lambda _: None)
    return raised.value


@pytest.mark.parametrize(
    ("url", "trouble", "has_no_way", "words"),
    [
        ("http://127.0.0.1:9/x", "unreachable", True, "http://127.0.0.1:9/x: "),
        ("file:///no/such/file", "other", False, "file:///no/such/file cannot be brought here"),
        ("file:///dev/full/x", "refused", False, "file:///dev/full/x cannot be brought here"),
    ],
)
def test_the_kind_is_beside_the_words(
    url: str, trouble: str, has_no_way: bool, words: str, tmp_path: Path
) -> None:
    error = refusal(tmp_path, do="url", url=url, directory=str(tmp_path / "data"))
    assert (error.trouble, error.kind == "NoWayError") == (trouble, has_no_way)
    assert error.words.startswith(words)


def test_what_the_user_has_to_bring_is_told_as_such(tmp_path: Path) -> None:
    order = {"do": "hdfs", "address": "127.0.0.1", "served": None, "copies": 1, "venv": ""}
    order |= {"hadoop": str(tmp_path / "none"), "directory": str(tmp_path / "hdfs")}
    error = refusal(tmp_path, **order)
    assert error.kind == "UsageError"
    assert "stage: hdfs" in error.words, "the hint, be it Java or Hadoop that is missing"
