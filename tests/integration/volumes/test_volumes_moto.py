"""A second opinion on what an S3 server may say: moto, which is stricter than SeaweedFS in places."""

import os

import pytest

from trainmaster.objects.object_store import ObjectChangedError, ObjectStore
from trainmaster.volumes.errors import SourceChangedError
from trainmaster.volumes.packed.getting import get
from trainmaster.volumes.packed.indexing import index
from trainmaster.volumes.packed.opening import open_volume
from trainmaster.volumes.packed.pushing import push


@pytest.fixture(scope="module")
def moto_url():
    server_module = pytest.importorskip("moto.server", reason="moto with its server is not installed")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def moto_bucket(moto_url, monkeypatch):
    import boto3

    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="volumes")
    client.close()
    yield "s3://volumes"
    ObjectStore("s3://volumes").delete_all("")


def test_objects(moto_bucket):
    store = ObjectStore(moto_bucket)
    store.put("a/b", b"0123456789")
    info = store.info("a/b")
    assert (info.size_bytes, info.etag) == (10, next(store.details("a")).etag)
    assert bytes(store.get_range("a/b", 3, 4, info.etag)) == b"3456"
    assert bytes(store.get_range("a/b", 8, 4)) == b"89"
    store.put("a/b", b"other bytes")
    with pytest.raises(ObjectChangedError):
        store.get_range("a/b", 3, 4, info.etag)
    with pytest.raises(FileNotFoundError):
        store.get_range("a/c", 0, 1)
    assert store.info("a/c") is None
    assert store.put_if_absent("head", b"1")
    assert not store.put_if_absent("head", b"2")


def test_volumes(moto_bucket, tmp_path):
    (tmp_path / "src").mkdir()
    for number in range(10):
        (tmp_path / f"src/{number}").write_bytes(os.urandom(30_000))
    url = f"{moto_bucket}/v"
    for version in (1, 2):
        report = push(tmp_path / "src", url, cache=tmp_path / "cache", chunk_limit_bytes=100_000)
        assert report.version == version
    get(open_volume(url, tmp_path / "cache"), tmp_path / "out")
    objects = ObjectStore(f"{moto_bucket}/objects")
    for number in range(10):
        assert (tmp_path / f"out/{number}").read_bytes() == (tmp_path / f"src/{number}").read_bytes()
        objects.put(str(number), b"%d" % number * 1000)
    indexed = index(objects.url, f"{moto_bucket}/indexed", cache=tmp_path / "cache")
    volume = open_volume(indexed.uri, tmp_path / "cache")
    assert bytes(volume.chunks.fetch(0, 2500, 1000)) == b"2" * 500 + b"3" * 500
    objects.put("3", b"x" * 1000)
    with pytest.raises(SourceChangedError, match="objects/3 was written again"):
        volume.chunks.fetch(0)
