"""What an OpenStack says, and what is said to it: logins, requests that are sent again, servers, flavors."""

import ast
import json
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from trainmaster.providers.base import Node, NodeRequest, NodeState, ProviderPlace
from trainmaster.providers.openstack.answers import (
    check_limits,
    flavor_of,
    gpus_of,
    server_of,
)
from trainmaster.providers.openstack.client import OpenstackClient, RefusedError
from trainmaster.providers.openstack.driver_login import DriverCredential
from trainmaster.providers.openstack.login import login_of, read_login
from trainmaster.providers.openstack.project import base_name, owner_of
from trainmaster.providers.openstack.provider import OpenstackProvider
from trainmaster.providers.openstack.self_deletion import SelfDeletion
from trainmaster.providers.openstack.settings import OPENSTACK
from trainmaster.providers.sent_settings import path_mark
from trainmaster.spec.errors import ProviderError, UsageError
from trainmaster.transport.http_calls import HttpAnswer

KEYSTONE = "https://keystone.example.org:5000/v3"
PASSWORD = {
    "auth_url": KEYSTONE,
    "username": "ada",
    "password": "hidden",
    "project_name": "physics",
    "user_domain_name": "Default",
}
CATALOG = [
    {
        "type": kind,
        "endpoints": [{"interface": "public", "region_id": "one", "url": f"https://{kind}.example.org"}],
    }
    for kind in ("compute", "network", "image")
]


class Cloud:
    """Answers what it was told to, in order; tokens are numbered."""

    def __init__(self, *answers):
        self.answers, self.calls, self.tokens, self.slept = list(answers), [], 0, []

    def send(self, method, address, headers, body, timeout_s):
        if address.endswith("/auth/tokens"):
            self.tokens += 1
            said = {"token": {"catalog": CATALOG, "roles": [{"name": "member"}]}}
            return HttpAnswer(201, json.dumps(said), {"x-subject-token": f"token-{self.tokens}"})
        self.calls.append((method, address, headers["X-Auth-Token"]))
        return self.answers.pop(0)

    def client(self):
        return OpenstackClient(login_of("ours", {"auth": PASSWORD}), self.send, self.slept.append)


@pytest.mark.parametrize("clouds", ["[a]", "{c: }", "{c: 5}", "{c: {auth: x}}", "{c: {auth: [1]}}"])
def test_a_login_that_means_nothing_is_refused_in_words(tmp_path, clouds):
    """A team could send such a one to a server, which had no answer to it."""
    (tmp_path / "clouds.yaml").write_text(f"clouds: {clouds}\n")
    with pytest.raises(UsageError, match=r"auth_url|OS_AUTH_URL"):
        read_login("", {"HOME": "/nowhere"}, tmp_path)
    (tmp_path / "clouds.yaml").write_text("clouds: {c: {auth: {auth_url: 'https://k', password: p}}}\n")
    (tmp_path / "secure.yaml").write_text(f"clouds: {clouds}\n")
    with pytest.raises(UsageError):
        read_login("", {"HOME": "/nowhere"}, tmp_path)


def test_a_login_is_read_as_every_tool_of_openstack_does(tmp_path):
    (tmp_path / "clouds.yaml").write_text(
        "clouds:\n  ours:\n    region_name: one\n    cacert: ca.pem\n    auth:\n      auth_url: https://k:5000\n"
        "      application_credential_id: abc\n"
    )
    (tmp_path / "secure.yaml").write_text("clouds: {ours: {auth: {application_credential_secret: hidden}}}\n")
    login = read_login("", {"HOME": "/nowhere"}, tmp_path)
    assert (login.url, login.region, login.authorities) == ("https://k:5000/v3", "one", "ca.pem")
    assert login.body["auth"] == {
        "identity": {
            "methods": ["application_credential"],
            "application_credential": {"id": "abc", "secret": "hidden"},
        }
    }
    assert "hidden" not in repr(login)
    at_home = {"auth": PASSWORD, "cacert": "~/ca.pem"}  # OpenStack's own tools take that, too
    assert login_of("c", at_home).authorities == str(Path.home() / "ca.pem")
    of_variables = read_login("", {f"OS_{key.upper()}": value for key, value in PASSWORD.items()}, tmp_path)
    assert of_variables.body["auth"] == {
        "identity": {
            "methods": ["password"],
            "password": {"user": {"name": "ada", "domain": {"name": "Default"}, "password": "hidden"}},
        },
        "scope": {"project": {"name": "physics", "domain": {"id": "default"}}},
    }


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({}, "auth_url"),
        ({"auth": {"auth_url": KEYSTONE}}, "application credential"),
        ({"auth": {"auth_url": KEYSTONE, "username": "ada", "password": "hidden"}}, "project"),
        ({"auth": PASSWORD, "verify": False}, "verify"),
    ],
)
def test_what_is_missing_is_said(entry, says):
    with pytest.raises(UsageError, match=says) as caught:
        login_of("ours", entry)
    assert caught.value.hint
    assert "hidden" not in str(caught.value)


