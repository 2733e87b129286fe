"""The provider `openstack` keeps what every provider promises, on a real Nova in one process."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainmaster.providers.base import NoCapacityError, NodeRequest, NodeState, ProviderPlace
from trainmaster.providers.capabilities import BUILT_IN
from trainmaster.providers.examining import Finding, examined
from trainmaster.providers.openstack.client import OpenstackClient
from trainmaster.providers.openstack.driver_login import DriverCredential
from trainmaster.providers.openstack.login import login_of, read_login
from trainmaster.providers.openstack.provider import OpenstackProvider
from trainmaster.providers.openstack.settings import OPENSTACK
from trainmaster.spec.clocks import steady_s
from trainmaster.spec.errors import ProviderError, UsageError
from trainmaster.testing.private_nova import NoNovaError, PrivateNova, installed
from trainmaster.testing.provider_contract import ProviderContract
from trainmaster.transport.http_calls import HttpAnswer, send_request

pytestmark = pytest.mark.places

SETTINGS = "image: 155d900f-4e14-4e4c-a73d-069cbf4541e6\n"
PROGRAM = Path(__file__).with_name("nova_process.py")
CACHE = Path(os.environ.get("TRAINMASTER_CACHE") or Path.home() / ".cache" / "trainmaster")


@pytest.fixture(scope="module")
def nova() -> Iterator[PrivateNova]:
    """One for all tests of this file."""
    try:
        python = installed(CACHE)
    except NoNovaError as error:
        pytest.skip(str(error))
    with PrivateNova(python, PROGRAM) as running:
        yield running


class OpenstackBench:
    """The provider on a real Nova."""

    def __init__(self, nova: PrivateNova, root: Path) -> None:
        self.nova, self.root, self.ahead_s = nova, root, 0.0
        self.calls = list[tuple[str, str, Any]]()
        self.names = {name: uuid.uuid4().hex for name in ("home", "neighbour")}
        self.user, self.settings = "me", SETTINGS
        #: Of a login in place of the user's.
        self.environ = dict[str, str]()
        #: Path of a request whose answer is lost once it was carried out.
        self.loses = ""
        #: Answers that are given in place of those of the cloud, in order.
        self.instead = list[HttpAnswer]()

    def send(
        self, method: str, address: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
    ) -> HttpAnswer:
        if self.instead and not address.endswith("/auth/tokens"):
            return self.instead.pop(0)
        self.calls.append((method, address, json.loads(body) if body else None))
        answer = send_request(method, address, headers, body, timeout_s)
        if self.loses and method == "POST" and address.endswith(self.loses):
            self.loses = ""
            raise ConnectionResetError("as asked for")
        return answer

    def home(self, name: str) -> OpenstackProvider:
        """A provider of another process, for a home."""
        environ = self.environ or self.nova.environ(self.user)
        place = ProviderPlace(self.root / name, self.names[name], environ)
        place.root.mkdir(exist_ok=True)
        (place.root / "openstack.yaml").write_text(self.settings)
        return OpenstackProvider(
            OPENSTACK.read(place.root, {}),
            read_login("", environ),
            place,
            send=self.send,
            clock=lambda: steady_s() + self.ahead_s,
        )

    def provider(self) -> OpenstackProvider:
        """See `ProviderBench`."""
        return self.home("home")

    def neighbour(self) -> OpenstackProvider:
        """See `ProviderBench`."""
        return self.home("neighbour")

    def request(self, role: str = "worker", **changes: Any) -> NodeRequest:
        """See `ProviderBench`."""
        return replace(NodeRequest(role, 1, "m1.tiny", token="t"), **changes)

    def sent(self) -> list[dict[str, Any]]:
        """See `ProviderBench`. Once a day credentials are tried out; that belongs to no request."""
        services = {"v2.1": "compute", "network": "network"}
        posts = [
            {
                "service": services[address.split("/")[3]],
                "operation": f"POST /{address.rpartition('/')[2]}",
                "parameters": body,
            }
            for method, address, body in self.calls
            if method == "POST"
            and address.split("/")[3] in services
            and not address.endswith(("/metadata", "/action"))
        ]
        self.calls.clear()
        return posts

    def changed(self) -> list[str]:
        """See `ProviderBench`."""
        found = [
            f"{method} {address}"
            for method, address, _ in self.calls
            if method != "GET" and not address.endswith("/auth/tokens")
        ]
        self.calls.clear()
        return found

    @contextlib.contextmanager
    def without_capacity(self) -> Iterator[None]:
        """See `ProviderBench`."""
        self.nova.close_hosts(closed=True)
        yield
        self.nova.close_hosts(closed=False)

    @contextlib.contextmanager
    def without_permission(self) -> Iterator[None]:
        """See `ProviderBench`."""
        self.user = "viewer"
        yield
        self.user = "me"

    def later(self, seconds: float) -> None:
        """See `ProviderBench`."""
        self.ahead_s += seconds

    def left(self) -> list[str]:
        """See `ProviderBench`."""
        return self.machines_left() + self.nova.credentials()

    def machines_left(self) -> list[str]:
        """What was given back one by one is still being deleted for a moment."""
        deadline = time.monotonic() + 30
        while (found := self.nova.left()) and time.monotonic() < deadline:
            servers = self.nova.asked("GET", "/v2.1/servers/detail", user="me")["servers"]
            if not any(each["OS-EXT-STS:task_state"] == "deleting" for each in servers):
                break
            time.sleep(0.2)
        return found


@pytest.fixture
def bench(nova: PrivateNova, tmp_path: Path) -> Iterator[OpenstackBench]:
    """A Nova without machines."""
    made = OpenstackBench(nova, tmp_path)
    yield made
    made.instead.clear()
    made.later(10 * 86400)
    for name in made.names:
        made.home(name).reap([])
    assert made.left() == []


class TestOpenstack(ProviderContract):
    """Every promise."""

    capabilities = BUILT_IN["openstack"]

    @pytest.fixture
    def bench(self, bench: OpenstackBench) -> OpenstackBench:
        """See above."""
        return bench


def lived(bench: OpenstackBench, cluster: str = "one") -> set[str]:
    """Machines that are not gone."""
    return {node.id for node in bench.provider().nodes(cluster) if node.state is not NodeState.GONE}


def ended(bench: OpenstackBench, token: str, count: int) -> list[str]:
    """Ids of the servers of a token, the oldest first, once only so many are left."""
    deadline = time.monotonic() + 60
    while True:
        listed = bench.nova.asked("GET", "/v2.1/servers/detail", user="me")["servers"]
        found = [each for each in listed if each["metadata"]["trainmaster-token"] == token]
        if len(found) == count or time.monotonic() > deadline:
            return [each["id"] for each in sorted(found, key=lambda each: each["created"])]
        time.sleep(0.2)


def test_a_lost_answer_and_a_request_that_came_twice(bench: OpenstackBench) -> None:
    """Nova knows no token: what was made is found by what is written on it, and what is too much goes."""
    request = bench.request(count=2, token="t1")
    bench.loses = "/servers"
    with pytest.raises(ProviderError, match="does not answer"):
        bench.provider().acquire("one", request)
    bench.calls.clear()
    first = {node.id for node in bench.provider().acquire("one", request)}
    assert len(first) == 2
    assert not [entry for entry in bench.sent() if entry["operation"] == "POST /servers"]
    time.sleep(1.1)  # Nova tells ages in whole seconds
    # As if another driver of this home had sent it, too.
    body = bench.provider().dry_run("one", [request])[-1]["parameters"]
    body["server"] |= {"flavorRef": "1", "imageRef": "155d900f-4e14-4e4c-a73d-069cbf4541e6"}
    body["server"]["networks"] = [{"uuid": "3cb9bc59-5699-4588-a4b1-b87f96708bc6"}]
    del body["server"]["security_groups"]
    bench.nova.asked("POST", "/v2.1/servers", body, user="me")
    assert lived(bench) == first
    assert set(ended(bench, "t1", 2)) == first
    bench.provider().release("one")
    assert bench.left() == []


def test_one_that_fails_at_boot_is_gone_with_its_fault(bench: OpenstackBench) -> None:
    """And deleted: it would hold the quota."""
    provider = bench.provider()
    try:
        provider.acquire("one", bench.request(role="failing", token="t1"))
    except NoCapacityError as error:
        reason = str(error)
    else:
        deadline = time.monotonic() + 60
        while (node := provider.nodes("one")[0]).state is NodeState.STARTING and time.monotonic() < deadline:
            time.sleep(0.2)
        assert node.state is NodeState.GONE
        assert node.ended_at
        reason = node.reason
    assert "no room, as asked for" in reason
    assert ended(bench, "t1", 0) == []
    provider.release("one")


def test_a_quota_is_refused_with_numbers(bench: OpenstackBench) -> None:
    """Before anything is made; and what another has taken meanwhile is no capacity."""
    request = bench.request(count=11)
    with pytest.raises(UsageError, match="of machines does not suffice: 11 are needed, 10 of 10 are free"):
        bench.provider().preflight([request])
    with pytest.raises(NoCapacityError, match="Quota exceeded"):
        bench.provider().acquire("one", request)
    bench.provider().release("one")
    assert bench.left() == []


def test_machines_boot_from_volumes_that_go_with_them(bench: OpenstackBench) -> None:
    """Where it is wished, or the flavor has less room than is asked for; each has one of its own."""
    bench.settings = f"{SETTINGS}volume: true\ndisk: 20GiB\n"
    provider = bench.provider()
    bench.settings = SETTINGS
    wide = bench.provider()  # its flavor has 1 GB
    nodes = provider.acquire("c", bench.request(count=2))
    nodes += wide.acquire("c", bench.request("ps", token="t2", disk_bytes=30 << 30))
    deadline = time.monotonic() + 60
    while not all(node.state is NodeState.READY for node in wide.nodes("c")):
        assert time.monotonic() < deadline, wide.nodes("c")
        time.sleep(0.2)
    servers = bench.nova.asked("GET", "/v2.1/servers/detail", user="me")["servers"]
    volumes = [each for server in servers for each in server["os-extended-volumes:volumes_attached"]]
    assert len({each["id"] for each in volumes}) == len(nodes) == 3
    assert all(each["delete_on_termination"] for each in volumes)
    sizes = [
        body["server"]["block_device_mapping_v2"][0]["volume_size"]
        for method, address, body in bench.calls
        if method == "POST" and address.endswith("/servers")
    ]
    assert sizes == [20, 30]
    wide.release("c")
    assert not [node for node in wide.nodes("c") if node.state is not NodeState.GONE]


def test_a_group_that_keeps_machines_apart_is_told_before_they_are_rented(bench: OpenstackBench) -> None:
    """By `doctor` and by a run; one that there is not is refused."""
    provider = bench.provider()
    client = provider._client
    made = client.call("POST", "network", "/security-groups", {"security_group": {"name": "mine"}})
    id = made["security_group"]["id"]
    rule = {"security_group_id": id, "direction": "ingress", "ethertype": "IPv4", "remote_ip_prefix": None}
    ssh = rule | {"protocol": "tcp", "port_range_min": 22, "port_range_max": 22}
    client.call("POST", "network", "/security-group-rules", {"security_group_rule": ssh})
    bench.settings = f"{SETTINGS}security_group: mine\n"
    words = "security group mine does not let in what its own machines send each other"
    (finding,) = [each for each in examined(bench.provider(), {}) if each.what == "network"]
    assert words in finding.found
    assert not finding.ok
    (note,) = bench.provider().preflight([bench.request()])
    assert words in note
    client.call(
        "POST", "network", "/security-group-rules", {"security_group_rule": rule | {"remote_group_id": id}}
    )
    assert not [each for each in examined(bench.provider(), {}) if each.what == "network"]
    assert bench.provider().preflight([bench.request()]) == []
    bench.settings = f"{SETTINGS}security_group: yours\n"
    with pytest.raises(UsageError, match="no security group 'yours'"):
        bench.provider().preflight([bench.request()])
    client.call("DELETE", "network", f"/security-groups/{id}")


def test_each_machine_has_a_floating_address_as_long_as_it_is_there(bench: OpenstackBench) -> None:
    """It is reached there; the others of its cluster reach it at its own."""
    bench.settings = SETTINGS + "floating: public\n"
    provider = bench.provider()
    provider.acquire("one", bench.request(count=2, token="t1"))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        nodes = provider.nodes("one")
        if all(node.state is NodeState.READY for node in nodes):
            break
        time.sleep(0.2)
    assert len({node.address for node in nodes} | {node.private_address for node in nodes}) == 4
    assert all(node.address.startswith("198.51.100.") for node in nodes)
    assert [node.address for node in bench.provider().nodes("one")] == [node.address for node in nodes]
    provider.release("one", [nodes[0].id])
    assert len(bench.nova.asked("GET", "/network/v2.0/floatingips")["floatingips"]) == 1
    provider.release("one")
    assert bench.left() == []


def values_of(script: str) -> tuple[str, str, str, str, str]:
    """What a script deletes its server with."""
    call = next(line for line in script.splitlines() if line.startswith("delete_itself("))
    found: tuple[str, str, str, str, str] = ast.literal_eval(call.removeprefix("delete_itself"))
    return found


def test_a_machine_deletes_itself_and_can_do_nothing_else(bench: OpenstackBench) -> None:
    """Keystone and its middleware hold its credential to that; it goes with its machine."""
    provider = bench.provider()
    one, other = provider.acquire("one", bench.request(count=2, token="t1"))
    script = provider.self_deletion_script(one)
    keystone, id, secret, address, _ = values_of(script)
    assert address.endswith(f"/servers/{one.id}")
    told = {
        "auth_url": keystone,
        "application_credential_id": id,
        "application_credential_secret": secret,
    }
    stolen = OpenstackClient(login_of("stolen", {"auth": told}))
    user = stolen.said["user"]["id"]
    more = {"application_credential": {"name": "more", "unrestricted": True}}
    for method, service, path, body in (
        ("GET", "compute", "/servers", None),
        ("GET", "compute", f"/servers/{one.id}", None),
        ("DELETE", "compute", f"/servers/{other.id}", None),
        ("POST", "compute", f"/servers/{one.id}/action", {"os-getConsoleOutput": {}}),
        ("GET", "network", "/networks", None),
        ("GET", "image", "/images", None),
        ("POST", "identity", f"/users/{user}/application_credentials", more),
    ):
        with pytest.raises(UsageError, match=r"does not (take|let)"):
            stolen.call(method, service, path, body)
    subprocess.run(["python3", "-"], input=script.encode(), check=True, timeout=60)
    assert ended(bench, "t1", 1) == [other.id]
    assert lived(bench) == {other.id}
    assert bench.nova.credentials() == []
    assert (
        subprocess.run(
            ["python3", "-"], input=provider.self_deletion_script(other).encode(), timeout=60
        ).returncode
        == 0
    )
    bench.provider().release("one")
    assert bench.left() == []


def test_what_drives_a_run_may_send_what_a_driver_sends_and_little_else(
    bench: OpenstackBench, tmp_path: Path
) -> None:
    """Everything of a run goes through, and Keystone and its middleware refuse the rest."""
    bench.settings = SETTINGS + "floating: public\n"
    home = DriverCredential(read_login("", bench.nova.environ()), bench.names["home"])
    (file := tmp_path / "clouds.yaml").write_text(home.make("one", "s-1")["OS_CLIENT_CONFIG_FILE"])
    bench.environ = {"OS_CLIENT_CONFIG_FILE": str(file)}
    provider, request = bench.provider(), bench.request(count=2, token="t1")
    provider.preflight([request])
    assert all(each.ok for each in examined(provider, {}))
    nodes = provider.acquire("one", request)
    assert provider.self_deletion_script(nodes[0])
    while not all(node.address for node in provider.nodes("one")):
        time.sleep(0.2)
    provider.renew("one", 60)
    assert provider.console("one", nodes[0].id)
    stolen = OpenstackClient(read_login("", bench.environ))
    user = stolen.said["user"]["id"]
    for method, service, path, body in (
        ("GET", "compute", "/os-keypairs", None),
        ("PUT", "compute", f"/servers/{nodes[0].id}", {"server": {"name": "mine"}}),
        ("GET", "compute", f"/servers/{nodes[0].id}/os-volume_attachments", None),
        ("POST", "network", "/networks", {"network": {}}),
        ("DELETE", "image", "/images/any", None),
        ("GET", "identity", f"/users/{user}/projects", None),
        ("POST", "identity", f"/users/{user}/credentials/OS-EC2", {}),
    ):
        with pytest.raises(UsageError, match=r"does not (take|let)"):
            stolen.call(method, service, path, body)
    provider.release("one")
    provider.reap([])
    bench.environ = {}
    home.remove("one", "s-1")
    assert bench.left() == []


def test_credentials_go_with_what_they_are_for(bench: OpenstackBench) -> None:
    """One by one, with their cluster, and when nobody knows of the cluster any more."""
    provider = bench.provider()
    for cluster in ("one", "two"):
        for node in provider.acquire(cluster, bench.request(count=2, token="t1")):
            provider.self_deletion_script(node)
            provider.self_deletion_script(node)
    assert len(bench.nova.credentials()) == 8
    provider.release("one", [provider.nodes("one")[0].id])
    assert len(bench.nova.credentials()) == 6
    provider.release("one")
    assert len(bench.nova.credentials()) == 4
    for node in provider.nodes("two"):
        bench.nova.asked("DELETE", f"/v2.1/servers/{node.id}", user="me")
    ended(bench, "t1", 0)
    bench.home("neighbour").reap([])
    assert len(bench.nova.credentials()) == 4
    bench.provider().reap([])
    assert bench.nova.credentials() == []


def test_a_login_that_makes_no_credentials_needs_the_user_to_know(bench: OpenstackBench) -> None:
    """Refused before anything is made, with what to do; known, machines switch themselves off as before."""
    with bench.nova.credential() as bench.environ:
        for ask in (bench.provider().preflight, lambda them: bench.provider().acquire("one", them[0])):
            with pytest.raises(UsageError, match=r"delete themselves.*may make no others") as caught:
                ask([bench.request()])
            assert "--unrestricted" in caught.value.hint
        assert bench.changed() == []
        assert not doctored(bench).ok
        bench.settings += "ends_only_from_here: true\n"
        assert doctored(bench).ok
        (node,) = bench.provider().acquire("one", bench.request())
        assert not bench.provider().self_deletion_script(node)
        bench.provider().release("one")
    bench.environ = {}
    bench.settings = SETTINGS
    assert doctored(bench).ok


def doctored(bench: OpenstackBench) -> Finding:
    """What `doctor` says of lost machines."""
    (found,) = (each for each in examined(bench.provider(), {}) if each.what == "lost machines")
    return found
