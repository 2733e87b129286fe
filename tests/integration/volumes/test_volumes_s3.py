"""Volumes on a real S3 server, and what happens when it fails."""

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from fake_s3 import FakeS3
from fault_proxy import FaultProxy

from trainmaster.objects import obstore_backend
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError
from trainmaster.volumes.errors import (
    DamagedChunkError,
    MissingChunkError,
    OverwritingStoreError,
    SourceChangedError,
)
from trainmaster.volumes.packed.garbage import collect_garbage
from trainmaster.volumes.packed.getting import get
from trainmaster.volumes.packed.head import head_numbers
from trainmaster.volumes.packed.indexing import index
from trainmaster.volumes.packed.opening import open_volume
from trainmaster.volumes.packed.pushing import push

pytestmark = pytest.mark.s3

MIB = 1 << 20


@pytest.fixture
def source(tmp_path):
    root = tmp_path / "src"
    for number in range(60):
        path = root / f"d{number % 3}/{number:02}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(100_000))
    (root / "large").write_bytes(os.urandom(5 * MIB))
    return root


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Errors that stay are told after a second, not after two minutes."""
    backoff = {
        "init_backoff": timedelta(milliseconds=20),
        "max_backoff": timedelta(milliseconds=200),
        "base": 2,
    }
    retry = {"max_retries": 8, "retry_timeout": timedelta(seconds=20), "backoff": backoff}
    monkeypatch.setattr(obstore_backend, "_RETRIES", retry)


def files(root):
    return {path.relative_to(root): path.read_bytes() for path in Path(root).rglob("*") if path.is_file()}


def pushed(source, url, tmp_path, **options):
    return push(source, url, cache=tmp_path / "cache", chunk_limit_bytes=2 * MIB, **options)


def test_there_and_back(s3_bucket, source, tmp_path):
    url = f"{s3_bucket}/team/cats"
    first = pushed(source, url, tmp_path, read_back=True)
    (source / "d1/01").write_bytes(b"changed")
    second = pushed(source, url, tmp_path)
    assert second.sent_chunks < first.sent_chunks / 2
    get(open_volume(url, tmp_path / "cache"), tmp_path / "out")
    assert files(tmp_path / "out") == files(source)
    assert collect_garbage(ObjectStore(url), 0, now=True).deleted_chunks == 0


def test_of_pushes_at_once_each_gets_its_number(s3_bucket, source, tmp_path):
    url = f"{s3_bucket}/v"
    reports, failures = [], []

    def run(number):
        try:
            reports.append(push(source, url, cache=tmp_path / f"cache{number}", chunk_limit_bytes=2 * MIB))
        except PublishError as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(report.version for report in reports) == [1, 2, 3, 4]
    for report in reports:
        assert open_volume(report.uri, tmp_path / "cache").head.version == report.version


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_that_fails_now_and_then(faulty_s3, source, tmp_path, status):
    proxy, url = faulty_s3
    proxy.fail("status", status=status, times=2, method="PUT", path="chunks/")
    proxy.fail("status", status=status, times=1, method="GET", path="heads")
    report = pushed(source, f"{url}/v", tmp_path)
    proxy.fail("status", status=status, times=2, method="GET", path="chunks/")
    get(open_volume(report.uri, tmp_path / "other"), tmp_path / "out")
    assert files(tmp_path / "out") == files(source)


def test_a_server_that_fails_for_good(faulty_s3, source, tmp_path):
    proxy, url = faulty_s3
    fault = proxy.fail("status", status=500, times=10_000, method="PUT", path="chunks/")
    with pytest.raises(PublishError, match=r"Cannot write s3://.*chunks/"):
        pushed(source, f"{url}/v", tmp_path)
    assert list(ObjectStore(f"{url}/v").list("pushes")) == []
    fault.times = 0
    assert pushed(source, f"{url}/v", tmp_path).version == 1


def test_no_permission(faulty_s3, source, tmp_path):
    proxy, url = faulty_s3
    proxy.fail("status", status=403, times=10_000)
    with pytest.raises(PublishError, match="AWS_ACCESS_KEY_ID"):
        pushed(source, f"{url}/v", tmp_path)
    with pytest.raises(PublishError, match="AWS_ACCESS_KEY_ID"):
        open_volume(f"{url}/v", tmp_path / "cache")


def test_answers_that_are_lost(faulty_s3, source, tmp_path):
    proxy, url = faulty_s3
    proxy.fail("lose", method="PUT", path="heads/000001")
    proxy.fail("lose", method="PUT", path="chunks/", times=2)
    report = pushed(source, f"{url}/v", tmp_path)
    assert report.version == 1, "its own head is no other's"
    assert head_numbers(ObjectStore(f"{url}/v")) == ([1], 1)


def test_connections_that_are_cut(faulty_s3, source, tmp_path):
    proxy, url = faulty_s3
    proxy.fail("refuse", method="PUT", path="chunks/", times=2)
    report = pushed(source, f"{url}/v", tmp_path)
    proxy.fail("cut", method="GET", path="chunks/", times=2, after_bytes=100_000)
    proxy.fail("cut", method="GET", path="manifests/", times=1, after_bytes=10)
    get(open_volume(report.uri, tmp_path / "other"), tmp_path / "out")
    assert files(tmp_path / "out") == files(source)


@pytest.mark.parametrize("kind", ["corrupt", "truncate"])
def test_wrong_bytes_once_and_for_good(faulty_s3, source, tmp_path, kind):
    proxy, url = faulty_s3
    report = pushed(source, f"{url}/v", tmp_path)
    volume = open_volume(report.uri, tmp_path / "cache")
    proxy.fail(kind, method="GET", path="chunks/", after_bytes=1000)
    volume.chunks.fetch_verified(0)
    fault = proxy.fail(kind, method="GET", path="chunks/", after_bytes=1000, times=10_000)
    with pytest.raises(PublishError, match=r"@1: chunk 0"):
        volume.chunks.fetch_verified(0)
    with pytest.raises(DamagedChunkError):
        get(volume, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))
    fault.times = 0
    get(volume, tmp_path / "out")


def test_a_chunk_that_was_deleted(s3_bucket, source, tmp_path):
    url = f"{s3_bucket}/v"
    pushed(source, url, tmp_path)
    store = ObjectStore(url)
    store.delete([next(iter(store.list("chunks"))).key])
    with pytest.raises(MissingChunkError, match=r"chunk \d+ .*missing"):
        get(open_volume(url, tmp_path / "cache"), tmp_path / "out")
    assert pushed(source, url, tmp_path).sent_chunks == 1, "a push mends it"


def test_a_chunk_that_was_cut_off(s3_bucket, source, tmp_path):
    url = f"{s3_bucket}/v"
    pushed(source, url, tmp_path)
    store = ObjectStore(url)
    key = next(iter(store.list("chunks"))).key
    store.put(key, store.get(key)[:-1])
    with pytest.raises(DamagedChunkError, match=r"chunk \d+ .*shorter|has only"):
        get(open_volume(url, tmp_path / "cache"), tmp_path / "out")


def test_a_download_goes_on_where_it_was(faulty_s3, source, tmp_path):
    proxy, url = faulty_s3
    report = pushed(source, f"{url}/v", tmp_path)
    volume = open_volume(report.uri, tmp_path / "cache")
    digest = volume.table.chunk_hash(volume.table.chunk_count - 1).hex()
    fault = proxy.fail("status", status=500, method="GET", path=digest, times=10_000)
    with pytest.raises(PublishError, match="is used when you try again"):
        get(volume, tmp_path / "out", jobs=1)
    assert not (tmp_path / "out").exists()
    fault.times = 0
    before = len(proxy.asked("GET", "chunks/"))
    get(volume, tmp_path / "out", jobs=1)
    assert len(proxy.asked("GET", "chunks/")) - before == 1
    assert files(tmp_path / "out") == files(source)


def test_a_server_that_overwrites_what_it_should_create(source, tmp_path, monkeypatch):
    server = FakeS3()
    server.buckets["models"] = {}
    with FaultProxy(server.url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        proxy.fail("overwrite", method="PUT", times=10_000)
        with pytest.raises(OverwritingStoreError, match="in spite of If-None-Match"):
            pushed(source, "s3://models/v", tmp_path)
    assert server.buckets["models"] == {}
    server.shutdown()
    server.server_close()


def test_a_head_that_is_overwritten_at_once(faulty_s3, source, tmp_path, monkeypatch):
    proxy, url = faulty_s3
    original = ObjectStore.put_if_absent

    def put_if_absent(store, key, data):
        won = original(store, key, data)
        if key.startswith("heads/"):
            store.put(key, b"{}")
        return won

    monkeypatch.setattr(ObjectStore, "put_if_absent", put_if_absent)
    with pytest.raises(OverwritingStoreError, match="overwritten by another push"):
        pushed(source, f"{url}/v", tmp_path)
    assert proxy.asked("PUT", "heads/")


PUSH = """
import sys
from pathlib import Path
from trainmaster.volumes.packed.pushing import push
push(sys.argv[1], sys.argv[2], cache=Path(sys.argv[3]), chunk_limit_bytes=1 << 20, jobs=2)
"""


def test_a_push_that_is_killed_sends_nothing_twice(faulty_s3, source, tmp_path):
    proxy, url = faulty_s3
    proxy.bytes_per_s = 8e6
    arguments = [sys.executable, "-c", PUSH, str(source), f"{url}/v", str(tmp_path / "cache")]
    process = subprocess.Popen(arguments)
    try:
        deadline = time.monotonic() + 60
        while len(proxy.asked("PUT", "chunks/")) < 6 and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    proxy.wait_until_idle()
    assert head_numbers(ObjectStore(f"{url}/v")) == ([], 0)
    there = sorted(info.key for info in ObjectStore(f"{url}/v").list("chunks"))
    assert len(there) >= 2
    proxy.heal()
    before = len(proxy.asked("PUT", "chunks/"))
    report = push(source, f"{url}/v", cache=tmp_path / "cache", chunk_limit_bytes=MIB)
    sent_again = {path for _, path, _ in proxy.asked("PUT", "chunks/")[before:]}
    assert not [key for key in there if any(key in path for path in sent_again)]
    assert report.sent_chunks + len(there) == report.head.chunk_count
    get(open_volume(f"{url}/v", tmp_path / "cache"), tmp_path / "out")
    assert files(tmp_path / "out") == files(source)


def test_a_slow_and_narrow_line(faulty_s3, tmp_path):
    proxy, url = faulty_s3
    (tmp_path / "src").mkdir()
    for number in range(8):
        (tmp_path / f"src/{number}").write_bytes(os.urandom(50_000))
    proxy.latency_s, proxy.bytes_per_s = 0.02, 4e6
    push(tmp_path / "src", f"{url}/v", cache=tmp_path / "cache", chunk_limit_bytes=100_000)
    get(open_volume(f"{url}/v", tmp_path / "cache"), tmp_path / "out")
    assert files(tmp_path / "out") == files(tmp_path / "src")


def test_an_index_over_objects_of_the_server(s3_bucket, source, tmp_path):
    objects = ObjectStore(f"{s3_bucket}/images")
    for path, data in files(source).items():
        objects.put(str(path), data)
    url = f"{s3_bucket}/v"
    index(objects.url, url, cache=tmp_path / "cache", chunk_limit_bytes=2 * MIB)
    volume = open_volume(url, tmp_path / "cache")
    get(volume, tmp_path / "out")
    assert files(tmp_path / "out") == files(source)
    objects.put("d1/01", os.urandom(100_000))
    row = volume.table.row_of("d1/01")
    with pytest.raises(SourceChangedError, match="images/d1/01 was written again"):
        volume.chunks.fetch(*volume.table.extents(row)[0])


@pytest.mark.crossings
def test_a_line_on_which_a_chunk_takes_too_long(faulty_s3, tmp_path, monkeypatch):
    """One request for 64 MiB would time out for ever; parts of it do not."""
    proxy, url = faulty_s3
    monkeypatch.setattr(obstore_backend, "_PART_BYTES", 5 * MIB)
    monkeypatch.setattr(obstore_backend, "_REQUEST_TIMEOUT", timedelta(seconds=2))
    monkeypatch.setattr(
        obstore_backend, "_RETRIES", {"max_retries": 3, "retry_timeout": timedelta(seconds=1)}
    )
    (tmp_path / "src").mkdir()
    (tmp_path / "src/x").write_bytes(os.urandom(20 * MIB))
    proxy.bytes_per_s = 8e6
    push(tmp_path / "src", f"{url}/v", cache=tmp_path / "cache", chunk_limit_bytes=20 * MIB)
    assert proxy.asked("POST", "?uploads")
    assert len(proxy.asked("PUT", "partNumber")) >= 4
    proxy.heal()
    get(open_volume(f"{url}/v", tmp_path / "cache"), tmp_path / "out")
    assert files(tmp_path / "out") == files(tmp_path / "src")