def test_no_login_and_several_of_them(tmp_path):
    with pytest.raises(UsageError, match="no login"):
        read_login("", {"HOME": "/nowhere"}, tmp_path)
    (tmp_path / "clouds.yaml").write_text("clouds: {a: {}, b: {}}")
    with pytest.raises(UsageError, match="several clouds"):
        read_login("", {"HOME": "/nowhere"}, tmp_path)
    with pytest.raises(UsageError, match="no cloud 'c'"):
        read_login("c", {"HOME": "/nowhere"}, tmp_path)


def test_a_token_that_is_over_is_renewed_once():
    cloud = Cloud(HttpAnswer(401, "{}"), HttpAnswer(200, '{"limits": {}}'), HttpAnswer(200, "{}"))
    client = cloud.client()
    assert client.get("compute", "/limits") == {"limits": {}}
    client.get("network", "/ports")
    assert [token for _, _, token in cloud.calls] == ["token-1", "token-2", "token-2"]
    cloud.answers = [HttpAnswer(401, '{"error": {"message": "no"}}')] * 2
    with pytest.raises(UsageError, match="does not take the login"):
        client.get("compute", "/limits")


def test_one_request_too_many_is_sent_again_when_it_may_be():
    cloud = Cloud(
        HttpAnswer(429, "", {"retry-after": "7"}),
        HttpAnswer(413, "", {"retry-after": "2"}),
        HttpAnswer(429, ""),
        HttpAnswer(202, '{"server": {}}'),
    )
    assert cloud.client().call("POST", "compute", "/servers", {}) == {"server": {}}
    assert cloud.slept == [7.0, 2.0, 4.0]
    cloud = Cloud(*[HttpAnswer(429, "slower", {"retry-after": "1000"})] * 6)
    with pytest.raises(RefusedError, match="429"):
        cloud.client().get("compute", "/limits")
    assert cloud.slept == [60.0] * 5
    assert not cloud.answers


@pytest.mark.parametrize(
    ("status", "said", "kind", "is_quota"),
    [
        (403, {"forbidden": {"message": "Quota exceeded for cores: Requested 2"}}, RefusedError, True),
        (413, {"overLimit": {"message": "Quota exceeded"}}, RefusedError, True),
        (403, {"forbidden": {"message": "Policy doesn't allow it"}}, UsageError, False),
        (400, {"badRequest": {"message": "Invalid image"}}, UsageError, False),
        (406, {}, UsageError, False),
        (409, {"conflictingRequest": {"message": "in use"}}, RefusedError, False),
        (409, {"NeutronError": {"message": "Quota exceeded for resources"}}, RefusedError, True),
        (500, {"computeFault": {"message": "sorry"}}, ProviderError, False),
    ],
)
def test_what_a_refusal_means(status, said, kind, is_quota):
    with pytest.raises(kind) as caught:
        Cloud(HttpAnswer(status, json.dumps(said))).client().call("POST", "compute", "/servers", {})
    assert caught.value.hint
    assert getattr(caught.value, "is_quota", False) == is_quota


