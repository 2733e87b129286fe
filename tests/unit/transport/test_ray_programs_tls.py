"""What speaks with a Ray sees by its first word whether that has TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainmaster.executors.ray.tls import CertificateAuthority, variables
from trainmaster.transport.ray.programs.ray_connection import LoginNeededError, knock


@contextlib.contextmanager
def server(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """What listens at an address, and answers the first who comes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError), listening.accept()[0] as client:
                answer(client)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"ray://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(10)


def test_a_ray_is_known_by_its_first_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ray itself tries one that has TLS for ever, and says nothing."""
    heard = list[bytes]()

    def plain(client: socket.socket) -> None:
        heard.append(client.recv(9999))  # all of it: else it hears that we hang up
        client.sendall(b"\0\0\x12\4\0\0\0\0\0")

    with server(plain) as address:
        knock(address)
    with (
        server(lambda client: client.recv(9999)) as address,
        pytest.raises(ConnectionError, match="hangs up"),
    ):
        knock(address)  # a tunnel whose head is away: it is asked again
    with (
        server(lambda client: client.sendall(b"\x15\3\1\0\2\2\x28")) as address,
        pytest.raises(LoginNeededError, match="it has TLS, and RAY_USE_TLS is not set here"),
    ):
        knock(address)
    authority, other = CertificateAuthority.make(), CertificateAuthority.make()
    for folder, whose in (("ours", authority), ("theirs", authority), ("others", other)):
        (tmp_path / folder).mkdir()
        for name, text in whose.files("127.0.0.1").items():
            (tmp_path / folder / name).write_text(text)
    theirs = variables(str(tmp_path / "theirs"))

    def safe(client: socket.socket) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=theirs["RAY_TLS_CA_CERT"])
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(theirs["RAY_TLS_SERVER_CERT"], theirs["RAY_TLS_SERVER_KEY"])
        with context.wrap_socket(client, server_side=True) as stream:
            plain(stream)

    for name, value in variables(str(tmp_path / "ours")).items():
        monkeypatch.setenv(name, value)
    with server(safe) as address:
        knock(address)
    with server(plain) as address, pytest.raises(LoginNeededError, match="not with the certificates"):
        knock(address)
    monkeypatch.setenv("RAY_TLS_CA_CERT", variables(str(tmp_path / "others"))["RAY_TLS_CA_CERT"])
    with server(safe) as address, pytest.raises(LoginNeededError, match="not with the certificates"):
        knock(address)
    assert [each.startswith(b"PRI * HTTP/2.0") for each in heard] == [True, True, False]
