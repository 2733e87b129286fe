import io
import json
import os
import random
import struct
import tarfile

import pytest

from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import NotFoundError, PublishError, UsageError
from trainmaster.volumes.errors import SourceChangedError
from trainmaster.volumes.packed.getting import get
from trainmaster.volumes.packed.indexing import index
from trainmaster.volumes.packed.opening import open_volume
from trainmaster.volumes.packed.pushing import push

pytest_plugins = ["volumes_packed"]

LIMIT = 10_000


@pytest.fixture
def objects(packed_url):
    """A store with foreign objects, of the same kind as the volume's."""
    return ObjectStore(f"{packed_url}-objects")


def indexed(objects, url, tmp_path, **options):
    index(objects.url, url, cache=tmp_path / "cache", chunk_limit_bytes=LIMIT, **options)
    return open_volume(url, tmp_path / "cache")


def read(volume, path):
    row = volume.table.row_of(path)
    return b"".join(volume.chunks.fetch(*extent) for extent in volume.table.extents(row))


def test_objects_as_they_are(objects, packed_url, tmp_path):
    rng = random.Random(0)
    files = {
        f"train/{number % 3}/{number:03}.jpg": rng.randbytes(rng.randrange(3000)) for number in range(50)
    }
    files |= {"large.bin": rng.randbytes(35_000), "empty": b""}
    for key, data in files.items():
        objects.put(key, data)
    volume = indexed(objects, packed_url, tmp_path)
    assert volume.head.kind == "indexed"
    assert {volume.table.path(row) for row in range(volume.table.file_count)} == set(files)
    assert all(read(volume, path) == data for path, data in files.items())
    assert max(volume.table.chunk_sizes) <= LIMIT
    assert volume.table.chunk_count < len(files) / 2, "many objects share a chunk"
    assert list(ObjectStore(packed_url).list("chunks")) == [], "nothing was copied"
    for chunk in range(volume.table.chunk_count):
        volume.chunks.fetch_verified(chunk)
        assert volume.table.chunk_hash(chunk) is None
    get(volume, tmp_path / "out")
    assert (tmp_path / "out/large.bin").read_bytes() == files["large.bin"]


def test_a_part_of_a_chunk_asks_only_for_its_objects(objects, packed_url, tmp_path, monkeypatch):
    for number in range(8):
        objects.put(str(number), bytes([number]) * 1000)
    volume = indexed(objects, packed_url, tmp_path)
    asked = []
    original = ObjectStore.get_range
    monkeypatch.setattr(
        ObjectStore, "get_range", lambda self, key, *rest: (asked.append(key), original(self, key, *rest))[1]
    )
    assert bytes(volume.chunks.fetch(0, 1500, 1000)) == b"\1" * 500 + b"\2" * 500
    assert sorted(asked) == ["1", "2"]


@pytest.mark.parametrize("how", ["write", "delete", "shorten"])
def test_an_object_that_changed(objects, packed_url, tmp_path, how):
    objects.put("a", b"a" * 1000)
    objects.put("b", b"b" * 1000)
    volume = indexed(objects, packed_url, tmp_path)
    if how == "delete":
        objects.delete(["b"])
    else:
        objects.put("b", b"c" * (1000 if how == "write" else 10))
    assert bytes(volume.chunks.fetch(0, 0, 1000)) == b"a" * 1000
    with pytest.raises(SourceChangedError, match=r"(?s)/b .*Index it again: trainmaster volume index"):
        volume.chunks.fetch_verified(0)
    assert indexed(objects, packed_url, tmp_path).head.version == 2


def tar(members):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def test_tar_shards(objects, packed_url, tmp_path):
    rng = random.Random(0)
    expected = {}
    for shard in range(3):
        members = {}
        for sample in range(20):
            members[f"{sample:04}.jpg"] = rng.randbytes(rng.randrange(2000))
            members[f"{sample:04}.cls"] = b"%d" % sample
        members["large.bin"] = rng.randbytes(25_000)
        objects.put(f"train/{shard:03}.tar", tar(members))
        expected |= {f"train/{shard:03}/{name}": data for name, data in members.items()}
    objects.put("train/sizes.json", b"{}")
    volume = indexed(objects, packed_url, tmp_path)
    paths = [volume.table.path(row) for row in range(volume.table.file_count)]
    assert paths == list(expected), "in the order of the archive: a sample's files are neighbours"
    assert all(read(volume, path) == data for path, data in expected.items())
    assert max(volume.table.chunk_sizes) <= LIMIT
    parts = sum(len(volume.table.parts(chunk)) for chunk in range(volume.table.chunk_count))
    assert parts <= volume.table.chunk_count + 4, "neighbours in a tar are one range"
    get(volume, tmp_path / "out")
    assert (tmp_path / "out/train/001/0007.cls").read_bytes() == b"7"


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"no tar at all" * 100, "no tar"),
        (tar({"x": b"1" * 5000})[:3000], "ends in the middle"),
        (tar({"../x": b"1"}), "outside"),
        (tar({"x": b"1", "x/y": b"1"}), "no directory|there twice"),
    ],
)
def test_tars_that_are_none(objects, packed_url, tmp_path, data, match):
    objects.put("a.tar", data)
    with pytest.raises(PublishError, match=match):
        indexed(objects, packed_url, tmp_path)
    assert list(ObjectStore(packed_url).list("heads")) == []


