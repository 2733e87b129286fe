"""A server's socket."""

import errno
import socket
from types import SimpleNamespace

import pytest

from trainmaster.api.serving import Listening, _bound, _Mishaps
from trainmaster.service.self_signed import self_signed
from trainmaster.spec.errors import UsageError


def test_who_connects_gets_a_socket_that_says_it_is_tcp():
    """Else asyncio leaves Nagle's algorithm on, and each answer after the first takes 40 ms."""
    with _bound(Listening()) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.proto == socket.IPPROTO_TCP


def test_connections_that_cannot_be_taken_are_told_of_once_a_minute(caplog):
    now, passed_on = [0.0], []
    loop = SimpleNamespace(default_exception_handler=passed_on.append)
    mishaps = _Mishaps(lambda: now[0])
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
    where = Listening(tls_cert=str(certificates / cert), tls_key=str(certificates / key))
    with pytest.raises(UsageError, match=told):
        where.check()


def test_a_certificate_and_its_key_can_be_used(certificates):
    pem = str(certificates / "a.pem")
    Listening("0.0.0.0", tls_cert=pem, tls_key=pem).check()