@pytest.mark.parametrize(
    ("told", "state", "why"),
    [
        ({"status": "BUILD", "OS-EXT-STS:task_state": "scheduling"}, NodeState.STARTING, ""),
        ({"status": "ACTIVE"}, NodeState.READY, ""),
        ({"status": "UNKNOWN"}, NodeState.READY, ""),
        ({"status": "ACTIVE", "OS-EXT-STS:task_state": "deleting"}, NodeState.GONE, "deleted"),
        ({"status": "SHUTOFF"}, NodeState.GONE, "switched itself off"),
        ({"status": "DELETED"}, NodeState.GONE, "deleted"),
        (
            {"status": "ERROR", "fault": {"message": "No valid host was found. "}},
            NodeState.GONE,
            "No valid host",
        ),
    ],
)
def test_states_of_servers(told, state, why):
    found, reason = server_of({"id": "s", **told}).state
    assert found is state
    assert why in reason


def test_addresses_of_a_server():
    ends = [
        {"addr": "fd00::1", "version": 6, "OS-EXT-IPS:type": "fixed"},
        {"addr": "10.0.0.5", "version": 4, "OS-EXT-IPS:type": "fixed"},
        {"addr": "203.0.113.9", "version": 4, "OS-EXT-IPS:type": "floating"},
    ]
    server = server_of({"id": "s", "addresses": {"net": ends}})
    assert (server.fixed, server.floating) == ("10.0.0.5", "203.0.113.9")


def test_gpus_of_a_flavor():
    assert gpus_of({"pci_passthrough:alias": "a100-80g:4"}) == (4, "a100-80g")
    assert gpus_of({"pci_passthrough:alias": "ssd:1,nvidia-l4:1"}) == (1, "nvidia-l4")
    assert gpus_of({"pci_passthrough:alias": "ssd:1"}) == (0, "")
    flavor = flavor_of({"id": "1", "name": "g", "vcpus": 8, "ram": 1024, "disk": 0})
    assert (flavor.memory_bytes, flavor.disk_bytes, flavor.gpus) == (2**30, 0, 0)


def test_a_quota_that_does_not_suffice_is_told_with_numbers():
    flavor = flavor_of({"id": "1", "name": "m", "vcpus": 8, "ram": 1024, "disk": 10})
    absolute = {"maxTotalInstances": -1, "totalInstancesUsed": 3, "maxTotalCores": 20, "totalCoresUsed": 10}
    check_limits(absolute, [(NodeRequest("worker", 1, "m"), flavor)])
    with pytest.raises(UsageError, match="of cores does not suffice: 16 are needed, 10 of 20 are free"):
        check_limits(absolute, [(NodeRequest("worker", 2, "m"), flavor)])


@pytest.fixture
def provider(tmp_path):
    """A provider, by the lines of its settings."""

    def made(lines="", cloud=None):
        (tmp_path / "openstack.yaml").write_text("image: Debian 13\n" + lines)
        return OpenstackProvider(
            OPENSTACK.read(tmp_path, {}),
            login_of("ours", {"auth": PASSWORD}),
            ProviderPlace(tmp_path, "home"),
            send=(cloud or Cloud()).send,
        )

    return made


