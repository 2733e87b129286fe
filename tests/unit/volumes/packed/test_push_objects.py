"""Pushing what lies on a store: objects below a URL, or one that is a tar."""

import io
import random
import secrets
import subprocess
import sys
import tarfile

import pytest
from packed_trees import contents

from trainmaster.artifacts import UnstableDirectory
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import NotFoundError, PublishError
from trainmaster.volumes.errors import VersionConflictError
from trainmaster.volumes.packed.getting import get
from trainmaster.volumes.packed.indexing import IndexProgress, index
from trainmaster.volumes.packed.object_source import single_object
from trainmaster.volumes.packed.opening import open_volume
from trainmaster.volumes.packed.pushing import PushProgress, push

pytest_plugins = ["volumes_packed"]

LIMIT = 100_000


@pytest.fixture
def bucket():
    """Objects in memory: many small ones, one larger than a chunk, one that stands for a folder."""
    store = ObjectStore(f"memory://{secrets.token_hex(8)}/raw")
    rng = random.Random(0)
    for number in range(60):
        store.put(f"d{number % 3}/{number:02}", rng.randbytes(rng.randrange(9_000)))
    store.put("large", rng.randbytes(3 * LIMIT))
    store.put("empty", b"")
    store.put("d0_$folder$", b"")
    return store


