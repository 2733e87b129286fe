"""What goes wrong where a URL is brought here is told by type."""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.server
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from trainmaster.control.attempt import data_urls
from trainmaster.control.attempt.data_urls import fetch_url
from trainmaster.objects.errors import StoreTrouble, trouble_of
from trainmaster.spec.errors import PublishError, UsageError

CUT, SILENT = 1, 2


class Trouble(http.server.BaseHTTPRequestHandler):
    """Answers with the status that the path names; ``/1`` is cut, and to ``/2`` nothing is said."""

    def do_GET(self) -> None:
        code = int(self.path[1:])
        if code == SILENT:
            return
        self.send_response(200 if code == CUT else code)
        self.send_header("Content-Length", "9" if code == CUT else "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Trouble)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("path", [503, 429, CUT, SILENT])
def test_a_web_server_that_may_answer_later_is_no_fault_of_the_user(
    web: str, path: int, tmp_path: Path
) -> None:
    with pytest.raises(PublishError) as raised:
        fetch_url(f"{web}/{path}", tmp_path / "data")
    assert trouble_of(raised.value) is StoreTrouble.UNREACHABLE


@pytest.mark.parametrize("code", [204, 206, 403, 404])
def test_one_that_refuses_is(web: str, code: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=str(code)):
        fetch_url(f"{web}/{code}", tmp_path / "data")


@pytest.mark.parametrize(("name", "is_unpacked"), [("x.csv", True), ("x.csv.gz", False)])
def test_what_a_server_packs_on_the_way_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_unpacked: bool
) -> None:
    content = b"1,2\n" * 1000
    sent = packed = gzip.compress(content)

    class Answer(io.BytesIO):
        status, headers = 200, {"Content-Encoding": "gzip"}

    monkeypatch.setattr(data_urls, "open_web", lambda *_: Answer(sent))
    fetch_url(f"https://there/{name}", tmp_path / "data")
    assert (tmp_path / "data" / name).read_bytes() == (content if is_unpacked else packed)
    fetch_url(f"https://there/{name}", tmp_path / "meant", sha256=hashlib.sha256(packed).hexdigest())
    assert (tmp_path / "meant" / name).read_bytes() == packed
    for sent in (packed[:-9], b"no gzip") if is_unpacked else ():  # noqa: B007 - what is sent
        with pytest.raises(PublishError) as raised:
            fetch_url(f"https://there/{name}", tmp_path / "cut")
        assert trouble_of(raised.value) is StoreTrouble.UNREACHABLE


def test_nobody_answers(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="cannot be brought here") as raised:
        fetch_url("http://127.0.0.1:9/x", tmp_path / "data")
    assert trouble_of(raised.value) is StoreTrouble.UNREACHABLE


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(data_urls, "_take", full)
    (tmp_path / "x").write_text("x")
    with pytest.raises(PublishError) as raised:
        fetch_url(f"file://{tmp_path}/x", tmp_path / "data")
    assert trouble_of(raised.value) is StoreTrouble.FULL
