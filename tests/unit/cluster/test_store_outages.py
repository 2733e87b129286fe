"""Since when stores do not answer, and what this machine hears of them."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator

import pytest

from trainmaster.cluster.node_files.store_reach import StoreOutages, trouble_from_here
from trainmaster.objects.errors import StoreTrouble


def test_since_when_a_store_is_away() -> None:
    now_s = [100.0]
    outages = StoreOutages(lambda: now_s[0])
    both = ["s3://b", "s3://source"]
    assert "s3://b has not answered since" in str(outages.away("x", both, "timed out"))
    now_s[0] = 160.0
    assert "(60 s): timed out" in str(outages.away("x", both, "timed out"))
    named = str(outages.away("x", both, "timed out", "s3://source/k"))
    assert "s3://source has not answered since" in named
    assert " s): " not in named
    outages.answers(["s3://b"])
    assert "(60 s)" not in str(outages.away("x", both, "timed out"))


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("s3://train-raw/k", "s3://train-raw"),
        ("s3://train.raw/k", "s3://train.raw"),
        ("s3://train/k", "s3://train"),
        ("s3://train", "s3://train"),
        ("s3://train-other/k", "s3://first"),
        ("", "s3://first"),
    ],
)
def test_the_store_that_was_asked_is_meant(url: str, meant: str) -> None:
    stores = ["s3://first", "s3://train", "s3://train-raw", "s3://train.raw"]
    for order in (stores, ["s3://first", *stores[:0:-1]]):
        told = str(StoreOutages(lambda: 100.0).away("x", order, "Cannot read s3://train/k", url))
        assert told.startswith(f"data.x: {meant} has not answered since")


class Trouble(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        code = int(self.path[1:])
        self.send_response(code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Trouble)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_what_this_machine_hears_is_typed(web: str) -> None:
    def trouble(uri: str, limit_s: float = 15.0) -> StoreTrouble | None:
        error = trouble_from_here(uri, limit_s)
        return error and error.trouble

    assert trouble(f"{web}/200") is None
    assert trouble(f"{web}/503") is StoreTrouble.UNREACHABLE
    assert trouble(f"{web}/404") is StoreTrouble.MISSING
    assert trouble(f"{web}/403") is StoreTrouble.REFUSED
    with socket.create_server(("127.0.0.1", 0)) as server:  # it takes connections, and says nothing
        unresponsive = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        assert trouble(unresponsive, 0.2) is StoreTrouble.UNREACHABLE
    assert trouble(unresponsive) is StoreTrouble.UNREACHABLE
    assert trouble("memory://b/x") is None
