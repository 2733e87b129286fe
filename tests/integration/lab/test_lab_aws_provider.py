"""The provider `lab` on real hosts: rented, reached, renewed, taken back, and gone by themselves."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")

from trainmaster.providers.aws import AwsProvider
from trainmaster.providers.aws_deadman import end_command, renewal_command
from trainmaster.providers.aws_errors import QuotaError
from trainmaster.providers.aws_nodes import notice_command, notice_time
from trainmaster.providers.base import NoCapacityError, Node, NodeRequest, NodeState
from trainmaster.providers.finding import get_provider
from trainmaster.providers.place import ProviderPlace

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def provider(lab: Any) -> Iterator[AwsProvider]:
    found = get_provider("lab", ProviderPlace(lab.home, "f" * 32, {}))
    assert isinstance(found, AwsProvider)
    yield found
    found.reap([])
    found.reap([])
    found.close()


def on(node: Node, command: str) -> subprocess.CompletedProcess[str]:
    """Run something there, as the control loop does: with the provider's key, and the host's key pinned."""
    assert node.key
    known = node.key.with_name(f"known-{node.id}")
    known.write_text(f"{node.address} {node.host_key}\n")
    options = {
        "UserKnownHostsFile": known,
        "StrictHostKeyChecking": "yes",
        "ConnectTimeout": 3,
        "BatchMode": "yes",
    }
    flags = [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
    return subprocess.run(
        ["ssh", "-i", str(node.key), *flags, f"{node.user}@{node.address}", command],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def until(condition: Any, timeout_s: float = 60) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, condition
        time.sleep(0.2)
    return value


def ready(provider: AwsProvider, cluster: str, lease_s: float) -> dict[str, Node]:
    """All run, and their switch is set: the first renewal proves it."""
    deadline = time.monotonic() + 60
    while True:
        nodes = {node.id: node for node in provider.nodes(cluster) if node.state is not NodeState.GONE}
        said = {
            node.id: on(node, renewal_command(lease_s)) if node.state is NodeState.READY else None
            for node in nodes.values()
        }
        if all(done is not None and done.returncode == 0 for done in said.values()):
            return nodes
        assert time.monotonic() < deadline, (nodes, said)
        time.sleep(0.2)


def test_what_nobody_renews_is_given_back(provider: AwsProvider) -> None:
    """Three machines: one is renewed, one is not, one is told to end: without a word to the API."""
    rented = provider.acquire("one", NodeRequest("worker", 2, "m4.large", spot=True, token="w", lease_s=60))
    rented += provider.acquire("one", NodeRequest("ps", 1, "m4.large", token="p", lease_s=60))
    nodes = ready(provider, "one", lease_s=60)
    kept, forgotten, told = (nodes[node.id] for node in rented)
    assert on(kept, f"ping -c 1 -W 2 {told.private_address}").returncode == 0, "they reach each other"
    assert on(forgotten, renewal_command(2)).returncode == 0
    assert on(told, end_command()).returncode == 0

    def ended() -> bool:
        assert on(kept, renewal_command(60)).returncode == 0
        states = {node.id: node for node in provider.nodes("one")}
        assert states[kept.id].state is NodeState.READY
        gone = [states[node.id] for node in (forgotten, told) if states[node.id].state is NodeState.GONE]
        assert all("switched itself off" in node.reason for node in gone)
        return len(gone) == 2

    until(ended)
    provider.release("one")
    assert {node.state for node in provider.nodes("one")} == {NodeState.GONE}


def test_a_machine_that_is_taken_back(provider: AwsProvider, lab: Any) -> None:
    """The notice is seen from outside and on the machine, and both say the same time."""
    provider.acquire("taken", NodeRequest("worker", 1, "m4.large", spot=True))
    (node,) = ready(provider, "taken", lease_s=600).values()
    assert notice_time(on(node, notice_command()).stdout) is None
    lab.call("interrupt", node.id)
    inside = until(lambda: notice_time(on(node, notice_command()).stdout))
    (leaving,) = provider.nodes("taken")
    assert leaving.state is NodeState.LEAVING
    assert leaving.leaves_at == pytest.approx(inside, abs=2)


def test_a_zone_without_capacity_and_a_quota(provider: AwsProvider, lab: Any) -> None:
    first, second = lab.access["zones"][:2]
    lab.call("capacity", "0", "--type", "c4.large", "--zone", first)
    try:
        (node,) = provider.acquire("three", NodeRequest("worker", 1, "c4.large"))
        assert node.zone == second
        with pytest.raises(NoCapacityError) as caught:
            provider.acquire("three", NodeRequest("worker", 1, "c4.large", zone=first, token="here"))
        assert caught.value.zones == (first,)
    finally:
        lab.call("capacity", "none", "--type", "c4.large", "--zone", first)
    lab.call("quota", "on-demand", "0")
    try:
        with pytest.raises(QuotaError):
            provider.acquire("four", NodeRequest("worker", 1, "c4.large"))
    finally:
        lab.call("quota", "on-demand", "1000")
    provider.release("three")
    provider.release("four")
