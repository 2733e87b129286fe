"""Servers of an OpenStack as their provider looks after them: asked for, reached, ended, and reaped."""

import json
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from test_openstack_answers import CATALOG, PASSWORD

from trainmaster.providers.base import NoCapacityError, NodeRequest, NodeState, ProviderPlace
from trainmaster.providers.cluster_ledger import AskedMachines, KnownCluster, KnownMachine
from trainmaster.providers.ledger_provider import ListedMachine
from trainmaster.providers.openstack.answers import CLUSTER, HOME, TOKEN, UNTIL
from trainmaster.providers.openstack.login import login_of
from trainmaster.providers.openstack.project import base_name
from trainmaster.providers.openstack.provider import OpenstackProvider
from trainmaster.providers.openstack.settings import OPENSTACK
from trainmaster.providers.sent_settings import DRIVES_VARIABLE
from trainmaster.transport.http_calls import HttpAnswer

HOUR_AGO, IN_AN_HOUR = "1000", "9000"


class Nova:
    """Servers of one home, by id; what is deleted is gone at once.

    Attributes:
        at_first: called once the servers were listed for the first time. told: what was changed.
    """

    def __init__(self, *servers):
        self.servers, self.told = {each["id"]: each for each in servers}, []
        self.at_first = lambda: None

    def send(self, method, address, headers, body, timeout_s):
        path = address.partition("example.org")[2].partition("?")[0]
        if path.endswith("/auth/tokens"):
            said = {"token": {"catalog": CATALOG, "roles": [], "user": {"id": "ada"}}}
            return HttpAnswer(201, json.dumps(said), {"x-subject-token": "token"})
        if method != "GET":
            self.told.append(f"{method} {path}")
            self.servers.pop(path.rpartition("/")[2], None)
            return HttpAnswer(200, "{}")
        said = {
            "servers": list(self.servers.values()),
            "security_groups": [GROUP],
            "application_credentials": [],
        }
        if path.endswith("/servers/detail"):
            then, self.at_first = self.at_first, lambda: None
            then()
        return HttpAnswer(200, json.dumps(said))


GROUP = {"id": "g", "name": base_name("home", "c"), "description": f"trainmaster until {HOUR_AGO}"}


def server(id, until, status="SHUTOFF"):
    written = {HOME: "home", CLUSTER: "c", TOKEN: f"of-{id}", UNTIL: until}
    return {"id": id, "name": f"{base_name('home', 'c')}-worker", "status": status, "metadata": written}


@pytest.fixture
def reaper(tmp_path):
    """A provider at 5000 s that knows of a machine `old`, by its cloud."""

    def made(nova, **environ):
        (tmp_path / "openstack.yaml").write_text("image: Debian 13\nends_only_from_here: true\n")
        provider = OpenstackProvider(
            OPENSTACK.read(tmp_path, {}),
            login_of("ours", {"auth": PASSWORD}),
            ProviderPlace(tmp_path, "home", environ),
            send=nova.send,
            sleep=lambda seconds: None,
            clock=lambda: 5000.0,
        )
        asked = AskedMachines.of(NodeRequest("worker", 1, "m", token="of-old"), is_made=True)
        with provider._memory.alone("c"):
            machines = {"old": KnownMachine(started_at=100.0)}
            provider._memory.put(KnownCluster("c").with_requests(asked.with_machines(machines)))
        return provider

    return made


@pytest.mark.parametrize(("drives", "address", "last"), [("", "192.0.2.7", "b"), ("a", "10.0.0.7", "a")])
def test_a_server_that_drives_reaches_the_others_inside_and_deletes_itself_last(
    reaper, drives, address, last
):
    nova = Nova(server("a", IN_AN_HOUR), server("b", IN_AN_HOUR))
    provider = reaper(nova, **({DRIVES_VARIABLE: drives} if drives else {}))
    known = KnownMachine(started_at=1.0, address="192.0.2.7", private_address="10.0.0.7")
    asked = AskedMachines.of(NodeRequest("worker", 1, "m", token="t"))
    node = provider._node(KnownCluster("c"), asked, "b", known, ListedMachine(NodeState.READY))
    assert node.address == address
    provider._end(KnownCluster("c"))
    assert [each for each in nova.told if "/servers/" in each][-1].endswith(f"/{last}")


def test_a_run_that_goes_on_after_another_has_reaped_knows_at_once_what_has_ended(reaper):
    """Not only when nobody has heard of its machines for some time."""
    nova = Nova(server("old", HOUR_AGO))
    provider = reaper(nova)
    assert provider.reap([]) == ["old"]
    assert [path.rpartition("/")[2] for path in nova.told] == ["old", GROUP["name"], "g"]
    (node,) = provider.nodes("c")
    assert (node.state, node.ended_at) == (NodeState.GONE, 5000.0)
    assert "its lease was over" in node.reason
    provider.release("c")
    assert provider.nodes("c") == []


def test_a_quota_of_groups_that_is_used_up_means_no_machines_now(reaper):
    """Neutron says it by the status by which it says that something is there already."""

    class Full(Nova):
        def send(self, method, address, headers, body, timeout_s):
            path = urlsplit(address).path
            if path.endswith("/access_rules"):
                return HttpAnswer(404, "{}")
            if (method, path) == ("POST", "/v2.0/security-groups"):
                return HttpAnswer(409, '{"NeutronError": {"message": "Quota exceeded: security_group"}}')
            answer = super().send(method, address, headers, body, timeout_s)
            flavor = {"id": "f", "name": "m", "vcpus": 1, "ram": 1, "disk": 9}
            there = {"flavors": [flavor], "images": [{"id": "Debian 13"}], "networks": [{"id": "n"}]}
            return replace(answer, text=json.dumps(json.loads(answer.text) | there | {"security_groups": []}))

    provider = reaper(Full())
    with pytest.raises(NoCapacityError, match="Quota exceeded: security_group"):
        provider.acquire("d", NodeRequest("worker", 1, "m", token="t"))
    assert not provider._memory.of("d").asked


@pytest.mark.parametrize("is_renewed", [True, False])
def test_what_reaps_leaves_a_run_alone_that_goes_on_meanwhile(reaper, is_renewed):
    """It has renewed its machine, or asked for another, since all were listed."""
    nova = Nova(server("old", HOUR_AGO))
    provider = reaper(nova)

    def goes_on():
        id = "old" if is_renewed else "new"
        nova.servers[id] = server(id, IN_AN_HOUR, "ACTIVE")

    nova.at_first = goes_on
    assert provider.reap([]) == ([] if is_renewed else ["old"])
    assert nova.told == ([] if is_renewed else ["DELETE /servers/old"]), "its key pair and its group stay"
    assert [id for _, id, _ in provider._memory.of("c").machines] == ["old"]
