"""Ranges straight from a socket, where server or store are not as they should be."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from test_direct_reading import DATA, Server, read, server  # noqa: F401 - the fixture

from trainmaster.objects import direct
from trainmaster.objects.direct import BLOCK_BYTES, DirectReader, NotDirectError
from trainmaster.objects.s3 import S3Backend


@pytest.mark.parametrize("etag", ['"a"\r\nX-Other: 1', "a\nb", '"é"', '"\u20ac"', "a\x00b"])
def test_an_etag_writes_no_lines_of_its_own(server: Server, etag: str) -> None:  # noqa: F811
    """It comes from a manifest, which somebody else may have written."""
    reader = DirectReader()
    with pytest.raises(NotDirectError):
        read(reader, server.url, 0, 10, etag)
    assert server.requests == [], "the library is asked, and says what is wrong"
    assert read(reader, server.url, 0, 10, '"a"') == DATA[:10]


def test_another_answer_is_not_asked_for_on_every_idle_connection(server: Server) -> None:  # noqa: F811
    """There may be dozens, and each may take half a minute."""
    reader = DirectReader()
    pieces = [reader.blocks(server.url, 0, BLOCK_BYTES + 1) for _ in range(5)]
    for each in pieces:
        assert len(next(block for block in each if len(block))) == BLOCK_BYTES
    for each in pieces:
        assert sum(len(block) for block in each) == 1
    assert server.connections == 5
    server.answer = lambda *_: (server.head(0, "503 Slow Down"), b"", True)
    before = len(server.requests)
    with pytest.raises(NotDirectError):
        read(reader, server.url, 0, 10)
    assert len(server.requests) - before == 1


@pytest.fixture
def trickle(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that gives a byte now and then: never silent for long, and never done."""
    for name in direct._PROXIES:
        monkeypatch.delenv(name, raising=False)
    is_over = threading.Event()

    def serve() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(Server.head(BLOCK_BYTES))
                while not is_over.wait(0.02):
                    connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/bucket/key?X-Amz-Signature=abc"
        is_over.set()
    thread.join(5)


def test_what_trickles_is_given_up(trickle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_SILENCE_S", 1)
    monkeypatch.setattr(direct, "_RANGE_S", 0.5, raising=False)
    found: list[BaseException] = []

    def work() -> None:
        try:
            read(DirectReader(), trickle, 0, BLOCK_BYTES)
        except NotDirectError as error:
            found.append(error)

    reader = threading.Thread(target=work, daemon=True)
    reader.start()
    reader.join(60)  # it trickles for much longer
    assert found, "the library is asked for the rest"


@pytest.fixture
def backend(server: Server, monkeypatch: pytest.MonkeyPatch) -> S3Backend:  # noqa: F811
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url.partition("/bucket")[0])
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.delenv("AWS_SKIP_SIGNATURE", raising=False)
    return S3Backend("bucket/some")


def test_who_cannot_sign_is_asked_once(backend: S3Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """To find credentials may take seconds, each time."""
    import obstore

    asked = []

    def sign(*arguments: Any) -> str:
        asked.append(arguments)
        raise obstore.exceptions.GenericError("no credentials in the metadata service")

    monkeypatch.setattr(obstore, "sign", sign)
    monkeypatch.setattr(backend, "get_range", lambda _, start, length, __: DATA[start : start + length])
    for _ in range(3):
        assert b"".join(map(bytes, backend.range_blocks("thing", 5, 100, ""))) == DATA[5:105]
    assert len(asked) == 1


@pytest.mark.parametrize("skip", ["true", "1", "TRUE", "false"])
def test_who_reads_anonymously_signs_nothing(
    backend: S3Backend, monkeypatch: pytest.MonkeyPatch, skip: str
) -> None:
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", skip)
    assert (S3Backend("bucket/some")._direct is None) is (skip != "false")
    assert backend._direct is not None
    assert os.environ["AWS_SKIP_SIGNATURE"] == skip