class Keystone:
    """One that makes credentials, with a Nova that lets them in.

    Attributes:
        token: what it says of each. rules, makes, takes: status of what is asked for access rules, of what
            makes a credential, and of Nova's for it. asked: what was changed, with its body. has: those
            that there are. refuses, status: where none with rules is let in. conflicts: how often it says so.
    """

    def __init__(self, **token):
        self.token = {"catalog": CATALOG, "roles": [{"name": "member"}], "user": {"id": "ada"}} | token
        self.rules, self.makes, self.takes, self.asked = 200, 201, 404, []
        self.kept, self.has = [{"id": "1", "method": "DELETE"}], []
        self.refuses, self.status, self.conflicts = "none", 401, 0

    def send(self, method, address, headers, body, timeout_s):
        path = urlsplit(address).path
        if path.endswith("/auth/tokens"):
            return HttpAnswer(201, json.dumps({"token": self.token}), {"x-subject-token": "token"})
        if method == "GET":
            if path.endswith(self.refuses):
                return HttpAnswer(self.status, json.dumps({"error": {"message": "it has rules"}}))
            if path.endswith("/access_rules"):
                return HttpAnswer(self.rules, json.dumps({"error": {"message": "no such thing"}}))
            return HttpAnswer(200, json.dumps({"application_credentials": self.has, "limits": {}}))
        self.asked.append((method, address, json.loads(body or b"{}")))
        if method == "DELETE":
            return HttpAnswer(self.takes if "/servers/" in path else 204, "")
        if self.conflicts:
            self.conflicts -= 1
            return HttpAnswer(409, json.dumps({"error": {"message": "another"}}))
        made = {"id": "c", "secret": "hidden", "access_rules": self.kept}
        said = {"application_credential": made} if self.makes == 201 else {"error": {"message": "not here"}}
        return HttpAnswer(self.makes, json.dumps(said))


def test_a_credential_is_for_one_request_only(provider):
    keystone = Keystone()
    machine = Node("s-1", "c", "worker", NodeState.READY)
    script = provider(cloud=keystone).self_deletion_script(machine)
    *trial, (method, address, body) = keystone.asked
    assert [each[0] for each in trial] == ["POST", "DELETE", "DELETE", "DELETE"]
    assert (method, address) == ("POST", f"{KEYSTONE}/users/ada/application_credentials")
    asked = body["application_credential"]
    assert asked["name"] == f"{base_name('home', 'c')} s-1"
    assert asked["unrestricted"] is False
    assert asked["roles"] == [{"name": "member"}]
    assert asked["access_rules"] == [{"service": "compute", "method": "DELETE", "path": "/servers/s-1"}]
    assert asked["expires_at"] > trial[0][2]["application_credential"]["expires_at"]
    assert "'https://compute.example.org/servers/s-1'" in script
    provider(cloud=keystone).self_deletion_script(machine)
    assert [each[0] for each in keystone.asked[5:]] == ["POST"], "it was tried out a moment ago"


@pytest.mark.parametrize("cacert", ["", "ca.pem"])
def test_a_machine_that_drives_logs_in_by_a_credential_of_its_own(tmp_path, cacert):
    entry = {"auth": PASSWORD, "region_name": "one"} | ({"cacert": cacert} if cacert else {})
    keystone = Keystone()
    machines = DriverCredential(login_of("ours", entry), "home", keystone.send)
    told = machines.make("c", "s-1")["OS_CLIENT_CONFIG_FILE"]
    ((method, address, body),) = keystone.asked
    assert (method, address) == ("POST", f"{KEYSTONE}/users/ada/application_credentials")
    asked = body["application_credential"]
    assert (asked["name"], asked["unrestricted"]) == (f"{base_name('home', 'c')} s-1 driver", True)
    assert owner_of(asked["name"]) == (base_name("home", "c"), "s-1"), "it goes with its machine"
    (there := tmp_path / "clouds").write_text(
        told.replace(path_mark("TRAINMASTER_OPENSTACK_CACERT"), "there")
    )
    found = read_login("", {"OS_CLIENT_CONFIG_FILE": str(there)})
    identity = {
        "methods": ["application_credential"],
        "application_credential": {"id": "c", "secret": "hidden"},
    }
    assert found.body == {"auth": {"identity": identity}}
    assert (found.url, found.region, found.name) == (KEYSTONE, "one", "ours")
    assert found.authorities == ("there" if cacert else "")
    assert PASSWORD["username"] not in told
    keystone.has = [{"name": asked["name"], "description": asked["description"], "id": "c"}]
    machines.remove("c", "s-2")
    machines.remove("c", "s-1")
    assert [each[:2] for each in keystone.asked[1:]] == [("DELETE", f"{address}/c")]


