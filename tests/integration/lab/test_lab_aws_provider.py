"""The provider `lab` on real hosts: rented, reached, renewed, taken back, and gone by themselves."""

from __future__ import annotations

import calendar
import os
import re
import shlex
import subprocess
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")

from trainmaster.providers.aws.errors import QuotaError
from trainmaster.providers.aws.provider import AwsProvider
from trainmaster.providers.base import NoCapacityError, Node, NodeRequest, NodeState, ProviderPlace
from trainmaster.providers.dead_man_switch import end_command, renewal_command
from trainmaster.providers.plugins import get_provider
from trainmaster.testing.waits import until

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root"),
    pytest.mark.timeout(900),
]


PATIENCE_S = 120.0
#: A lease that does not run out in a test, however slow the machine is.
LONG_S = 1800.0
#: Where a machine itself finds the notice; its instance metadata needs a session token first.
METADATA = "http://169.254.169.254/latest"


@pytest.fixture
def cluster() -> str:
    """Another one in each try: the same tokens would give the machines that are gone."""
    return f"c{uuid.uuid4().hex[:8]}"


@pytest.fixture
def provider(lab: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsProvider]:
    found = get_provider("lab", ProviderPlace(lab.home, "f" * 32, {}))
    assert isinstance(found, AwsProvider)
    yield found
    monkeypatch.setattr(found._client.clock, "now", lambda: time.time() + 7 * 86_400)  # all leases are over
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
        "ConnectTimeout": 5,
        "ServerAliveInterval": 5,
        "BatchMode": "yes",
    }
    flags = [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
    return subprocess.run(
        ["ssh", "-i", str(node.key), *flags, f"{node.user}@{node.address}", command],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def does(node: Node, command: str) -> None:
    """It succeeds there, if not at the first try."""
    said: list[Any] = []

    def done() -> bool:
        said.append(on(node, command))
        return said[-1].returncode == 0

    try:
        until(done, command, PATIENCE_S)
    except AssertionError:
        raise AssertionError((node, said[-1])) from None


def ready(provider: AwsProvider, cluster: str, count: int) -> dict[str, Node]:
    """All run, and their switch is set: the first renewal proves it."""

    def all_run() -> dict[str, Node]:
        nodes = {node.id: node for node in provider.nodes(cluster)}
        assert len(nodes) == count, nodes
        assert not [node for node in nodes.values() if node.state is NodeState.GONE], nodes
        return nodes if all(node.state is NodeState.READY for node in nodes.values()) else {}

    nodes: dict[str, Node] = until(all_run, "all run", PATIENCE_S)
    for node in nodes.values():
        does(node, renewal_command(LONG_S))
    return nodes


def test_what_nobody_renews_is_given_back(provider: AwsProvider, cluster: str) -> None:
    """Three machines: one is renewed, one is not, one is told to end: without a word to the API."""
    rented = provider.acquire(cluster, NodeRequest("worker", 2, "m4.large", spot=True, lease_s=LONG_S))
    rented += provider.acquire(cluster, NodeRequest("ps", 1, "m4.large", lease_s=LONG_S))
    nodes = ready(provider, cluster, 3)
    kept, forgotten, told = (nodes[node.id] for node in rented)
    does(kept, f"ping -c 1 -W 2 {told.private_address}")  # they reach each other
    assert on(forgotten, renewal_command(2)).returncode == 0
    assert on(told, end_command()).returncode == 0

    def ended() -> bool:
        states = {node.id: node for node in provider.nodes(cluster)}
        assert states[kept.id].state is NodeState.READY
        gone = [states[node.id] for node in (forgotten, told) if states[node.id].state is NodeState.GONE]
        # As soon as it is seen to go, it is seen why.
        assert all("switched itself off" in node.reason for node in gone), gone
        return len(gone) == 2

    until(ended, "it has ended", PATIENCE_S)
    does(kept, renewal_command(LONG_S))
    provider.release(cluster)
    assert {node.state for node in provider.nodes(cluster)} == {NodeState.GONE}


def notice_command() -> str:
    """What to run on a machine to ask for its notice: it prints JSON if there is one (see `notice_time`)."""
    # Python, as our runtime needs it anyway, and images without curl are common.
    script = (
        "import urllib.request as u\n"
        "def ask(path, method, **headers):\n"
        f"    request = u.Request({METADATA!r} + path, method=method)\n"
        "    for name, value in headers.items():\n"
        "        request.add_header('X-aws-ec2-metadata-token' + name, value)\n"
        "    return u.build_opener(u.ProxyHandler({})).open(request, timeout=1).read().decode()\n"
        "try:\n"
        "    token = ask('/api/token', 'PUT', **{'-ttl-seconds': '300'})\n"
        "    print(ask('/meta-data/spot/instance-action', 'GET', **{'': token}))\n"
        "except OSError:\n"
        "    pass\n"
    )
    return f"python3 -c {shlex.quote(script)}"


def notice_time(document: str) -> float | None:
    """When the machine is taken back, Unix seconds, from what `notice_command` printed.

    >>> notice_time('{"action": "terminate", "time": "2026-01-02T03:04:05Z"}')
    1767323045.0
    >>> notice_time("") is None
    True
    """
    found = re.search(r'"time"\s*:\s*"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?Z"', document)
    return float(calendar.timegm(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S"))) if found else None


def test_a_machine_that_is_taken_back(provider: AwsProvider, lab: Any, cluster: str) -> None:
    """The notice is seen from outside and on the machine, and both say the same time."""
    provider.acquire(cluster, NodeRequest("worker", 1, "m4.large", spot=True))
    (node,) = ready(provider, cluster, 1).values()
    assert notice_time(on(node, notice_command()).stdout) is None
    lab.call("interrupt", node.id, "--notice", 600)
    inside = until(lambda: notice_time(on(node, notice_command()).stdout), "the notice", PATIENCE_S)
    (leaving,) = provider.nodes(cluster)
    assert leaving.state is NodeState.LEAVING
    assert leaving.leaves_at == pytest.approx(inside, abs=2)
    lab.call("interrupt", node.id, "--notice", 0)
    (gone,) = until(
        lambda: [n for n in provider.nodes(cluster) if n.state is NodeState.GONE], "it is gone", PATIENCE_S
    )
    assert "took the spot machine back" in gone.reason


def test_a_zone_without_capacity_and_a_quota(provider: AwsProvider, lab: Any, cluster: str) -> None:
    first, second = lab.access["zones"][:2]
    lab.call("capacity", "0", "--type", "c4.large", "--zone", first)
    try:
        (node,) = provider.acquire(cluster, NodeRequest("worker", 1, "c4.large"))
        assert node.zone == second
        with pytest.raises(NoCapacityError) as caught:
            provider.acquire(cluster, NodeRequest("worker", 1, "c4.large", zone=first, token="here"))
        assert caught.value.zones == (first,)
    finally:
        lab.call("capacity", "none", "--type", "c4.large", "--zone", first)
    lab.call("quota", "on-demand", "0")
    try:
        with pytest.raises(QuotaError):
            provider.acquire(f"{cluster}-more", NodeRequest("worker", 1, "c4.large"))
    finally:
        lab.call("quota", "on-demand", "1000")
    provider.release(cluster)
    provider.release(f"{cluster}-more")
