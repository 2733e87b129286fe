import contextlib
import json
import os
import socket
import threading
import time
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from fake_hdfs import FakeHdfs
from hypothesis import given, settings

from hostile_bytes import changed_json
from trainmaster.objects import webhdfs
from trainmaster.objects.errors import FullStoreError, ObjectStoreError, StoreTrouble
from trainmaster.objects.object_store import ObjectStore
from trainmaster.objects.webhdfs_answers import Answer, WebHdfsError, refusal_of
from trainmaster.spec.errors import PublishError
from trainmaster.testing.object_store_contract import ObjectStoreContract
from trainmaster.volumes.packed.getting import get
from trainmaster.volumes.packed.opening import open_volume
from trainmaster.volumes.packed.pushing import push


@pytest.fixture
def hdfs(monkeypatch):
    impatient = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None)  # others sleep
    monkeypatch.setattr(webhdfs, "time", impatient)
    server = FakeHdfs()
    yield server
    server.close()


@pytest.fixture
def store(hdfs):
    return ObjectStore(f"{hdfs.url}/base")


class TestHdfs(ObjectStoreContract):
    @pytest.fixture
    def store(self, hdfs):
        return ObjectStore(f"{hdfs.url}/some where")

    @pytest.fixture
    def troubles(self, hdfs):
        """It refuses every request of one, and nobody is where the other one is."""
        hdfs.refuse = "AccessControlException"
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            nobody = f"hdfs://127.0.0.1:{unused.getsockname()[1]}/x"
        return {
            StoreTrouble.REFUSED: ObjectStore(f"{hdfs.url}/x"),
            StoreTrouble.UNREACHABLE: ObjectStore(nobody),
        }

    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch):
        monkeypatch.setattr(webhdfs, "_FIRST_PATIENCE_S", 0.05)


@pytest.mark.parametrize(
    ("exception", "kind"),
    [("DSQuotaExceededException", FullStoreError), ("StandbyException", ObjectStoreError)],
)
def test_what_the_namenode_says_is_told_by_type(store, hdfs, exception, kind):
    hdfs.refuse = exception
    with pytest.raises(kind):
        store.put("x", b"1")


def test_the_namenode_is_told_of_a_dead_datanode(store, hdfs):
    hdfs.dead = True
    store.put("x", b"data")
    assert store.get("x") == b"data"
    assert hdfs.excluded == ["", "127.0.0.1", "", "127.0.0.1"]


def test_datanodes_that_stay_dead(store, hdfs, monkeypatch):
    monkeypatch.setattr(webhdfs, "_PATIENCE_S", 0.05)
    hdfs.good.server_close()
    hdfs.good.shutdown()
    with pytest.raises(PublishError, match=r"(?s)Cannot write hdfs://.*refused.*Check the network"):
        store.put("x", b"data")
    assert hdfs.files == {}


def test_a_namenode_that_was_never_there(monkeypatch):
    monkeypatch.setattr(webhdfs, "_FIRST_PATIENCE_S", 0.05)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        store = ObjectStore(f"hdfs://127.0.0.1:{unused.getsockname()[1]}/base")
        monkeypatch.setattr(webhdfs, "_PATIENCE_S", 3600.0)  # which the test would not outlive
        with pytest.raises(PublishError, match="refused"):
            store.get("x")


def test_a_namenode_in_safe_mode(store, hdfs):
    hdfs.safe_mode = 3
    store.put("x", b"data")
    hdfs.safe_mode = 2
    assert store.get("x") == b"data"


def test_answers_to_renames_that_are_lost(store, hdfs):
    hdfs.lose_renames = 1
    store.put("x", b"data")
    hdfs.lose_renames = 1
    assert store.put_if_absent("y", b"data")
    assert sorted(hdfs.files) == ["/base/x", "/base/y"]


def test_no_permission(store, hdfs):
    hdfs.refuse = "AccessControlException"
    with pytest.raises(PublishError, match=r"(?s)HDFS says.*permissions"):
        store.put("x", b"data")


def test_a_volume_in_hdfs(store, hdfs, tmp_path):
    (tmp_path / "src").mkdir()
    for number in range(5):
        (tmp_path / f"src/{number}").write_bytes(os.urandom(3000))
    push(tmp_path / "src", store.url, cache=tmp_path / "cache", chunk_limit_bytes=5000)
    hdfs.dead = True
    get(open_volume(f"{store.url}@1", tmp_path / "cache"), tmp_path / "out")
    assert all((tmp_path / f"out/{n}").read_bytes() == (tmp_path / f"src/{n}").read_bytes() for n in range(5))


STATUS = {"pathSuffix": "x", "type": "FILE", "length": 3, "modificationTime": 5, "fileId": 7}


@settings(max_examples=80)
@given(changed_json({"FileStatuses": {"FileStatus": [STATUS]}, "FileStatus": STATUS, "boolean": True}))
def test_any_answer(said):
    backend = webhdfs.WebHdfsBackend.__new__(webhdfs.WebHdfsBackend)
    backend._root, backend._scratch = "/", ""

    def answer(method, key, options, into=None):
        if into is not None:
            into.write(said)
        return Answer(200, "", said)

    backend._asked = answer
    for ask in (
        lambda: backend._status("x"),
        lambda: list(backend._listed("x")),
        lambda: backend._place("x", "y", overwrite=False),
    ):
        with contextlib.suppress(WebHdfsError):
            ask()
    refusal_of(Answer(500, "", said), "x")


class _Folder(BaseHTTPRequestHandler):
    """Lists a folder of many files, and holds none of the answer; the first time it is cut off."""

    protocol_version = "HTTP/1.1"
    entry = json.dumps(STATUS).encode()
    count, asked = 30_000, 0

    def log_message(self, *_):
        pass

    def do_GET(self):
        start, end = b'{"FileStatuses":{"FileStatus":[\n', b"\n]}}\n"
        self.send_response(200)
        size = len(start) + self.count * (len(self.entry) + 2) - 2 + len(end)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(start)
        type(self).asked += 1
        for number in range(self.count):
            if self.asked == 1 and number == 1000:
                self.close_connection = True
                return
            self.wfile.write(b",\n" * (number > 0) + self.entry)
        self.wfile.write(end)


def test_a_large_folder_need_not_fit_into_memory(monkeypatch):
    impatient = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None)
    monkeypatch.setattr(webhdfs, "time", impatient)
    monkeypatch.setattr(webhdfs, "_PART_BYTES", 1 << 20)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Folder) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        backend = webhdfs.WebHdfsBackend(f"127.0.0.1:{server.server_port}/base")
        tracemalloc.start()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        try:
            assert sum(each.size_bytes for each in backend.files("")) == 3 * _Folder.count
            assert tracemalloc.get_traced_memory()[1] - before < 6 << 20  # 14 MiB as parsed JSON
        finally:
            tracemalloc.stop()
            server.shutdown()
    assert _Folder.asked == 2, "an answer that is cut off is asked for again"
