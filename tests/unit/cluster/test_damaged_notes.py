"""What a home has written down of its clusters and attempts, damaged: it is right, or found out anew."""

import json
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import given, settings

from hostile_bytes import changed_json
from trainmaster.artifacts.manifest import FileEntry, Manifest
from trainmaster.cluster.bootstrap.facts import HostFacts, PythonFacts
from trainmaster.cluster.member_places import read_places
from trainmaster.cluster.node_ledger import NodeLedger
from trainmaster.control.attempt.unpublished_checkpoint import note_restored, noted_restored
from trainmaster.control.task.layout import AttemptPlace
from trainmaster.executors.gangs.engine import ClusterNode
from trainmaster.executors.gangs.recorded_cluster import recorded
from trainmaster.executors.ray.cluster import RayCluster
from trainmaster.providers.base import Node, NodeState
from trainmaster.spec.errors import PublishError

NODE = Node("i-0", "c", "worker", NodeState.READY, "10.0.0.1", key=Path("/k"), labels={"a": "b"})
PYTHON = PythonFacts("/usr/bin/python3", "3.11.2", "cpython", "cpython-311-x86_64-linux-gnu")
FACTS = HostFacts(
    "/h", "u", "/r", "Linux", "6", "x86_64", 4, 9, 8, True, ("gpu",), (PYTHON,), frozenset({"p/1"}), 0.5
)
HEAD = ClusterNode("a", "10.0.0.1", 2, "/d", "/d/h", {"a": "b"}, ("0",), port_base=20000)
MANIFEST = Manifest(
    "checkpoint", datetime.now(UTC), (FileEntry("a", size_bytes=1, sha256="0" * 64, object="files/a"),), {}
)


def memory():
    """The document that is kept of a node."""
    with tempfile.TemporaryDirectory() as scratch:
        found = NodeLedger(Path(scratch))
        found.learn(NODE, FACTS)
        found.gave_keys(["i-0"])
        again = NodeLedger(Path(scratch))
        assert (again.nodes(["i-0"]), again.facts("i-0"), again.have_keys(["i-0"])) == (
            {"i-0": NODE},
            FACTS,
            True,
        )
        return json.loads((Path(scratch) / "nodes.json").read_text())


@settings(max_examples=80)
@given(changed_json(memory()))
def test_what_is_known_of_nodes(data):
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "nodes.json").write_bytes(data)
        found = NodeLedger(Path(scratch))
        for node in found.nodes(["i-0"]).values():
            assert (type(node.port), type(node.address), type(node.labels)) == (int, str, dict)
        facts = found.facts("i-0")
        assert facts is None or (type(facts.cpus), type(facts.have), type(facts.home)) == (
            int,
            frozenset,
            str,
        )
        found.have_keys(["i-0", "i-1"])
        found.learn(NODE, FACTS)
        assert NodeLedger(Path(scratch)).nodes(["i-0"]) == {"i-0": NODE}


@settings(max_examples=80)
@given(changed_json({"worker-0": "i-0", "worker-1": "i-1"}))
def test_where_members_are(data):
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "places.json").write_bytes(data)
        assert all(
            isinstance(machine, str) for machine in read_places(Path(scratch) / "places.json").values()
        )


@settings(max_examples=80)
@given(changed_json({"nodes": [asdict(HEAD)], "taken": {"10.0.0.1": [20000]}}))
def test_the_cluster_that_was_started_last(data):
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "cluster.json").write_bytes(data)
        nodes, taken = recorded(Path(scratch))
        assert all((type(node.slots), type(node.gpus)) == (int, tuple) for node in nodes)
        assert all(type(port) is int for ports in taken.values() for port in ports)
        RayCluster.find(Path(scratch), lambda *_: b"", lambda *_: None)


@settings(max_examples=80)
@given(changed_json(json.loads(MANIFEST.to_json())))
def test_what_an_attempt_began_with(data):
    with tempfile.TemporaryDirectory() as scratch:
        place = AttemptPlace(Path(scratch))
        note_restored(place, MANIFEST)
        (file,) = Path(scratch).iterdir()
        file.write_bytes(data)
        try:
            noted_restored(place)
        except PublishError as error:
            found = str(file) in error.args[0] and error.hint
            assert found
