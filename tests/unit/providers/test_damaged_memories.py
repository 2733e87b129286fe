"""What a home remembers of its machines, damaged: nothing that is paid for is taken for not being there."""

import functools
import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from hostile_bytes import changed_json
from trainmaster.providers.aws.ledger import AwsLedger
from trainmaster.providers.base import Node, NodeState
from trainmaster.providers.host_ledger import HostLedger
from trainmaster.spec.errors import ProviderError

ZONE = {"cluster": "c", "token": "t", "zone": "us-a"}
KEY = {"private": "p", "public": "q"}


@functools.cache
def kept():
    """The files of a home that has rented in one region."""
    with tempfile.TemporaryDirectory() as scratch:
        memory = AwsLedger(Path(scratch))
        memory.add_region("us")
        memory.set_attempt("c", "t", "us-a")
        memory.host_key("c", "t")
        return {file.name: file.read_bytes() for file in Path(scratch).glob("*.json")}


def of_aws(about, data, ask):
    """What is said when a file says this: an answer, or True for an error that names it and what to do."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, good in kept().items():
            (Path(scratch) / name).write_bytes(data if about in json.loads(good) else good)
        (name,) = (name for name, good in kept().items() if about in json.loads(good))
        try:
            return ask(AwsLedger(Path(scratch)))
        except ProviderError as error:
            return str(Path(scratch) / name) in error.args[0] and bool(error.hint)


@settings(max_examples=60)
@given(changed_json({"regions": ["us"]}))
def test_regions(data):
    found = of_aws("regions", data, AwsLedger.regions)
    assert found is True or all(isinstance(region, str) for region in found)


def test_damaged_regions_are_no_reason_to_look_nowhere():
    for data in (b"", b"[]", b'{"regions": "us"}', b"[" * 100_000):
        assert of_aws("regions", data, AwsLedger.regions) is True


@settings(max_examples=60)
@given(changed_json(ZONE))
def test_requests(data):
    assert isinstance(of_aws("zone", data, lambda memory: memory.attempt("c", "t")), str | bool)
    assert isinstance(of_aws("zone", data, lambda memory: memory.attempts("c")), list | bool)


@settings(max_examples=60)
@given(changed_json(KEY))
def test_host_keys(data):
    found = of_aws("private", data, lambda memory: memory.host_key("c", "t"))
    assert found is True or all(isinstance(half, str) for half in found)


NODE = Node(
    "h", "c", "worker", NodeState.READY, "10.0.0.1", key=Path("/k"), labels={"a": "b"}, is_rented=False
)


@settings(max_examples=60)
@given(st.deferred(lambda: changed_json(json.loads(remembered()))))
def test_hosts(data):
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "c.json").write_bytes(data)
        memory = HostLedger(Path(scratch))
        for node in memory.recall("c"):
            assert (type(node.port), type(node.address), type(node.state)) == (int, str, NodeState)
        assert all(isinstance(token, str) for token in memory.tokens("c").values())
        assert all(isinstance(cluster, str) for cluster in memory.clusters())
        memory.remember("c", [NODE], {"h": "t"})
        assert memory.recall("c") == [NODE]


def remembered():
    with tempfile.TemporaryDirectory() as scratch:
        HostLedger(Path(scratch)).remember("c", [NODE], {"h": "t"})
        return (Path(scratch) / "c.json").read_bytes()
