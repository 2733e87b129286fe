"""A server with a team's login connects to what was checked, whatever a name, or what answers, says."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading

import pytest

from http_receiver import HttpReceiver, answer
from trainmaster.providers.openstack.client import OpenstackClient
from trainmaster.providers.openstack.login import read_login
from trainmaster.spec.addresses import NETWORKS_VARIABLE, address_of
from trainmaster.spec.errors import ProviderError, UsageError
from trainmaster.transport.base import Target, UnreachableError
from trainmaster.transport.checked_connection import TEAM_VARIABLE, team_may_reach
from trainmaster.transport.http_calls import sender

TEAM = {TEAM_VARIABLE: "vision"}
HERE = {**TEAM, NETWORKS_VARIABLE: "127.0.0.1/32"}


@pytest.fixture
def receiver():
    with HttpReceiver(usual=answer(200, text="{}")) as found:
        yield found


@pytest.mark.parametrize(
    ("environ", "reached"),
    [
        (TEAM, {"10.0.0.1", "8.8.8.8"}),
        (HERE, {"10.0.0.1", "8.8.8.8", "127.0.0.1"}),
        ({**TEAM, NETWORKS_VARIABLE: "0.0.0.0/0"}, {"10.0.0.1", "8.8.8.8", "127.0.0.1", "0.0.0.0"}),
    ],
)
def test_where_a_login_of_a_team_may_lead(environ, reached):
    may_reach = team_may_reach(environ)
    asked = ("10.0.0.1", "8.8.8.8", "127.0.0.1", "0.0.0.0", "::1", "::", "169.254.169.254", "fd00:ec2::254")
    assert {each for each in asked if may_reach(address_of(each))} == reached


def test_a_login_over_ssh_leads_not_to_the_server_itself_whatever_a_name_says(receiver, tmp_path):
    """Nor does the address that the place says a machine has."""
    pytest.importorskip("asyncssh", reason="the extra `hosts` is not installed")
    from trainmaster.transport.ssh import ssh_transport

    gate = Target("gate", "localhost", receiver.port)
    with ssh_transport(tmp_path, team_may_reach(TEAM)) as ssh:
        for target in (gate, Target("node", "10.0.0.1", jump=gate)):
            with pytest.raises(UnreachableError, match="which this server does not connect to for its users"):
                ssh.connect(target)
    with ssh_transport(tmp_path, team_may_reach(HERE)) as ssh, pytest.raises(UnreachableError) as said:
        ssh.connect(gate)  # what answers there is no SSH server
    assert "does not connect to" not in str(said.value)


def test_the_login_of_the_server_may_lead_anywhere_and_networks_are_checked():
    assert team_may_reach({NETWORKS_VARIABLE: "x"}) is None
    with pytest.raises(UsageError, match=NETWORKS_VARIABLE):
        team_may_reach({**TEAM, NETWORKS_VARIABLE: "x"})


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f.1", "0.0.0.0", "0"])
def test_a_name_that_means_the_server_itself_is_not_connected_to(receiver, host):
    send = sender(may_reach=team_may_reach(TEAM))
    with pytest.raises(OSError, match="does not connect to for its users"):
        send("GET", f"http://{host}:{receiver.port}/", {}, None, 5.0)
    assert receiver.asked == []


def test_what_the_administrator_has_named_is_connected_to(receiver):
    send = sender(may_reach=team_may_reach(HERE))
    assert send("GET", f"{receiver.url}/a", {}, None, 5.0).status == 200
    assert [each.path for each in receiver.asked] == ["/a"]
    with pytest.raises(OSError, match="does not connect to for its users"):
        send("GET", f"https://127.0.0.2:{receiver.port}/", {}, None, 5.0)


@pytest.mark.parametrize("drops", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n{"])
def test_what_answers_byte_by_byte_is_cut_off(drops):
    """However long each byte takes: the seconds are for the whole answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        is_over = threading.Event()

        def drip():
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(drops)
                while not is_over.wait(0.02):
                    connection.sendall(b"x")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        send = sender(may_reach=team_may_reach(HERE))
        with pytest.raises(TimeoutError, match=r"no answer within 0\.2 s"):
            send("GET", f"http://127.0.0.1:{listener.getsockname()[1]}/", {}, None, 0.2)
        is_over.set()
        thread.join()


@pytest.mark.parametrize("may_reach", [None, team_may_reach(TEAM)])
@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"])
def test_only_http_is_spoken(may_reach, url):
    with pytest.raises((OSError, http.client.HTTPException), match="unknown url type"):
        sender(may_reach=may_reach)("GET", url, {}, None, 5.0)


def test_a_catalogue_of_keystone_does_not_lead_to_the_server_itself(receiver, tmp_path):
    endpoint = {"interface": "public", "region": "r", "url": f"http://127.0.0.2:{receiver.port}"}
    token = {"catalog": [{"type": "compute", "endpoints": [endpoint]}]}
    receiver.answers = [answer(201, {"x-subject-token": "t"}, json.dumps({"token": token}))]
    auth = {"auth_url": receiver.url, "username": "u", "password": "p", "project_name": "x"}
    file = tmp_path / "clouds.yaml"
    file.write_text(json.dumps({"clouds": {"c": {"auth": auth}}}))
    client = OpenstackClient(read_login("c", {**HERE, "OS_CLIENT_CONFIG_FILE": str(file)}))
    with pytest.raises(ProviderError, match=r"127\.0\.0\.2, which this server does not connect to"):
        client.get("compute", "/limits")
    assert [each.path for each in receiver.asked] == ["/v3/auth/tokens"]