def test_objects_become_files(bucket, tmp_path):
    report = push(bucket.url, f"file://{tmp_path}/v", cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
    assert report.head.file_count == 62
    get(open_volume(f"file://{tmp_path}/v", tmp_path / "cache"), tmp_path / "out")
    found = {path.decode(): value[0] for path, value in contents(tmp_path / "out").items() if len(value) == 3}
    assert found == {info.key: bucket.get(info.key) for info in bucket.list() if "$" not in info.key}


def test_objects_that_stay_are_not_read_again(bucket, tmp_path, monkeypatch):
    url, cache = f"file://{tmp_path}/v", tmp_path / "cache"
    for key in [info.key for info in bucket.list()]:
        bucket.put(key, bucket.get(key))
    push(bucket.url, url, cache=cache, chunk_limit_bytes=LIMIT)
    monkeypatch.setattr("trainmaster.volumes.packed.chunk_upload._RACY_NS", -(10**12))
    push(bucket.url, url, cache=cache, chunk_limit_bytes=LIMIT)
    reads = []
    original = ObjectStore.get_range
    monkeypatch.setattr(
        ObjectStore, "get_range", lambda self, key, *rest: reads.append(key) or original(self, key, *rest)
    )
    assert push(bucket.url, url, cache=cache, chunk_limit_bytes=LIMIT).sent_chunks == 0
    assert reads == []
    bucket.put("d1/01", b"changed")
    assert push(bucket.url, url, cache=cache, chunk_limit_bytes=LIMIT).sent_chunks >= 1
    assert "large" not in reads


@pytest.mark.parametrize("how", ["written", "removed", "added"])
def test_objects_that_change_meanwhile(bucket, tmp_path, monkeypatch, how):
    original = ObjectStore.get_range

    def change(self, key, *rest):
        data = original(self, key, *rest)
        if how == "removed":
            bucket.delete(["d1/01"])
        else:
            bucket.put("d1/01" if how == "written" else "new", b"other")
        return data

    monkeypatch.setattr(ObjectStore, "get_range", change)
    with pytest.raises(UnstableDirectory, match="while it was pushed"):
        push(bucket.url, f"file://{tmp_path}/v", cache=tmp_path / "cache", chunk_limit_bytes=LIMIT)
    assert list(ObjectStore(f"file://{tmp_path}/v").list("heads")) == []


def test_keys_that_cannot_be_paths(bucket, tmp_path):
    with pytest.raises(NotFoundError, match="no objects"):
        push(f"{bucket.url}/nothing/", f"file://{tmp_path}/v", cache=tmp_path / "cache")
    bucket.put("d0", b"a file and a folder")
    with pytest.raises(PublishError, match="'d0' is an object, and a folder too"):
        push(bucket.url, f"file://{tmp_path}/v", cache=tmp_path / "cache")


def tar_bytes(mode):
    place = io.BytesIO()
    with tarfile.open(fileobj=place, mode=mode) as archive:
        for number in range(20):
            member = tarfile.TarInfo(f"d/{number}")
            member.size = 20_000
            archive.addfile(member, io.BytesIO(random.Random(number).randbytes(member.size)))
    return place.getvalue()


def zstd(data):
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.compress(data, "zstd", asbytes=True)


@pytest.mark.parametrize("form", ["plain", "gz", "zst"])
def test_a_tar_among_objects(bucket, tmp_path, form):
    data = tar_bytes("w:gz") if form == "gz" else tar_bytes("w")
    bucket.put("set.tar", zstd(data) if form == "zst" else data)
    progress = PushProgress()
    push(f"{bucket.url}/set.tar", f"file://{tmp_path}/v", cache=tmp_path / "cache", progress=progress)
    done, total = progress.shown
    assert total == len(bucket.get("set.tar"))
    assert 0.9 * total < done <= total
    volume = open_volume(f"file://{tmp_path}/v", tmp_path / "cache")
    get(volume, tmp_path / "out")
    assert (tmp_path / "out/d/7").read_bytes() == random.Random(7).randbytes(20_000)


def test_one_object_is_indexed(bucket, tmp_path):
    bucket.put("sets/a.tar", tar_bytes("w"))
    volume = f"memory://{secrets.token_hex(8)}/v"
    progress = IndexProgress()
    index(f"{bucket.url}/sets/a.tar", volume, cache=tmp_path / "cache", progress=progress)
    size_bytes = len(bucket.get("sets/a.tar"))
    assert (progress.found_objects, progress.shown) == (1, (size_bytes, size_bytes))
    opened = open_volume(volume, tmp_path / "cache")
    assert opened.table.row_of("a/d/7") >= 0
    get(opened, tmp_path / "out")
    assert (tmp_path / "out/a/d/7").read_bytes() == random.Random(7).randbytes(20_000)


def test_compressed_archives_among_indexed_objects_are_named(bucket, tmp_path):
    bucket.put("sets/a.tar.gz", tar_bytes("w:gz"))
    report = index(f"{bucket.url}/sets", f"memory://{secrets.token_hex(8)}/v", cache=tmp_path / "cache")
    assert "trainmaster volume push" in report.notes[0]


def test_a_tar_by_zstd(tmp_path):
    place = tmp_path / "x.tar.zst"
    place.write_bytes(zstd(tar_bytes("w")))
    assert push(place, f"file://{tmp_path}/v", cache=tmp_path / "cache").head.file_count == 20
    place.write_bytes(place.read_bytes()[:200_000])
    with pytest.raises(PublishError, match="damaged"):
        push(place, f"file://{tmp_path}/v", cache=tmp_path / "cache")


def test_a_tar_that_is_written_again_meanwhile(bucket, tmp_path, monkeypatch):
    bucket.put("set.tar", tar_bytes("w:gz"))
    original = ObjectStore.blocks

    def blocks(self, key):
        for number, block in enumerate(original(self, key)):
            if number == 0 and key == "set.tar":
                bucket.put(key, b"another")
            yield block

    monkeypatch.setattr(ObjectStore, "blocks", blocks)
    with pytest.raises(UnstableDirectory):
        push(f"{bucket.url}/set.tar", f"file://{tmp_path}/v", cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("data", "match"), [(b"PK\x03\x04rest", "zip archive"), (b"\xff\xd8jpeg" * 200, "no tar")]
)
def test_one_file_is_no_volume(tmp_path, data, match):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(PublishError, match=match) as caught:
        push(tmp_path / "x", f"file://{tmp_path}/v", cache=tmp_path / "cache")
    assert "directory" in caught.value.hint


def test_an_unexpected_newest_version_is_told_before_anything_is_sent(bucket, tmp_path):
    with pytest.raises(VersionConflictError):
        push(bucket.url, f"file://{tmp_path}/v", cache=tmp_path / "cache", expect=3)
    assert not (tmp_path / "v/chunks").exists()


def test_pushing_does_not_import_pandas(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a").write_bytes(b"1")
    program = (
        "import sys\nfrom pathlib import Path\nfrom trainmaster.volumes.packed.pushing import push\n"
        "push(sys.argv[1], sys.argv[2], cache=Path(sys.argv[3]))\n"
        "assert 'pandas' not in sys.modules\n"
    )
    places = [str(tmp_path / "src"), f"file://{tmp_path}/v", str(tmp_path / "cache")]
    subprocess.run([sys.executable, "-c", program, *places], check=True)


def test_a_bucket_is_no_object_of_a_local_directory(tmp_path, monkeypatch):
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:/bucket").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    store = ObjectStore("s3://bucket")
    assert single_object(store) == (store, [])
