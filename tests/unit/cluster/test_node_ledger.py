"""What is known of a cluster's nodes when its driver is another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmaster.cluster.bootstrap.facts import HostFacts, PythonFacts
from trainmaster.cluster.node_ledger import NodeLedger
from trainmaster.providers.base import Node, NodeState

FACTS = HostFacts(
    home="/home/a", user="a", root="/home/a/.t", os="Debian", kernel="6", arch="x86_64", cpus=2,
    memory_bytes=1 << 30, disk_bytes=1 << 33, writable=True, gpus=("GPU 0",),
    pythons=(PythonFacts("/usr/bin/python3", "3.11.2", "cpython", "abi"),),
    have=frozenset({"packages/1", "runtimes/2"}), clock_skew_s=0.0, internet=None, boot="7f3a",
)  # fmt: skip


def node(name: str, **more: object) -> Node:
    values: dict[str, object] = {"key": Path("/k"), "labels": {"zone": "a"}, "started_at": 5.0, **more}
    return Node(name, "run.train", "worker", NodeState.READY, "10.0.0.1", **values)  # type: ignore[arg-type]


def test_another_process_finds_it_again(tmp_path: Path) -> None:
    memory = NodeLedger(tmp_path / "c")
    memory.learn(node("i-0"), FACTS)
    memory.learn(node("i-1", key=None), FACTS)
    memory.gave_keys(["i-1", "i-0"])
    other = NodeLedger(tmp_path / "c")
    assert other.nodes(["i-0", "i-1"]) == {"i-0": node("i-0"), "i-1": node("i-1", key=None)}
    assert other.facts("i-0") == FACTS
    assert other.have_keys(["i-0", "i-1"])
    assert other.have_keys(["i-0"])
    assert not other.have_keys(["i-0", "i-2"])
    assert other.nodes(["i-0", "i-2"]).keys() == {"i-0"}, "one of them was never a node"
    assert other.facts("i-2") is None


def test_one_that_is_new_has_no_keys(tmp_path: Path) -> None:
    memory = NodeLedger(tmp_path)
    memory.learn(node("i-0"), FACTS)
    memory.gave_keys(["i-0"])
    memory.learn(node("i-0"), FACTS, is_new=False)
    assert memory.have_keys(["i-0"])
    memory.learn(node("i-0"), FACTS)
    assert not memory.have_keys(["i-0"]), "it was made a node once more: perhaps it was installed anew"


def test_nothing_is_left_when_something_is_not_as_it_was(tmp_path: Path) -> None:
    memory = NodeLedger(tmp_path)
    memory.learn(node("i-0"), FACTS)
    memory.clear()
    assert memory.facts("i-0") is None
    assert NodeLedger(tmp_path).nodes(["i-0"]) == {}


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"nodes": {"i-0": {"node": {"x": 1}, "facts": {"y": 2}}}, "keys": []}']
)
def test_what_cannot_be_read_is_not_known(tmp_path: Path, text: str) -> None:
    (tmp_path / "nodes.json").write_text(text)
    memory = NodeLedger(tmp_path)
    assert memory.nodes(["i-0"]) == {}
    assert memory.facts("i-0") is None
