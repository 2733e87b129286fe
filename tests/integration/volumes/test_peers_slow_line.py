"""The line that benchmarks put before a store, as a process: nothing comes too early, everything comes."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

LINE = Path(__file__).resolve().parents[3] / "benchmarks/volumes/peers_line.py"
LATENCY_S = 0.04
CONTENT = os.urandom(1 << 20)


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    """Of a line before a server that answers each line of text, a number, with so many bytes."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer(client: socket.socket) -> None:
        with client, client.makefile("rb") as asked:
            for line in asked:
                client.sendall(CONTENT[: int(line)])

    def accept() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    upstream = f"127.0.0.1:{server.getsockname()[1]}"
    command = [sys.executable, str(LINE), upstream, str(LATENCY_S * 1e3), "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield "127.0.0.1", int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()
        server.close()


def got(client: socket.socket, size_bytes: int) -> tuple[bytes, float]:
    began = time.monotonic()
    client.sendall(b"%d\n" % size_bytes)
    data = b""
    while len(data) < size_bytes:
        more = client.recv(1 << 20)
        assert more
        data += more
    return data, time.monotonic() - began


def test_answers_are_late_and_whole(address: tuple[str, int]) -> None:
    began = time.monotonic()
    with socket.create_connection(address, 20) as client:
        got(client, 1)
        assert time.monotonic() - began >= 2 * LATENCY_S  # the connection, and the request
        assert got(client, 1)[1] >= LATENCY_S
        data, took_s = got(client, 100_000)
        assert took_s >= 2 * LATENCY_S  # its window is not open yet
        assert data == CONTENT[:100_000]
        whole, _ = got(client, len(CONTENT))
        assert hashlib.sha256(whole).digest() == hashlib.sha256(CONTENT).digest()


def test_many_connections_have_their_own_answers(address: tuple[str, int]) -> None:
    found: dict[int, bytes] = {}

    def ask(size_bytes: int) -> None:
        with socket.create_connection(address, 20) as client:
            found[size_bytes] = got(client, size_bytes)[0]

    threads = [threading.Thread(target=ask, args=(1000 * number,)) for number in range(1, 33)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 32
    assert all(data == CONTENT[:size] for size, data in found.items())


def test_a_server_that_is_gone_ends_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        upstream = f"127.0.0.1:{server.getsockname()[1]}"
    command = [sys.executable, str(LINE), upstream, "1", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            with socket.create_connection(("127.0.0.1", int(process.stdout.readline())), 20) as client:
                assert client.recv(1) == b""
        finally:
            process.kill()
