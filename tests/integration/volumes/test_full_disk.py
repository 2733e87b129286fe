"""A disk that is full: said plainly, and nothing half-written stays."""

import os
import subprocess

import pytest

from trainmaster import artifacts
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError
from trainmaster.volumes.errors import CacheError
from trainmaster.volumes.packed.getting import get
from trainmaster.volumes.packed.opening import open_volume
from trainmaster.volumes.packed.pushing import push
from trainmaster.volumes.reading.cache import ChunkCache


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)  # a cache may still be mapped


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").mkdir()
    for number in range(10):
        (tmp_path / f"source/{number}").write_bytes(b"x" * 1_000_000)
    return tmp_path / "source"


def test_publishing(small_disk, source):
    with pytest.raises(PublishError, match=r"(?s)Cannot write file://.*: No space left.*Free some space"):
        artifacts.publish({"": source}, str(small_disk / "m"), kind="model")
    assert list(ObjectStore(str(small_disk)).list()) == []
    for number in range(3, 10):
        (source / str(number)).unlink()
    assert artifacts.publish({"": source}, str(small_disk / "m"), kind="model") is not None


def test_fetching(small_disk, source, tmp_path):
    artifacts.publish({"": source}, str(tmp_path / "store"), kind="model")
    with pytest.raises(PublishError, match="No space left"):
        artifacts.fetch(str(tmp_path / "store"), small_disk / "back")
    assert list(small_disk.iterdir()) == []


def test_snapshots(small_disk, source):
    with pytest.raises(PublishError, match="No space left"):
        artifacts.take_snapshot(".", source, small_disk)
    assert list(small_disk.iterdir()) == []


def test_pushing_to_it(small_disk, source, tmp_path):
    for number in range(10):  # or they would share one chunk
        (source / str(number)).write_bytes(os.urandom(1_000_000))
    with pytest.raises(PublishError, match=r"(?s)Cannot write file://.*: No space left.*Free some space"):
        push(source, f"file://{small_disk}/v", cache=tmp_path / "cache", chunk_limit_bytes=2_000_000)
    assert list(ObjectStore(f"file://{small_disk}/v").list("heads")) == []


def test_getting_to_it(small_disk, source, tmp_path):
    push(source, f"file://{tmp_path}/v", cache=tmp_path / "cache", chunk_limit_bytes=2_000_000)
    with pytest.raises(PublishError, match="No space left"):
        get(open_volume(f"file://{tmp_path}/v", tmp_path / "cache"), small_disk / "out")
    assert list(small_disk.iterdir()) == []


def test_a_cache_on_it(small_disk, source, tmp_path):
    (small_disk / "in the way").write_bytes(bytes(4 << 20)[: (4 << 20) - 8192])
    with pytest.raises(PublishError, match="No space left"):
        push(source, f"file://{tmp_path}/v", cache=small_disk)
    push(source, f"file://{tmp_path}/v", cache=tmp_path / "cache")
    with pytest.raises(PublishError, match="No space left"):
        open_volume(f"file://{tmp_path}/v", small_disk)
    (small_disk / "in the way").unlink()
    assert open_volume(f"file://{tmp_path}/v", small_disk).table.file_count == 10


def test_chunks_on_it(small_disk, monkeypatch):
    monkeypatch.delenv("TRAINMASTER_CACHE_BYTES", raising=False)
    (small_disk / "in the way").write_bytes(bytes(3 << 20))
    with pytest.raises(CacheError, match=r"(?s)disk of the chunk cache .*small.* is full: .*another disk"):
        ChunkCache(small_disk / "chunks", slot_bytes=1 << 20)
    (small_disk / "in the way").unlink()
    ChunkCache(small_disk / "chunks", slot_bytes=1 << 20).close()  # what was too little is not remembered