def test_a_machine_that_drives_may_send_only_what_a_driver_sends():
    keystone = Keystone()
    driver_of(keystone).make("c", "s-1")
    ((_, _, body),) = keystone.asked
    rules = {tuple(rule.values()) for rule in body["application_credential"]["access_rules"]}
    assert ("compute", "POST", "/servers") in rules
    assert ("identity", "POST", "/v3/users/ada/application_credentials") in rules
    assert {service for service, _, _ in rules} == {"compute", "network", "image", "identity"}
    assert not [rule for rule in rules if "**" in rule[2] or "{" in rule[2]]


VOLUMES = {"type": "volumev3", "endpoints": [{"interface": "public", "url": "https://volumes.org/v3/1"}]}


def driver_of(keystone):
    return DriverCredential(login_of("ours", {"auth": PASSWORD}), "home", keystone.send)


def test_nova_may_send_on_what_a_machine_that_drives_asks_for():
    keystone = Keystone(catalog=[*CATALOG, VOLUMES])
    driver_of(keystone).make("c", "s-1")
    ((_, _, body),) = keystone.asked
    rules = {tuple(rule.values()) for rule in body["application_credential"]["access_rules"]}
    assert rules >= {("network", "POST", "/v2.0/ports"), ("image", "GET", "/v2/images/*/file")}
    assert rules >= {("network", "GET", "/v2.0/*/*"), ("volumev3", "POST", "/v3/1/volumes")}


def test_a_keystone_that_knows_no_rules_makes_one_without():
    keystone = Keystone()
    keystone.kept, keystone.rules = [], 404
    driver_of(keystone).make("c", "s-1")
    assert [each[0] for each in keystone.asked] == ["POST"]


def test_what_was_made_goes_when_nobody_says_whether_it_is_taken():
    keystone = Keystone()
    keystone.refuses, keystone.status = "images", 502
    with pytest.raises(RefusedError):
        driver_of(keystone).make("c", "s-1")
    assert [each[0] for each in keystone.asked] == ["POST", "DELETE", "DELETE"]


def test_two_homes_of_a_user_make_the_same_rules_at_once():
    keystone = Keystone()
    keystone.conflicts = 3
    assert driver_of(keystone).make("c", "s-1")
    keystone.conflicts = 4
    with pytest.raises(RefusedError, match="409"):
        driver_of(keystone).make("c", "s-1")


@pytest.mark.parametrize("service", ["limits", "networks", "images", "access_rules", "v3/1/limits"])
@pytest.mark.parametrize("status", [401, 404])
def test_where_a_service_takes_no_rules_what_drives_has_none(service, status):
    keystone = Keystone(catalog=[*CATALOG, VOLUMES])
    keystone.refuses, keystone.status = service, status
    driver_of(keystone).make("c", "s-1")
    assert [each[0] for each in keystone.asked] == ["POST", "DELETE", "DELETE", "POST"]
    asked = keystone.asked[-1][2]["application_credential"]
    assert asked["unrestricted"]
    assert "access_rules" not in asked


def test_what_drives_leaves_its_own_credential_to_its_home():
    """Its rules could not be removed any more."""
    keystone = Keystone(application_credential={"id": "c"})
    about = "trainmaster made it for a server of https://compute.example.org"
    keystone.has = [{"name": name, "description": about, "id": name} for name in ("c", "d")]
    SelfDeletion(OpenstackClient(login_of("ours", {"auth": PASSWORD}), keystone.send)).remove(lambda _: True)
    assert [address.rpartition("/")[2] for _, address, _ in keystone.asked] == ["d"]


def test_a_login_that_may_make_no_other_is_sent_itself(tmp_path):
    keystone = Keystone(application_credential={"restricted": True})
    auth = {"auth_url": KEYSTONE, "application_credential_id": "i", "application_credential_secret": "hidden"}
    told = DriverCredential(login_of("ours", {"auth": auth}), "home", keystone.send).make("c", "s-1")
    assert keystone.asked == []
    assert json.loads(told["OS_CLIENT_CONFIG_FILE"]) == {"clouds": {"ours": {"auth": auth}}}


def test_a_machine_is_not_sent_what_keystone_does_not_make(provider):
    keystone = Keystone()
    keystone.makes = 403
    with pytest.raises(UsageError, match=r"Keystone makes no application credential .*not here"):
        driver_of(keystone).make("c", "s-1")


