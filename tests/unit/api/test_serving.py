"""A server's socket."""

import errno
import re
import socket
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainmaster.api import serving
from trainmaster.api.serving import ServerAddress, _AcceptErrorLog, _bound
from trainmaster.service.self_signed import self_signed
from trainmaster.spec.errors import MissingPartError, UsageError


def test_who_connects_gets_a_socket_that_says_it_is_tcp():
    """Else asyncio leaves Nagle's algorithm on, and each answer after the first takes 40 ms."""
    with _bound(ServerAddress()) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.proto == socket.IPPROTO_TCP


def test_connections_that_cannot_be_taken_are_told_of_once_a_minute(caplog):
    now, passed_on = [0.0], []
    loop = SimpleNamespace(default_exception_handler=passed_on.append)
    mishaps = _AcceptErrorLog(lambda: now[0])
    for second in range(100):
        now[0] = float(second)
        mishaps(loop, {"exception": OSError(errno.EMFILE, "Too many open files")})
    assert [each.getMessage() for each in caplog.records] == [
        "connections cannot be taken: [Errno 24] Too many open files"
    ] * 2
    mistake = {"message": "a mistake of ours", "exception": ValueError("x")}
    mishaps(loop, mistake)
    assert passed_on == [mistake]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A directory with two certificates, each with its key, and files that are none."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("a", "b"):
        (folder / name).mkdir()
        pem, _ = self_signed(folder / name, "127.0.0.1")
        pem.rename(folder / f"{name}.pem")
    (folder / "text.pem").write_text("not a certificate")
    return folder


@pytest.mark.parametrize(
    ("cert", "key", "told"),
    [
        ("none.pem", "a.pem", "--tls-cert .*none.pem: No such file"),
        ("a.pem", "none.pem", "--tls-key .*none.pem: No such file"),
        (".", "a.pem", "--tls-cert .*: Is a directory"),
        ("text.pem", "a.pem", "--tls-cert .*text.pem is no PEM file"),
        ("a.pem", "text.pem", "--tls-key .*text.pem is no PEM file"),
        ("a.pem", "b.pem", "a.pem and --tls-key .*b.pem do not belong together"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_named(certificates, cert, key, told):
    where = ServerAddress(tls_cert=str(certificates / cert), tls_key=str(certificates / key))
    with pytest.raises(UsageError, match=told):
        where.checked()


def test_a_certificate_and_its_key_can_be_used(certificates):
    pem = str(certificates / "a.pem")
    ServerAddress("0.0.0.0", tls_cert=pem, tls_key=pem).checked()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"urls": ("tm.example.org",)}, "--url tm.example.org: that is no address"),
        ({"urls": ("https://tm.example.org/path",)}, "no address of a server"),
        ({"urls": ("https://a:b@tm.example.org",)}, "no address of a server"),
        ({"urls": ("http://tm.example.org",)}, "in clear"),
        ({"urls": ("https://tm.example.org:x",)}, "--url"),
        ({"urls": ("https://*.example.org",), "behind_proxy": "127.0.0.1"}, "no address of a server"),
        ({"urls": ("https://tm.example.org",)}, "does not speak TLS"),
        ({"apps_url": "https://*.apps.example.org"}, "--apps-url .* does not speak TLS"),
        ({"urls": ("http://localhost",), "behind_proxy": "127.0.0.1"}, "browsers come by https"),
    ],
)
def test_a_url_that_cannot_be_that_of_the_server_is_refused(options, told):
    with pytest.raises(UsageError, match=told):
        ServerAddress(**options).checked()


def test_the_names_of_a_server_are_those_of_its_urls_its_certificate_and_where_it_is_bound(certificates):
    pem = str(certificates / "a.pem")
    where = ServerAddress(
        "0.0.0.0", tls_cert=pem, tls_key=pem, urls=("https://TM.example.org:8443/",)
    ).checked()
    hosts = where.hosts("0.0.0.0")
    for known in ("tm.example.org", "127.0.0.1:9", socket.gethostname(), "0.0.0.0:8470", "10.0.0.7"):
        assert hosts.knows(known, "10.0.0.7"), known
    for other in ("evil.org", "example.org", "x.tm.example.org", "10.0.0.8"):
        assert not hosts.knows(other, "10.0.0.7"), other


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, []),
        ({"behind_proxy": "10.0.0.1"}, ["without --url", "one origin, at the host"]),
        (
            {"behind_proxy": "10.0.0.1", "urls": ("https://a.org",), "apps_url": "https://apps.org"},
            ["one origin: a"],
        ),
        (
            {"behind_proxy": "10.0.0.1", "urls": ("https://a.org",), "apps_url": "https://*.apps.org"},
            [],
        ),
    ],
)
def test_what_others_could_use_is_said_at_start(options, told):
    said = ServerAddress(**options).checked().warnings()
    assert len(said) == len(told)
    assert all(part in each for part, each in zip(told, said, strict=True))


def test_a_server_with_half_of_its_packages_names_the_others(monkeypatch):
    monkeypatch.setattr(serving, "MODULES", ("fastapi", "nosuch_form_parser", "nosuch_metrics"))
    with pytest.raises(MissingPartError) as refused:
        serving.serve(None, {}, ServerAddress(), lambda _: None, lambda *_: None)
    assert refused.value.args[0] == "server: nosuch_form_parser, nosuch_metrics: not installed"
    assert "pip install 'trainmaster[server]'" in refused.value.hint


def test_what_the_extra_brings_is_what_is_looked_for():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    brought = [*extras["server"], *extras["tunnel"]]
    names = {re.match(r"[\w-]+", each)[0].replace("-", "_") for each in brought}
    assert names - {"trainmaster"} == set(serving.MODULES)
