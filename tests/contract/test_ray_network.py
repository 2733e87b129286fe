"""What can be read and done on the network of a Ray cluster; all its nodes are on this machine."""

import shutil
import socket
import ssl
import tempfile
from pathlib import Path

import pytest
from engine_bench import Bench, only_ray

from trainmaster.executors.gangs.executor import NodesExecutor
from trainmaster.executors.ray.cluster import RayCluster
from trainmaster.testing.ray_here import HERE
from trainmaster.testing.sniffer import listening, may_listen

pytestmark = pytest.mark.ray
SECRET = "f00d-of-the-secret-key"
TLS_RECORD = 0x16


@pytest.fixture
def two(make_node):
    """Two nodes that are started by the test."""
    place = Path(tempfile.mkdtemp(prefix="tm-", dir="/tmp"))
    nodes = [
        make_node(number, directory=f"{place}/{number}", home=f"{place}/home-{number}") for number in (7, 8)
    ]
    cluster = RayCluster(place / "record", nodes, *HERE)
    try:
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(place, ignore_errors=True)


@pytest.mark.crossings  # `test_lab_direct_store.py` listens to machines of the lab
@pytest.mark.skipif(not may_listen(), reason="only root may listen to others")
def test_who_listens_learns_nothing(two, tmp_path):
    addresses = {node.address for node in two.nodes}
    with listening(addresses=sorted(addresses)) as heard:
        cluster = RayCluster.start(two.directory, two.nodes, *HERE)
        bench = Bench(lambda **options: NodesExecutor(cluster, **options), tmp_path)
        try:
            gang = bench.gang("0", *['[ "$WANDB_API_KEY" ] && echo found'] * 2)
            member_env = {"WANDB_API_KEY": SECRET, "AWS_SECRET_ACCESS_KEY": SECRET[::-1]}
            for member in gang.members:
                member.env.update(member_env)
            bench.executor.submit([gang])
            assert [member.exit_code for member in bench.wait(gang).members] == [0, 0]
        finally:
            bench.executor.close()
        token = (cluster.directory / "token").read_text()
        keys = [
            (Path(node.directory) / "tls.key").read_text().splitlines()[1].encode() for node in cluster.nodes
        ]
    flows = {flow: data for flow, data in heard.flows.items() if addresses & {flow[0], flow[2]}}
    assert sum(map(len, flows.values())) > 50_000, "it has listened"
    for secret in (token.encode(), SECRET.encode(), SECRET[::-1].encode(), *keys):
        assert not heard.where(secret)
    clear = {flow: bytes(data[:80]) for flow, data in flows.items() if data[0] != TLS_RECORD}
    assert not clear, "all of it is encrypted"


@only_ray
def test_without_a_certificate_nobody_is_heard(cluster):
    head = cluster.head
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(f"{head.directory}/tls.ca")
    context.set_alpn_protocols(["h2"])
    for port in (head.port_base, head.port_base + 1):
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            say_hello(head.address, port, context)


def say_hello(address, port, context):
    """As a client of HTTP/2; a server that hangs up has refused it."""
    with (
        socket.create_connection((address, port), 5) as plain,
        context.wrap_socket(plain, server_hostname=address) as stream,
    ):
        stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        if not stream.recv(1024):  # in TLS 1.3 a client hears only here that it is refused
            raise ConnectionResetError


@pytest.mark.skipif(not may_listen(), reason="only root may listen to others")
def test_of_others_nothing_is_heard():
    asked, other = "127.0.0.201", "127.0.0.202"
    with listening(addresses=["127.0.0.203", asked]) as heard:
        for address in (other, asked):
            with socket.create_server((address, 0)) as server:
                with socket.create_connection(server.getsockname()) as stream:
                    stream.sendall(address.encode())
                server.accept()[0].close()
    assert heard.where(asked.encode())
    assert not heard.where(other.encode())
