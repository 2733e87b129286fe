"""A server with a certificate of its own: it is shown, agreed to, pinned; others are refused."""

from __future__ import annotations

import http.client
import stat
import threading
import warnings
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest

from command_line import invoke

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from trainmaster.api import Client
from trainmaster.api.remote.connection import RestConnection
from trainmaster.api.remote.contexts import Contexts, certificate
from trainmaster.api.rest.app import make_app, make_state
from trainmaster.api.serving import ServerAddress
from trainmaster.cli import opening
from trainmaster.control.task.layout import Home
from trainmaster.service import Service
from trainmaster.service.self_signed import self_signed
from trainmaster.spec.errors import AccessError, UsageError
from trainmaster.testing.waits import until


@pytest.fixture
def state(tmp_path):
    root = tmp_path / "home"
    root.mkdir()
    service = Service(Home(root, root / "cache", f"file://{root}/store", f"sqlite:///{root / 't.db'}"))
    yield make_state(service, {}, is_secure=True)
    service.close()


@contextmanager
def listening(state, pem):
    """The URL of a server with that certificate."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = uvicorn.Config(
            make_app(state), port=0, log_level="critical", ssl_certfile=pem, ssl_keyfile=pem, lifespan="off"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        until(lambda: server.started, "the server listens")
    yield f"https://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(60)


@pytest.fixture
def served(state, tmp_path, monkeypatch):
    """URL, fingerprint and a token of a server with TLS; contexts are kept in a place of their own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(opening, "_is_local", False)
    root = tmp_path / "home"
    token = state.access.create_token("ann", ["read", "run"])["token"]
    pem, fingerprint = self_signed(root, "127.0.0.1")
    with listening(state, pem) as url:
        yield url, fingerprint, token


def certified(folder, begins, ends):
    """The PEM files of an authority, and of a certificate by it for 127.0.0.1, with its key."""
    now, keys = datetime.now(UTC), [ec.generate_private_key(ec.SECP256R1()) for _ in "ab"]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in ("authority", "server")]
    host = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = []
    for name, key, days, more in (
        (names[0], keys[0], (-9, 9), x509.BasicConstraints(ca=True, path_length=None)),
        (names[1], keys[1], (begins, ends), host),
    ):
        built = (
            x509.CertificateBuilder().subject_name(name).issuer_name(names[0]).serial_number(len(made) + 1)
        )
        built = built.public_key(key.public_key()).add_extension(more, critical=False)
        built = built.not_valid_before(now + timedelta(days=days[0]))
        signed = built.not_valid_after(now + timedelta(days=days[1])).sign(keys[0], hashes.SHA256())
        made.append(signed.public_bytes(Encoding.PEM))
    made[1] += keys[1].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for name, data in zip(("authority.pem", "signed.pem"), made, strict=True):
        (folder / name).write_bytes(data)
    return folder / "authority.pem", folder / "signed.pem"


@pytest.mark.parametrize(
    ("days", "said", "at_start"),
    [
        ((-2, -1), "certificate has expired", "has ended on"),
        ((1, 2), "certificate is not yet valid", "is not valid before"),
        ((-1, 1), "", ""),
    ],
)
def test_a_certificate_that_is_good_at_another_time_is_not_asked_about(
    state, tmp_path, monkeypatch, days, said, at_start
):
    """A clock that is wrong is named, where agreeing would have trusted the certificate for ever."""
    authority, pem = certified(tmp_path, *days)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(opening, "_is_local", False)
    where = ServerAddress(tls_cert=str(pem), tls_key=str(pem)).checked()
    assert [at_start in each for each in where.warnings()] == [True] * bool(at_start)
    token = state.access.create_token("ann", ["read", "run"])["token"]
    with listening(state, pem) as url:
        if not said:
            assert certificate(url).why_untrusted == ""
            return
        with pytest.raises(AccessError, match=f"{said}, by the clock of this machine") as refused:
            invoke("login", url, "--token", "-", "--fingerprint", "ab" * 32, typed=token)
        assert "Set that clock" in refused.value.hint
        with pytest.raises(AccessError, match=f"{said}, by the clock of this machine"):
            RestConnection(url, token, sleep=lambda _: None).get("/info")
    assert Contexts().current() is None


