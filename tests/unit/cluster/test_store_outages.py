"""Which words say that a store is away for now, and which that something must be changed."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator

import pytest

from trainmaster.cluster.node_files.store_outages import StoreOutages, is_full, trouble_from_here
from trainmaster.objects.outage import is_away

ASKED = "Cannot look for s3://b/x/manifest.json: Generic S3 error: Error performing HEAD http://127.0.0.1:9/b"


@pytest.mark.parametrize(
    "words",
    [
        f"{ASKED} in 106ms, after 1 retries  - HTTP error: error sending request: ConnectionRefused.",
        f"{ASKED} in 113ms, after 1 retries  - HTTP error: error sending request.",
        f"{ASKED} in 103ms  - Server returned non-2xx status code: 503 Service Unavailable.",
        f"{ASKED} in 103ms  - Server returned non-2xx status code: 429 Too Many Requests.",
        "no answer for 15 s",
        "https://example.org/x.tar: <urlopen error [Errno 111] Connection refused>",
        "https://example.org/x.tar: <urlopen error timed out>",
        "https://example.org/x.tar: HTTP Error 502: Bad Gateway",
        "https://example.org/x.tar: 503 Service Unavailable. Look at the URL.",
        "https://example.org/x.tar: the connection was cut. It is safe to try again.",
        "https://example.org/x: <urlopen error [Errno -3] Temporary failure in name resolution>",
        "Cannot read hdfs://name/x: HDFS says 503 : it is starting.",
        "Cannot read hdfs://name/x: No route to host.",
        f"{ASKED} in 106ms  - HTTP error: error decoding response body.",
        "Cannot read s3://b/certificates/x: HTTP error: error sending request.",
    ],
)
def test_a_store_may_be_back_later(words: str) -> None:
    assert is_away(words)
    assert not is_full(words)


@pytest.mark.parametrize(
    "words",
    [
        f"{ASKED} in 34ms - Server returned non-2xx status code: 403 Forbidden.",
        f"{ASKED} - Received redirect without LOCATION: an incorrectly configured region.",
        "Cannot open s3://b: PUT http://169.254.169.254/latest/api - HTTP error: error sending request.",
        "Cannot open s3://b: no credentials were found.",
        f"{ASKED} - HTTP error: error sending request: its certificate is not trusted (UnknownIssuer).",
        "https://example.org/x.tar: 404 Not Found. Look at the URL.",
        "https://nowhere.example/x: <urlopen error [Errno -2] Name or service not known>",
        "s3://b/x@3: chunk 500 is missing. Somebody deleted or damaged it: use another version.",
        "s3://b/503/x is damaged (ValueError: 502).",
        "s3://b/timeout-sweep/0/3: 'timeout.json' is damaged: its SHA-256 is another.",
        "[Errno 28] No space left on device: '/x'",
    ],
)
def test_what_does_not_pass_by_itself(words: str) -> None:
    assert not is_away(words)


def test_since_when_a_store_is_away() -> None:
    now_s = [100.0]
    outages = StoreOutages(lambda: now_s[0])
    both = ["s3://b", "s3://source"]
    assert "s3://b has not answered since" in str(outages.away("x", both, "timed out"))
    now_s[0] = 160.0
    assert "(60 s): timed out" in str(outages.away("x", both, "timed out"))
    named = str(outages.away("x", both, "Cannot read s3://source/k: timed out"))
    assert "s3://source has not answered since" in named
    assert " s): " not in named
    outages.answers(["s3://b"])
    assert "(60 s)" not in str(outages.away("x", both, "timed out"))


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("Cannot read s3://train-raw/k: timed out.", "s3://train-raw"),
        ("Cannot read s3://train.raw/k: timed out.", "s3://train.raw"),
        ("Cannot read s3://train/k: timed out.", "s3://train"),
        ("No answer from s3://train. Timed out.", "s3://train"),
        ("s3://train-raw: timed out.", "s3://train-raw"),
        ("Cannot read s3://train-other/k: timed out.", "s3://first"),
    ],
)
def test_the_store_that_the_words_name_is_meant(words: str, meant: str) -> None:
    stores = ["s3://first", "s3://train", "s3://train-raw", "s3://train.raw"]
    for order in (stores, ["s3://first", *stores[:0:-1]]):
        told = str(StoreOutages(lambda: 100.0).away("x", order, words))
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
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_this_machine_asks_in_words_that_tell(web: str) -> None:
    assert trouble_from_here(f"{web}/200") == ""
    assert is_away(trouble_from_here(f"{web}/503"))
    gone = trouble_from_here(f"{web}/404")
    assert gone
    assert not is_away(gone)
    with socket.create_server(("127.0.0.1", 0)) as server:  # it takes connections, and says nothing
        unresponsive = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        assert is_away(trouble_from_here(unresponsive, 0.2))
    assert is_away(trouble_from_here(unresponsive))
    assert trouble_from_here("memory://b/x") == ""