@pytest.mark.parametrize("status", [500, 409])
def test_what_keystone_does_not_say_now_is_asked_again(provider, status):
    keystone = Keystone()
    keystone.makes = status
    with pytest.raises(RefusedError, match="not here"):
        provider(cloud=keystone).acquire("one", NodeRequest("worker", 1))


def test_what_deletes_a_machine_runs_under_old_pythons(provider):
    script = provider(cloud=Keystone()).self_deletion_script(Node("s-1", "c", "worker", NodeState.READY))
    assert script.startswith("#!/usr/bin/env python3\n")
    ast.parse(script, feature_version=(3, 6))
    assert subprocess.run(["python3", "-", "--check"], input=script.encode()).returncode == 0
    assert "import annotations" not in script.partition('"""\n\n')[2]


def test_a_service_below_a_path_may_see_it_whole_or_in_part(provider):
    compute = {"type": "compute", "endpoints": [{"interface": "public", "url": "https://a.org/compute/v2.1"}]}
    provider(cloud=(keystone := Keystone(catalog=[compute]))).self_deletion_script(
        Node("s", "c", "w", NodeState.READY)
    )
    rules = keystone.asked[-1][2]["application_credential"]["access_rules"]
    assert [each["path"] for each in rules] == ["/compute/v2.1/servers/s", "/v2.1/servers/s"]


@pytest.mark.parametrize(
    ("kind", "why", "hint"),
    [
        ("restricted", "may make no others", "--unrestricted"),
        ("old", "lets no access rules be made .*no such thing", "Ask your site"),
        ("forbidden", "makes no such credential .*not here", "Ask your site"),
        ("ignored", "makes no such credential .*knows no access rules", "Ask your site"),
        ("not let in", "Nova does not take credentials", "service_type = compute"),
    ],
)
def test_what_may_be_left_over_has_to_be_known(provider, kind, why, hint):
    keystone = Keystone(**({"application_credential": {"restricted": True}} if kind == "restricted" else {}))
    keystone.rules = 404 if kind == "old" else 200
    keystone.makes = 403 if kind == "forbidden" else 201
    keystone.kept = [] if kind == "ignored" else keystone.kept
    keystone.takes = 401 if kind == "not let in" else 404
    with pytest.raises(UsageError, match=f"cannot delete themselves: .*{why}") as caught:
        provider(cloud=keystone).acquire("one", NodeRequest("worker", 1))
    assert hint in caught.value.hint
    assert "ends_only_from_here: true" in caught.value.hint
    made = [method for method, address, _ in keystone.asked if "/servers/" not in address]
    assert made in ([], ["POST"], ["POST", "DELETE"], ["POST", "DELETE", "DELETE"])
    known = provider("ends_only_from_here: true\n", keystone)
    assert not known.self_deletion_script(Node("s-1", "c", "worker", NodeState.READY))


def test_a_machine_boots_from_a_volume_where_its_flavor_has_no_room(provider):
    request = NodeRequest("worker", 2, "m1.tiny", token="t", zone="a", disk_bytes=100 * 2**30)
    plain = provider().dry_run("one", [NodeRequest("worker", 1, "m1.tiny")])[-1]["parameters"]["server"]
    assert plain["imageRef"] == "${image.Id}"
    assert "block_device_mapping_v2" not in plain
    server = provider("volume: true\nvolume_type: fast\n").dry_run("one", [request])[-1]["parameters"][
        "server"
    ]
    assert "imageRef" not in server
    assert server["availability_zone"] == "a"
    assert (server["min_count"], server["max_count"]) == (2, 2)
    assert server["block_device_mapping_v2"] == [
        {
            "boot_index": 0,
            "uuid": "${image.Id}",
            "source_type": "image",
            "destination_type": "volume",
            "volume_size": 100,
            "volume_type": "fast",
            "delete_on_termination": True,
        }
    ]