def test_a_certificate_is_made_once_and_for_its_owner_only(tmp_path):
    pem, fingerprint = self_signed(tmp_path, "train.example.org")
    assert self_signed(tmp_path, "other") == (pem, fingerprint)
    assert stat.S_IMODE(pem.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["server.pem"]
    pem.unlink()
    assert self_signed(tmp_path, "::1")[1] != fingerprint


def test_who_agrees_is_logged_in_and_talks_to_that_certificate_only(served):
    url, fingerprint, token = served
    seen = certificate(url)
    assert (seen.fingerprint, seen.why_untrusted) == (fingerprint, "self-signed certificate")
    assert certificate("http://x") is None
    with pytest.raises(UsageError, match="another certificate"):
        invoke("login", url, "--token", "-", "--fingerprint", "ab" * 32, typed=token)
    done = invoke("login", url, "--token", "-", "--fingerprint", fingerprint, typed=token)
    assert (done.exit_code, f"logged in to {url} as ann" in done.stderr) == (0, True)
    assert Contexts().current().fingerprint == fingerprint
    assert invoke("status", "--json").stdout == '{"runs": []}\n'
    client = Client(url)
    assert client.runs() == []
    client.close()


def test_where_nobody_can_be_asked_the_option_is_named(served, monkeypatch):
    url, _, token = served

    def no_terminal(*_, **__):
        raise OSError("no terminal")

    monkeypatch.setattr("trainmaster.cli.contexts.open", no_terminal, raising=False)
    with pytest.raises(UsageError, match=r"did not agree(.|\n)*--fingerprint SHA256"):
        invoke("login", url, "--token", "-", typed=token)


def test_a_login_that_takes_the_place_of_another_ones_says_so(served, state):
    url, fingerprint, token = served
    login = ("login", url, "--token", "-", "--fingerprint", fingerprint)
    assert "forgotten" not in invoke(*login, typed=token).stderr
    assert "forgotten" not in invoke(*login, typed=token).stderr, "she is the same"
    other = state.access.create_token("bob", ["read"])["token"]
    words = f"the login as ann at {url}, which was called 127.0.0.1, is forgotten; `--name NAME` keeps both"
    assert words in invoke(*login, typed=other).stderr
    assert "forgotten" not in invoke(*login, "--name", "mine", typed=token).stderr
    assert [each.name for each in Contexts().all()[0]] == ["127.0.0.1", "mine"]
    assert Contexts().of_url(url).token == token, "the one in use, of several there"


def test_another_certificate_than_agreed_to_is_refused(served):
    url, fingerprint, token = served
    changed = RestConnection(url, token, "cd" * 32)
    with pytest.raises(AccessError, match=f"another certificate than when you logged in: {fingerprint}"):
        changed.get("/info")
    unpinned = RestConnection(url, token, sleep=lambda _: None)
    with pytest.raises(AccessError, match=r"not trusted(.|\n)*login"):
        unpinned.get("/info")


def test_a_socket_that_is_opened_again_has_its_certificate_checked_again(served):
    url, fingerprint, token = served
    connection = RestConnection(url, token, fingerprint)
    connection.get("/info")
    (socket,) = connection._sockets.values()
    socket.close()
    with pytest.raises(http.client.NotConnected):
        socket.request("GET", "/api/v1/info")
    connection.get("/info")
    next(iter(connection._sockets.values())).close()
    connection._fingerprint = "cd" * 32
    with pytest.raises(AccessError, match="another certificate"):
        connection.get("/info")
    connection.close()