def mds(store, folder, shards, columns, **changes):
    """Writes shards as MosaicML Streaming does: count, offsets, a header, samples with their sizes."""
    index_shards = []
    for number, samples in enumerate(shards):
        encoded = []
        for sample in samples:
            free = [len(value) for value, (_, _, size) in zip(sample, columns, strict=True) if size is None]
            encoded.append(struct.pack(f"<{len(free)}I", *free) + b"".join(sample))
        config = b'{"format": "mds"}\n'
        start = 4 + 4 * (len(encoded) + 1) + len(config)
        ends = [start]
        for data in encoded:
            ends.append(ends[-1] + len(data))
        body = struct.pack(f"<I{len(ends)}I", len(encoded), *ends) + config + b"".join(encoded)
        name = f"shard.{number:05}.mds"
        store.put(f"{folder}{name}", body)
        index_shards.append(
            {
                "column_names": [name for name, _, _ in columns],
                "column_encodings": [encoding for _, encoding, _ in columns],
                "column_sizes": [size for _, _, size in columns],
                "compression": None,
                "format": "mds",
                "hashes": [],
                "raw_data": {"basename": name, "bytes": len(body), "hashes": {}},
                "samples": len(samples),
                "size_limit": 1 << 26,
                "version": 2,
                "zip_data": None,
                **changes,
            }
        )
    store.put(f"{folder}index.json", json.dumps({"shards": index_shards, "version": 2}).encode())


@pytest.mark.parametrize("folder", ["", "train/"])
@pytest.mark.parametrize("columns", [["image"], ["image", "text"]])
def test_mds_shards(objects, packed_url, tmp_path, folder, columns):
    rng = random.Random(0)
    kinds = [("image", "jpeg", None), ("label", "int", 8), ("text", "str", None)]
    used = [kind for kind in kinds if kind[0] in [*columns, "label"]]
    shards = [
        [[rng.randbytes(8 if size else rng.randrange(900)) for _, _, size in used] for _ in range(30)]
        for _ in range(2)
    ]
    mds(objects, folder, shards, used)
    volume = indexed(objects, packed_url, tmp_path)
    for number, samples in enumerate(shards):
        for position, sample in enumerate(samples):
            for value, (name, encoding, _) in zip(sample, used, strict=True):
                path = f"{folder}shard.{number:05}/{position:08}.{name}.{encoding}"
                assert read(volume, path) == value
    assert volume.table.file_count == 60 * len(used)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"zip_data": {"basename": "x"}, "compression": "zstd"}, "compressed"),
        ({"format": "jsonl"}, "format"),
        ({"raw_data": {"basename": "../../x", "bytes": 3}}, "not there"),
        ({"column_sizes": [4]}, "shorter than it is|longer than it is"),
        ({"column_names": []}, "without names"),
        ({"raw_data": None}, "no index"),
    ],
)
def test_mds_shards_that_are_none(objects, packed_url, tmp_path, changes, match):
    mds(objects, "", [[[b"12345678"]]], [("a", "int", 8)], **changes)
    with pytest.raises(PublishError, match=match):
        indexed(objects, packed_url, tmp_path)


def test_calls_of_index_that_are_wrong(objects, packed_url, tmp_path):
    with pytest.raises(NotFoundError, match="no objects"):
        indexed(objects, packed_url, tmp_path)
    objects.put("a", b"1")
    with pytest.raises(UsageError, match="makes a new version"):
        index(objects.url, f"{packed_url}@1", cache=tmp_path / "cache")
    with pytest.raises(UsageError, match="files of this machine"):
        index(f"file://{tmp_path}", "memory://elsewhere/v", cache=tmp_path / "cache")
    with pytest.raises(PublishError, match=r"called \*\.tar"):
        indexed(objects, packed_url, tmp_path, kind="tar")


def test_a_volume_may_have_both_kinds_of_versions(objects, packed_url, tmp_path):
    objects.put("a", b"indexed")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a").write_bytes(b"pushed")
    indexed(objects, packed_url, tmp_path)
    push(tmp_path / "src", packed_url, cache=tmp_path / "cache")
    for version, data in ((1, b"indexed"), (2, b"pushed")):
        assert read(open_volume(f"{packed_url}@{version}", tmp_path / "cache"), "a") == data


def test_folders_that_are_objects(objects, packed_url, tmp_path):
    objects.put("d_$folder$", b"")
    objects.put("d/x", b"1")
    assert indexed(objects, packed_url, tmp_path).table.file_count == 1
    assert os.sep == "/"