def test_a_group_of_one_s_own_is_used_and_none_made(provider):
    shown = provider("security_group: mine\n").dry_run("one", [NodeRequest("worker", 1)])
    assert [each["operation"] for each in shown] == ["POST /os-keypairs", "POST /servers"]
    assert shown[-1]["parameters"]["server"]["security_groups"] == [{"name": "mine"}]


OWN_GROUP = {"id": "g", "name": "mine"}
SSH_IN = {"direction": "ingress", "ethertype": "IPv4", "protocol": "tcp", "port_range_min": 22,
          "port_range_max": 22, "remote_ip_prefix": "10.0.0.0/8", "remote_group_id": None}  # fmt: skip
ALL_IN = {**SSH_IN, "protocol": None, "port_range_min": None, "port_range_max": None}
EACH_OTHER = {**ALL_IN, "remote_ip_prefix": None, "remote_group_id": "g"}


@pytest.mark.parametrize(
    ("rules", "gaps"),
    [
        ([SSH_IN, EACH_OTHER], ""),
        ([ALL_IN], ""),
        ([SSH_IN], "does not let in what its own machines send each other"),
        ([EACH_OTHER], "does not let in SSH"),
        ([SSH_IN, EACH_OTHER | {"remote_group_id": "else"}], "what its own machines send"),
        ([SSH_IN | {"direction": "egress"}, EACH_OTHER], "SSH"),
        ([SSH_IN, EACH_OTHER | {"protocol": "udp"}], "what its own machines send"),
        ([SSH_IN | {"ethertype": "IPv6"}], "SSH (TCP port 22) or what its own machines send"),
        ([SSH_IN, EACH_OTHER | {"protocol": "6", "port_range_min": 1, "port_range_max": 65535}], ""),
    ],
)  # fmt: skip
def test_a_group_of_one_s_own_that_lets_nothing_in_is_told(provider, rules, gaps):
    told = {"security_groups": [{"id": "0", "name": "default"}, OWN_GROUP | {"security_group_rules": rules}]}
    for named in ("mine", "g"):
        cloud = Cloud(HttpAnswer(200, json.dumps(told)))
        said = provider(f"security_group: {named}\n", cloud)._project.check_own_group()
        assert gaps in said
        assert bool(said) is bool(gaps)
    cloud = Cloud(HttpAnswer(200, json.dumps(told)))
    with pytest.raises(UsageError, match="no security group 'yours'") as caught:
        provider("security_group: yours\n", cloud)._project.check_own_group()
    assert "default, mine" in caught.value.hint


def test_a_network_that_is_not_named_must_be_the_only_one(provider):
    networks = [
        {"id": "1", "name": "a"},
        {"id": "2", "name": "b"},
        {"id": "3", "name": "x", "router:external": True},
    ]
    cloud = Cloud(HttpAnswer(200, json.dumps({"networks": networks})))
    with pytest.raises(UsageError, match="2 networks") as caught:
        provider(cloud=cloud)._project.network()
    assert "a, b" in caught.value.hint
    cloud = Cloud(HttpAnswer(200, json.dumps({"networks": networks[1:]})))
    assert provider(cloud=cloud)._project.network() == "2"


def test_a_doctor_says_all_that_is_wrong_also_if_keystone_fails_at_one_thing(provider):
    keystone = Keystone(roles=[{"name": "reader"}])
    keystone.rules = 502
    found = {each.what: each for each in provider(cloud=keystone).examine({})}
    assert [what for what, each in found.items() if each.ok] == ["login", "clock"]
    assert "its role is `reader`" in found["rights"].found
    assert "no network" in found["network"].found
    assert "no such thing" in found["lost machines"].found
    assert keystone.asked == []
    assert ("in clear" in found["login"].advice) == PASSWORD["auth_url"].startswith("http:")


@pytest.mark.parametrize(
    ("way", "clear"), [("http://k", True), ("https://k", False), ("http://[::1]", False)]
)
def test_a_login_over_a_network_in_clear_is_told(way, clear):
    assert login_of("ours", {"auth": PASSWORD | {"auth_url": f"{way}:5000"}}).is_in_clear is clear
