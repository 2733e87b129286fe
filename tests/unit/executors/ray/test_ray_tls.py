import json
import ssl

import pytest
from test_ray_commands import HEAD, WORKER, Nodes

from trainmaster.executors.ray.cluster import RayCluster
from trainmaster.executors.ray.tls import AUTHORITY_FILE, CertificateAuthority, variables

SAN = "subjectAltName"
REFUSED = r"(?i)verify.failed"


def context(files, place, purpose):
    """As a node's Ray has it: its own certificate, and one authority that it trusts."""
    place.mkdir(exist_ok=True)
    for name, text in files.items():
        (place / name).write_text(text)
    paths = variables(str(place))
    made = ssl.SSLContext(purpose)
    made.load_cert_chain(paths["RAY_TLS_SERVER_CERT"], paths["RAY_TLS_SERVER_KEY"])
    made.load_verify_locations(paths["RAY_TLS_CA_CERT"])
    made.verify_mode = ssl.CERT_REQUIRED
    return made


def shake_hands(server, client, name):
    """Both ends in memory; raises what the end says that does not want the other."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(down, up, server_hostname=name),
        server.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends[0].getpeercert(), ends[1].getpeercert()


def names(certificate):
    return [value for _, value in certificate[SAN]]


@pytest.fixture
def meet(tmp_path):
    """Have a node at one address connect to one at another; what each sees of the other."""

    def meet(of_server, of_client, address):
        server = context(of_server, tmp_path / "server", ssl.PROTOCOL_TLS_SERVER)
        client = context(of_client, tmp_path / "client", ssl.PROTOCOL_TLS_CLIENT)
        return shake_hands(server, client, address)

    return meet


@pytest.mark.parametrize("address", ["10.0.0.1", "gpu1.lab.example", "fd00::17"])
def test_nodes_of_a_cluster_know_each_other(meet, address):
    authority = CertificateAuthority.make()
    shown, seen = meet(authority.files(address), authority.files("10.0.0.2"), address)
    assert len(names(shown)) == 2
    assert "10.0.0.2" in names(seen)


def test_nobody_else_is_let_in_or_believed(meet):
    ours, theirs = CertificateAuthority.make(), CertificateAuthority.make()
    node = ours.files("10.0.0.1")
    with pytest.raises(ssl.SSLError, match=REFUSED):
        meet(node, theirs.files("10.0.0.2") | {"tls.ca": ours.certificate}, "10.0.0.1")
    with pytest.raises(ssl.SSLError, match=REFUSED):
        meet(theirs.files("10.0.0.1"), ours.files("10.0.0.2"), "10.0.0.1")
    with pytest.raises(ssl.SSLError, match=REFUSED):
        meet(ours.files("10.0.0.3"), ours.files("10.0.0.2"), "10.0.0.1")


def test_a_node_cannot_sign_for_others(meet):
    ours = CertificateAuthority.make()
    node = ours.files("10.0.0.1")
    pretended = CertificateAuthority.load(node["tls.key"] + node["tls.crt"]).files("10.0.0.9")
    chain = pretended["tls.crt"] + node["tls.crt"]
    with pytest.raises(ssl.SSLError, match=REFUSED):
        meet(pretended | {"tls.crt": chain}, ours.files("10.0.0.2"), "10.0.0.9")


def test_each_node_gets_its_own_and_the_driver_keeps_the_authority(tmp_path):
    nodes = Nodes()
    cluster = RayCluster.start(tmp_path, [HEAD], nodes, nodes)
    RayCluster.find(tmp_path, nodes, nodes).add([WORKER])
    first, second = (nodes.running[key] for key in ("head", "w1"))
    assert first["tls"]["tls.ca"] == second["tls"]["tls.ca"]
    assert first["tls"]["tls.key"] != second["tls"]["tls.key"]
    for request, node in ((first, HEAD), (second, WORKER)):
        assert request["env"]["RAY_USE_TLS"] == "1"
        assert request["env"]["RAY_TLS_SERVER_KEY"] == f"{node.directory}/tls.key"
        private = request["tls"]["tls.key"].splitlines()[1]
        assert private not in json.dumps([request["command"], request["env"], request["node"]])
    kept = tmp_path / AUTHORITY_FILE
    assert kept.stat().st_mode & 0o777 == 0o600
    signer = kept.read_text().splitlines()[1]
    assert signer not in json.dumps([first, second]), "a node cannot make certificates"
    cluster.stop()
    assert not kept.exists()
